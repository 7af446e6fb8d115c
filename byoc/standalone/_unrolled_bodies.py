"""If, Loop and Scan as nodes in a row: a program in C is a list of steps.

An If whose condition is known is its branch; else both branches are there, and a Where chooses: steps
that only one choice needs run where it is chosen (`_program_steps`). A Loop is as many copies of its
body as it runs at most; where that is computed, each copy hands on what it made only while the Loop goes
on. A Scan is a copy for each place of what it reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from byoc._dataclasses import dataclass, field
from byoc.model import (
    GraphIndex,
    TensorType,
    build_node,
    get_stated_attributes,
    is_onnx,
    list_bodies,
    rename_tensors,
    walk_nodes,
)
from byoc.model.ranges import ValueRanges

_UNSQUEEZE_AXES_INPUT_OPSET, _UNBATCHED_SCAN_OPSET = 13, 9  # the operator sets
_WHERE_OPSET = 9  # of Where


class BodyWriter(Protocol):
    """A writer of a graph: it gives names, stores tensors, and limits the number of nodes."""

    domains: frozenset[str]
    added: int
    most: int
    stored: list[TensorProto]

    @property
    def index(self) -> GraphIndex:
        """The graph."""

    def new_name(self, name: str) -> str:
        """Return a name that no tensor has yet."""

    def store(self, value: Any, name: str) -> str:
        """Store integers, and return the name of their tensor."""

    def store_truth(self, name: str, value: bool = True) -> str:
        """Store a truth, and return the name of its tensor."""

    def find_value(self, name: str) -> Any:
        """Return the value of a tensor that is known before a run, None where it is not."""


def write_out_bodies(writer: BodyWriter, number: int) -> Iterator[NodeProto]:
    """Yield the nodes that compute what a node with bodies does; none where it stays."""
    node = writer.index.nodes[number]
    makers = {"If": _choose_branch, "Loop": _unroll_loop, "Scan": _unroll_scan}
    bodies = list_bodies(node)
    inner = (each for body in bodies for each in walk_nodes(body.node))
    if not bodies or not is_onnx(node) or node.op_type not in makers:
        return
    if any(body.sparse_initializer for body in bodies) or any(n.domain in writer.domains for n in inner):
        return
    yield from makers[node.op_type](writer, number)


def _fits(writer: BodyWriter, body: GraphProto, times: int) -> bool:
    count = sum(1 for _ in walk_nodes(body.node)) + len(body.input) + len(body.output)
    return writer.added + times * count <= writer.most


def _choose_branch(writer: BodyWriter, number: int) -> Iterator[NodeProto]:
    node = writer.index.nodes[number]
    branches = {each.name: each.g for each in node.attribute}
    condition = writer.find_value(node.input[0])
    if condition is not None:
        body = branches["then_branch" if np.all(condition) else "else_branch"]
        if _fits(writer, body, 1):
            results = BodyCopies(writer, body).add({})
            yield from results.nodes
            yield from _name_results(results.outputs, node.output)
        return
    both = [branches["then_branch"], branches["else_branch"]]
    types = [_list_types(body.index) for body in writer.index.bodies[number]]
    chooses = writer.index.get_opset(node) >= _WHERE_OPSET and types[0] == types[1]
    if not chooses or not types[0] or not all(_fits(writer, body, 1) for body in both):
        return
    yield from (scalar := _as_scalar(writer, node.input[0], writer.index)).nodes
    made = [BodyCopies(writer, body).add({}) for body in both]
    for each in made:
        yield from each.nodes
    for result, *chosen in zip(node.output, *(each.outputs for each in made), strict=True):
        if result:
            yield build_node("Where", [*scalar.outputs, *chosen], [result])


def _list_types(body: GraphIndex) -> list[TensorType]:
    """Return the types of a body's outputs, none where an extent of one is not known."""
    found = [body.types.get(value.name) for value in body.graph.output]
    known = [kind for kind in found if kind is not None and kind.elements is not None]
    return known if len(known) == len(found) else []


def _as_scalar(writer: BodyWriter, name: str, index: GraphIndex) -> "BodyCopy":
    """Return a tensor of one element without axes, and the node that makes it where it has some."""
    kind = index.types.get(name)
    if kind is not None and kind.shape == ():
        return BodyCopy([], [name])
    made, shape = writer.new_name(f"{name}_scalar"), writer.store([], f"{name}_shape")
    return BodyCopy([build_node("Reshape", [name, shape], [made])], [made])


def _unroll_loop(writer: BodyWriter, number: int) -> Iterator[NodeProto]:
    node = writer.index.nodes[number]
    body = list_bodies(node)[0]
    times, states = _find_trip_count(writer, node, body), len(node.input) - 2
    has_rows = len(body.output) > 1 + states
    if times is None:
        yield from () if has_rows else _run_while(writer, number)
        return
    if not _fits(writer, body, times) or (has_rows and not times):
        return
    names, rows, copies = list(node.input[2:]), [], BodyCopies(writer, body)
    for step in range(times):
        given = dict(zip([each.name for each in body.input[2:]], names, strict=True))
        given[body.input[0].name] = writer.store(step, f"{body.input[0].name}_{step}")
        given[body.input[1].name] = writer.store_truth(body.input[1].name)
        results = copies.add(given)
        yield from results.nodes
        names, row = results.outputs[1 : 1 + states], results.outputs[1 + states :]
        rows.append(row)
    yield from _name_results(names, node.output)
    yield from _stack(writer, rows, node.output[states:], [0] * len(node.output[states:]))


