"""Emit C for a region by emx-onnx-cgen.

The emitted function takes pointers to the inputs, the large constants and the outputs. Large constants
are arguments and not part of the source, because the bundle has them already, and writing them takes
long (10 s and 4 GB for 240 MB).
"""

from functools import cache
from threading import Lock
from typing import Any

from onnx import ModelProto

from byoc.codegen import (
    YES,
    ByocError,
    CompileError,
    MissingRuntimeError,
    Region,
    SingleNode,
    Verdict,
    check_each_node,
    define_emx_nodes,
    describe_error,
    find_refused_nodes,
    mend_emx_source,
    refuse,
    shorten_text,
    split_into_nodes,
)

from .c_compiler import COptions, find_lacking_type
from .separated_region import load_standard_model
from .source_texts import adapt_model

ENTRY = "region"
_MISSING = (
    "emx-onnx-cgen is not installed (pip install 'onnx-byoc[c]'; "
    "--codegen reference runs on onnxruntime instead)"
)
_MAX_ON_STACK = 64  # bytes of a temporary that is not allocated; there may be thousands
_MAX_CHARACTERS = 300
# The emitted function returns early, without an error, if it gets no memory.
FAILED = "region_failed"
_STDLIB = "#include <stdlib.h>"
_WATCHED = f"""{_STDLIB}

static _Thread_local int region_without_memory;

static void *region_malloc(size_t size) {{
    void *memory = malloc(size);
    region_without_memory |= memory == NULL;
    return memory;
}}

#define malloc region_malloc
"""
_ASKED = f"""
int {FAILED}(void) {{
    int failed = region_without_memory;
    region_without_memory = 0;
    return failed;
}}
"""
_ONE_AT_A_TIME = Lock()  # the compiler has state while it runs


def emit_source(model: ModelProto) -> str:
    """Return the C source of a model, with a function named `ENTRY`.

    Raises CompileError with the message of emx-onnx-cgen, or with the first node at which it fails.
    """
    try:
        return _emit_unchecked(model)
    except CompileError:
        raise
    except Exception as error:  # it raises KeyError and others besides its own
        raise CompileError(_explain_failure(model, error)) from None


def check_nodes(model: ModelProto, options: COptions) -> list[Verdict]:
    """Return for each node of a model whether C can be emitted for it alone, of types that cc has."""
    compiler()
    return check_each_node(model, lambda single: _check_node(single, options))


def _check_node(single: SingleNode, options: COptions) -> Verdict:
    try:
        source = _emit_unchecked(single.standard_model())
    except Exception as error:  # as above
        return refuse(_shorten_message(error))
    lacking = find_lacking_type(source, options)
    return refuse(lacking) if lacking else YES


def refused_nodes(region: Region, options: COptions) -> list[str]:
    """Return the nodes of a region that `check_nodes` refuses; none if that is unknown."""
    return find_refused_nodes(
        lambda: load_standard_model(region, inline=False), lambda model: check_nodes(model, options)
    )


def _emit_unchecked(model: ModelProto) -> str:
    adapted = adapt_model(model)
    define_emx_nodes(adapted)
    with _ONE_AT_A_TIME:
        source = mend_emx_source(compiler().compile(adapted))
    if _STDLIB not in source:
        return source
    return source.replace(_STDLIB, _WATCHED, 1) + _ASKED


@cache
def compiler() -> Any:
    """Return the only compiler of this process, as reading its templates takes a second.

    Raises MissingRuntimeError if emx-onnx-cgen is not installed.
    """
    try:
        from emx_onnx_cgen.compiler import Compiler, CompilerOptions  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingRuntimeError(_MISSING) from None
    return Compiler(
        CompilerOptions(
            model_name=ENTRY, large_weight_threshold=0, large_temp_threshold_bytes=_MAX_ON_STACK
        )
    )


def _explain_failure(model: ModelProto, error: Exception) -> str:
    """Return a sentence on a failure; search for the node at fault unless it is a refusal."""
    if isinstance(error, ByocError):
        return str(error)
    if _is_refusal(error):
        return _shorten_message(error)
    try:
        for single in split_into_nodes(model):
            try:
                _emit_unchecked(single.model)
            except Exception as own:  # as above
                name = f"{single.node.op_type} ({single.node.name or single.node.output[0]})"
                return f"emx-onnx-cgen refuses {name}: {_shorten_message(own)}"
    except ByocError:
        pass
    return f"emx-onnx-cgen fails with {describe_error(error)}"


def _is_refusal(error: Exception) -> bool:
    return type(error).__module__.startswith("emx_onnx_cgen")


def _shorten_message(error: Exception) -> str:
    """Return its message, without the dump of the node and hints for its command line."""
    if not _is_refusal(error):
        return describe_error(error)
    text = str(error)
    for end in (" (while lowering", " (during ", " Hint:"):
        text = text.partition(end)[0]
    return f"emx-onnx-cgen: {shorten_text(text.rstrip('. '), _MAX_CHARACTERS)}"
