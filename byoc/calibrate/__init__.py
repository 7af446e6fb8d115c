"""Ranges of tensors measured on data, and what quantization costs in accuracy."""

from byoc.calibrate.door import DEFAULT_METHOD, calibrate
from byoc.calibrate.images import Preprocessing

__all__ = ["DEFAULT_METHOD", "Preprocessing", "calibrate"]
