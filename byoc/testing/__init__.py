"""The conformance kit for codegens: `CodegenConformance`, which a vendor subclasses in three lines.

It needs pytest and onnxruntime, which byoc itself does not require. The names are imported when they are
first used: a worker process that runs a check of an executor needs neither pytest nor the cases.
"""

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.testing._conformance import CodegenConformance as CodegenConformance
    from byoc.testing._conformance_kit import Claims as Claims
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

if _find_spec("pytest") is None:
    raise ModuleNotFoundError(
        "byoc.testing needs pytest, which is not installed (pip install pytest)"
    ) from None
