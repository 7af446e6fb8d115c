"""Models of one node: those of ONNX's own operator tests, and the nodes of the nine light models.

Each operator test comes twice where it has several inputs: as it is, and with all but the first
one stored in the model, as the operators of real models have them.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from byoc.model import Model, extract_nodes, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.zoo._classic_models import ClassicModels
from helpers.asking import Data, Question
from helpers.support import LIGHT

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "onnx_suite"), str(_TESTS / "value_suite")]

from attribute_cases import attribute_cases  # noqa: E402 - needs the path
from partitioned import attempt, plain  # noqa: E402 - needs the path
from suite import NEWEST_OPSET, Case, Values, collect  # noqa: E402 - needs the path

_RTOL, _ATOL = 1e-3, 1e-5
_MAX_BYTES = 16 << 20
_FEW_ARE_ASKED = 12
_FEW = (0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.5)


@dataclass(frozen=True, eq=False)
class OneNode:
    """A model of one node, and what it computes.

    `source` is `onnx` for a test as it is, `constants`, `float32` or `attributes` for one that was
    changed, else the name of a light model.
    """

    name: str
    source: str
    model: onnx.ModelProto
    question: Question

    @property
    def op(self) -> str:
        """The operator, with its domain where that is not ONNX's own."""
        node = self.model.graph.node[0]
        return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def operator_tests(every: int = 1) -> Iterator[OneNode]:
    """Yield one in so many of the tests of one node, as they are and with constants.

    Tests of an operator set that other tools do not read yet count in an older one, if onnxruntime
    finds what is expected there as well. A sample of a few has none that take long to make.
    """
    cases = [
        case
        for case in collect(costly=every < _FEW_ARE_ASKED)
        if len(case.model.graph.node) == 1 and not case.model.functions
    ]
    for case in cases[::every]:
        newer = _opset(case.model).version > NEWEST_OPSET
        model = _lowered(case.model) if newer else case.model
        runs = not attempt(plain, case, model)[1]
        if newer and not runs:
            continue
        data = [Data(*pair, case.rtol, case.atol) for pair in case.data_sets]
        if runs and len(data) == 1:
            data += _more(case, model)
        yield _one(case, "onnx", model, data)
        if runs:
            yield from _narrower(case, model, data)
        if len(model.graph.input) > 1 and len(case.data_sets) == 1:
            changed = store_inputs(_one(case, "constants", model, data))
            if changed is not None:
                yield changed


def _more(case: Case, model: onnx.ModelProto) -> Iterator[Data]:
    """Yield data that shows what the test's own does not, with what onnxruntime makes of it.

    Rounded to halves, or few and the same over and over, values are equal to each other and to limits
    (as boxes, the few overlap by exactly one half). A float64 gets digits that a float32 does not hold.
    """
    ((inputs, _),) = case.data_sets
    first = next(iter(inputs), "")
    value = inputs.get(first)
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float16, np.float32, np.float64):
        return
    atol = max(case.atol, _ATOL)
    changes = [
        (np.round(value * 2) / 2, case.rtol, atol),
        (np.resize(_FEW, value.shape), case.rtol, atol),
    ]
    if value.dtype == np.float64:
        changes.append((value * (1 + 2.0**-30), 1e-10, 1e-12))
    for changed, rtol, atol in changes:
        given = {**inputs, first: changed.astype(value.dtype)}
        outputs, _ = attempt(run_model, model, given)
        if outputs is not None:
            yield Data(given, outputs, rtol, atol)


def _narrower(case: Case, original: onnx.ModelProto, data: Sequence[Data]) -> Iterator[OneNode]:
    """Yield a test of float64 in float32, since for some operators there is no other test."""
    model = onnx.ModelProto()
    model.CopyFrom(original)
    wide = [
        value.type.tensor_type
        for value in (*model.graph.input, *model.graph.output)
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE
    ]
    for kind in wide:
        kind.elem_type = TensorProto.FLOAT
    if not wide:
        return
    narrow = []
    for one in data:
        inputs = {name: _as_float32(value) for name, value in one.inputs.items()}
        outputs, _ = attempt(run_model, model, inputs)
        if outputs is not None:
            narrow.append(Data(inputs, outputs, max(one.rtol, _RTOL), max(one.atol, _ATOL)))
    if narrow:
        yield _one(case, "float32", model, narrow)


