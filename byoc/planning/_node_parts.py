"""Nodes in parts: a node that no accelerator takes, as the operators that its function body has.

Whether that pays is for the placement to say: it is asked about the model with such nodes in parts, at
what the whole nodes cost on the host, and a node of which nothing is offloaded stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from byoc._dataclasses import dataclass, field, replace
from byoc.costs import GraphProblem
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    PART_KEY,
    GraphIndex,
    Model,
    NodeCopies,
    get_constant_value,
    get_metadata,
    get_node_name,
    get_operator_name,
    has_function_body,
    is_large,
    make_body_model,
    name_nodes,
    prepare_model,
    set_metadata,
    walk_graph_paths,
    walk_nodes,
)
from byoc.passes import VIEW_KEY, GraphEdits, apply_edits
from byoc.patterns import JointUnit, Mark
from byoc.placement import Problem
from byoc.planning._cleaned_graphs import HOST, PinnedNode, PinnedNodes, clean_parts
from byoc.planning._graph_plan import GraphPlan
from byoc.rules import Target, annotate_graph, is_kept_whole
from byoc.support.expressions import matches

# Annotations in the model: metadata of nodes that says on which device they are wanted.
#
# ONNX nodes carry metadata as pairs of texts (`metadata_props`, IR version 10 and later). A pair
# either names a device itself (`--annotations KEY`), or has a text that rule files map to devices,
# such as the layer names under `layer_ann` that Olive writes and onnxruntime's layer assignment
# reads.


def read_annotations(index: GraphIndex, targets: Sequence[Target], key: str | None) -> PinnedNodes:
    """Return the nodes of a model whose metadata says where they are wanted, bodies included.

    `key` is the metadata key whose value names a device, None for none; `annotations` of each target
    maps other metadata to it. A node in a body that has no annotation of its own takes that of the node
    around it. A device named under `key` counts before one by `annotations`, and the first target that
    wants a node before later ones.

    Raises InputError when a value under `key` names no device, and when no node has that key.
    """
    if key is not None and key not in (keys := _list_keys(index)):
        known = f"there is {', '.join(sorted(keys))}" if keys else "no node has any"
        raise InputError(f"--annotations {key}: no node has metadata of this key; {known}")
    if key is None and not any(target.rules.annotations for target in targets):
        return PinnedNodes()
    reader = _AnnotationReader(targets, key)
    wanted: dict[int, dict[int, PinnedNode]] = {}
    inherited: dict[int, tuple[int, str]] = {}
    for path, graph in walk_graph_paths(index):
        names = name_nodes(graph, path)
        around = inherited.get(id(graph))
        for number, node in enumerate(graph.nodes):
            found = reader.find_device(node, names.get(number, node.name)) or around
            if found is None:
                continue
            if number in names:
                pinned = PinnedNode(names[number], *found)
                wanted.setdefault(id(graph), {})[number] = pinned
            for body in graph.bodies.get(number, ()):
                inherited[id(body.index)] = found
    return PinnedNodes(wanted)


class _AnnotationReader:
    """Reads the device that a node's metadata asks for."""

    def __init__(self, targets: Sequence[Target], key: str | None) -> None:
        self._targets = targets
        self._key = key
        self._numbers = {HOST: 0, **{target.name: i for i, target in enumerate(targets, 1)}}

    def find_device(self, node: NodeProto, name: str) -> tuple[int, str] | None:
        """Return the number of the device that a node asks for, and who says so; None without any."""
        if not node.metadata_props:
            return None
        if self._key is not None and (value := get_metadata(node, self._key)):
            return self._read_device(value, name), f"--annotations {self._key}"
        for number, target in enumerate(self._targets, 1):
            for key, patterns in target.rules.annotations.items():
                value = get_metadata(node, key)
                if value and any(matches(pattern, value) for pattern in patterns):
                    return number, f"{target.source}: {target.locate('annotations')}.{key}"
        return None

    def _read_device(self, value: str, name: str) -> int:
        if value not in self._numbers:
            known = ", ".join(self._numbers)
            raise InputError(
                f"--annotations {self._key}: node '{name}' asks for device '{value}', which is not here"
                f"{suggest_nearest(value, self._numbers)}; there are {known}"
            )
        return self._numbers[value]


def _list_keys(index: GraphIndex) -> set[str]:
    """Return the keys of metadata that is not empty."""
    nodes = (node for graph in index.walk() for node in graph.nodes)
    return {entry.key for node in nodes for entry in node.metadata_props if entry.value}