def _run_while(writer: BodyWriter, number: int) -> Iterator[NodeProto]:
    """Yield copies of a Loop's body for as often as it runs at most, each under its condition."""
    node = writer.index.nodes[number]
    body, inside = list_bodies(node)[0], writer.index.bodies[number][0].index
    count, begins = (*node.input, "")[:2]
    times, made = _find_most(writer, count), _list_types(inside)
    is_same = [writer.index.types.get(name) for name in node.input[2:]] == made[1:]
    if times is None or not made or not is_same or writer.index.get_opset(node) < _WHERE_OPSET:
        return
    if not _fits(writer, body, times):
        return
    limit = _as_scalar(writer, count, writer.index)
    goes_on = _as_scalar(writer, begins or writer.store_truth(body.input[1].name), writer.index)
    yield from (*limit.nodes, *goes_on.nodes)
    truth, names, copies = goes_on.outputs[0], list(node.input[2:]), BodyCopies(writer, body)
    ended = writer.store_truth(f"{body.input[1].name}_ended", False)
    for step in range(times):
        place = writer.store(step, f"{body.input[0].name}_{step}")
        below, both = (writer.new_name(f"{body.input[1].name}_{each}") for each in ("below", "both"))
        yield build_node("Less", [place, *limit.outputs], [below])
        yield build_node("And", [truth, below], [both])
        given = dict(zip([each.name for each in body.input[2:]], names, strict=True))
        results = copies.add(given | {body.input[0].name: place, body.input[1].name: both})
        asks = _as_scalar(writer, results.outputs[0], writer.index)
        yield from (*results.nodes, *asks.nodes)
        handed = [writer.new_name(f"{name}_handed_on") for name in results.outputs]
        choices = zip([*asks.outputs, *results.outputs[1:]], [ended, *names], strict=True)
        for result, (new, old) in zip(handed, choices, strict=True):
            yield build_node("Where", [both, new, old], [result])
        truth, *names = handed
    yield from _name_results(names, node.output)


def _find_most(writer: BodyWriter, count: str) -> int | None:
    """Return the largest trip count of a Loop, None where it is not known or too large."""
    if not count:
        return None
    known = writer.find_value(count)
    most = (
        ValueRanges(writer.index).find(count).whole.high if known is None else np.reshape(known, -1)[0]
    )
    return max(int(most), 0) if most <= writer.most else None


def _find_trip_count(writer: BodyWriter, node: NodeProto, body: GraphProto) -> int | None:
    """Return the trip count of a Loop, None where it is not known before a run."""
    count = writer.find_value(node.input[0]) if node.input[0] else None
    asked = (*node.input, "")[1]
    begins = writer.find_value(asked) if asked else np.asarray(True)
    if (begins is not None and not np.all(begins)) or _find_most(writer, node.input[0]) == 0:
        return 0
    if begins is None or count is None or not _goes_on(writer, body):
        return None
    return int(np.reshape(count, -1)[0])


def _goes_on(writer: BodyWriter, body: GraphProto) -> bool:
    """Return whether the condition of a Loop's body, true before, is true after each iteration."""
    makers = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    known = next((each for each in body.initializer if each.name == name), None)
    if known is not None:
        return bool(np.all(numpy_helper.to_array(known)))
    if name in makers:
        value = get_stated_attributes(makers[name]).get("value")
        return makers[name].op_type == "Constant" and bool(
            isinstance(value, TensorProto) and np.all(numpy_helper.to_array(value))
        )
    value = writer.find_value(name)
    return value is not None and bool(np.all(value))


@dataclass(frozen=True, eq=False)
class _ScanForm:
    """The form of a Scan: an axis and a direction for each tensor that its body reads or makes."""

    body: GraphProto
    states: int
    input_axes: Sequence[int]
    input_backwards: Sequence[int]
    output_axes: Sequence[int]
    output_backwards: Sequence[int]


