"""The settings of planning: accelerators and their boundary formats, costs, strategy, known limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from byoc.boundary.convert import BoundaryFormat
from byoc.costs import (
    LATENCY,
    CostModel,
    Objective,
    PlacementDevice,
    Policy,
    with_parameters,
)
from byoc.errors import InputError
from byoc.model import TensorLayout, parse_layout
from byoc.placement import UNLIMITED, Strategy
from byoc.planning._boundary_transposes import make_transpose_check
from byoc.planning._perturbed_plan import CostDoubt
from byoc.planning._refusals import KnownLimits, SizeLimit
from byoc.planning._saved_placement import SavedPlacement
from byoc.rules import Target


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
    whose regions are cut at the borders of repeated blocks. `state` maps inputs to the outputs whose
    values they take in the next call; None for those that are found.
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