def _as_float32(value: Any) -> Any:
    wide = isinstance(value, np.ndarray) and value.dtype == np.float64
    return value.astype(np.float32) if wide else value


def run_model(model: onnx.ModelProto, inputs: Values) -> Values:
    """Return what onnxruntime makes of inputs, without optimizations."""
    with without_optimizations():
        return run_session(open_session(model), inputs)


def _opset(model: onnx.ModelProto) -> onnx.OperatorSetIdProto:
    return next(
        (entry for entry in model.opset_import if entry.domain in ("", "ai.onnx")), model.opset_import[0]
    )


def _lowered(original: onnx.ModelProto) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(original)
    _opset(model).version = NEWEST_OPSET
    return model


def _one(case: Case, source: str, model: onnx.ModelProto, data: Sequence[Data]) -> OneNode:
    return OneNode(case.name, source, model, Question(model.SerializeToString(), tuple(data)))


def store_inputs(one: OneNode, source: str = "constants") -> OneNode | None:
    """Return a model with all inputs but the first one stored in it; None where that cannot be."""
    original, data = one.model, one.question.data
    inputs = data[0].inputs
    first, *others = (value.name for value in original.graph.input)
    if any(not isinstance(inputs.get(name), np.ndarray) for name in others):
        return None  # a sequence or an optional cannot be stored
    model = onnx.ModelProto()
    model.CopyFrom(original)
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    if TensorProto.STRING in [kinds[name] for name in others]:
        return None
    model.ir_version = max(model.ir_version, 4)
    del model.graph.input[1:]
    for name in others:
        model.graph.initializer.append(numpy_helper.from_array(inputs[name], name))
    fewer = [replace(one, inputs={first: one.inputs[first]}) for one in data]
    return OneNode(one.name, source, model, Question(model.SerializeToString(), tuple(fewer)))


def attribute_tests(every: int = 1) -> Iterator[OneNode]:
    """Yield one in so many of the operator tests with another attribute, or in an older operator set."""
    for case in attribute_cases(every, costly=every < _FEW_ARE_ASKED):
        data = Data(case.inputs, case.expected, case.rtol, case.atol)
        question = Question(case.model.SerializeToString(), (data,))
        yield OneNode(case.name, "attributes", case.model, question)


def light_nodes(
    every: int = 1, models: Sequence[str] = LIGHT, most_bytes: float = _MAX_BYTES
) -> Iterator[OneNode]:
    """Yield one in so many nodes of light models; no two have the same attributes and shapes.

    Nodes whose constants are larger than `most_bytes` are left out. What they compute is onnxruntime's
    word, on random inputs.
    """
    seen: set[tuple[str, ...]] = set()
    for name in models:
        model = prepare_model(ClassicModels().load(name), name)
        index = model.index
        for i, node in enumerate(index.nodes):
            constants = [name for name in node.input if name in index.stored_tensors]
            size = sum(index.types[name].bytes or 0 for name in constants)
            key = (node.op_type, str(node.attribute), *(str(index.types.get(n)) for n in node.input))
            if size > most_bytes or key in seen or i in index.constant_nodes:
                continue
            if len(seen) % every == 0:
                yield _light_node(model, i, name)
            seen.add(key)


def _light_node(model: Model, number: int, source: str) -> OneNode:
    index = model.index
    node = index.nodes[number]
    proto = extract_nodes(index, [number], node.name, index.type_protos)
    generator = np.random.default_rng(number)
    inputs = {
        value.name: generator.uniform(
            -1, 1, [d.dim_value for d in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in proto.graph.input
    }
    data = Data(inputs, run_model(proto, inputs), _RTOL, _ATOL)
    question = Question(proto.SerializeToString(), (data,))
    return OneNode(f"{source}: {node.name}", source, proto, question)
