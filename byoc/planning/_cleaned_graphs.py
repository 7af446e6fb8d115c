"""Models cleaned for their targets, in the forms that these take, and the graphs that are annotated."""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import partial

from byoc._dataclasses import dataclass, field, replace
from byoc.costs import AlternativeComposite, can_partition_bodies, check_trips
from byoc.errors import InputError
from byoc.model import (
    TARGET_KEY,
    Dim,
    GraphIndex,
    Model,
    find_state_pairs,
    get_metadata,
    is_qdq_node,
    read_type,
    unshare_dequantize,
)
from byoc.passes import (
    CLAMPS,
    ChosenForm,
    CleanedModel,
    CleanPass,
    ReadQuantizedOperators,
    SimplifyParts,
    TwinForm,
    clean_model,
    find_forms,
    list_clean_passes,
    list_offered_forms,
)
from byoc.patterns import (
    JointUnit,
    Mark,
    Unit,
    group_units,
    group_with_alternatives,
    join_units,
    make_single_unit,
    open_units,
    sort_units,
)
from byoc.placement import Problem
from byoc.rules import Annotator, Objection, OpRule, Target, annotate_graph
from byoc.samples import model_samples
from byoc.zoo import Source, load_model


def find_graphs(index: GraphIndex) -> Iterator[GraphIndex]:
    """Yield the graphs in which regions may form: a graph, and bodies inside it that may be cut."""
    yield index
    for node, bodies in index.bodies.items():
        if can_partition_bodies(index, node):
            for body in bodies:
                yield from find_graphs(body.index)


def annotate_graphs(index: GraphIndex, targets: Sequence[Target]) -> dict[int, list[list[Mark]]]:
    """Return the marks of the nodes of each graph: by the id of its index, then target, then node."""
    return {
        id(graph): [annotate_graph(graph, target) for target in targets] for graph in find_graphs(index)
    }


def clean_for_targets(
    model: Model,
    targets: Sequence[Target],
    left_out: str | Collection[str] = (),
    unwanted: Collection[str] = (),
    *,
    quantizing: bool = False,
) -> CleanedModel:
    """Clean a model by the passes that run without being asked for, but for those that are left out.

    Nodes that no target takes get a form that one takes, but for those whose first output is `unwanted`;
    with `quantizing` one that it takes once the model is quantized. Raises InputError for a name among
    `left_out` that no such pass has, and for the model of a bundle.
    """
    _check_not_partitioned(model)
    names = [left_out] if isinstance(left_out, str) else left_out
    cleaned = clean_model(model, choose_clean_passes(targets, names))
    for form in list_offered_forms(names):
        made = _offer_form(cleaned.model, targets, form, frozenset(unwanted), quantizing)
        cleaned = CleanedModel(made.model, (*cleaned.effects, *made.effects))
    if cleaned.model is model or model.make_samples is not None:
        return cleaned
    # Samples are made from what reads the inputs, and are to be the same with and without clean-up.
    return replace(cleaned, model=replace(cleaned.model, make_samples=partial(model_samples, model)))


def _check_not_partitioned(model: Model) -> None:
    """Raise InputError for the model of a bundle, whose regions are calls, which no rule speaks of."""
    for node in model.structure.graph.node:
        target = get_metadata(node, TARGET_KEY)
        if target:
            raise InputError(
                f"{model.source}: is partitioned already: '{node.op_type}' is a region of {target}; "
                "take the model that it was made of"
            )


def clean_parts(model: Model, targets: Sequence[Target], left_out: str | Collection[str] = ()) -> Model:
    """Return a model that is the body of an operator, cleaned as models are, and of what bodies have.

    Raises InputError as `clean_for_targets` does.
    """
    spoken = [_list_operators(target) for target in targets]
    add_sums = any("Add" in each for each in spoken) and not any({"Sum", "*"} & each for each in spoken)
    cleaned = clean_for_targets(model, targets, left_out).model
    simplified = clean_model(cleaned, (SimplifyParts(add_sums),)).model
    return clean_for_targets(simplified, targets, left_out).model


