"""The decision document of a plan: node by node, where it runs, why, and what that costs."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper

from byoc._dataclasses import dataclass, field
from byoc.boundary.contracts import TensorContract
from byoc.bundle import (
    DecidedBoundary,
    DecidedGraph,
    DecidedNodes,
    DecidedOperator,
    DecidedRange,
    DecidedReason,
    DecidedRegion,
    DecidedTensors,
    DecidedType,
    DecidedUnits,
    DecisionDocument,
    HostReason,
    PlacedNodes,
)
from byoc.console import format_count
from byoc.errors import YES, Verdict, list_causes, shorten_text
from byoc.model import (
    GraphIndex,
    TensorType,
    find_constant_value,
    fix_type,
    get_node_name,
    is_dequantize,
    is_inserted,
    is_quantize,
    make_body_path,
    name_nodes,
)
from byoc.patterns import Kind
from byoc.planning import GraphPlan, Plan, PlannedRegion, SentTensor, find_sent_tensors
from byoc.reporting._remedies import RemedyFinder, report_causes

# Why nodes are on the host: reasons with their share of the work, and a remedy if one is known.


@dataclass
class _ReasonTotals:
    """The nodes on the host for one reason, and the host's seconds of them in a run of the model."""

    verdict: Verdict = YES
    nodes: int = 0
    work: float = 0.0
    largest: tuple[float, str] = (-1.0, "")
    operators: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def list_host_reasons(plan: Plan) -> tuple[HostReason, ...]:
    """Return the reasons for staying on the host, the one with the largest share of the work first.

    Work is counted in seconds of the host, those of bodies times their trip counts; if all of these
    are 0, in operations.
    """
    graphs = [(graph, _measure_work(graph)) for graph in plan.root.walk()]
    remedies = RemedyFinder(plan)
    number = 0 if any(work[0].any() for _, work in graphs) else 1
    whole = float(sum(work[number].sum() for _, work in graphs))
    totals: defaultdict[str, _ReasonTotals] = defaultdict(_ReasonTotals)
    for graph, works in graphs:
        _add_graph(totals, graph, works[number].tolist())
    rows = [
        HostReason(
            reason=reason,
            nodes=each.nodes,
            share=each.work / whole if whole else 0.0,
            largest=each.largest[1],
            operators=tuple(sorted(each.operators, key=lambda name: (-each.operators[name], name))),
            remedy=remedies.describe(each.verdict),
            causes=report_causes(list_causes(each.verdict)),
            actions=remedies.find_actions(each.verdict),
        )
        for reason, each in totals.items()
        if each.nodes  # without those of conversions alone
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.share or 0.0), -row.nodes, row.reason)))


def _measure_work(graph: GraphPlan) -> "tuple[np.ndarray, np.ndarray]":
    """Return the host's seconds and the operations of each unit.

    A unit whose body is planned by itself has 0: its work counts in the body's plan.
    """
    counted = np.array([unit.nodes[0] not in graph.bodies for unit in graph.units], bool)
    problem = graph.graph_problem
    columns = (problem.latency.seconds[:, 0], problem.operations)
    seconds, operations = (np.where(counted, column, 0.0) * graph.trips for column in columns)
    return seconds, operations


def _add_graph(totals: "defaultdict[str, _ReasonTotals]", graph: GraphPlan, work: list[float]) -> None:
    """Add the units of a graph that are on the host to the totals of their reasons."""
    texts: dict[int, str] = {}  # many units have one verdict
    kinds = graph.index.node_kinds
    rows = np.flatnonzero(graph.placement.labels == 0).tolist()
    for row, (unit, verdict) in zip(rows, graph.host_units, strict=True):
        if id(verdict) not in texts:
            texts[id(verdict)] = str(verdict)
        each = totals[texts[id(verdict)]]
        each.verdict = each.verdict if each.nodes else verdict
        each.nodes += count_user_nodes(graph.index, unit.nodes)
        each.work += work[row]
        if work[row] > each.largest[0]:
            each.largest = (work[row], unit.name)
        for node in unit.nodes:
            each.operators[kinds[node].operator] += work[row] / len(unit.nodes)


def count_user_nodes(index: GraphIndex, nodes: Collection[int]) -> int:
    """Count the nodes that byoc did not insert, of some that are distinct."""
    return len(nodes) - (len(index.inserted_nodes.intersection(nodes)) if index.inserted_nodes else 0)


