"""Optimality loss: what a placement chosen by some costs loses to the one chosen by others.

Both are priced by the others, as a rule measured ones. A cost model may be off by a factor of three and
still choose well, and one that is off by a tenth may choose badly; this is what counts.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from byoc.errors import InputError
from byoc.options import PlanOptions
from byoc.planning import load_units, plan_graphs, price_placement
from byoc.profiling import profile
from byoc.rules import load_rules
from byoc.stages import load_settings
from byoc.support import allow_named, is_file


@dataclass(frozen=True, slots=True)
class OptimalityLoss:
    """Seconds of placements of a model.

    `predicted` is what the costs in question say of the placement that they choose; `chosen` what the
    other costs say of it, `best` what these say of the placement that they choose, `host_only` of
    everything on the host. `estimated` units of how many (`units`) have no measured cost. `proven` says
    that `best` is the optimum.
    """

    model: str
    predicted: float
    chosen: float
    best: float
    host_only: float
    units: int
    estimated: int
    proven: bool

    @property
    def loss(self) -> float:
        """The share of the best seconds that the chosen placement takes more; 0 where it is the best."""
        return self.chosen / self.best - 1 if self.best > 0 else 0.0


def compare_decisions(model: str, asked: PlanOptions, judge: PlanOptions) -> OptimalityLoss:
    """Compare the placements that two sets of costs choose, both priced by the costs in `judge`.

    `model` is a path or zoo:NAME. The rule files of both are the same; the strategy is the default one.
    Raises InputError when a model, a rule file or a cost model is at fault.
    """
    own, other = load_settings(asked), load_settings(judge)
    given = asked.dims, asked.shapes, asked.trips, asked.no_passes
    loaded, units = load_units(model, own.targets, *given)
    index = loaded.index
    chosen = plan_graphs(index, own, units)
    priced, best = price_placement(chosen, other, units), plan_graphs(index, other, units)
    bound = best.placement.bound
    least = min(priced.cost.total, best.cost.total)
    return OptimalityLoss(
        model=model,
        predicted=chosen.cost.total,
        chosen=priced.cost.total,
        best=least,
        host_only=best.host_only,
        units=sum(len(graph.units) for graph in best.walk()),
        estimated=sum(graph.graph_problem.estimated for graph in best.walk()),
        proven=bound is not None and bound >= least * (1 - _TOLERANCE),
    )


_TOLERANCE = 1e-6  # relative: rounding of sums of costs in float64


def measure_loss(model: str, asked: PlanOptions, seconds: float, repeats: int) -> OptimalityLoss:
    """Measure the units of a model here, on the host and by its target's codegen, and judge by that.

    Each is measured for at most so many `seconds` and `repeats`. What cannot be measured has the costs
    in question. Raises InputError as `profile` and `compare_decisions`, and for several rule files.
    """
    rules = [asked.rules] if isinstance(asked.rules, (str, Path)) else list(asked.rules)
    if len(rules) != 1:
        raise InputError("units are measured for one accelerator at a time: give one rule file")
    target = load_rules(rules[0])
    costs = asked.cost_model if isinstance(asked.cost_model, (str, Path)) else target.cost_model
    named = [Path(each) for each in (costs, asked.host_cost_model) if is_file(Path(each))]
    with TemporaryDirectory(prefix="byoc-") as folder, allow_named(*named):
        host, device = str(Path(folder, "host.yaml")), str(Path(folder, "device.yaml"))
        measure = partial(profile, model, seconds=seconds, repeats=repeats, dims=asked.dims)
        measure(output=host, otherwise=_find_path(asked.host_cost_model))
        codegen = target.rules.codegen
        measure(output=device, device=codegen, rules=rules[0], otherwise=_find_path(costs))
        judge = replace(asked, cost_model=device, host_cost_model=host, cost_options=None)
        return compare_decisions(model, asked, judge)


def _find_path(name: str | Path) -> str:
    """Return a cost model's absolute path, or the name of an installed one."""
    return str(Path(name).absolute()) if Path(name).is_file() else str(name)
