"""The settings of planning, with the refusals of codegens that are kept from round to round.

A region that its codegen fails to compile does not end the run: the next plan heeds the refusal. ONNX
Runtime had to learn that as well (microsoft/onnxruntime pull request 6580, issue 25334).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from math import inf
from types import MappingProxyType

from onnx import ModelProto, NodeProto, TensorProto, helper

from byoc._dataclasses import dataclass, field, replace
from byoc.boundary.convert import AskedTranspose, BoundaryFormat
from byoc.codegen import Refusal
from byoc.costs import (
    FAMILIES,
    LATENCY,
    CostFile,
    CostModel,
    EstimatingCosts,
    Fallback,
    Objective,
    PlacementDevice,
    Policy,
    Priced,
    Within,
    with_parameters,
)
from byoc.errors import Cause, CauseKind, InputError, suggest_nearest
from byoc.model import (
    DTYPE_NUMBERS,
    PART_KEY,
    GraphIndex,
    TensorLayout,
    build_node,
    get_metadata,
    name_nodes,
    parse_layout,
    prepare_model,
)
from byoc.model.schemas import describe_unknown_operator, list_onnx_operators
from byoc.patterns import JointUnit
from byoc.placement import UNLIMITED, Strategy
from byoc.planning._cleaned_graphs import annotate_graphs, group_graphs
from byoc.planning._graph_plan import CostDoubt, GraphPlan, PlannedRegion
from byoc.planning._node_parts import WholePrice
from byoc.planning._plan_data import Plan, RefusedRegion
from byoc.planning._saved_placement import SavedPlacement
from byoc.rules import Target, read_library

# Rounds in which a codegen may name single nodes, then in which whole regions go; then the target does.
_ROUNDS_BY_NODE = 24
_ROUNDS = 32  # see above: until the target gets nothing

_EVERYTHING = ""
"""Stands for all nodes of a model, where nodes are named."""


@dataclass(frozen=True)
class SizeLimit:
    """The most nodes that a region may have since larger ones were too large, and the reason."""

    nodes: int
    reason: str


@dataclass(frozen=True)
class KnownLimits:
    """Limits of targets, by name, that turned out when regions were compiled or run.

    `refused` has the nodes that a target does not take, each by its name or its first output, in a body
    behind its graph path (`Loop_0/body/add`), with the reason; an empty name stands for all of them.
    `attempts` has the nodes, named likewise, that were computed wrong with the target's options, and how
    many of the codegen's options to recover with were tried.
    """

    refused: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    sizes: Mapping[str, SizeLimit] = field(default_factory=lambda: MappingProxyType({}))
    attempts: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def with_refused(self, target: str, nodes: Sequence[str], reason: str) -> "KnownLimits":
        """Return these limits with more nodes refused; the earlier reason of a node stays."""
        known = {**dict.fromkeys(nodes, reason), **self.refused.get(target, {})}
        return replace(self, refused={**self.refused, target: known})

    def with_attempts(self, target: str, nodes: Sequence[str], attempts: int) -> "KnownLimits":
        """Return these limits with the number of options that were tried for some nodes."""
        own = {**self.attempts.get(target, {}), **dict.fromkeys(nodes, attempts)}
        return replace(self, attempts={**self.attempts, target: own})

    def count_attempts(self, region: PlannedRegion, path: str) -> int:
        """Return the number of options to recover with that were tried for a region, or a part of it.

        `path` is the path of the region's graph.
        """
        known = self.attempts.get(region.target.name, {})
        names = find_faulty_nodes(region, path, ()) if known else ()
        return max((known.get(name, 0) for name in names), default=0)

    def with_size(self, target: str, limit: SizeLimit) -> "KnownLimits":
        """Return these limits with regions of at most so many nodes."""
        return replace(self, sizes={**self.sizes, target: limit})

    def refused_rows(
        self, index: GraphIndex, path: str, units: Sequence[JointUnit], target: str
    ) -> dict[int, Cause]:
        """Return the units of a graph, by number, that a target turned out not to take, and why.

        `path` is the graph path, empty for the main graph.
        """
        refused, limit = self.refused.get(target, {}), self.sizes.get(target)
        if not refused and limit is None:
            return {}
        found = {}
        names = name_nodes(index, path) if refused else {}
        for row, unit in enumerate(units):
            keys = (key for node in unit.nodes for key in _keys(index, path, node, names))
            why = next((refused[key] for key in keys if key and key in refused), None)
            why = why or refused.get(_EVERYTHING)
            if why is None and limit is not None and len(unit.nodes) > limit.nodes:
                why = limit.reason
            if why is not None:
                own = (index.nodes[node] for node in unit.nodes)
                named = (name for node in own for name in (node.name, *node.output) if name)
                found[row] = Cause(CauseKind.CODEGEN, why, names=tuple(dict.fromkeys(named)))
        return found


@dataclass(frozen=True)
class RefusalHistory:
    """The rounds of planning so far in which codegens refused regions.

    `limits` are what the next plan has to keep to, `refused` the regions, in order.
    """

    limits: KnownLimits = field(default_factory=KnownLimits)
    refused: tuple[RefusedRegion, ...] = ()
    rounds: int = 0

    def add(self, plan: Plan, refusals: Sequence[Refusal]) -> "RefusalHistory":
        """Return the history with a round in which regions of a plan were refused.

        At first the nodes that codegens name do not come back, then whole regions; after 32 rounds a
        target that still refuses something gets nothing. A region that was too large is split, and one
        with other options stays.
        """
        rounds = self.rounds + 1
        history = replace(self, rounds=rounds)
        regions = {region.name: region for region in plan.regions}
        paths = {region.name: graph.path for graph in plan.root.walk() for region in graph.regions}
        too_large: dict[str, list[Refusal]] = {}
        for refusal in refusals:
            region = regions[refusal.region]
            sized = refusal.too_large or refusal.most
            if sized and rounds < _ROUNDS and _is_splittable(region, refusal.most):
                too_large.setdefault(refusal.target, []).append(refusal)
            elif refusal.options is not None and rounds < _ROUNDS_BY_NODE:
                history = history._try_options(refusal, region, paths[region.name])
            elif rounds < _ROUNDS:
                named = refusal.nodes if rounds < _ROUNDS_BY_NODE and not refusal.too_large else ()
                tried = history._describe_options(refusal)
                history = history._reset_attempts(region, paths[region.name])
                nodes = find_faulty_nodes(region, paths[region.name], named)
                history = history._refuse(replace(refusal, tried=refusal.tried or tried), nodes)
            else:
                reason = f"regions still fail after {rounds} rounds: {refusal.reason}"
                history = history._refuse(replace(refusal, reason=reason), ())
        for target, own in too_large.items():
            most = min(each.most or _halve(regions[each.region]) for each in own)
            history = history._split(target, own, most)
        return history

    def _refuse(self, refusal: Refusal, nodes: tuple[str, ...]) -> "RefusalHistory":
        """Return the history with nodes refused, all of the target's where none are given."""
        region = RefusedRegion(
            refusal.target,
            refusal.region,
            refusal.codegen,
            refusal.reason,
            nodes,
            failed=refusal.failed,
            tried=refusal.tried,
            detail=refusal.detail,
        )
        limits = self.limits.with_refused(refusal.target, nodes or (_EVERYTHING,), region.why)
        return replace(self, limits=limits, refused=(*self.refused, region))

    def _try_options(self, refusal: Refusal, region: PlannedRegion, path: str) -> "RefusalHistory":
        """Return the history with a region that is compiled with the next options."""
        nodes = find_faulty_nodes(region, path, ())
        attempts = self.limits.count_attempts(region, path) + 1
        limits = self.limits.with_attempts(refusal.target, nodes, attempts)
        again = RefusedRegion(
            refusal.target,
            refusal.region,
            refusal.codegen,
            refusal.reason,
            failed=refusal.failed,
            options=dict(refusal.options or {}),
            detail=refusal.detail,
        )
        return replace(self, limits=limits, refused=(*self.refused, again))

    def _describe_options(self, refusal: Refusal) -> str:
        """Return the options that a region was compiled with before it was refused; empty for none."""
        earlier = [each.options for each in self.refused if each.region == refusal.region]
        texts = [", ".join(f"{n}={text}" for n, text in each.items()) for each in earlier if each]
        return f"also off with {', then with '.join(texts)}" if texts else ""

    def _reset_attempts(self, region: PlannedRegion, path: str) -> "RefusalHistory":
        """Return the history with the target's own options for what stays of a region."""
        if not self.limits.count_attempts(region, path):
            return self
        nodes = find_faulty_nodes(region, path, ())
        return replace(self, limits=self.limits.with_attempts(region.target.name, nodes, 0))

    def _split(self, target: str, refusals: Sequence[Refusal], most: int) -> "RefusalHistory":
        """Return the history with regions of a target limited to a number of nodes."""
        regions = [
            RefusedRegion(
                target,
                each.region,
                each.codegen,
                each.reason,
                split=most,
                failed=each.failed,
                tried=each.tried,
                detail=each.detail,
            )
            for each in refusals
        ]
        limits = self.limits.with_size(target, SizeLimit(most, regions[0].why))
        return replace(self, limits=limits, refused=(*self.refused, *regions))


