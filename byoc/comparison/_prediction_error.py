"""Predicted against measured times: of nodes, of placements, and of the regions of a bundle."""

from collections.abc import Mapping, Sequence
from math import log, sqrt
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass
from byoc.bundle import Bundle, require_consent
from byoc.codegen import (
    Measured,
    can_estimate,
    drop_executing_options,
    estimate_region,
    measure_seconds,
    parse_codegen_options,
    to_seconds,
)
from byoc.comparison._measured_costs import (
    Clock,
    NodeTimes,
    Patience,
    Samples,
    measure_runs,
    time_nodes,
)
from byoc.costs import CostModel, UnseenPrediction, mean_factor, price_each_node, price_graph
from byoc.errors import InputError
from byoc.model import Model, get_node_name, get_operator_name
from byoc.runtime import Session

_LEAST_RANKED = 3  # pairs; a rank correlation of fewer is 1 or -1
_LEAST_UNSEEN = 4  # models; a mean of fewer says nothing about others
_LARGEST_MARGIN = 0.5  # a share of the host's time that a placement must win


@dataclass(frozen=True, slots=True)
class NodePair:
    """The predicted and measured seconds of a node on the host, or of a region.

    `op` is the node's operator, or the region's target. `estimated` says that the cost model did not
    know the cost, and guessed.
    """

    name: str
    op: str
    predicted: float
    measured: Samples
    estimated: bool = False

    @property
    def factor(self) -> float | None:
        """Predicted over measured seconds, None where nothing could be measured."""
        return self.predicted / self.measured.median if self.measured.median > 0 else None


@dataclass(frozen=True, slots=True)
class PredictionComparison:
    """The predicted and measured seconds of one model in one placement.

    `where` has the targets that have regions, `host` without any. `parts` is the sum of the parts'
    times, each measured on its own: the nodes on the host alone, or the stages of a placement.
    `unknown` counts the nodes whose cost is estimated. `rank` is Spearman's correlation of predicted and
    measured times over the nodes; None for placements, and if too few nodes were measured. `pairs` are
    the nodes in their order, or the regions.
    """

    model: str
    where: str
    predicted: float
    measured: Samples
    parts: float
    unknown: int
    rank: float | None
    pairs: tuple[NodePair, ...] = ()

    @property
    def noise(self) -> float | None:
        """The median over the pairs of the spread as a share of the median, None without pairs."""
        shares = [each.measured.spread / each.measured.median for each in self.pairs if each.factor]
        return float(np.median(shares)) if shares else None

    @property
    def error(self) -> float:
        """The relative error of the prediction; positive if it is too long."""
        return self.predicted / self.measured.median - 1

    @property
    def additive_error(self) -> float:
        """The relative error of the sum of the parts; positive if it is too long."""
        return self.parts / self.measured.median - 1


def compare_host(model: Model, costs: CostModel, patience: Patience) -> PredictionComparison:
    """Measure a model on the host alone, as onnxruntime runs it by default, and compare the prediction.

    Raises InputError if it does not run, and MissingRuntimeError.
    """
    times = time_nodes(model, patience)
    return compare_host_times(model, costs, Samples.of(times.wholes), times)


def compare_host_times(
    model: Model, costs: CostModel, measured: Samples, times: NodeTimes
) -> PredictionComparison:
    """Compare the prediction for the host with measurements of the model and of its nodes."""
    prices = price_each_node(costs, times.tasks)
    measurements = {i: Samples.of(seconds) for i, seconds in times.seconds.items()}
    timed = [i for i in measurements if not times.tasks[i].view]
    nodes = times.tasks.index.nodes
    pairs = tuple(
        NodePair(
            get_node_name(nodes[i]),
            get_operator_name(nodes[i]),
            float(prices.seconds[i]),
            measurements[i],
            bool(prices.unknown[i]),
        )
        for i in timed
    )
    return PredictionComparison(
        model=model.source,
        where="host",
        predicted=price_graph(model.index, costs)[0].seconds,
        measured=measured,
        parts=times.total,
        unknown=int(prices.unknown.sum()),
        rank=rank_correlation(
            [each.predicted for each in pairs], [each.measured.median for each in pairs]
        ),
        pairs=pairs,
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
    regions: Mapping[str, float] = MappingProxyType({}),
    estimates: Mapping[str, float] = MappingProxyType({}),
) -> PredictionComparison:
    """Measure a bundle that is ready to run, and compare the prediction.

    `regions` are the predicted seconds of each region of the main graph, launches included. With
    `estimates`, those of their compilers, regions count with these, and the host's stages are measured.
    """
    rounds: list[list[float]] = []

    def run_stages() -> None:
        rounds.append(_time_stages(session, inputs, clock, estimates))

    if estimates:
        count = len(measure_runs(run_stages, patience, clock))
        measured = Samples.of([sum(found) for found in rounds[-count:]])
    else:
        measured = Samples.of(measure_runs(lambda: session(inputs), patience, clock))
        for _ in range(patience.warmup + measured.count):
            run_stages()
    each = [Samples.of(found) for found in zip(*rounds[-measured.count :], strict=True)]
    parts = sum(samples.median for samples in each)
    pairs = tuple(
        NodePair(stage.name, stage.device, regions[stage.name], samples)
        for stage, samples in zip(session.stages, each, strict=True)
        if stage.name in regions
    )
    return PredictionComparison(name, where, predicted, measured, parts, unknown, None, pairs)