def report_placed_nodes(plan: Plan) -> tuple[PlacedNodes, ...]:
    """Return the nodes of a plan by place and operator, in the order of each first node."""
    groups: defaultdict[tuple[Any, ...], list[tuple[str, str]]] = defaultdict(list)
    for each in make_decision_document(plan).list_placed_nodes():
        place = (each.device, each.region, each.operator, each.reason, each.causes, each.rule)
        groups[place].append((each.name, each.output))
    return tuple(
        PlacedNodes(
            device=device,
            region=region,
            operator=operator,
            reason=reason,
            causes=causes,
            rule=rule,
            nodes=tuple(name for name, _ in nodes),
            outputs=() if all(n == o for n, o in nodes) else tuple(output for _, output in nodes),
        )
        for (device, region, operator, reason, causes, rule), nodes in groups.items()
    )


Contracts = Mapping[str, Mapping[str, TensorContract]]
"""Region -> name of a boundary tensor in the user's model -> its contract."""


def make_decision_document(plan: Plan, contracts: Contracts | None = None) -> DecisionDocument:
    """Return the decisions of a plan; `contracts` are those of its regions' boundaries, if known."""
    return _DocumentMaker(plan, contracts or {}).make_document()


K = TypeVar("K", bound=Hashable)


class _Numbers(dict[K, int]):
    """The numbers of values, in the order of their first use."""

    def __missing__(self, value: K) -> int:
        self[value] = number = len(self)
        return number


