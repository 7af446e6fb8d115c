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
from byoc.model import TensorType, describe_node, get_stated_attributes, to_numpy_dtype

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
    """Return a function that runs a control flow node with its bodies.

    Raises InputError when a body has another number of inputs or outputs than the node needs; the
    function does where a value does not fit.
    """
    run = {"If": _run_if, "Loop": _run_loop, "Scan": _run_scan}[node.op_type]
    _check_bodies(node, bodies)

    def run_node(values: ScopeValues) -> ScopeValues:
        outputs = run(node, bodies, values)
        return {name: value for name, value in zip(node.output, outputs, strict=False) if name}

    return run_node


def _check_bodies(node: NodeProto, bodies: ControlBodies) -> None:
    """Raise InputError unless bodies have the inputs and outputs that the operator gives them."""
    attributes = get_stated_attributes(node)
    given, made = len(node.input), len(node.output)
    inputs, outputs = {
        "If": (0, made),
        "Loop": (max(given, 2), made + 1),
        "Scan": (given, made),
    }[node.op_type]
    for name, body in bodies.items():
        if len(body.inputs) != inputs or len(body.types) < outputs:
            has = f"{len(body.inputs)} inputs and {len(body.types)} outputs"
            raise InputError(f"{describe_node(node)}: {name} has {has}, not {inputs} and {outputs}")
    if node.op_type != "Loop" and not all(node.input):
        raise InputError(f"{describe_node(node)} lacks an input")
    if node.op_type != "Scan":
        return
    count = attributes.get("num_scan_inputs", 0)
    if not 1 <= count <= given or given - count > made:
        raise InputError(f"{describe_node(node)}: num_scan_inputs is {count}, of {given} inputs")
    for side, number in (("input", count), ("output", made - (given - count))):
        for name in (f"scan_{side}_axes", f"scan_{side}_directions"):
            if len(attributes.get(name, [0] * number)) != number:
                raise InputError(f"{describe_node(node)}: {name} has other than {number} elements")


def _read_scalar(values: ScopeValues, name: str) -> Any:
    """Return a value of one element as a number of Python. Raises InputError for any other."""
    found = np.asarray(values[name])
    if found.size != 1 or found.dtype.kind not in "biu":
        raise InputError(f"'{name}' is {found.dtype} of {found.size} elements, not one bool or integer")
    return found.item()


def _run_if(node: NodeProto, bodies: ControlBodies, values: ScopeValues) -> list[Any]:
    chosen = "then_branch" if _read_scalar(values, node.input[0]) else "else_branch"
    return bodies[chosen].run(values)


def _run_loop(node: NodeProto, bodies: ControlBodies, values: ScopeValues) -> list[Any]:
    body = bodies["body"]
    limit, condition = (
        _read_scalar(values, name) if name else None for name in (*node.input[:2], "", "")[:2]
    )
    condition = condition is None or bool(condition)
    carried = [values[name] if name else None for name in node.input[2:]]
    scanned: list[list[Any]] = [[] for _ in range(len(node.output) - len(carried))]
    trip = 0
    while condition and (limit is None or trip < limit):
        own = [np.array(trip, np.int64), np.array(condition), *carried]
        outputs = body.run({**values, **dict(zip(body.inputs, own, strict=True))})
        condition = bool(_read_scalar({"the body's condition": outputs[0]}, "the body's condition"))
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
    for name, value, axis in zip(node.input[len(states) :], inputs, axes, strict=True):
        _require_axis(axis, value.ndim, f"'{name}'")
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

    Raises InputError when there was no trip and the type or rank is not known, when values differ in
    shape or the axis is none of the stacked array.
    """
    shapes = sorted({np.shape(part) for part in parts})
    if len(shapes) > 1:
        raise InputError(f"an output of a body has the shapes {shapes[0]} and {shapes[1]} in two trips")
    if parts:
        _require_axis(axis, len(shapes[0]) + 1, "what is stacked")
        return np.stack(parts, axis)
    if kind is None or kind.shape is None:
        raise InputError("a body that never ran has an output of unknown type or rank")
    shape = [dim if isinstance(dim, int) else 0 for dim in kind.shape]
    _require_axis(axis, len(shape) + 1, "what is stacked")
    shape.insert(axis % (len(shape) + 1), 0)
    return np.empty(shape, to_numpy_dtype(kind.dtype))


def _require_axis(axis: int, rank: int, what: str) -> None:
    if not -rank <= axis < rank:
        raise InputError(f"{what} has {rank} dimensions, none of them {axis}")
