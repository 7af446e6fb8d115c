"""Reduction of Transposes on the host: merge, cancel, and move them where they cost the fewest bytes."""

from byoc.boundary.transposes.fewer import minimize_transposes

__all__ = ["minimize_transposes"]