def find_unmatched_annotations(index: GraphIndex, target: Target) -> Iterator[str]:
    """Yield a sentence for each pattern under `annotations` of a rule file that matches no node.

    A key that the model does not use at all yields nothing, since rule files are for many models.
    """
    values: dict[str, set[str]] = {key: set() for key in target.rules.annotations}
    for graph in index.walk() if values else ():
        for node in graph.nodes:
            for entry in node.metadata_props:
                if entry.key in values:
                    values[entry.key].add(entry.value)
    for key, patterns in target.rules.annotations.items():
        for position, pattern in enumerate(patterns):
            if values[key] and not any(matches(pattern, value) for value in values[key]):
                location = f"{target.locate('annotations')}.{key}[{position}]"
                yield f"{location}: no node has metadata '{key}' that matches '{pattern}'"


# A node is offered in parts if a target takes at least this share of them: with fewer, what stays
# on the host would be most of the node, at the transfers of several. It is a bound on effort alone.
LEAST_TAKEN = 0.5
_MOST_PARTS = 1_000  # of a node: ONNX's largest bodies have about a hundred, functions call functions

WholePrice = tuple[float, float, float | None]
"""What a whole node costs on the host: in units of the objective, in seconds, and in joules."""


@dataclass(frozen=True, eq=False)
class _Parts:
    """The parts of a node, as a model of what it reads and makes, and the node that it was made for."""

    node: NodeProto
    body: Model

    def map_names(self, node: NodeProto) -> dict[str, str]:
        """Return the names around the parts, with those around another node that is alike."""
        here = (*self.node.input, *self.node.output)
        there = (*node.input, *node.output)
        names = {name: name for name in self.body.index.inputs}  # those that bodies capture, too
        return {**names, **dict(zip(here, there, strict=True))}


@dataclass(frozen=True, eq=False)
class NodeSplitter:
    """Puts nodes of a model in parts, for some targets.

    Nodes go by their names as `name_nodes` has them, with the paths of their graphs. `left_out` are the
    clean-up passes that parts do without.
    """

    model: Model
    targets: tuple[Target, ...]
    left_out: str | Collection[str] = ()
    _parts: dict[str, _Parts] = field(default_factory=dict)
    """the parts of candidates by name"""
    _templates: dict[Hashable, _Parts | None] = field(default_factory=dict)
    """the parts of nodes that are alike, made for one of them"""
    _taken: dict[int, bool] = field(default_factory=dict)
    """whether a target takes enough of parts, by their `id`"""

    def find_candidates(self, root: GraphPlan) -> dict[str, WholePrice]:
        """Return the nodes that no accelerator takes, and may take in parts, with their prices.

        `root` is the plan of the model. A node whose device is given, or that a rule file keeps whole,
        is not among them.
        """
        found = {}
        for graph in root.walk():
            index, latency = graph.index, graph.graph_problem.latency
            refused = ~np.isfinite(latency.seconds[:, 1:]).any(axis=1) & (graph.placement.labels == 0)
            names: Mapping[int, str] | None = None
            for row in np.flatnonzero(refused).tolist():
                nodes = graph.units[row].nodes
                if len(nodes) > 1 or row in graph.pins or not self._may_split(index, nodes[0]):
                    continue
                names = names or name_nodes(index, graph.path)
                if nodes[0] in names:
                    found[names[nodes[0]]] = _read_price(graph.graph_problem, row)
        places = self._find_places(found) if found else {}
        return {name: found[name] for name, place in places.items() if self._is_taken(name, *place)}

    def split(self, names: Collection[str]) -> Model:
        """Return the model with some nodes in parts, each of which says of which node it is one."""
        return _split(self.model, self._find_places(names), self._parts)

    def list_parts(self, index: GraphIndex, number: int) -> tuple[GraphIndex, list[int]] | None:
        """Return the parts of a node: the graph that they are in, and their numbers there.

        None for a node that has none, or that a rule file keeps whole.
        """
        parts = self._find_parts(index, number) if self._may_split(index, number) else None
        if parts is None:
            return None
        body = parts.body.index
        return body, [n for n in range(len(body.nodes)) if n not in body.constant_nodes]

    def _find_places(self, names: Collection[str]) -> dict[str, tuple[GraphIndex, int]]:
        return {
            name: (index, number)
            for path, index in walk_graph_paths(self.model.index)
            for number, name in name_nodes(index, path).items()
            if name in names
        }

    def _may_split(self, index: GraphIndex, number: int) -> bool:
        node = index.nodes[number]
        return has_function_body(index, node) and not any(
            is_kept_whole(node, target.rules) for target in self.targets
        )

    def _is_taken(self, name: str, index: GraphIndex, number: int) -> bool:
        """Return whether a target takes enough of a node's parts, which are made for that."""
        parts = self._find_parts(index, number)
        if parts is None:
            return False
        self._parts[name] = parts
        if id(parts) not in self._taken:
            body = parts.body.index
            placed = [n for n in range(len(body.nodes)) if n not in body.constant_nodes]
            counts = (
                sum(takes_float(marks[n]) for n in placed)
                for marks in (annotate_graph(body, target) for target in self.targets)
            )
            enough = max(1.0, LEAST_TAKEN * len(placed))
            self._taken[id(parts)] = max(counts, default=0) >= enough
        return self._taken[id(parts)]

    def _find_parts(self, index: GraphIndex, number: int) -> _Parts | None:
        """Return the parts of a node, or of one that is like it; None where it has none."""
        key = _sign_call(index, number)
        if key not in self._templates:
            try:
                body = self._make_body(index, number)
            except InputError:  # it is not one that byoc takes, so the node stays whole
                body = None
            self._templates[key] = None if body is None else _Parts(index.nodes[number], body)
        return self._templates[key]

    def _make_body(self, index: GraphIndex, number: int) -> Model | None:
        """Return a node's body as a model, refused nodes in it in parts; None where it has none.

        Raises InputError where the body is no valid model.
        """
        made = make_body_model(index, number)
        if made is None:
            return None
        source = f"the parts of {get_operator_name(index.nodes[number])}"
        body = prepare_model(made, source, self.model.folder)
        body = clean_parts(body, self.targets, self.left_out)
        inner = {name: (place, self._find_parts(*place)) for name, place in self._find_refused(body)}
        parts = {name: found for name, (_, found) in inner.items() if found is not None}
        if parts:
            body = _split(body, {name: inner[name][0] for name in parts}, parts)
            body = clean_parts(body, self.targets, self.left_out)
        nodes = body.structure.graph.node
        made_here = {name for node in nodes for name in node.output}
        return body if len(nodes) <= _MOST_PARTS and made_here >= {*body.index.outputs} else None

    def _find_refused(self, body: Model) -> Iterator[tuple[str, tuple[GraphIndex, int]]]:
        """Yield the nodes of a body that no target takes and that have parts of their own."""
        for path, index in walk_graph_paths(body.index):
            names = name_nodes(index, path)
            marks = [annotate_graph(index, target) for target in self.targets]
            for number, name in names.items():
                if not any(own[number].verdict for own in marks) and self._may_split(index, number):
                    yield name, (index, number)


