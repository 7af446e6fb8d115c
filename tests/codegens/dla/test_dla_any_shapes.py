"""Operators of any shapes, axes and orders: equal to onnxruntime, or refused by rules and compiler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from dla_regions import agrees, floats, network, runtime_model
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.codegen import CompileError
from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session
from byoc.rules import annotate_graph, load_rules

Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass
class Line:
    """The call of an operator on `x`: its text, other inputs, constants, and number of results."""

    call: str
    inputs: dict[str, Shape]
    constants: dict[str, Any]
    results: int = 1


def _draw_axis(draw: Draw, shape: Shape) -> int:
    return draw(st.one_of(st.just(-1), st.integers(-len(shape), len(shape) - 1)))


def _draw_part(draw: Draw, shape: Shape) -> Shape:
    """Draw a shape that is broadcast to another: fewer axes, some of them 1."""
    first = draw(st.integers(0, len(shape)))
    return tuple(draw(st.sampled_from([1, extent])) for extent in shape[first:])


def _transpose(draw: Draw, shape: Shape) -> Line:
    order = draw(st.permutations(range(len(shape))))
    return Line(f"Transpose<perm={list(order)}>(x)", {}, {})


def _softmax(draw: Draw, shape: Shape) -> Line:
    return Line(f"Softmax<axis={_draw_axis(draw, shape)}>(x)", {}, {})


def _normalize(draw: Draw, shape: Shape) -> Line:
    axis = _draw_axis(draw, shape)
    scale = floats(*shape[axis % len(shape) :], seed=1)
    name = draw(st.sampled_from(["LayerNormalization", "SimplifiedLayerNormalization"]))
    return Line(f"{name}<axis={axis}, epsilon=0.01>(x, s)", {}, {"s": scale})


def _split(draw: Draw, shape: Shape) -> Line:
    axis = _draw_axis(draw, shape)
    cuts = sorted(draw(st.lists(st.integers(0, shape[axis]), max_size=2)))
    sizes = np.diff([0, *cuts, shape[axis]])
    return Line(f"Split<axis={axis}>(x, sizes)", {}, {"sizes": sizes}, len(sizes))


def _gather(draw: Draw, shape: Shape) -> Line:
    axis = _draw_axis(draw, shape)
    index = draw(st.integers(-shape[axis], shape[axis] - 1))
    form = draw(st.sampled_from([(), (1,), (1, 1)]))
    return Line(f"Gather<axis={axis}>(x, i)", {}, {"i": np.full(form, index)})


def _multiply(draw: Draw, shape: Shape) -> Line:
    lead = draw(st.sampled_from([shape[:-2], _draw_part(draw, shape[:-2]), (2, *shape[:-2])]))
    other = draw(st.sampled_from([(*lead, shape[-1], 3), (shape[-1], 3), (shape[-1],)]))
    if draw(st.booleans()):
        return Line("MatMul(x, z)", {}, {"z": floats(*other, seed=2)})
    return Line("MatMul(x, z)", {"z": other}, {})


def _combine(draw: Draw, shape: Shape) -> Line:
    op = draw(st.sampled_from(["Add", "Mul", "Sub", "Sum"]))
    call = draw(st.sampled_from([f"{op}(x, z)", f"{op}(z, x)"]))
    part = _draw_part(draw, shape)
    if draw(st.booleans()):
        return Line(call, {}, {"z": floats(*part, seed=2)})
    return Line(call, {"z": part}, {})


def _concat(draw: Draw, shape: Shape) -> Line:
    axis = _draw_axis(draw, shape)
    other = list(shape)
    other[axis] = draw(st.integers(1, 3))
    return Line(f"Concat<axis={axis}>(x, z)", {"z": tuple(other)}, {})


def _mean(draw: Draw, shape: Shape) -> Line:
    axis, kept = _draw_axis(draw, shape), draw(st.integers(0, 1))
    return Line(f"ReduceMean<keepdims={kept}>(x, axes)", {}, {"axes": np.array([axis])})


def _squeeze(draw: Draw, shape: Shape) -> Line:
    ones = [axis for axis, extent in enumerate(shape) if extent == 1]
    if ones and draw(st.booleans()):
        axes = draw(st.lists(st.sampled_from(ones), min_size=1, unique=True))
        return Line("Squeeze(x, axes)", {}, {"axes": np.array(axes) - len(shape)})
    places = draw(st.lists(st.integers(0, len(shape)), min_size=1, max_size=2, unique=True))
    return Line("Unsqueeze(x, axes)", {}, {"axes": np.array(places)})


_DRAWS = (
    _transpose, _softmax, _normalize, _split, _gather, _multiply, _combine, _concat, _mean, _squeeze,
)  # fmt: skip


def _make_model(shape: Shape, line: Line) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return the model of a line between a Relu and clamps of each result, and its inputs."""
    extents = {"x0": shape, **line.inputs}
    given_ = ", ".join(f"float[{','.join(map(str, each))}] {name}" for name, each in extents.items())
    results = [f"r{number}" for number in range(line.results)]
    after = " ".join(f"y{number} = Relu({name})" for number, name in enumerate(results))
    outputs = ", ".join(f"float[] y{number}" for number in range(line.results))
    text = f"g ({given_}) => ({outputs}) {{ x = Tanh(x0) {', '.join(results)} = {line.call} {after} }}"
    proto = runtime_model(text, line.constants, opset=18)
    inputs = {name: floats(*each, seed=seed) for seed, (name, each) in enumerate(extents.items())}
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    for output, made in zip(
        proto.graph.output, run_session(open_session(proto), inputs).values(), strict=True
    ):
        output.CopyFrom(
            onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, made.shape)
        )
    return proto, inputs


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_shapes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the compiler takes equals onnxruntime, and it takes all that the rules do."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    proto, inputs = _make_model(shape, data.draw(st.sampled_from(_DRAWS))(data.draw, shape))
    marks = annotate_graph(prepare_model(proto, "test").index, load_rules("dla"))
    folder = tmp_path_factory.mktemp("case")

    try:
        network(proto, folder)
    except CompileError as error:
        assert not all(mark.verdict for mark in marks), (
            f"the rules take what the compiler refuses: {error}"
        )
        return
    agrees(proto, inputs, folder, **data.draw(st.sampled_from([{}, {"scratchpad": "1024"}])))