def _unroll_scan(writer: BodyWriter, number: int) -> Iterator[NodeProto]:
    node = writer.index.nodes[number]
    stated = get_stated_attributes(node)
    body, count = list_bodies(node)[0], int(stated["num_scan_inputs"])
    # Up to operator set 8 the first input has lengths, and what is read has an axis of sequences.
    is_batched = writer.index.get_opset(node) < _UNBATCHED_SCAN_OPSET
    given = list(node.input[1:] if is_batched else node.input)
    states = len(given) - count
    made = len(body.output) - states
    form = _ScanForm(
        body,
        states,
        _read_list(stated, "scan_input_axes", count),
        _read_list(stated, "directions" if is_batched else "scan_input_directions", count),
        _read_list(stated, "scan_output_axes", made),
        _read_list(stated, "scan_output_directions", made),
    )
    kinds = [writer.index.types.get(name) for name in given]
    shapes = [kind.shape for kind in kinds if kind is not None and kind.shape is not None]
    if len(shapes) < len(given) or (is_batched and node.input[0]):
        return
    batch = shapes[0][0] if is_batched else 1
    extents = [s[axis + is_batched] for s, axis in zip(shapes[states:], form.input_axes, strict=True)]
    times = extents[0]
    if not isinstance(times, int) or not isinstance(batch, int) or not times * batch:
        return
    if not _fits(writer, body, times * batch):
        return
    if not is_batched:
        yield from _scan(writer, form, given, list(node.output), times)
        return
    results: list[list[str]] = [[] for _ in node.output]
    for sequence in range(batch):
        place = writer.store(sequence, f"{given[0]}_sequence")
        own = [writer.new_name(f"{name}_{sequence}") for name in given]
        for name, one in zip(given, own, strict=True):
            yield build_node("Gather", [name, place], [one], axis=0)
        row = [writer.new_name(f"{name}_{sequence}") if name else "" for name in node.output]
        yield from _scan(writer, form, own, row, times)
        for names, name in zip(results, row, strict=True):
            names.append(name)
    rows = [[names[sequence] for names in results] for sequence in range(batch)]
    yield from _stack(writer, rows, node.output, [0] * len(node.output))


def _scan(
    writer: BodyWriter, form: _ScanForm, given: list[str], outputs: list[str], times: int
) -> Iterator[NodeProto]:
    """Yield the copies of a Scan's body, from tensors to outputs without an axis of sequences."""
    body, states, made = form.body, form.states, len(form.output_axes)
    names, rows, copies = given[:states], [], BodyCopies(writer, body)
    for step in range(times):
        slices = []
        for name, axis, is_back in zip(
            given[states:], form.input_axes, form.input_backwards, strict=True
        ):
            place = writer.store(times - 1 - step if is_back else step, f"{name}_place")
            slices.append(writer.new_name(f"{name}_{step}"))
            yield build_node("Gather", [name, place], [slices[-1]], axis=axis)
        results = copies.add(
            dict(zip([each.name for each in body.input], [*names, *slices], strict=True))
        )
        yield from results.nodes
        names, row = results.outputs[:states], results.outputs[states:]
        rows.append(row)
    yield from _name_results(names, outputs)
    ordered = [
        [rows[times - 1 - step if form.output_backwards[at] else step][at] for at in range(made)]
        for step in range(times)
    ]
    yield from _stack(writer, ordered, outputs[states:], form.output_axes)


def _stack(
    writer: BodyWriter, rows: Sequence[Sequence[str]], results: Sequence[str], axes: Sequence[int]
) -> Iterator[NodeProto]:
    """Yield the nodes that lay what each iteration made beside each other, along a new axis."""
    by_input = writer.index.opsets.get("", 1) >= _UNSQUEEZE_AXES_INPUT_OPSET
    for at, (result, axis) in enumerate(zip(results, axes, strict=True)):
        if not result:
            continue
        parts = []
        for row in rows:
            parts.append(writer.new_name(f"{result}_row"))
            if by_input:
                where = writer.store([axis], f"{result}_axis")
                yield build_node("Unsqueeze", [row[at], where], [parts[-1]])
            else:
                yield build_node("Unsqueeze", [row[at]], [parts[-1]], axes=[axis])
        yield build_node("Concat", parts, [result], axis=axis)


@dataclass(frozen=True)
class BodyCopy:
    """A copy of a body: its nodes, and the names of its outputs."""

    nodes: list[NodeProto]
    outputs: list[str]


@dataclass(eq=False)
class BodyCopies:
    """Copies of a body, each with names of its own; what it stores they have in common."""

    writer: BodyWriter
    body: GraphProto
    common: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tensor in self.body.initializer:
            own = TensorProto()
            own.CopyFrom(tensor)
            own.name = self.common[tensor.name] = self.writer.new_name(tensor.name)
            self.writer.stored.append(own)

    def add(self, given: Mapping[str, str]) -> BodyCopy:
        """Return a copy that reads tensors of the graph, by the names of the body's inputs."""
        names = self.common | dict(given)
        for node in self.body.node:
            names |= {name: self.writer.new_name(name) for name in node.output if name}
        nodes = []
        for node in self.body.node:
            nodes.append(NodeProto())
            nodes[-1].CopyFrom(node)
            nodes[-1].name = ""
            rename_tensors(nodes[-1], names)
        return BodyCopy(nodes, [names.get(each.name, each.name) for each in self.body.output])


def _name_results(made: Sequence[str], results: Sequence[str]) -> Iterator[NodeProto]:
    """Yield nodes that give tensors the names of an operator's first results."""
    for one, result in zip(made, results, strict=False):
        if result:
            yield build_node("Identity", [one], [result])


def _read_list(stated: Mapping[str, Any], name: str, count: int) -> list[int]:
    """Return an attribute of one number for each tensor, 0 where it is left out."""
    return [int(each) for each in stated.get(name, ())] or [0] * count
