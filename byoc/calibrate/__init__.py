"""Ranges of tensors measured on data."""

from byoc.calibrate.door import DEFAULT_METHOD, calibrate
from byoc.calibrate.images import Preprocessing

__all__ = ["DEFAULT_METHOD", "Preprocessing", "calibrate"]
