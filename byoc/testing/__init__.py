"""The conformance kit for codegens: `CodegenConformance`, which a vendor subclasses in three lines.

It needs pytest and onnxruntime, which byoc itself does not require.
"""

try:
    import pytest as _pytest
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "byoc.testing needs pytest, which is not installed (pip install pytest)"
    ) from None

from byoc.testing._conformance import CodegenConformance
from byoc.testing._conformance_kit import Claims

__all__ = ["Claims", "CodegenConformance"]