def takes_float(mark: Mark) -> bool:
    """Return whether a part with this mark is taken: parts have no scales, also in a quantized model."""
    return bool(mark.verdict) and mark.accepts_plain


def find_parts(root: GraphPlan) -> dict[str, list[bool]]:
    """Return the nodes that are in parts, and for each part that is placed whether it is offloaded."""
    found: dict[str, list[bool]] = {}
    for graph in root.walk():
        for node, device in graph.device_of_node.items():
            whole = get_metadata(graph.index.nodes[node], PART_KEY)
            if whole:
                found.setdefault(whole, []).append(device != "host")
    return found


def share_host_prices(
    built: GraphProblem,
    index: GraphIndex,
    units: Sequence[JointUnit],
    prices: Mapping[str, WholePrice],
) -> GraphProblem:
    """Return a placement problem in which the parts of a node cost on the host what the node does.

    So all of them on the host are priced as the node that stays whole then.
    """
    rows: dict[str, list[int]] = {}
    for row, unit in enumerate(units):
        wholes = {get_metadata(index.nodes[node], PART_KEY) for node in unit.nodes}
        whole = wholes.pop() if len(wholes) == 1 else ""
        if whole in prices:
            rows.setdefault(whole, []).append(row)
    if not rows:
        return built

    def share(place: int, seconds: NDArray[np.float64]) -> None:
        for whole, own in rows.items():
            price, parts = prices[whole][place], seconds[own, 0].sum()
            if price is not None:
                seconds[own, 0] = seconds[own, 0] * price / parts if parts else price / len(own)

    return _change_prices(built, share)


def free_host_views(built: GraphProblem, index: GraphIndex, units: Sequence[JointUnit]) -> GraphProblem:
    """Return a placement problem in which nodes that only the form of others needs are free on the host.

    So what is on the host is priced about as in the form that it gets back there.
    """
    views = [
        row
        for row, unit in enumerate(units)
        if all(get_metadata(index.nodes[node], VIEW_KEY) for node in unit.nodes)
    ]

    def free(_: int, seconds: NDArray[np.float64]) -> None:
        seconds[views, 0] = 0

    return _change_prices(built, free) if views else built


