"""Perturbation: how a placement does when the costs that it follows from are off by random factors."""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import islice

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.placement._branch_and_cut import OPTIMALITY_GAP, build_incumbent, select_best, solve_exactly
from byoc.placement._hard_limits import find_transfers
from byoc.placement._lower_bounds import LagrangianRelaxation
from byoc.placement._problem import Bools, Floats, Ints, Problem, Regret
from byoc.placement._solve import order_canonically, reorder_placement, restore_order
from byoc.placement._strategy import Measure, Placement, Robust

# Sensitivity: what the best placement of a problem gains when some of its costs change.
#
# The problem is relaxed once (`byoc.placement._lower_bounds`). Each question begins at the
# multipliers found there, so that one minimum cut or a few answer it, instead of a search from
# nothing.

# A gain of less than this share of the whole is not worth another cut.
_LEAST_SHARE = 1e-4
# More than the rounding errors of a few sums.
_MARGIN = 2.0**-40


@dataclass(eq=False)
class Sensitivity:
    """A problem and a placement of it, to be compared with placements at other costs.

    `rounds` limits the minimum cuts, for each accelerator, by which multipliers are sought; a question
    takes a third of them at most. `steps` counts what has been done: units and entries of tensors, for
    each cut.
    """

    problem: Problem
    known: Placement
    rounds: int
    steps: int = 0

    @property
    def round_steps(self) -> int:
        """The steps of a round: a minimum cut for each accelerator."""
        return self.problem.devices * (self.problem.units + len(self.problem.consumers))

    @cached_property
    def best(self) -> Placement:
        """The best placement that is known at the present costs."""
        return self._relaxed[1]

    @cached_property
    def _relaxed(self) -> tuple[LagrangianRelaxation, Placement]:
        relaxation = LagrangianRelaxation(self.problem)
        return relaxation, self._improve(relaxation, self.known, self.rounds)

    def bound_gain(self, rows: Sequence[int], device: int, seconds: Floats) -> float:
        """Return about the most that some units at other costs on an accelerator can gain.

        `seconds`, float64 (rows,), are these costs. Any placement at them can be made one at the present
        costs with the units on the host: that takes what they take longer there, what is moved for them,
        and a launch for each, since a unit divides a region in two at most.
        """
        problem, column = self.problem, device - 1
        inside = np.zeros(problem.units, np.bool_)
        inside[list(rows)] = True
        read = np.unique(problem.consumed[inside[problem.consumers]])
        made = np.append(inside, False)[problem.producer]
        back = problem.to_host[read].max(axis=1, initial=0.0)
        there = problem.to_device[made, column]
        slower = np.maximum(problem.seconds[list(rows), 0] - seconds, 0.0)
        launches = len(rows) * float(problem.launch[column])
        return math.fsum([*slower, *back, *there, launches])

    def solve_changed(self, rows: Sequence[int], device: int, seconds: Floats) -> Placement:
        """Return the best placement that is found with some units at other costs on an accelerator.

        It is never worse than the present one. `seconds` is float64 (rows,).
        """
        if self._is_best and not self._can_gain(rows, device, seconds):
            return self.best
        costs = self.problem.seconds.copy()
        costs[list(rows), device] = seconds
        problem = self.problem.replace_seconds(costs)
        relaxation, best = self._relaxed
        labels = best.labels.copy()
        labels[list(rows)] = device
        start = select_best([best, build_incumbent(problem, labels)])
        assert start is not None
        return self._improve(relaxation.vary(problem), start, 1 + self.rounds // 3)

    @cached_property
    def _is_best(self) -> bool:
        """Whether the best placement at the present costs is proven, and no region has a least size."""
        relaxation, best = self._relaxed
        bound = max(relaxation.bound, -math.inf if self.known.bound is None else self.known.bound)
        proven = bound >= best.cost.total * (1 - OPTIMALITY_GAP)
        return bool(proven and (self.problem.min_nodes <= 1).all())

    def _can_gain(self, rows: Sequence[int], device: int, seconds: Floats) -> bool:
        """Return whether some units at other costs may gain; takes what `bound_gain` takes.

        They cannot where each shares its tensors with units alone that stay on the host in any case:
        whatever else is placed, such a unit pays for all its tensors and saves no launch, and that is
        more than it gains.
        """
        problem, column = self.problem, device - 1
        able: Bools = np.array(problem.allowed[:, 1:].any(axis=1))
        able[list(rows)] = True
        sharing = np.bincount(problem.consumed[able[problem.consumers]], minlength=problem.tensors)
        sharing += np.append(able, False)[problem.producer]
        shared, made = sharing > 1, problem.producer >= 0
        has_company = np.zeros(problem.units, np.bool_)
        has_company[problem.consumers[shared[problem.consumed]]] = True
        has_company[problem.producer[shared & made]] = True
        if has_company[list(rows)].any():
            return True
        sent = made & (problem.is_output | (np.diff(problem.consumer_start) > 0))
        paid = np.bincount(
            np.concatenate([problem.consumers, problem.producer[sent]]),
            np.concatenate([problem.to_device[problem.consumed, column], problem.to_host[sent, column]]),
            minlength=problem.units,
        )
        host = problem.seconds[list(rows), 0]
        return bool((host - seconds - paid[list(rows)] > -_MARGIN * host).any())

    def _improve(self, relaxation: LagrangianRelaxation, best: Placement, rounds: int) -> Placement:
        """Return the best of a placement and those that some rounds of a relaxation find."""
        problem = relaxation.problem
        known = {best.labels.tobytes()}

        def get_least() -> float:
            return best.cost.total

        for labels in islice(relaxation.iterate_labels(rounds, get_least), rounds):
            self.steps += self.round_steps
            if labels.tobytes() not in known:
                known.add(labels.tobytes())
                best = select_best([best, build_incumbent(problem, labels)]) or best
            if relaxation.value >= best.cost.total * (1 - _LEAST_SHARE):
                break
        return best


# Random factors on the costs of a placement problem, and what placements cost with them.

_MAX_SIGMA = 5.0  # of the lognormal: a factor of e**5 is 148
_MAX_FACTORS = 40_000_000  # random numbers in memory at once: 320 MB


@dataclass(frozen=True)
class Perturbation:
    """Random factors on costs; raises InputError for numbers that give none.

    The logarithm of a factor is normal with the standard deviation `sigma`. Half of its variance is that
    of the unit on a device, half is shared by all units of one kind there; each accelerator has one
    factor for its transfers, and one for its launches. `samples` are drawn from `seed`.
    """

    sigma: float
    samples: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 < self.sigma <= _MAX_SIGMA:
            raise InputError(f"perturb {self.sigma:g}: not a number above 0, and at most {_MAX_SIGMA:g}")
        if self.samples < 1 or self.seed < 0:
            raise InputError("perturb: needs at least one sample, and a seed of at least 0")


@dataclass(frozen=True, eq=False)
class CostSamples:
    """A problem, and factors on its costs for each sample.

    `units` is float64 (samples, units, 1 + devices); `links` and `launches` are (samples, devices).
    """

    problem: Problem
    units: Floats
    links: Floats
    launches: Floats

    @classmethod
    def draw(cls, problem: Problem, kinds: Sequence[str], perturbation: Perturbation) -> "CostSamples":
        """Draw the factors; `kinds` are those of the units. Raises InputError if they are too many."""
        count, columns = perturbation.samples, 1 + problem.devices
        most = _MAX_FACTORS // max(problem.units * columns, 1)
        if count > most:
            raise InputError(
                f"perturb: at most {most} samples fit in memory for {problem.units} units, not {count}"
            )
        generator = np.random.default_rng(perturbation.seed)
        distinct, of = np.unique(np.array(kinds, dtype=str), return_inverse=True)
        shared = generator.standard_normal((count, len(distinct), columns))[:, of]
        own = generator.standard_normal((count, problem.units, columns))
        links, launches = generator.standard_normal((2, count, problem.devices))
        sigma = perturbation.sigma
        return cls(
            problem,
            np.exp(sigma * math.sqrt(0.5) * (shared + own)),
            np.exp(sigma * links),
            np.exp(sigma * launches),
        )

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.units)

    def make_problem(self, number: int) -> Problem:
        """Return the problem at the costs of a sample. What a fusion saves changes as its members."""
        problem = self.problem
        seconds = problem.seconds * self.units[number]
        fusions = tuple(
            replace(each, saving=each.saving * float(ratios[number]))
            for each, ratios in zip(problem.fusions, self._saving_factors, strict=True)
        )
        return replace(
            problem,
            seconds=seconds,
            to_device=problem.to_device * self.links[number],
            to_host=problem.to_host * self.links[number],
            launch=problem.launch * self.launches[number],
            fusions=fusions,
        )

    @cached_property
    def _saving_factors(self) -> list[Floats]:
        """The factor on each fusion's saving, float64 (samples,): that of its members' sum."""
        factors = []
        for each in self.problem.fusions:
            members, device = list(each.members), each.device
            seconds = self.problem.seconds[members, device]
            total = math.fsum(seconds)
            # Rounded down: a saving is never above the sum.
            ratio = self.units[:, members, device] @ seconds / total if total else np.ones(self.count)
            factors.append(ratio * (1 - 2.0**-48))
        return factors

    def evaluate(self, placement: Placement) -> Floats:
        """Return the cost of a placement in each sample, float64 (samples,)."""
        problem, labels = self.problem, placement.labels
        rows = np.arange(problem.units)
        cost: Floats = self.units[:, rows, labels] @ problem.seconds[rows, labels]
        leaving, home, wanted = find_transfers(problem, labels)
        moved = np.where(wanted[:, 1:], problem.to_device, 0.0).sum(axis=0)
        np.add.at(moved, home[leaving] - 1, problem.to_host[leaving, home[leaving] - 1])
        _, first = np.unique(placement.regions[placement.regions >= 0], return_index=True)
        devices = labels[placement.regions >= 0][first]
        launches = np.bincount(devices, minlength=1 + problem.devices)[1:]
        cost = cost + self.links @ moved + self.launches @ (launches * problem.launch)
        for number in placement.fusions:
            cost = cost - problem.fusions[number].saving * self._saving_factors[number]
        return np.maximum(cost, 0.0)


