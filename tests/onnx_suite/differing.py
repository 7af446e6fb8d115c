"""Whether a value is what was expected. Imports nothing of byoc: a process that asks starts fast."""

from typing import Any

import numpy as np

# Two units in the last place. ONNX's own runner allows them for bfloat16; a model that is cut needs them
# for float16 as well: what crosses is rounded, where onnxruntime goes on in float32 if left alone.
_LEAST_RTOL = {"bfloat16": 2.0**-6, "float16": 2.0**-9}


def differs(expected: Any, actual: Any, rtol: float, atol: float) -> str:
    """Return how a value differs from an expected one by more than a tolerance, or nothing."""
    if expected is None or actual is None:
        return "" if expected is actual else f"is {type(actual).__name__}, not {type(expected).__name__}"
    if isinstance(expected, list) or isinstance(actual, list):
        if not isinstance(expected, list) or not isinstance(actual, list):
            return f"is {type(actual).__name__}, not {type(expected).__name__}"
        if len(expected) != len(actual):
            return f"has {len(actual)} elements, not {len(expected)}"
        found = (differs(*pair, rtol, atol) for pair in zip(expected, actual, strict=True))
        return next(filter(None, found), "")
    return _array_differs(np.asarray(expected), np.asarray(actual), rtol, atol)


def _array_differs(expected: Any, actual: Any, rtol: float, atol: float) -> str:
    if expected.shape != actual.shape:
        return f"has shape {list(actual.shape)}, not {list(expected.shape)}"
    if expected.dtype.kind in "OSU" and actual.dtype.kind in "OSU":
        same = np.array_equal(expected.astype(object), actual.astype(object))
        return "" if same else "is other text"
    if expected.dtype != actual.dtype:
        return f"is {actual.dtype}, not {expected.dtype}"
    rtol = max(rtol, _LEAST_RTOL.get(expected.dtype.name, 0.0))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    wanted, got = expected.astype(wide), actual.astype(wide)
    close = np.isclose(got, wanted, rtol=rtol, atol=atol, equal_nan=True)
    return "" if close.all() else f"is off at {int(np.count_nonzero(~close))} of {close.size} places"
