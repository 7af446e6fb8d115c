"""The regret of a plan at perturbed costs, and the units that change their device there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from byoc.model import GraphIndex, get_operator_name
from byoc.patterns import NodeGroup
from byoc.placement import (
    Perturbation,
    PerturbedDecision,
    Placement,
    Problem,
    Regret,
    Robust,
    perturb_costs,
)


@dataclass(frozen=True, slots=True)
class CostDoubt:
    """The perturbation of costs, and the regret that a robust placement minimises, None without one."""

    perturbation: Perturbation
    robust: Robust | None = None


@dataclass(frozen=True, slots=True)
class DoubtfulUnit:
    """A unit that the best placement has on another device in a share of the samples.

    `device` is where the plan has it, `elsewhere` where it is most often then.
    """

    unit: str
    operators: tuple[str, ...]
    nodes: int
    device: str
    share: float
    elsewhere: str


@dataclass(frozen=True, slots=True)
class PerturbedPlan:
    """A plan at perturbed costs: how they were drawn, regrets, and the units whose device is in doubt.

    `nominal` is the regret of the placement that is best for the costs as they are, `chosen` that of the
    plan, which is another one where a robust placement was asked for. In `proven` samples the best
    placement that is known is the optimum; `candidates` placements were compared.
    """

    sigma: float
    samples: int
    seed: int
    proven: int
    candidates: int
    nominal: Regret
    robust: str | None
    chosen: Regret
    units: tuple[DoubtfulUnit, ...]


def perturb_graph(  # noqa: PLR0913, PLR0917 - a graph, its problem, and the answer
    index: GraphIndex,
    units: Sequence[NodeGroup],
    names: Sequence[str],
    problem: Problem,
    placement: Placement,
    doubt: CostDoubt,
) -> PerturbedDecision:
    """Perturb the costs of a graph's placement; the kind of a unit is that of its operators."""
    kinds = [" ".join(get_operator_name(index.nodes[node]) for node in unit.nodes) for unit in units]
    return perturb_costs(problem, placement, names, kinds, doubt.perturbation, doubt.robust)


def describe_decision(
    index: GraphIndex,
    units: Sequence[NodeGroup],
    targets: Sequence[str],
    decision: PerturbedDecision,
    doubt: CostDoubt,
) -> PerturbedPlan:
    """Return a decision as data; units in doubt come by falling share."""
    devices, rows = ("host", *targets), np.argsort(-decision.moved, kind="stable")
    return PerturbedPlan(
        sigma=doubt.perturbation.sigma,
        samples=doubt.perturbation.samples,
        seed=doubt.perturbation.seed,
        proven=decision.proven,
        candidates=decision.candidates,
        nominal=decision.nominal,
        robust=None if doubt.robust is None else doubt.robust.value,
        chosen=decision.chosen,
        units=tuple(
            DoubtfulUnit(
                unit=units[row].name,
                operators=tuple(
                    dict.fromkeys(get_operator_name(index.nodes[node]) for node in units[row].nodes)
                ),
                nodes=len(units[row].nodes),
                device=devices[int(decision.placement.labels[row])],
                share=float(decision.moved[row]),
                elsewhere=devices[int(decision.elsewhere[row])],
            )
            for row in rows.tolist()
            if decision.moved[row]
        ),
    )