def _time_stages(
    session: Session, inputs: Mapping[str, Any], clock: Clock, estimates: Mapping[str, float]
) -> list[float]:
    """Run the stages of a session in order; return the seconds of each, its estimate if it has one."""
    known = {**session.program.constants, **inputs}
    found = []
    for stage in session.stages:
        stage_inputs = {name: known[name] for name in stage.inputs}
        before = clock()
        outputs = stage.run(stage_inputs)
        found.append(estimates.get(stage.name, clock() - before))
        known.update(outputs)
    return found


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three pairs or constant values."""
    if len(one) < _LEAST_RANKED or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    from scipy.stats import spearmanr  # noqa: PLC0415 - takes a second to import

    return float(spearmanr(one, other).statistic)


def mean_error_factor(found: Sequence[PredictionComparison]) -> float:
    """Return the geometric mean of the factors between prediction and measurement; at least 1."""
    return mean_factor(
        [UnseenPrediction(each.model, each.predicted, each.measured.median) for each in found]
    )


@dataclass(frozen=True, slots=True)
class TimedRegion:
    """The predicted seconds of a region, and those its codegen reports, without transfers.

    `is_estimate` says that they are what its compiler thinks, and not timed on the device.
    """

    region: str
    where: str
    predicted: float
    codegen_seconds: float
    is_estimate: bool = False

    @property
    def error(self) -> float:
        """The relative error of the prediction; positive if it is too long."""
        return self.predicted / self.codegen_seconds - 1


def time_regions(bundle: Bundle) -> list[TimedRegion]:
    """Return the regions of a bundle whose codegens can report a time, by `estimate` or else by `cost`.

    Raises InputError if a codegen is missing or not allowed, or the report lacks a region, and
    CompileError if a codegen fails to report a time.
    """
    require_consent(bundle)
    predicted = {region.name: region.seconds for region in bundle.variant.report.regions}
    options = {region.name: region.codegen_options for region in bundle.manifest.regions}
    regions = bundle.regions()
    twins = bundle.identical_regions
    found = []
    for name, region, artifact in regions:
        codegen = bundle.codegens.find(name)
        if can_estimate(codegen):
            first = twins.get(region.name)  # whose names the artifact has
            own = region if first is None else bundle.open_compiled(first)[1]
            given = drop_executing_options(codegen, options[region.name])
            parsed = parse_codegen_options(bundle.codegens.find(name), given)
            seconds = to_seconds(estimate_region(codegen, own, parsed, artifact))
        elif isinstance(codegen, Measured):
            seconds = measure_seconds(codegen, region)
        else:
            continue
        if region.name not in predicted:
            raise InputError(f"the bundle's report does not say what was predicted of {region.name}")
        expected, is_estimate = predicted[region.name], can_estimate(codegen)
        found.append(TimedRegion(region.name, region.target, expected, seconds, is_estimate))
    return found


def choose_margin(unseen: Sequence[UnseenPrediction]) -> float:
    """Return the share that a mixture has to save, to two digits; 0 with fewer than four models.

    A mixture has most of its units in common with the single devices, and their errors with them: what
    is left is taken to be half of the error, as a factor, of models that the fit has not seen.
    """
    if len(unseen) < _LEAST_UNSEEN:
        return 0.0
    return min(round(1 - 1 / sqrt(mean_factor(unseen)), 2), _LARGEST_MARGIN)


def describe_unseen(found: Sequence[UnseenPrediction]) -> list[str]:
    """Return a sentence that says how well models are predicted that the fit has not seen."""
    if len(found) < _LEAST_UNSEEN:
        return []
    rank = rank_correlation([each.predicted for each in found], [each.measured for each in found])
    worst = max(found, key=lambda each: abs(log(max(each.predicted, 1e-12) / each.measured)))
    correlation = "" if rank is None else f", rank correlation {rank:.3f}"
    return [
        f"each of {len(found)} models predicted by a fit to the others: off by a factor of "
        f"{mean_factor(found):.2f} (geometric mean){correlation}, {worst.model} the most: "
        f"{worst.predicted / worst.measured:.2f} of what it takes"
    ]
