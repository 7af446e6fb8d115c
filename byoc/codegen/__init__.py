"""The codegen interface: the Protocols that a vendor implements, and the values they exchange.

A codegen is a class with a `name` and one method, `compile`, registered under the entry-point group
`byoc.codegens`. Each further ability is a Protocol of this module that the class satisfies.
"""

from byoc.boundary.contract import TensorContract
from byoc.codegen.api import (
    ABILITIES,
    API_VERSION,
    Artifact,
    Codegen,
    CompileError,
    Context,
    ContextSource,
    Executable,
    Executor,
    Measured,
    Oracle,
    Region,
    ResourceError,
    Stamped,
    Together,
)
from byoc.codegen.arena import Arena, ArenaSlot
from byoc.codegen.dispatch import Emitters
from byoc.codegen.find import parse_codegen_options, find_codegen
from byoc.codegen.operations import Operation
from byoc.codegen.options import Bytes, NoOptions, read_options, format_options

__all__ = [
    "ABILITIES",
    "API_VERSION",
    "Arena",
    "Artifact",
    "Bytes",
    "Codegen",
    "CompileError",
    "Context",
    "ContextSource",
    "TensorContract",
    "Emitters",
    "Executable",
    "Executor",
    "Measured",
    "NoOptions",
    "Operation",
    "Oracle",
    "ArenaSlot",
    "Region",
    "ResourceError",
    "Stamped",
    "Together",
    "parse_codegen_options",
    "find_codegen",
    "read_options",
    "format_options",
]