def _change_prices(
    built: GraphProblem, change: Callable[[int, NDArray[np.float64]], None]
) -> GraphProblem:
    """Return a placement problem with other prices of units.

    `change` gets the place in a price (see `WholePrice`), and prices by unit and device to be edited.
    """
    changed: list[Problem | None] = []
    for place, problem in enumerate((built.problem, built.latency, built.energy)):
        if problem is None:
            changed.append(None)
            continue
        seconds = problem.seconds.copy()
        change(place, seconds)
        changed.append(problem.replace_seconds(seconds))
    problem, latency, energy = changed
    assert problem is not None
    assert latency is not None
    return replace(built, problem=problem, latency=latency, energy=energy)


def _read_price(problem: GraphProblem, row: int) -> WholePrice:
    energy = None if problem.energy is None else float(problem.energy.seconds[row, 0])
    return float(problem.problem.seconds[row, 0]), float(problem.latency.seconds[row, 0]), energy


# Edits: the parts of nodes in their places.


def _split(
    model: Model, places: Mapping[str, tuple[GraphIndex, int]], parts: Mapping[str, _Parts]
) -> Model:
    """Return a model with the parts of some nodes in their places."""
    root = GraphEdits(model.index, model.folder)
    edits_of = {id(edits.index): edits for edits in root.walk()}
    used: dict[str, int] = {}
    typed: dict[str, NodeProto] = {}
    for name, (index, number) in places.items():
        typed |= _put_parts(edits_of[id(index)], number, name, parts[name])
        used |= parts[name].body.index.opsets
    edited = apply_edits(model, root)
    for node in walk_nodes(edited.inference.typed_graph.node if edited.inference.typed_graph else ()):
        if node.name in typed:
            node.CopyFrom(typed[node.name])
    for domain in sorted(used.keys() - model.index.opsets.keys()):
        edited.structure.opset_import.add(domain=domain, version=used[domain])
    return edited


def _put_parts(edits: GraphEdits, number: int, name: str, found: _Parts) -> dict[str, NodeProto]:
    """Put the parts of a node in its place, under names that are free.

    Returns those that have bodies of their own by name, with the types that are known in these.
    """
    node, body, given = edits.index.nodes[number], found.body, found.body.index
    outside = found.map_names(node)
    before, prefix = (f"{next(filter(None, each.output))}/" for each in (found.node, node))

    @cache
    def allocate(inner: str) -> str:
        own = inner.removeprefix(before)
        return edits.names.new_tensor(inner if own == inner else f"{prefix}{own}")

    copies = NodeCopies({**outside}, allocate)
    for tensor in given.graph.initializer:
        if tensor.name not in outside:
            stored = TensorProto()
            stored.CopyFrom(tensor)
            copies.names[tensor.name] = edits.store(stored, tensor.name)
    parts = [copies.copy(each) for each in given.nodes]
    for inner, kind in body.inference.type_protos.items():
        if inner in copies.names and inner not in outside:
            edits.types[copies.names[inner]] = kind
    names = [edits.names.new_node(_name_part(node, found.node, each)) for each in parts]
    edits.replace(number, *parts)
    graph = given.graph if body.inference.typed_graph is None else body.inference.typed_graph
    typed = {}
    for each, (part, own) in enumerate(zip(parts, names, strict=True)):
        part.name = own  # `replace` names the last as the whole
        del part.metadata_props[:]
        part.metadata_props.extend(node.metadata_props)
        set_metadata(part, PART_KEY, name)
        if each in given.bodies:
            typed[own] = copies.copy(graph.node[each])
            typed[own].name = own
    return typed


def _name_part(node: NodeProto, alike: NodeProto, part: NodeProto) -> str:
    """Return a name for a part of a node, which was made for another one that is alike."""
    before = f"{get_node_name(alike)}/"
    own = part.name.removeprefix(before) if part.name.startswith(before) else part.op_type
    return f"{get_node_name(node)}/{own}"


def _sign_call(index: GraphIndex, number: int) -> Hashable:
    """Return all that the parts of a node follow from, but for the names of its tensors.

    A node with bodies, which may read anything, is like no other.
    """
    node = index.nodes[number]
    if number in index.bodies:
        return id(node)
    first = {name: place for place, name in reversed([*enumerate(node.input)])}
    kinds, values = [], []
    for name in first:
        kind = index.type_protos.get(name)
        kinds.append(b"" if kind is None else kind.SerializeToString(deterministic=True))
        value = get_constant_value(index, name)
        small = name in index.stored_tensors and not is_large(index.stored_tensors[name])
        values.append(value.tobytes() if value is not None else name if small else None)
    attributes = sorted(each.SerializeToString(deterministic=True) for each in node.attribute)
    operator = node.domain, node.op_type, node.overload, *sorted(index.opsets.items())
    places = tuple(first[name] for name in node.input), tuple(map(bool, node.output))
    return operator, tuple(attributes), places, tuple(kinds), tuple(values)
