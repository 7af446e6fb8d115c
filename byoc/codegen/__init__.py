"""The codegen interface: the Protocols that a vendor implements, and the values they exchange.

A codegen is a class with a `name` and one method, `compile`, registered under the entry-point group
`byoc.codegens`. Each further ability is a Protocol of this module that the class satisfies.
"""

from byoc.boundary.contracts import TensorContract
from byoc.codegen._calling import (
    ArtifactError,
    compile_region,
    compile_together,
    find_codegen,
    measure_seconds,
    parse_codegen_options,
)
from byoc.codegen._codegen_options import (
    SIZE_UNITS,
    Bytes,
    NoOptions,
    Option,
    find_option_problems,
    format_options,
    list_options,
    parse_size,
    read_options,
)
from byoc.codegen._emitters import Emitters
from byoc.codegen._identical_regions import ArtifactCache, find_identical, region_structure
from byoc.codegen._interface import (
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
from byoc.codegen._isolation import Isolation, compile_isolated
from byoc.codegen._operations import Operation
from byoc.codegen._refusals import Refusal, RefusedError, resolve_node_names
from byoc.codegen._region_arena import Arena, ArenaSlot
from byoc.codegen._region_files import find_disagreement, read_region
from byoc.codegen._single_nodes import SingleNode, node_names, similarity_key, split_into_nodes
from byoc.codegen._untrusted import (
    describe_path_problem,
    escape_line,
    is_plain_name,
    parse_strict_json,
    quote_name,
)

__all__ = [
    "ABILITIES",
    "API_VERSION",
    "SIZE_UNITS",
    "Arena",
    "ArenaSlot",
    "Artifact",
    "ArtifactCache",
    "ArtifactError",
    "Bytes",
    "Codegen",
    "CompileError",
    "Context",
    "ContextSource",
    "Emitters",
    "Executable",
    "Executor",
    "Isolation",
    "Measured",
    "NoOptions",
    "Operation",
    "Option",
    "Oracle",
    "Refusal",
    "RefusedError",
    "Region",
    "ResourceError",
    "SingleNode",
    "Stamped",
    "TensorContract",
    "Together",
    "compile_isolated",
    "compile_region",
    "compile_together",
    "describe_path_problem",
    "escape_line",
    "find_codegen",
    "find_disagreement",
    "find_identical",
    "find_option_problems",
    "format_options",
    "is_plain_name",
    "list_options",
    "measure_seconds",
    "node_names",
    "parse_codegen_options",
    "parse_size",
    "parse_strict_json",
    "quote_name",
    "read_options",
    "read_region",
    "region_structure",
    "resolve_node_names",
    "similarity_key",
    "split_into_nodes",
]