def choose_clean_passes(
    targets: Sequence[Target], left_out: Collection[str] = ()
) -> tuple[CleanPass, ...]:
    """Return the clean-up passes for some targets. Raises InputError as `clean_for_targets` does.

    Flatten becomes Reshape if a target takes the one only, and none the other only; BatchNormalization
    is folded if a target wants that. Operators of integers are read as QDQ groups if a target takes
    quantized operators, and none speaks of operators of integers; of them only the products that are
    quantized as a model runs, if a target wants that. If a target takes quantized operators,
    clamps that do nothing in integers go; one behind an operator stays if a target speaks of it, since
    composites may be made with it.
    """
    spoken = [_list_operators(target) for target in targets]
    reshape = any("Reshape" in each and "Flatten" not in each for each in spoken)
    flatten = any("Flatten" in each and "Reshape" not in each for each in spoken)
    wants = {want for target in targets for want in target.rules.wants}
    integers = ReadQuantizedOperators.list_read_operators()
    quantized = any(target.has_quantized_rules for target in targets)
    clamps = frozenset().union(*(CLAMPS if "*" in each else CLAMPS & each for each in spoken))
    return list_clean_passes(
        reshape and not flatten,
        "folded_batchnorm" in wants,
        left_out,
        quantized=quantized and not any("*" in each or integers & each for each in spoken),
        products="real_products" in wants,
        clamps=clamps if quantized else None,
    )


def _list_operators(target: Target, dtype: str | None = None) -> frozenset[str]:
    """Return the operators that a rule file speaks of, in rules or composites.

    With a `dtype` only those are returned of which a rule, or the file, names that.
    """
    ruled = {
        operator
        for rule in target.rules.ops
        for operator in rule.op
        if dtype is None or dtype in _list_dtypes(target, rule)
    }
    if "*" in ruled:
        ruled |= {"Flatten", "Reshape"}
    patterns = () if dtype is not None else target.patterns
    composed = {operator for each in patterns for line in each.lines for operator in line.ops}
    return frozenset(ruled | composed)


def _list_dtypes(target: Target, rule: OpRule) -> set[str]:
    """Return the dtypes that a rule names, for all its tensors or for one, or its file does."""
    named = {dtype for tensor in rule.tensors.values() for dtype in tensor.dtype or ()}
    return named | set(rule.dtype or target.rules.dtype)


# Forms of nodes that targets take, where they do not take the nodes as the model has them.


def _offer_form(
    model: Model,
    targets: Sequence[Target],
    form: TwinForm,
    unwanted: frozenset[str],
    quantizing: bool,
) -> CleanedModel:
    """Bring nodes that no target takes into a form that one takes; those in `unwanted` stay."""
    targets = [target for target in targets if form.name not in target.rules.unwanted_forms]
    spoken = frozenset().union(*(_list_operators(target, form.dtype) for target in targets))
    form = form.for_operators(spoken)
    if targets and all("narrow_doubles" in target.rules.wants for target in targets):
        form = form.allow_loss()
    graphs = [*find_graphs(model.index)] if spoken else []
    candidates = {_name(g, n) for g in graphs for n in form.find_candidates(g, spoken)} - unwanted
    if not candidates:
        return CleanedModel(model)
    known = {_name(graph, n): (graph, n) for graph in graphs for n, _ in enumerate(graph.nodes)}
    taken = _Taken(model, targets, quantizing)
    wanted = {name for name in candidates if not taken.holds(name)}
    refused = set(unwanted)
    while wanted - refused:
        chosen = frozenset(_add_companions(model, form, wanted - refused, refused))
        made = clean_model(model, (ChosenForm(form, chosen),))
        taken = _Taken(made.model, targets, quantizing)
        left = {
            key
            for graph in find_graphs(made.model.index)
            for number, key in find_forms(graph).items()
            if key in chosen and not taken.holds(_name(graph, number))
        }
        # QDQ nodes belong to the nodes beside them, and cost nothing on the host either.
        left = {key for key in left if not is_qdq_node(known[key][0].nodes[known[key][1]])}
        if not left:
            return made
        refused |= left
    return CleanedModel(model)


def _name(graph: GraphIndex, number: int) -> str:
    return next(iter(graph.node_outputs[number]), "")


@dataclass(eq=False)
class _Taken:
    """The nodes of a model that some target takes, also quantized where that is `quantizing`."""

    model: Model
    targets: Sequence[Target]
    quantizing: bool

    def __post_init__(self) -> None:
        """Annotate the graphs."""
        split = any(target.has_quantized_rules for target in self.targets)
        index = (unshare_dequantize(self.model) if split else self.model).index
        marks = annotate_graphs(index, self.targets)
        self._graphs = {
            _name(graph, n): (graph, n)
            for graph in find_graphs(index)
            for n, _ in enumerate(graph.nodes)
        }
        self._marked = {
            name
            for name, (graph, n) in self._graphs.items()
            if any(own[n].verdict for own in marks[id(graph)])
        }

    def holds(self, name: str) -> bool:
        """Return whether a target takes the node that makes a tensor, as its first output."""
        if name in self._marked or not self.quantizing:
            return name in self._marked
        graph, number = self._graphs[name]
        return any(
            not attempt.fits and all(map(_is_about_quantization, attempt.objections))
            for target in self.targets
            if target.has_quantized_rules
            for attempt in Annotator(target, graph).list_attempts(number)
        )


