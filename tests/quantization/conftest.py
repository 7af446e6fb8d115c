"""The network that is calibrated."""

from calibrating import net

__all__ = ["net"]
