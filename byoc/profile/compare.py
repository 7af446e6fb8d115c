"""Predicted against measured: how far a cost model is off, and how far sums of parts are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from time import perf_counter
from typing import Any

import numpy as np

from byoc.costs.model import CostModel
from byoc.costs.prices import node_prices
from byoc.costs.whole import whole
from byoc.graph.load import Model
from byoc.profile.host import NodeTimes, time_nodes
from byoc.profile.sampling import Clock, Patience, Samples, sampled
from byoc.runtime.session import Session

_LEAST_RANKED = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model in one placement: seconds predicted, seconds measured, and the measured parts.

    `where` is `host` or the target; `parts` is the sum of what the parts took when each was timed on
    its own: the nodes on the host alone, the stages of a placement. `unknown` counts the nodes whose
    cost is a guess. `rank` is Spearman's correlation of predicted and measured over the nodes; None for
    placements, and where too few were measured.
    """

    model: str
    where: str
    predicted: float
    measured: Samples
    parts: float
    unknown: int
    rank: float | None

    @property
    def error(self) -> float:
        """The part of the measured seconds that the prediction is over (positive) or under them."""
        return self.predicted / self.measured.median - 1

    @property
    def additive(self) -> float:
        """The part of the measured seconds that the sum of the parts is over or under them."""
        return self.parts / self.measured.median - 1


def compare_host(
    model: Model, costs: CostModel, patience: Patience, clock: Clock = perf_counter
) -> Comparison:
    """Return the comparison for a model that is on the host alone, as onnxruntime runs it by default.

    Raises InputError when it does not run, and MissingRuntimeError.
    """
    times = time_nodes(model, patience, clock=clock)
    return host_comparison(model, costs, Samples.of(times.wholes), times)


def host_comparison(model: Model, costs: CostModel, measured: Samples, times: NodeTimes) -> Comparison:
    """Return the comparison of what is predicted with what was measured, whole and node by node."""
    prices = node_prices(costs, times.works)
    medians = {i: Samples.of(seconds).median for i, seconds in times.seconds.items()}
    timed = [i for i in medians if not times.works[i].view]
    return Comparison(
        model=model.source,
        where="host",
        predicted=whole(model.index, costs)[0].seconds,
        measured=measured,
        parts=times.total,
        unknown=int(prices.unknown.sum()),
        rank=rank_correlation([prices.seconds[i] for i in timed], [medians[i] for i in timed]),
    )


def compare_placement(  # noqa: PLR0913, PLR0917 - what was predicted of what
    name: str,
    where: str,
    session: Session,
    inputs: Mapping[str, Any],
    predicted: float,
    unknown: int,
    patience: Patience,
    clock: Clock = perf_counter,
) -> Comparison:
    """Return the comparison for a bundle that is ready to run, with what was predicted of it."""
    measured = Samples.of(sampled(lambda: session(inputs), patience, clock))
    stages: list[list[float]] = [[] for _ in session.stages]
    for _ in range(patience.warmup + measured.count):
        known = {**session.program.constants, **inputs}
        for found, stage in zip(stages, session.stages, strict=True):
            given = {name: known[name] for name in stage.inputs}
            before = clock()
            made = stage.run(given)
            found.append(clock() - before)
            known.update(made)
    parts = sum(Samples.of(found[patience.warmup :]).median for found in stages)
    return Comparison(name, where, predicted, measured, parts, unknown, None)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three pairs or where all are the same."""
    if len(one) < _LEAST_RANKED or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    from scipy.stats import spearmanr  # noqa: PLC0415 - takes a second to import

    return float(spearmanr(one, other).statistic)


def mean_factor(found: Sequence[Comparison]) -> float:
    """Return by what factor predictions are off, over or under: the geometric mean; 1 is right."""
    factors = [abs(log(max(each.predicted, 1e-12) / each.measured.median)) for each in found]
    return exp(sum(factors) / len(factors))
