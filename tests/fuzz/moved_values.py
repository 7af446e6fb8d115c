"""The original with its values moved a little: what a step, such as a comparison, makes of rounding."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from evaluators import run_plain
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

_MOVED = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_RUNS = 8
_MOVED_CODES = 0.57
"""Of what is drawn evenly up to this, one of eight is rounded to a whole unit."""
_NOT_MOVED = ("Identity", "Constant", "Shape", "Reshape")


def explain_by_moves(  # noqa: PLR0917 - what a model is, and what came of it
    model: onnx.ModelProto,
    inputs: Mapping[str, NDArray[Any]],
    types: Mapping[str, int],
    name: str,
    expected: Any,
    given: Any,
) -> bool:
    """Say whether an output is as far from what is expected as it gets by moving values a little.

    `types` are the element types of the tensors of the model by name, those in bodies and functions too.
    """
    if isinstance(expected, list) or isinstance(given, list) or expected.dtype != given.dtype:
        return False
    place = [value.name for value in model.graph.output].index(name)
    halves = TensorProto.FLOAT16 in types.values()
    moved = []
    try:
        exact = run_plain(model, inputs)[place]
        for seed in range(_RUNS):
            changed = _move_values(model, types, seed, 2e-3 if halves else 2e-6)
            moved.append(run_plain(changed, inputs)[place])
    except Exception:  # no kernel, or a moved value is out of a domain
        return False
    if any(each.shape != exact.shape for each in moved):
        return True  # a size that depends on values
    if given.shape != expected.shape:
        return False
    if expected.dtype.kind in "OSU":
        return any((each != exact).any() for each in moved)
    a, b = expected.astype(np.float64), given.astype(np.float64)
    still = exact.astype(np.float64)
    reach = np.max([np.abs(each.astype(np.float64) - still) for each in moved])
    return bool(np.abs(a - b).max() <= 2 * reach)


def _move_values(
    model: onnx.ModelProto, types: Mapping[str, int], seed: int, epsilon: float
) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    counter = [seed * 100_000]
    constants = {tensor.name for tensor in model.graph.initializer}
    _move_nodes(changed.graph.node, types, constants, epsilon, counter)
    for function in changed.functions:
        _move_nodes(function.node, types, constants, epsilon, counter)
    del changed.graph.value_info[:]
    return changed


def _move_nodes(
    nodes: Any, types: Mapping[str, int], constants: set[str], epsilon: float, counter: list[int]
) -> None:
    before: Sequence[NodeProto] = [*nodes]
    made: list[NodeProto] = []
    for node in before:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _move_nodes(attribute.g.node, types, constants, epsilon, counter)
        made.append(node)
        if node.op_type in _NOT_MOVED or node.domain:
            continue
        for place, name in enumerate(node.output):
            if name and types.get(name) in _MOVED:
                counter[0] += 1
                node.output[place] = f"{name} exact"
                made += _add_noise(node, name, types[name], epsilon, counter[0], constants)
    del nodes[:]
    nodes.extend(made)


def _add_noise(  # noqa: PLR0917 - private
    node: NodeProto, name: str, dtype: int, epsilon: float, seed: int, constants: set[str]
) -> list[NodeProto]:
    exact, noise, moved = (f"{name} {word}" for word in ("exact", "noise", "moved"))
    code = node.op_type == "DequantizeLinear" and node.input[0] not in constants
    high = _MOVED_CODES if code else epsilon
    found = [
        helper.make_node(
            "RandomUniformLike", [exact], [noise], dtype=dtype, low=-high, high=high, seed=float(seed)
        )
    ]
    if code:
        found.append(helper.make_node("Round", [noise], [f"{noise} whole"]))
        found.append(helper.make_node("ReduceMax", [node.input[1]], [f"{noise} scale"], keepdims=0))
        found.append(helper.make_node("Mul", [f"{noise} whole", f"{noise} scale"], [moved]))
    else:
        found.append(helper.make_node("Abs", [exact], [f"{noise} size"]))
        found.append(helper.make_node("Mul", [f"{noise} size", noise], [moved]))
    found.append(helper.make_node("Add", [exact, moved], [name]))
    return found