class _TensorNumbers(dict[str, int]):
    """The numbers of the tensors of a graph; a name that is left out has -1."""

    def __init__(self) -> None:
        super().__init__({"": -1})

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self) - 1
        return number

    def number_all(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the numbers of some names."""
        return tuple(map(self.__getitem__, names))


@dataclass
class _DocumentMaker:
    """Makes the tables of all graphs, which share the numbers of operators, rules, reasons and types."""

    plan: Plan
    contracts: Contracts
    operators: _Numbers[tuple[str, str]] = field(default_factory=_Numbers)
    composites: _Numbers[str] = field(default_factory=_Numbers)
    rules: _Numbers[str] = field(default_factory=_Numbers)
    reasons: _Numbers[str] = field(default_factory=_Numbers)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """a verdict for each of the reasons"""
    types: _Numbers[TensorType] = field(default_factory=_Numbers)
    attributes: _Numbers[str] = field(default_factory=_Numbers)

    def make_document(self) -> DecisionDocument:
        """Return the whole document."""
        plan = self.plan
        sizes, names = plan.model.planned.sizes, [target.name for target in plan.targets]
        remedies = RemedyFinder(plan)
        placed = {id(graph.index): graph for graph in plan.root.walk()}
        graphs = tuple(
            self._make_graph(index, path, around, placed.get(id(index)))
            for index, path, around in _walk_graphs(plan.root.index)
        )
        return DecisionDocument.model_construct(
            model=plan.model.source,
            devices=("host", *names),
            operators=tuple(DecidedOperator(domain=d, name=n) for d, n in self.operators),
            composites=tuple(self.composites),
            rules=tuple(self.rules),
            reasons=tuple(
                DecidedReason(
                    text=text,
                    remedy=remedies.describe(self.verdicts[text]),
                    causes=report_causes(list_causes(self.verdicts[text])),
                )
                for text in self.reasons
            ),
            types=tuple(_describe_type(kind, sizes) for kind in self.types),
            attributes=tuple(self.attributes),
            graphs=graphs,
        )

    def _make_graph(
        self, index: GraphIndex, path: str, around: tuple[int, int], placed: GraphPlan | None
    ) -> DecidedGraph:
        """Return the tables of a graph; `placed` is None where it was not placed by itself."""
        tensors = _TensorNumbers()
        inputs = tensors.number_all(tuple(index.inputs))
        nodes = self._make_nodes(index, placed, tensors)
        outputs = tensors.number_all(tuple(index.outputs))
        regions = self._make_regions(placed, tensors)
        ranges = () if path else tuple(self._make_ranges(index, tensors))
        names = tuple(tensors)[1:]
        kinds, constant = index.types, index.constant_names
        types = (kinds.get(name) for name in names)
        return DecidedGraph.model_construct(
            path=path,
            trips=None if placed is None else _round(placed.trips),
            around=around,
            inputs=inputs,
            outputs=outputs,
            tensors=DecidedTensors.model_construct(
                names=names,
                types=tuple([-1 if kind is None else self.types[kind] for kind in types]),
                constant=tuple(n for n, name in enumerate(names) if name in constant),
            ),
            nodes=nodes,
            units=self._make_units(placed),
            regions=regions,
            ranges=ranges,
        )

    def _make_ranges(self, index: GraphIndex, tensors: _TensorNumbers) -> Iterator[DecidedRange]:
        """Yield the ranges of the tensors that byoc put in integers, with one scale, on known data."""
        lowered = self.plan.lowered
        seen = {} if lowered is None else lowered.seen
        for node in index.nodes if seen else ():
            if not is_quantize(node):
                continue
            # The name that the tensor had before is that of its float values, behind or before.
            behind = (index.nodes[reader] for reader in index.consumers.get(node.output[0], ()))
            names = (*(each.output[0] for each in behind if is_dequantize(each)), node.input[0])
            name = next((name for name in names if name in seen), None)
            found = _find_integer_range(index, node)
            if name is not None and found is not None:
                least, greatest, clipped = seen[name]
                dtype, low, high = found
                yield DecidedRange.model_construct(
                    tensor=tensors[name],
                    dtype=dtype,
                    low=_round(low),
                    high=_round(high),
                    data=(_round(least), _round(greatest)),
                    clipped=_round(clipped),
                )

    def _make_nodes(
        self, index: GraphIndex, placed: GraphPlan | None, tensors: _TensorNumbers
    ) -> DecidedNodes:
        rows = {} if placed is None else placed.row_of_node
        named, nodes = name_nodes(index, ""), index.nodes
        inputs, outputs = list(index.node_inputs), index.node_outputs
        for number in index.bodies:  # what bodies capture comes last
            captured = [name for name in index.reads[number] if name not in inputs[number]]
            inputs[number] += tuple(captured)
        numbers = range(len(nodes))
        number_all = tensors.number_all
        each = zip(inputs, outputs, strict=True)
        numbered = [(number_all(read), number_all(made)) for read, made in each]
        kinds = {
            id(kind): self.operators["" if kind.is_onnx else kind.domain, kind.op_type]
            for kind in index.node_kinds
        }
        return DecidedNodes.model_construct(
            names=tuple([named.get(n) or get_node_name(nodes[n]) for n in numbers]),
            operators=tuple([kinds[id(kind)] for kind in index.node_kinds]),
            inputs=tuple([read for read, _ in numbered]),
            outputs=tuple([made for _, made in numbered]),
            units=tuple([rows.get(n, -1) for n in numbers]),
            inserted=tuple(
                [n for n, node in enumerate(nodes) if node.metadata_props and is_inserted(node)]
            ),
            attributes=tuple(
                [self.attributes[_describe_attributes(n)] if n.attribute else -1 for n in nodes]
            ),
        )

    def _make_units(self, placed: GraphPlan | None) -> DecidedUnits:
        if placed is None:
            columns = tuple(() for _ in range(1 + len(self.plan.targets)))
            nothing: dict[str, Any] = dict.fromkeys(DecidedUnits.model_fields, ())
            return DecidedUnits.model_construct(**nothing | {"seconds": columns})
        problem, labels = placed.graph_problem, placed.placement.labels.tolist()
        rows = range(len(labels))
        composites = {}
        for region in placed.regions:
            for unit in region.units:
                if unit.composite:
                    rows_inside = (placed.row_of_node[node] for node in unit.nodes)
                    composites.update(dict.fromkeys(rows_inside, unit.composite))
        on_device = [
            placed.units[row].on_device[label - 1] if label else () for row, label in enumerate(labels)
        ]
        seconds = problem.latency.seconds.T.tolist()
        return DecidedUnits.model_construct(
            kinds=tuple([_find_kind(placed, row) for row in rows]),
            composites=tuple(
                [self.composites[composites[row]] if row in composites else -1 for row in rows]
            ),
            devices=tuple(labels),
            regions=tuple(placed.placement.regions.tolist()),
            reasons=tuple(
                [-1 if labels[row] else self._number_reason(placed.host_reason(row)) for row in rows]
            ),
            operations=tuple(map(_round, problem.operations.tolist())),
            seconds=tuple(
                tuple([None if value == _NEVER else _round(value) for value in column])
                for column in seconds
            ),
            rules=tuple(
                [
                    tuple({self.rules[rule]: None for unit in units for rule in unit.rules})
                    for units in on_device
                ]
            ),
            estimated=tuple(problem.estimated_seconds.nonzero()[0].tolist()),
        )

    def _number_reason(self, verdict: Verdict) -> int:
        text = str(verdict)
        self.verdicts.setdefault(text, verdict)
        return self.reasons[text]

    def _make_regions(
        self, placed: GraphPlan | None, tensors: _TensorNumbers
    ) -> tuple[DecidedRegion, ...]:
        if placed is None or not placed.regions:
            return ()
        sent = find_sent_tensors(placed)
        names = [target.name for target in placed.targets]
        return tuple(
            DecidedRegion.model_construct(
                name=region.name,
                device=1 + names.index(region.target.name),
                seconds=_round(region.seconds),
                boundary=tuple(self._make_boundary(region, sent[region.name], tensors)),
            )
            for region in placed.regions
        )

    def _make_boundary(
        self, region: PlannedRegion, sent: tuple[SentTensor, ...], tensors: _TensorNumbers
    ) -> Iterator[DecidedBoundary]:
        """Yield the tensors that enter a region and those that leave it."""
        contracts = self.contracts.get(region.name, {})
        for each in sent:
            contract = contracts.get(each.name)
            stated: dict[str, Any] = {} if contract is None else _describe_contract(contract)
            yield DecidedBoundary.model_construct(
                tensor=tensors[each.name],
                enters=each.enters,
                bytes=each.bytes,
                seconds=None if each.seconds is None else _round(each.seconds),
                **stated,
            )


def _find_integer_range(index: GraphIndex, node: NodeProto) -> tuple[str, float, float] | None:
    """Return dtype, and the least and greatest real value, of what a QuantizeLinear makes.

    None where it has a scale for each channel, or what it makes are no integers.
    """
    kind = index.types.get(node.output[0])
    scale = find_constant_value(index, node.input[1])
    zero = find_constant_value(index, node.input[2]) if len(node.input) > 2 and node.input[2] else 0
    if kind is None or "int" not in kind.dtype or scale is None or zero is None or np.size(scale) != 1:
        return None
    bits = int(kind.dtype.partition("int")[2])
    step, point = float(np.ravel(scale)[0]), int(np.ravel(zero)[0])
    least = 0 if kind.dtype.startswith("u") else -(2 ** (bits - 1))
    return kind.dtype, (least - point) * step, (least + 2**bits - 1 - point) * step


_MOST_SHOWN = 120  # characters of an attribute's value


def _describe_attributes(node: NodeProto) -> str:
    """Return the stated attributes of a node, a line `name: value` for each."""
    return "\n".join(f"{each.name}: {_describe_value(each)}" for each in node.attribute)


def _describe_value(attribute: AttributeProto) -> str:
    """Return an attribute's value as people write it; of a tensor its type, of a body its nodes."""
    if attribute.ref_attr_name:
        return f"the attribute {attribute.ref_attr_name} of the function"
    if attribute.type == AttributeProto.TENSOR:
        dtype = TensorProto.DataType.Name(attribute.t.data_type).lower()
        return f"a tensor {dtype} {list(attribute.t.dims)}"
    if attribute.type == AttributeProto.GRAPH:
        return f"a body of {format_count(len(attribute.g.node), 'node')}"
    value = helper.get_attribute_value(attribute)
    values = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
    if not all(isinstance(each, str | bytes | int | float) for each in values):
        return AttributeProto.AttributeType.Name(attribute.type).lower()
    shown = ", ".join(_describe_scalar(each) for each in values[:_MOST_SHOWN])
    return shorten_text(shown, _MOST_SHOWN) if shown else "none"


def _describe_scalar(value: str | bytes | float) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _describe_contract(contract: TensorContract) -> dict[str, Any]:
    return {
        "dtype": contract.type.dtype,
        "layout": contract.layout,
        "scale": contract.scale[0] if contract.scale else None,
        "zero_point": contract.zero_point[0] if contract.zero_point else None,
        "converts": dict(sorted(contract.converts.items())),
    }


_NEVER = float("inf")


@lru_cache(1 << 12)  # most nodes have many of their kind
def _round(number: float) -> float:
    """Return a number with six digits: costs are no more exact, and more digits make the file larger."""
    return float(f"{number:.6g}")


def _describe_type(kind: TensorType, sizes: Mapping[str, int]) -> DecidedType:
    size = fix_type(kind, sizes).bytes
    # Models state negative extents in bodies that never run.
    known = size if size is not None and size >= 0 else None
    return DecidedType(dtype=kind.dtype, shape=kind.shape, bytes=known)


def _find_kind(placed: GraphPlan, row: int) -> Kind:
    """Return the kind of a unit, for the device that it is on: that of most of its nodes."""
    label = int(placed.placement.labels[row])
    parts = placed.units[row].on_device
    units = parts[label - 1] if label else (parts[0] if parts else ())
    if len(units) == 1:
        return units[0].kind
    return max(units, key=lambda unit: len(unit.nodes)).kind if units else "node"


def _walk_graphs(
    index: GraphIndex,
) -> Iterator[tuple[GraphIndex, str, tuple[int, int]]]:
    """Yield each graph of a model, its path, and the numbers of the graph and node around it."""
    waiting = [(index, "", (-1, -1))]
    for number, (graph, path, around) in enumerate(waiting):
        yield graph, path.rstrip("/"), around
        waiting += [
            (body.index, make_body_path(graph, node, body.attribute, path), (number, node))
            for node, bodies in graph.bodies.items()
            for body in bodies
        ]
