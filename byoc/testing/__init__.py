"""What a vendor tests a codegen with: `CodegenConformance`, to be subclassed in three lines.

It needs pytest and onnxruntime, which byoc itself runs without.
"""

try:
    import pytest as _pytest  # noqa: F401
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "byoc.testing needs pytest, which is not installed (pip install pytest)"
    ) from None

from byoc.testing.claims import Claims
from byoc.testing.conformance import CodegenConformance

__all__ = ["Claims", "CodegenConformance"]
