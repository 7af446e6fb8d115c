"""The settings of planning: accelerators and their boundary formats, costs, strategy, known limits."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import inf

from onnx import ModelProto, NodeProto, TensorProto, helper

from byoc.boundary.convert import AskedTranspose, BoundaryFormat
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
    with_parameters,
)
from byoc.errors import InputError, suggest_nearest
from byoc.model import DTYPE_NUMBERS, TensorLayout, build_node, parse_layout, prepare_model
from byoc.model.schemas import describe_unknown_operator, list_onnx_operators
from byoc.placement import UNLIMITED, Strategy
from byoc.planning._cleaned_graphs import annotate_graphs, group_graphs
from byoc.planning._graph_plan import CostDoubt, GraphPlan
from byoc.planning._node_parts import WholePrice
from byoc.planning._refusals import KnownLimits, SizeLimit
from byoc.planning._saved_placement import SavedPlacement
from byoc.rules import Target, read_library

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

    `costs` has a model for each of the `targets`. `trips` gives how often some Loops and Scans run, by
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
