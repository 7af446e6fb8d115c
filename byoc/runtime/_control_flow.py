"""Execution of If, Loop and Scan nodes with regions in their bodies, which onnxruntime cannot call.

The semantics are those of the ONNX operators (If since opset 1, Loop since 1, Scan since 9).
A body is a function from the values in scope, its own inputs included, to its outputs in order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from byoc.errors import InputError
from byoc.model import TensorType, get_stated_attributes, to_numpy_dtype

ScopeValues = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ControlBody:
    """A body ready to run: the names of its inputs, the types of its outputs, its function."""

    inputs: Sequence[str]
    types: Sequence[TensorType | None]
    run: Callable[[ScopeValues], list[Any]]


ControlBodies = Mapping[str, ControlBody]
"""The bodies of a node by attribute name."""


def control_runner(node: NodeProto, bodies: ControlBodies) -> Callable[[ScopeValues], ScopeValues]:
    """Return a function that runs a control flow node with its bodies."""
    run = {"If": _run_if, "Loop": _run_loop, "Scan": _run_scan}[node.op_type]

    def run_node(values: ScopeValues) -> ScopeValues:
        outputs = run(node, bodies, values)
        return {name: value for name, value in zip(node.output, outputs, strict=False) if name}

    return run_node


def _run_if(node: NodeProto, bodies: ControlBodies, values: ScopeValues) -> list[Any]:
    chosen = "then_branch" if np.asarray(values[node.input[0]]).item() else "else_branch"
    return bodies[chosen].run(values)


def _run_loop(node: NodeProto, bodies: ControlBodies, values: ScopeValues) -> list[Any]:
    body = bodies["body"]
    given = [values[name] if name else None for name in node.input]
    limit = None if given[0] is None else int(np.asarray(given[0]).item())
    condition = True if len(given) < 2 or given[1] is None else bool(np.asarray(given[1]).item())
    carried = list(given[2:])
    scanned: list[list[Any]] = [[] for _ in range(len(node.output) - len(carried))]
    trip = 0
    while condition and (limit is None or trip < limit):
        own = [np.array(trip, np.int64), np.array(condition), *carried]
        outputs = body.run({**values, **dict(zip(body.inputs, own, strict=True))})
        condition = bool(np.asarray(outputs[0]).item())
        carried = outputs[1 : 1 + len(carried)]
        for into, value in zip(scanned, outputs[1 + len(carried) :], strict=False):
            into.append(value)
        trip += 1
    kinds = body.types[1 + len(carried) :]
    return [*carried, *(_stack_trips(p, 0, kind) for p, kind in zip(scanned, kinds, strict=False))]


def _run_scan(node: NodeProto, bodies: ControlBodies, values: ScopeValues) -> list[Any]:
    body = bodies["body"]
    attributes = get_stated_attributes(node)
    count = int(attributes["num_scan_inputs"])
    states = [values[name] for name in node.input[: len(node.input) - count]]
    inputs = [np.asarray(values[name]) for name in node.input[len(node.input) - count :]]
    axes = attributes.get("scan_input_axes", [0] * count)
    backward = attributes.get("scan_input_directions", [0] * count)
    outside = len(node.output) - len(states)
    scanned: list[list[Any]] = [[] for _ in range(outside)]
    lengths = {value.shape[axis] for value, axis in zip(inputs, axes, strict=True)}
    if len(lengths) != 1:
        raise InputError(f"what is scanned differs in length: {', '.join(map(str, sorted(lengths)))}")
    trips = lengths.pop()
    for trip in range(trips):
        slices = [
            np.asarray(np.take(value, trips - 1 - trip if reverse else trip, axis))
            for value, axis, reverse in zip(inputs, axes, backward, strict=True)
        ]
        outputs = body.run({**values, **dict(zip(body.inputs, [*states, *slices], strict=True))})
        states = outputs[: len(states)]
        for into, value in zip(scanned, outputs[len(states) :], strict=False):
            into.append(value)
    out_axes = attributes.get("scan_output_axes", [0] * outside)
    out_backward = attributes.get("scan_output_directions", [0] * outside)
    stacked = [
        _stack_trips(parts[::-1] if reverse else parts, axis, kind)
        for parts, axis, reverse, kind in zip(
            scanned, out_axes, out_backward, body.types[len(states) :], strict=True
        )
    ]
    return [*states, *stacked]


def _stack_trips(parts: Sequence[Any], axis: int, kind: TensorType | None) -> Any:
    """Stack the values of all trips on a new axis; without trips, return an empty array of the type.

    Raises InputError when there was no trip and the type or rank is not known.
    """
    if parts:
        return np.stack(parts, axis)
    if kind is None or kind.shape is None:
        raise InputError("a body that never ran has an output of unknown type or rank")
    shape = [dim if isinstance(dim, int) else 0 for dim in kind.shape]
    shape.insert(axis, 0)
    return np.empty(shape, to_numpy_dtype(kind.dtype))