# Units and entries of tensors that all minimum cuts together may visit.
_MAX_STEPS = 4_000_000
_MAX_ROUNDS = 12  # of moves for a sample; fewer for large problems
# Units times accelerators up to which a mixed integer program closes a gap, and its nodes.
_MAX_EXACT = 400
_EXACT_NODES = 20  # of branch and bound for a sample
_TOLERANCE = 1e-6  # relative: rounding of sums of costs in float64
_MAX_MOVES = 200  # that are tried for the choice of least regret


@dataclass(frozen=True, eq=False)
class PerturbedDecision:
    """The regrets of a placement at perturbed costs, and the units that would be elsewhere.

    `nominal` is the regret of the placement that was given; `chosen` is that of `placement`, the given
    one unless a robust one was asked for. `moved` is, for each unit, float64 (units,), the share of
    samples whose best placement has it on another device than `placement`, and `elsewhere`, int64
    (units,), the device that it is on most often then. In `proven` samples the best placement is the
    optimum. `candidates` placements were compared.
    """

    nominal: Regret
    chosen: Regret
    placement: Placement
    moved: Floats
    elsewhere: Ints
    proven: int
    candidates: int


def perturb_costs(  # noqa: PLR0913, PLR0917 - a problem, its answer, and how to perturb it
    problem: Problem,
    placement: Placement,
    names: Sequence[str],
    kinds: Sequence[str],
    perturbation: Perturbation,
    robust: Robust | None = None,
) -> PerturbedDecision:
    """Solve a problem at perturbed costs, and hold a placement against the best ones found.

    `names` are distinct names of the units and `kinds` what they do. With `robust` the best candidate is
    chosen: the given placement, the best one for each sample, and what moves of single units and of
    units that move together make of these. Raises InputError if the placement does not add up costs, or
    for more samples than fit in memory.
    """
    if placement.measure is not Measure.total:
        raise InputError(f"perturb: made for costs that add up, not for a {placement.measure}")
    ordered, order = order_canonically(problem, names)
    given = reorder_placement(problem, placement, order)
    samples = CostSamples.draw(ordered, [kinds[unit] for unit in order.tolist()], perturbation)
    found = _Candidates(samples, given)
    found.add_optima()
    bound = found.bounds
    chosen = given if robust is None else found.choose(robust)
    costs, best = found.costs, found.best
    moved, elsewhere = found.count_moves(chosen)
    back, away = np.empty_like(moved), np.empty_like(elsewhere)
    back[order], away[order] = moved, elsewhere
    answer = placement if chosen is given else restore_order(problem, chosen, order)
    return PerturbedDecision(
        nominal=_summarize(costs[0], best),
        chosen=_summarize(samples.evaluate(chosen), best),
        placement=answer,
        moved=back,
        elsewhere=away,
        proven=int((best <= bound * (1 + _TOLERANCE)).sum()),
        candidates=len(costs),
    )


