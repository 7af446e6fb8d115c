"""The codegen interface: what a vendor implements, and what it is handed.

A codegen is a class with a `name` and one method, `compile`, registered under the entry-point group
`byoc.codegens`. What else it can do, it shows by satisfying a further Protocol of this module.
"""

from byoc.boundary.contract import Contract
from byoc.codegen.api import Artifact, Codegen, CompileError, Executable, Executor, Region
from byoc.codegen.find import find_codegen

__all__ = [
    "Artifact",
    "Codegen",
    "CompileError",
    "Contract",
    "Executable",
    "Executor",
    "Region",
    "find_codegen",
]