def _is_about_quantization(objection: Objection) -> bool:
    """Return whether an objection goes where a model is quantized: to a dtype, scale or zero point."""
    return objection.is_about_dtype or "quantiz" in objection.location


def _add_companions(model: Model, form: TwinForm, wanted: Set[str], refused: Set[str]) -> Iterator[str]:
    """Yield nodes and those that are worth bringing into the form with them, but for some."""
    yield from wanted
    for graph in find_graphs(model.index):
        own = {i for i, names in enumerate(graph.node_outputs) if names and names[0] in wanted}
        for number in form.find_companions(graph, own) if own else ():
            if _name(graph, number) not in refused:
                yield _name(graph, number)


# The graphs of a model that are placed, and their units: annotated and grouped for each target.

# Nodes whose device is given, by a saved placement or by annotations in the model.

HOST = "host"
"""The name of the host wherever a device is named."""

_MAX_NAMES = 5  # of nodes in a sentence


@dataclass(frozen=True, slots=True)
class PinnedNode:
    """A node's name for messages, the number of its device (0: the host), and who says so."""

    name: str
    device: int
    source: str


@dataclass(frozen=True, eq=False)
class PinnedNodes:
    """The nodes whose device is given: by node number, for each graph by the id of its index.

    `notes` are sentences for the user about nodes that could not be placed so; each is there once.
    """

    wanted: Mapping[int, Mapping[int, PinnedNode]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def override(self, other: "PinnedNodes") -> "PinnedNodes":
        """Return the nodes of both; where both give a device, that of this one counts."""
        graphs = dict.fromkeys((*other.wanted, *self.wanted))
        wanted = {
            graph: {**other.wanted.get(graph, {}), **self.wanted.get(graph, {})} for graph in graphs
        }
        return PinnedNodes(wanted, [*self.notes, *other.notes])

    def find_devices(
        self, index: GraphIndex, units: Sequence[JointUnit], problem: Problem
    ) -> dict[int, int]:
        """Return the device of each unit of a graph that holds pinned nodes, by the unit's number.

        A unit whose nodes are pinned to several devices, or to one that does not take it, is left out
        and noted.
        """
        wanted = self.wanted.get(id(index), {})
        pins: dict[int, int] = {}
        split: list[PinnedNode] = []
        refused: list[PinnedNode] = []
        for row, unit in enumerate(units if wanted else ()):
            found = [wanted[node] for node in unit.nodes if node in wanted]
            devices = {node.device for node in found}
            if len(devices) > 1:
                split += found
                continue
            for device in devices:
                if device and not problem.allowed[row, device]:
                    refused += found
                else:
                    pins[row] = device
        self._note("on several devices, and now run as one", split)
        self._note("not taken by the device", refused)
        return pins

    def _note(self, what: str, nodes: Sequence[PinnedNode]) -> None:
        for source in dict.fromkeys(node.source for node in nodes):
            note = describe_nodes(source, what, [node.name for node in nodes if node.source == source])
            if note not in self.notes:
                self.notes.append(note)


def describe_nodes(source: str, what: str, names: Sequence[str]) -> str:
    """Return a sentence about nodes that are placed anew: who named them, what is wrong, their names."""
    return f"{source}: {what}: {list_names(names)}; placed anew"


def list_names(names: Sequence[str]) -> str:
    """Return the first names in quotes, and how many more there are."""
    listed = ", ".join(f"'{name}'" for name in names[:_MAX_NAMES])
    return f"{listed} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else listed


@dataclass(frozen=True, eq=False)
class GraphUnits:
    """The units of a graph in topological order, and overlapping composites that are left open."""

    units: list[JointUnit]
    alternatives: list[AlternativeComposite]


def load_units(  # noqa: PLR0913, PLR0917 - what units follow from
    source: Source | Model,
    targets: Sequence[Target],
    dims: Mapping[str, int | str] | None = None,
    shapes: Mapping[str, Sequence[Dim]] | None = None,
    trips: Mapping[str, float] | None = None,
    no_passes: str | Collection[str] = (),
) -> tuple[Model, dict[int, GraphUnits]]:
    """Load, clean and group a model for some targets; return it with the units of its graphs.

    `dims` and `shapes` are those of `load_model`, `trips` the trip counts that the user gives, by node,
    `no_passes` the clean-up passes that are left out. Raises InputError as `load_model`,
    `clean_for_targets` and `check_trips` do.
    """
    model = clean_for_targets(load_model(source, dims, shapes), targets, no_passes).model
    check_trips(model.index, trips or {})
    if any(target.has_quantized_rules for target in targets):
        model = unshare_dequantize(model)
    return model, group_graphs(model.index, targets, annotate_graphs(model.index, targets))


def find_sizes(model: Model, state: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return the sizes that byoc chooses for a model's open dimensions; none where none may be.

    One size of each has to serve more than one call: a cache that grows has another length in each.
    `state` has the outputs that inputs take in the next call, beside those that are found.
    """
    chosen = model.planned.chosen
    return {} if chosen and _has_growing_state(model, state or {}) else chosen


def _has_growing_state(model: Model, declared: Mapping[str, str]) -> bool:
    """Return whether an output that is the next call's input has another shape than that input."""
    proto = model.structure
    kinds = {value.name: read_type(value.type) for value in (*proto.graph.input, *proto.graph.output)}
    pairs = {pair.past: pair.present for pair in find_state_pairs(proto)} | dict(declared)
    shapes = [[kind and kind.shape for kind in map(kinds.get, pair)] for pair in pairs.items()]
    return any(past != present for past, present in shapes)


def group_graphs(
    index: GraphIndex, targets: Sequence[Target], marks: Mapping[int, Sequence[Sequence[Mark]]]
) -> dict[int, GraphUnits]:
    """Return the units of each graph, by the id of its index, from the marks of its nodes."""
    return {id(graph): _group(graph, targets, marks[id(graph)]) for graph in find_graphs(index)}


def split_pinned_units(
    index: GraphIndex,
    units: Mapping[int, GraphUnits],
    marks: Mapping[int, Sequence[Sequence[Mark]]],
    pins: PinnedNodes,
) -> dict[int, GraphUnits]:
    """Return the units of each graph, composites split whose nodes are pinned to several devices.

    An edit that brings nodes together can make a composite of what was placed apart. QDQ groups stay:
    their nodes are supported together or not at all.
    """
    found = dict(units)
    for graph in find_graphs(index):
        wanted = pins.wanted.get(id(graph))
        if not wanted:
            continue
        own, each = units[id(graph)], marks[id(graph)]
        split = [
            unit
            for unit in own.units
            if len({wanted[node].device for node in unit.nodes if node in wanted}) > 1
            and _can_split(unit, each)
        ]
        if split:
            nodes = [node for unit in split for node in unit.nodes]
            kept = [unit for unit in own.units if unit not in split]
            parts = sort_units(graph, [*kept, *(_make_single(graph, node, each) for node in nodes)])
            rivals = [(each.device, each.unit) for each in own.alternatives]
            found[id(graph)] = replace(
                own, units=parts, alternatives=[*_find_alternatives(parts, rivals)]
            )
    return found


def _can_split(unit: JointUnit, marks: Sequence[Sequence[Mark]]) -> bool:
    """Return whether rules that accept a unit's nodes accept each by itself."""
    quantized = any(part.kind == "qdq" for parts in unit.on_device for part in parts)
    return not quantized and all(own[node].accepts_plain for own in marks for node in unit.nodes)


def _make_single(index: GraphIndex, node: int, marks: Sequence[Sequence[Mark]]) -> JointUnit:
    units = [make_single_unit(index, node, own[node]) for own in marks]
    return JointUnit(units[0].name, (node,), tuple((unit,) for unit in units))


def _group(index: GraphIndex, targets: Sequence[Target], marks: Sequence[Sequence[Mark]]) -> GraphUnits:
    """Return the units of a graph: grouped for each target, and joined over all targets."""
    each: list[list[Unit]] = []
    rivals: list[tuple[int, Unit]] = []
    for device, (target, own) in enumerate(zip(targets, marks, strict=True), 1):
        if target.rules.overlaps == "placement":
            units, overlapping = group_with_alternatives(index, target.patterns, own)
            rivals += [(device, unit) for unit in overlapping]
        else:
            units = group_units(index, target.patterns, own)
        each.append(units)
    if len(targets) > 1:
        each, opened = open_units(index, each, marks)
        rivals += [(device, unit) for device, units in enumerate(opened, 1) for unit in units]
    joined = join_units(index, each, marks)
    return GraphUnits(joined, [*_find_alternatives(joined, rivals)])


def _find_alternatives(
    units: Sequence[JointUnit], rivals: Sequence[tuple[int, Unit]]
) -> Iterator[AlternativeComposite]:
    """Yield the composites whose nodes are whole units, as the rows of these."""
    row_of = {node: row for row, unit in enumerate(units) for node in unit.nodes}
    for device, unit in rivals:
        rows = tuple(sorted({row_of[node] for node in unit.nodes}))
        covered = sum(len(units[row].nodes) for row in rows)
        if (
            len(rows) > 1
            and covered == len(unit.nodes)
            and all(units[row].is_supported(device - 1) for row in rows)
        ):
            yield AlternativeComposite(device, rows, unit)
