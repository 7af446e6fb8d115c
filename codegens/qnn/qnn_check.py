"""Check the nodes of a model with the provider."""

from collections.abc import Sequence

import onnx
from onnx import ModelProto
from onnx.inliner import inline_local_functions

from byoc.codegen import YES, CompileError, SingleNode, Verdict, check_each_node, refuse

from .context_compiler import CompileAnswer, QNNOptions, compile_context, require_package
from .qnn_model import adapt_model

_SILENT = "QNN leaves it to the CPU, and does not say why"


def check_nodes(model: ModelProto, options: QNNOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether the provider supports it.

    The whole model is tried first, since a quantized operator includes its neighbours. If it does not
    compile, each node is tried alone. Raises MissingRuntimeError.
    """
    require_package()
    whole = _try_compile(model, options)
    if isinstance(whole, CompileAnswer) and (whole.left or not whole.error):
        left = whole.left
        count = len(model.graph.node)
        return [refuse(left[place] or _SILENT) if place in left else YES for place in range(count)]
    return check_each_node(model, lambda single: _check_node(single, options))


def _check_node(single: SingleNode, options: QNNOptions) -> Verdict:
    answer = _try_compile(single.model, options)
    if isinstance(answer, CompileError):
        return refuse(str(answer))
    try:
        answer.require_context()
    except CompileError as error:
        reasons = [why for why in answer.left.values() if why]
        return refuse(reasons[0] if reasons else str(error))
    return YES


def _try_compile(model: onnx.ModelProto, options: QNNOptions) -> CompileAnswer | CompileError:
    inlined = inline_local_functions(model) if model.functions else model
    try:
        return compile_context(adapt_model(model, inlined), options)
    except CompileError as error:
        return error
