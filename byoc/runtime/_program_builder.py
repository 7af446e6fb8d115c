"""Preparing a partitioned graph to run: host segments, regions, and bodies that have regions."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorShapeProto, TypeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import OperatorTime
from byoc.errors import InputError
from byoc.model import (
    GraphIndex,
    TensorType,
    clear_shape,
    describe_node,
    extract_nodes,
    find_boundary,
    get_stated_attributes,
    make_dense,
    open_shapes,
    rate_knowledge,
    read_array,
    read_type,
    to_numpy_dtype,
    walk_nodes,
)
from byoc.onnxrt import (
    bind_session,
    get_session_settings,
    open_session,
    output_types,
    profile_nodes,
    session_runner,
    with_session_settings,
)
from byoc.runtime._stage_program import Stage, StageProgram, StageValues


@dataclass(frozen=True)
class GraphStep:
    """One step of a graph: a single node (a region, or control flow around some) or a host segment."""

    nodes: tuple[int, ...]
    single: bool


def find_steps(
    index: GraphIndex, calls: Collection[int], controls: Collection[int] = frozenset()
) -> list[GraphStep]:
    """Return the steps that run a graph in which the nodes in `calls` are regions.

    `controls` are the nodes with regions in their bodies: each is a step of its own, too. All host nodes
    with the same number of single steps on their longest path from an input form one segment. Nodes that
    no output depends on are left out. Constant nodes take part only where an output of the graph or a
    control node needs them; otherwise each segment computes those that it reads.
    """
    alone = {*calls, *controls}
    needed = _needed_nodes(index)
    level: dict[str, int] = {}
    segments: dict[int, list[int]] = {}
    singles: dict[int, list[int]] = {}
    wanted = {*index.outputs, *(name for i in controls for name in index.reads[i])}
    for i in sorted(needed):
        node = index.nodes[i]
        if i in index.constant_nodes and wanted.isdisjoint(node.output):
            continue
        ready = max((level.get(name, 0) for name in index.reads[i]), default=0)
        if i in alone:
            singles.setdefault(ready, []).append(i)
            ready += 1
        else:
            segments.setdefault(ready, []).append(i)
        level.update((name, ready) for name in node.output)
    result = []
    for number in sorted({*segments, *singles}):
        if number in segments:
            result.append(GraphStep(tuple(segments[number]), single=False))
        result += [GraphStep((i,), single=True) for i in singles.get(number, ())]
    return result


def _needed_nodes(index: GraphIndex) -> set[int]:
    """Return the nodes that an output of the graph depends on."""
    needed: set[int] = set()
    pending = list(index.outputs)
    while pending:
        node = index.producers.get(pending.pop())
        if node is not None and node not in needed:
            needed.add(node)
            pending.extend(index.reads[node])
    return needed


@dataclass(frozen=True, eq=False)
class ProgramBuilder:
    """Builds programs from the graphs of one bundle, given its folder, its regions and their domains.

    `checked` has the types of those of its inputs whose shapes the session checks.
    """

    folder: Path
    regions: Mapping[str, Stage]
    domains: frozenset[str]
    checked: Mapping[str, TypeProto] = field(default_factory=dict)
    segment_numbers: Iterator[int] = field(default_factory=count)

    def region_calls(self, index: GraphIndex) -> dict[int, str]:
        """Return the regions that a graph calls, by node number."""
        nodes = enumerate(index.nodes)
        return {i: node.op_type for i, node in nodes if node.domain in self.domains}

    def build_program(self, index: GraphIndex, values: Mapping[str, TypeProto]) -> StageProgram:
        """Return a graph ready to run; `values` holds the types of tensors around it."""
        calls = self.region_calls(index)
        controls = {
            i
            for i, bodies in index.bodies.items()
            if any(self.region_calls(inner) for body in bodies for inner in body.index.walk())
        }
        known = {**index.type_protos, **values}
        # A partitioned model states the shapes that are certain, but for outputs, which the user states.
        ranked = {name: kind for name, kind in known.items() if name not in index.outputs}
        stages = []
        for step in find_steps(index, calls, controls):
            if not step.single:
                stage = self._host_stage(index, step.nodes, known, ranked)
            elif step.nodes[0] in calls:
                stage = _call_stage(
                    self.regions[calls[step.nodes[0]]], index, index.nodes[step.nodes[0]]
                )
            else:
                stage = self._control_stage(index, step.nodes[0], known)
            known |= {
                name: kind
                for name, kind in stage.types.items()
                if rate_knowledge(kind) > rate_knowledge(known.get(name))
            }
            ranked |= {name: kind for name, kind in stage.types.items() if name not in ranked}
            stages.append(stage)
        read = {*index.inputs, *index.outputs}
        read |= {name for i in controls for name in index.nodes[i].input}
        stored = {name: index.stored_tensors[name] for name in read & index.stored_tensors.keys()}
        sparse = {name: index.sparse_initializers[name] for name in read & {*index.sparse_initializers}}
        stored |= {name: make_dense(tensor) for name, tensor in sparse.items()}
        stored |= {t.name: t for t in index.graph.initializer if t.name in read}
        constants = {name: read_array(tensor, self.folder) for name, tensor in stored.items()}
        outputs = tuple(value.name for value in index.graph.output)  # one may occur twice
        types = {name: known[name] for name in outputs if name in known}
        return StageProgram(stages, constants, outputs, types)

    def _host_stage(
        self,
        index: GraphIndex,
        nodes: tuple[int, ...],
        values: Mapping[str, TypeProto],
        ranked: Mapping[str, TypeProto],
    ) -> Stage:
        """Return the stage of a host segment, with the output types that onnxruntime infers.

        Shape inference of ONNX finds no types behind operators that only onnxruntime knows. No extent is
        enforced but those of the model's inputs, which were checked before: onnxruntime is faster where
        it knows them. It runs a Scan only where it knows the ranks of what the body makes, so beside one
        the ranks of other inputs are stated as well, as far as `ranked` has them. Elsewhere they are
        not: the branches of an If may make tensors of different ranks.
        """
        number = next(self.segment_numbers)
        segment = extract_nodes(index, nodes, f"host_{number}", values)
        opened = self._open_unchecked_shapes(segment, ranked)
        session = open_session(opened, self.folder)
        inputs = find_boundary(index, nodes).inputs
        name = f"host segment {number}"
        bind = partial(bind_session, session)
        settings = get_session_settings()

        def profile(values: StageValues) -> list[OperatorTime]:
            with with_session_settings(settings):
                times = profile_nodes(opened, self.folder, values)
            known = {name for node in segment.graph.node for name in (node.name, *node.output)}
            return [
                OperatorTime((node,) if node in known else (), seconds, node)
                for node, seconds in times.items()
            ]

        run, types = session_runner(session), output_types(session)
        return Stage(name, inputs, run, types, bind=bind, profile=profile)

    def _open_unchecked_shapes(self, segment: ModelProto, ranked: Mapping[str, TypeProto]) -> ModelProto:
        """Return a segment that states no extents but those of inputs that the session checks."""
        result = open_shapes(segment)
        called = (node for function in segment.functions for node in function.node)
        scans = any(node.op_type == "Scan" for node in walk_nodes((*segment.graph.node, *called)))
        for value in result.graph.input:
            known = ranked.get(value.name) if scans else None
            if value.name in self.checked:
                value.type.CopyFrom(self.checked[value.name])
            elif known is not None and known.tensor_type.HasField("shape"):
                value.type.tensor_type.shape.SetInParent()
                value.type.tensor_type.shape.dim.extend(
                    TensorShapeProto.Dimension() for _ in known.tensor_type.shape.dim
                )
        return result

    def _control_stage(self, index: GraphIndex, number: int, values: Mapping[str, TypeProto]) -> Stage:
        """Return the stage of a node with regions in its bodies; their outputs give its output types."""
        node: NodeProto = index.nodes[number]
        bodies = {}
        found: dict[str, TypeProto] = {}
        around: list[str] = [name for name in node.input if name]
        for body in index.bodies[number]:
            inner = body.index
            names = [value.name for value in inner.graph.input]
            program = self.build_program(inner, values)
            kinds = map(program.types.get, program.outputs)
            types = [read_type(kind) if kind else None for kind in kinds]
            own = {name: value for name, value in program.constants.items() if name not in names}
            bodies[body.attribute] = ControlBody(names, types, _bind_constants(own, program))
            made = program.outputs[1 if node.op_type == "Loop" else 0 :]
            for mine, theirs in zip(node.output, made, strict=False):
                kind = clear_shape(program.types.get(theirs))
                if mine and kind is not None:
                    found[mine] = kind
            around += body.index.captured_names
        reads = tuple(dict.fromkeys(around))
        made_here = tuple(name for name in node.output if name)
        return Stage(describe_node(node), reads, control_runner(node, bodies), found, made_here)


def data_inputs(index: GraphIndex, call: NodeProto) -> list[str]:
    """Return the inputs of a region's call without its constants, which are stored in the region."""
    return [name for name in call.input if not index.is_constant(name)]


