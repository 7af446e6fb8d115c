"""Fewer Transposes on the host: merged, cancelled, and moved to where the fewest bytes cross them."""

from byoc.boundary.transposes.fewer import fewer

__all__ = ["fewer"]
