"""The codegen interface: what a vendor implements, and what it is handed.

A codegen is a class with a `name` and one method, `compile`, registered under the entry-point group
`byoc.codegens`. What else it can do, it shows by satisfying a further Protocol of this module.
"""

from byoc.codegen.api import (
    Artifact,
    Codegen,
    CompileError,
    Executable,
    Executor,
    Oracle,
    Region,
    Value,
)
from byoc.codegen.find import find_codegen
from byoc.codegen.options import read_options, written_options

__all__ = [
    "Artifact",
    "Codegen",
    "CompileError",
    "Executable",
    "Executor",
    "Oracle",
    "Region",
    "Value",
    "find_codegen",
    "read_options",
    "written_options",
]
