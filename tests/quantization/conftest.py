"""The network that is calibrated."""

from helpers.calibrating import net

__all__ = ["net"]