def _summarize(costs: Floats, best: Floats) -> Regret:
    ratios = _divide(costs, best)
    return Regret(float(ratios.mean()), float(ratios.max()), float((ratios <= 1 + _TOLERANCE).mean()))


def _divide(costs: Floats, best: Floats) -> Floats:
    """Return costs over the best ones, 1 where nothing costs anything."""
    return np.where(best > 0, costs / np.where(best > 0, best, 1.0), 1.0)


class _Candidates:
    """Placements of a problem, with what each costs in each sample; the first is the given one."""

    def __init__(self, samples: CostSamples, given: Placement) -> None:
        self.samples = samples
        self.placements = [given]
        self.rows = [samples.evaluate(given)]
        self.known = {given.labels.tobytes()}
        self.bounds = np.zeros(samples.count)

    @property
    def costs(self) -> Floats:
        """float64 (candidates, samples)."""
        return np.array(self.rows)

    @property
    def best(self) -> Floats:
        """float64 (samples,): the least cost that is known in each sample."""
        least: Floats = self.costs.min(axis=0)
        return least

    def add(self, placement: Placement) -> bool:
        """Add a placement unless its labels are known."""
        key = placement.labels.tobytes()
        if key in self.known:
            return False
        given = self.placements[0]
        own = Placement.from_labels(
            self.samples.problem,
            placement.labels,
            given.bound,
            given.notes,
            given.why_host,
            placement.regions,
            placement.fusions,
        )
        self.known.add(key)
        self.placements.append(own)
        self.rows.append(self.samples.evaluate(own))
        return True

    def add_optima(self) -> None:
        """Add the best placement that is found for each sample, and note the lower bounds."""
        problem = self.samples.problem
        if not problem.devices or not problem.units:
            self.bounds = self.rows[0].copy()
            return
        size = problem.devices * (problem.units + len(problem.consumers))
        rounds = max(1, min(_MAX_ROUNDS, _MAX_STEPS // max(size * self.samples.count, 1)))
        relaxation = LagrangianRelaxation(problem)
        for _ in relaxation.iterate_labels(rounds, lambda: self.placements[0].cost.total):
            pass
        for number in range(self.samples.count):
            sampled = self.samples.make_problem(number)
            # Labels and regions that keep the limits do so at any costs.
            least = min(range(len(self.rows)), key=lambda row: self.rows[row][number])
            start = self.placements[least]
            best = Placement.from_labels(
                sampled, start.labels, regions=start.regions, fusions=start.fusions
            )
            best, bound = _solve_sample(relaxation.vary(sampled), best, rounds)
            self.bounds[number] = bound
            self.add(best)

    def choose(self, robust: Robust) -> Placement:
        """Return the candidate of least regret, after moves of units whose device is in doubt."""
        best = self.best
        scores = [self._score(row, best, robust) for row in self.rows]
        at = int(np.argmin(scores))
        chosen, score, tried = self.placements[at], scores[at], 0
        groups = self._find_groups()
        improved = True
        while improved:
            improved = False
            for rows, device in groups:
                if tried == _MAX_MOVES:
                    return chosen
                if (chosen.labels[rows] == device).all():
                    continue
                tried += 1
                labels = chosen.labels.copy()
                labels[rows] = device
                moved = build_incumbent(self.samples.problem, labels)
                if moved is None or not self.add(moved):
                    continue
                value = self._score(self.rows[-1], best, robust)
                if value < score * (1 - _TOLERANCE):
                    chosen, score, improved = self.placements[-1], value, True
        return chosen

    @staticmethod
    def _score(row: Floats, best: Floats, robust: Robust) -> float:
        ratios = _divide(row, best)
        return float(ratios.mean() if robust is Robust.mean else ratios.max())

    def _find_groups(self) -> list[tuple[Ints, int]]:
        """Return units that candidates place differently, those alike together, with each device."""
        labels = np.array([placement.labels for placement in self.placements])
        doubtful = np.flatnonzero((labels != labels[0]).any(axis=0))
        together: dict[bytes, list[int]] = {}
        for unit in doubtful.tolist():
            together.setdefault(labels[:, unit].tobytes(), []).append(unit)
        groups = [np.array(units, np.int64) for units in together.values()]
        groups += [np.array([unit]) for unit in doubtful.tolist() if len(together) < len(doubtful)]
        allowed = self.samples.problem.allowed
        return [
            (units, int(device))
            for units in groups
            for device in np.unique(labels[:, units])
            if allowed[units, device].all()
        ]

    def count_moves(self, given: Placement) -> tuple[Floats, Ints]:
        """Return for each unit how often the best placement has it elsewhere, and where then.

        Where the given one is as good as the best, nothing is elsewhere.
        """
        costs, best = self.costs, self.best
        own = next(row for row, placement in enumerate(self.placements) if placement is given)
        winners = np.where(costs[own] <= best * (1 + _TOLERANCE), own, costs.argmin(axis=0))
        labels = np.array([self.placements[number].labels for number in winners.tolist()])
        columns = 1 + self.samples.problem.devices
        counts = np.stack([(labels == device).sum(axis=0) for device in range(columns)])
        counts[given.labels, np.arange(len(given.labels))] = 0
        return counts.sum(axis=0) / len(winners), counts.argmax(axis=0).astype(np.int64)


def _solve_sample(
    relaxation: LagrangianRelaxation, best: Placement, rounds: int
) -> tuple[Placement, float]:
    """Return the best placement found for the costs of a sample, and a lower bound."""
    problem = relaxation.problem
    known, found = {best.labels.tobytes()}, [best]
    for labels in relaxation.iterate_labels(rounds, lambda: found[-1].cost.total):
        if labels.tobytes() not in known:
            known.add(labels.tobytes())
            found.append(select_best([found[-1], build_incumbent(problem, labels)]) or best)
    best = found[-1]
    bound = relaxation.bound * (1 - 2.0**-48)
    if best.cost.total > bound * (1 + _TOLERANCE) and problem.units * problem.devices <= _MAX_EXACT:
        closed = solve_exactly(problem, best, None, _EXACT_NODES)
        if closed is not None:
            best, bound = closed, max(bound, closed.bound or 0.0)
    return best, bound
