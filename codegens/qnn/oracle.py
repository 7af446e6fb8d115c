"""Check the nodes of a model with the provider."""

from collections.abc import Sequence

import onnx
from onnx import ModelProto
from onnx.inliner import inline_local_functions

from byoc.codegen import CompileError
from byoc.codegen.single import alike, single_nodes
from byoc.verdict import YES, Verdict, refuse

from .compiler import Answer, ask, installed
from .options import QNNOptions
from .standard import standard

_SILENT = "QNN leaves it to the CPU, and does not say why"


def check(model: ModelProto) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether the provider supports it.

    The whole model is tried first, since a quantized operator includes its neighbours. If it does not
    compile, each node is tried alone. Raises MissingRuntimeError.
    """
    installed()
    whole = _answer(model)
    if isinstance(whole, Answer) and (whole.left or not whole.error):
        left = whole.left
        count = len(model.graph.node)
        return [refuse(left[place] or _SILENT) if place in left else YES for place in range(count)]
    known: dict[bytes, Verdict] = {}
    verdicts = []
    for single in single_nodes(model):
        key = alike(single)
        if key not in known:
            known[key] = _verdict(single.model)
        verdicts.append(known[key])
    return verdicts


def _verdict(model: ModelProto) -> Verdict:
    answer = _answer(model)
    if isinstance(answer, CompileError):
        return refuse(str(answer))
    try:
        answer.require()
    except CompileError as error:
        reasons = [why for why in answer.left.values() if why]
        return refuse(reasons[0] if reasons else str(error))
    return YES


def _answer(model: onnx.ModelProto) -> Answer | CompileError:
    inlined = inline_local_functions(model) if model.functions else model
    try:
        return ask(standard(model, inlined), QNNOptions())
    except CompileError as error:
        return error