def _is_splittable(region: PlannedRegion, most: int) -> bool:
    """Return whether a target may have regions of `most` nodes, 0 for half of them, instead of one."""
    least = region.target.rules.limits.min_nodes or 0
    return len(region.units) > 1 and (most or _halve(region)) >= least


def _halve(region: PlannedRegion) -> int:
    """Return half of a region's nodes, but no less than the largest of its units has."""
    return max(len(region.nodes) // 2, *(len(unit.nodes) for unit in region.units))


def find_faulty_nodes(region: PlannedRegion, path: str, named: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes of a region's units that have nodes of some names in them; all where none has.

    `path` is the path of the region's graph. A codegen may name a node, a tensor that it makes, or one
    inside a body; the nodes that come back are named as in `KnownLimits.refused`.
    """
    index = region.index
    wanted = set(named)
    blamed = [unit for unit in region.units if wanted & {unit.name, *_all_names(index, unit.nodes)}]
    names = name_nodes(index, path)
    nodes = [node for unit in blamed or region.units for node in unit.nodes]
    users = [node for node in nodes if node not in index.inserted_nodes]
    keys = (names.get(node) or _output(index, path, node) for node in users or nodes)
    return tuple(dict.fromkeys(filter(None, keys)))


def _all_names(index: GraphIndex, nodes: Sequence[int]) -> set[str]:
    """Return all names that stand for some nodes: theirs, their outputs', and those in their bodies."""
    found = {name for node in nodes for name in (index.nodes[node].name, *index.nodes[node].output)}
    for inner in (i for node in nodes for body in index.bodies.get(node, ()) for i in body.index.walk()):
        found |= {name for node in inner.nodes for name in (node.name, *node.output)}
    return found - {""}


def _keys(index: GraphIndex, path: str, node: int, names: Mapping[int, str]) -> tuple[str | None, ...]:
    """Return the names under which a node may be refused.

    A part of a node goes by its own name alone: the last makes the tensor that the whole node makes.
    """
    if get_metadata(index.nodes[node], PART_KEY):
        return (names.get(node),)
    return names.get(node), _output(index, path, node)


def _output(index: GraphIndex, path: str, node: int) -> str:
    name = next(filter(None, index.nodes[node].output), "")
    return f"{path}/{name}" if path and name else name


# The settings of planning: accelerators and their boundary formats, costs, strategy, known limits.


# The Transposes at its boundary that a target can run itself: its rules are asked about each.

_OPSET = 21  # the first that quantizes to int16


def make_transpose_check(target: Target) -> Callable[[AskedTranspose], bool]:
    """Return a function that says whether a target's rules take a Transpose of an image.

    They take it where they take a model of that Transpose alone, between a DequantizeLinear and a
    QuantizeLinear if the image is quantized. Each question is answered once.
    """

    @cache
    def takes(asked: AskedTranspose) -> bool:
        try:
            index = prepare_model(_make_model(asked), "a Transpose").index
        except InputError:  # a type that ONNX does not transpose or quantize
            return False
        units = group_graphs(index, [target], annotate_graphs(index, [target]))[id(index)].units
        core = {i for i, node in enumerate(index.nodes) if node.op_type == "Transpose"}
        own = (part for unit in units for part in unit.on_device[0] if core & set(part.nodes))
        return all(part.verdict and len(part.nodes) == len(index.nodes) for part in own)

    return takes


def _make_model(asked: AskedTranspose) -> ModelProto:
    shape = asked.kind.shape or ()
    turned = [shape[axis] for axis in asked.order]
    dtype = DTYPE_NUMBERS[asked.kind.dtype]
    stored: list[TensorProto] = []
    nodes: list[NodeProto] = []
    if asked.quantization is None:
        nodes.append(build_node("Transpose", ["x"], ["y"], perm=asked.order))
    else:
        scale, zero = asked.quantization
        stored = [
            helper.make_tensor("s", TensorProto.FLOAT, (), [scale]),
            helper.make_tensor("z", dtype, (), [zero]),
        ]
        nodes = [
            build_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
            build_node("Transpose", ["d"], ["t"], perm=asked.order),
            build_node("QuantizeLinear", ["t", "s", "z"], ["y"]),
        ]
    inputs = [helper.make_tensor_value_info("x", dtype, shape)]
    outputs = [helper.make_tensor_value_info("y", dtype, turned)]
    graph = helper.make_graph(nodes, "transpose", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)


def read_requirements(target: Target) -> BoundaryFormat:
    """Return the requirements for the tensors that cross to or from a target.

    Raises InputError when its layout is none.
    """
    rules = target.rules
    layout = _read_layout(target, "activations", rules.layout.activations)
    offered = layout is not None and rules.layout.convert == "either"
    return BoundaryFormat(
        layout,
        "device" if rules.quantization.convert == "device" else "host",
        target.compute_dtype,
        make_transpose_check(target) if offered else None,
    )


def read_weight_layout(target: Target) -> TensorLayout | None:
    """Return the layout of convolution weights for a target, None for the layout of ONNX.

    Raises InputError when its layout is none.
    """
    return _read_layout(target, "weights", target.rules.layout.weights)


def apply_rule_parameters(costs: CostModel, target: Target) -> CostModel:
    """Return a target's cost model with the values that its rule file has in place of the model's.

    Raises InputError, with the location in the rule file, for one that does not fit the model.
    """
    try:
        return with_parameters(costs, target.rules.cost_parameters)
    except InputError as error:
        place = f"{target.source}: {target.locate('cost_parameters')}"
        raise InputError(*(f"{place}: {line}" for line in error.lines)) from None


def _read_layout(target: Target, key: str, word: str | None) -> TensorLayout | None:
    try:
        layout = None if word is None else parse_layout(word)
    except ValueError as error:
        place = target.locate(f"layout.{key}")
        raise InputError(f"{target.source}: {place}: {error}") from None
    return None if layout is None or layout.is_plain else layout


@dataclass(frozen=True, eq=False)
class PlanSettings:
    """The settings of planning, which are the same for all graphs of a model.

    `costs` has a model for each of the `targets`. `within` is what the placement of the main graph,
    whose costs have those of its bodies, may take at most by the other cost. `trips` gives how often
    some Loops and Scans run, by
    node name; `unknown_costs` what to do about costs that are not known; `placement` a placement to
    keep to; `known_limits` the limits of targets that turned out in earlier rounds; `doubt` how the
    costs of the main graph are perturbed, None where they are not. `share_blocks` names the targets
    whose regions are cut at the borders of repeated blocks. `whole_prices` has nodes whose parts cost on
    the host what they cost as wholes, for a trial; in one with `free_views` nodes that only the form of
    others needs cost nothing there. `state` maps inputs to the outputs whose
    values they take in the next call; None for those that are found. With `names_limits` graphs are
    placed again to say which hard limits keep units on the host; where only numbers count, they are not.
    """

    targets: tuple[Target, ...]
    costs: tuple[CostModel, ...]
    host: CostModel
    strategy: Strategy
    objective: Objective = LATENCY
    within: Within | None = None
    unknown_costs: Policy = Policy.estimate
    trips: Mapping[str, float] = field(default_factory=dict)
    placement: SavedPlacement | None = None
    known_limits: KnownLimits = field(default_factory=KnownLimits)
    doubt: CostDoubt | None = None
    share_blocks: frozenset[str] = frozenset()
    state: Mapping[str, str] | None = None
    whole_prices: Mapping[str, WholePrice] = field(default_factory=dict)
    names_limits: bool = True
    free_views: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the accelerators."""
        return tuple(target.name for target in self.targets)

    @property
    def devices(self) -> tuple[PlacementDevice, ...]:
        """The accelerators as the placement problem sees them."""
        sizes = (self.known_limits.sizes.get(target.name) for target in self.targets)
        return tuple(map(_describe_device, self.targets, self.costs, sizes))


def _describe_device(target: Target, costs: CostModel, size: SizeLimit | None) -> PlacementDevice:
    limits = target.rules.limits
    most = UNLIMITED if limits.max_nodes is None else min(limits.max_nodes, UNLIMITED)
    return PlacementDevice(
        name=target.name,
        costs=costs,
        connected=target.rules.regions == "connected",
        min_nodes=min(limits.min_nodes or 0, UNLIMITED),
        max_nodes=most if size is None else min(most, size.nodes),
        max_regions=UNLIMITED if limits.regions is None else min(limits.regions, UNLIMITED),
        memory=inf if limits.memory is None else float(limits.memory),
        wants=read_requirements(target),
        keeps_state=target.rules.state == "kept",
    )


# Checks of cost models against what they were asked, and of names in cost files against operators.

_SHOWN = 5  # unknown names in a sentence
# A model that does not know one unit of one may be right.
_LEAST_ASKED = 2


def require_knowledge(root: GraphPlan, settings: PlanSettings) -> None:
    """Raise InputError for a plug-in that knew the cost of no unit that it was asked about.

    A placement would follow from stand-in figures alone, or all stay on the host. A plug-in that makes
    estimates may know nothing where estimates are allowed; files may, too, since a note tells of them.
    """
    graphs = [graph.graph_problem for graph in root.walk()]
    for number, model in enumerate((settings.host, *settings.costs)):
        policy = settings.unknown_costs if number else settings.unknown_costs.on_host
        if isinstance(model, (CostFile, Fallback)):
            continue
        if isinstance(model, EstimatingCosts) and policy is Policy.estimate:
            continue
        answers = [graph.answers[number] for graph in graphs]
        reasons: Counter[str] = Counter()
        for each in answers:
            reasons.update(each.unknown)
        asked = sum(each.asked for each in answers)
        if asked >= _LEAST_ASKED and reasons.total() == asked:
            why = reasons.most_common(1)[0][0]
            others = f", and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
            raise InputError(
                f"cost model {model.name}: knows the cost of none of the {asked} units that it was "
                f"asked about: {why}{others}"
            )


def find_unknown_names(settings: PlanSettings) -> list[str]:
    """Return a sentence for each cost file with names that are of no operator and no composite."""
    models = (settings.host, *settings.costs)
    files = {id(file): file for model in models for file in _list_files(model)}
    composites = {rule.display_name for target in settings.targets for rule in target.rules.composites}
    notes = []
    for file in files.values():
        wrong = [name for name in file.operator_names if not _is_known(name, composites)]
        if wrong:
            library = read_library().entries
            wrong = [name for name in wrong if name not in library]
        if wrong:
            known = [*list_onnx_operators(), *composites]
            shown = [f"{name}{suggest_nearest(name, known)}" for name in wrong[:_SHOWN]]
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            notes.append(
                f"cost model {file.name}: its figures of {', '.join(shown)}{more} are of no operator "
                "and of no composite, and change nothing"
            )
    return notes


def _list_files(model: CostModel) -> Iterator[CostFile]:
    """Yield the files that a cost model is made of."""
    if isinstance(model, Priced):
        yield from _list_files(model.model)
    elif isinstance(model, Fallback):
        yield from _list_files(model.first)
        yield from _list_files(model.second)
    elif isinstance(model, CostFile):
        yield model


def _is_known(name: str, composites: Collection[str]) -> bool:
    """Return whether an operator, a composite, or a QDQ group of them may be meant.

    Domains whose operators nobody lists are taken on trust.
    """
    op, _, kind = name.removeprefix("QDQ/").partition("/")
    if kind and kind not in FAMILIES:
        return False
    parts = op.split("+")
    return all(
        part in composites or not describe_unknown_operator(part.replace("::", ".")) for part in parts
    )