def _call_stage(region: Stage, index: GraphIndex, call: NodeProto) -> Stage:
    """Return a region's stage with its boundary tensors named as in the graph around its call."""
    inputs = dict(zip(region.inputs, data_inputs(index, call), strict=True))
    outputs = dict(zip(region.types, call.output, strict=True))
    are_same = all(inside == name for names in (inputs, outputs) for inside, name in names.items())

    def rename(execute: Callable[[StageValues], StageValues]) -> Callable[[StageValues], StageValues]:
        if are_same:
            return execute

        def run(values: StageValues) -> StageValues:
            made = execute({inside: values[name] for inside, name in inputs.items()})
            return {name: made[inside] for inside, name in outputs.items()}

        return run

    def bind(given: StageValues, made: StageValues) -> Callable[[StageValues], StageValues] | None:
        if region.bind is None:
            return None
        bound = region.bind(
            {inside: given[name] for inside, name in inputs.items() if name in given},
            {inside: made[name] for inside, name in outputs.items() if name in made},
        )
        return None if bound is None else rename(bound)

    def profile(values: StageValues) -> Sequence[OperatorTime]:
        assert region.profile is not None
        return region.profile({inside: values[name] for inside, name in inputs.items()})

    types = {name: region.types[inside] for inside, name in outputs.items()}
    return replace(
        region,
        inputs=tuple(inputs.values()),
        run=rename(region.run),
        types=types,
        bind=bind,
        profile=None if region.profile is None else profile,
    )


def _bind_constants(own: StageValues, program: StageProgram) -> Callable[[StageValues], list[Any]]:
    """Return a function that runs a body; its constants shadow values of the same name around it."""
    return lambda values: program({**values, **own})


# Execution of If, Loop and Scan nodes with regions in their bodies, which onnxruntime cannot call.
#
# The semantics are those of the ONNX operators (If since opset 1, Loop since 1, Scan since 9). A
# body is a function from the values in scope, its own inputs included, to its outputs in order.

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
