"""The codegen interface: what a vendor implements, and what it is handed.

A codegen is a class with a `name` and one method, `compile`, registered under the entry-point group
`byoc.codegens`. What else it can do, it shows by satisfying a further Protocol of this module.
"""

from byoc.boundary.contract import Contract
from byoc.codegen.api import (
    API_VERSION,
    Artifact,
    Codegen,
    CompileError,
    Executable,
    Executor,
    Measured,
    Oracle,
    Region,
    ResourceError,
    Stamped,
    Together,
)
from byoc.codegen.find import find_codegen

__all__ = [
    "API_VERSION",
    "Artifact",
    "Codegen",
    "CompileError",
    "Contract",
    "Executable",
    "Executor",
    "Measured",
    "Oracle",
    "Region",
    "ResourceError",
    "Stamped",
    "Together",
    "find_codegen",
]
