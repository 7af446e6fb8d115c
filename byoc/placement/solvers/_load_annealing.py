"""Simulated annealing for a small maximal load, on coarse groups first and then on finer ones."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from byoc.numerics import SearchBudget
from byoc.placement._problem import Occupancy
from byoc.placement.solvers._load_state import LoadState
from byoc.placement.solvers._unit_groups import HOST, UnitGroups

# Seconds that trying one move takes on one core of about 3 GHz, and more for each tensor it touches.
_MOVE_SECONDS, _TENSOR_SECONDS = 1.6e-6, 0.4e-6
# The power of the loads in the energy: the larger, the nearer to their maximum.
_POWER = 8
# The share of moves that bring a group to the device of a neighbour.
_NEAR = 0.85
# How often the improving loads are summed up anew, against rounding errors that add up.
_REFRESH = 20_000


@dataclass(frozen=True)
class Cooling:
    """Temperatures at the beginning and the end, as shares of the energy, and the number of moves."""

    hot: float
    cold: float
    moves: int


@dataclass(frozen=True, eq=False)
class LoadAnnealer:
    """Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) of device loads.

    The energy is the sum of a power of all loads, a smooth stand-in for their maximum.
    """

    occupies: Sequence[Occupancy]
    cores: int

    def improve(  # noqa: PLR0912 - one loop, in which calls would take half of the time
        self,
        groups: UnitGroups,
        labels: Sequence[int],
        cooling: Cooling,
        seed: int,
        budget: SearchBudget,
    ) -> tuple[float, list[int]]:
        """Return the least maximal load in seconds that was seen, and the labels of the groups there.

        Stops early when the budget is spent.
        """
        state = LoadState(groups, self.occupies, self.cores, labels)
        generator = random.Random(seed)
        best, chosen = max(state.loads()), list(state.labels)
        touched = sum(map(len, groups.touching)) / max(groups.count, 1)
        each = _MOVE_SECONDS + _TENSOR_SECONDS * touched
        moves = int(min(cooling.moves, budget.left / each))
        if not groups.count or not groups.devices or not 0 < best < math.inf:
            return best, chosen
        budget.spend(moves * each)
        scale = 1 / best
        powers = [(load * scale) ** _POWER for load in state.loads()]
        energy = sum(powers)
        decay = (cooling.cold / cooling.hot) ** (1 / max(moves, 1))
        heat = cooling.hot
        near, count = groups.neighbours, groups.count
        for step in range(moves):
            heat *= decay
            group = generator.randrange(count)
            around = near[group]
            if around and generator.random() < _NEAR:
                target = state.labels[around[generator.randrange(len(around))]]
            else:
                target = generator.randrange(groups.devices + 1)
            source = state.labels[group]
            move = None if target == source else state.examine(group, target)
            if move is None:
                continue
            host, first, second = state.loads_after(move)
            try:
                after = energy - powers[0] + (host * scale) ** _POWER
                if source:
                    after += (first * scale) ** _POWER - powers[source]
                if target:
                    after += (second * scale) ** _POWER - powers[target]
            except OverflowError:  # a load that no float of this power holds is no improvement
                continue
            if after > energy and generator.random() >= math.exp((energy - after) / (heat * energy)):
                continue
            state.apply(move)
            energy = after
            for device, load in ((0, host), (source, first), (target, second)):
                powers[device] = (load * scale) ** _POWER
            if step % _REFRESH == 0:
                energy = sum(powers)
            if energy < 1 + groups.devices and max(powers) < 1:
                peak = max(state.loads())
                if peak < best * (1 - 1e-12):
                    best, chosen = peak, list(state.labels)
                    scale = 1 / best
                    powers = [(load * scale) ** _POWER for load in state.loads()]
                    energy = sum(powers)
        # Loads that were updated move by move carry rounding errors.
        return max(LoadState(groups, self.occupies, self.cores, chosen).loads()), chosen


def coarsen(groups: UnitGroups, most_seconds: float) -> list[int]:
    """Return the cluster of each group: pairs with the dearest tensors between them become one.

    Heavy-edge matching as in Karypis and Kumar, SIAM Journal on Scientific Computing 20, 1998; the
    weight of an edge is its transfer over the geometric mean of both executions. A pair takes at most
    `most_seconds` where it is fastest, and fits the memory of an accelerator.
    """
    weight: dict[tuple[int, int], float] = {}
    for tensor in groups.tensors:
        if tensor.home == HOST or not tensor.readers:
            continue
        costs = [cost for cost in (*tensor.to_device, *tensor.to_host) if cost < math.inf]
        share = sum(costs) / max(len(costs), 1) / len(tensor.readers)
        for reader in tensor.readers:
            pair = min(tensor.home, reader), max(tensor.home, reader)
            weight[pair] = weight.get(pair, 0.0) + share
    seconds: list[float] = groups.costs.min(axis=1).tolist()
    tiny = 1e-12 + 1e-6 * sum(seconds) / max(groups.count, 1)

    def sort_key(pair: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        return -weight[pair] / math.sqrt((seconds[pair[0]] + tiny) * (seconds[pair[1]] + tiny)), pair

    cluster, clusters = [-1] * groups.count, 0
    for one, other in sorted(weight, key=sort_key):
        if cluster[one] >= 0 or cluster[other] >= 0:
            continue
        together = groups.costs[one] + groups.costs[other]
        together[1:][groups.memory[one] + groups.memory[other] > groups.capacity] = math.inf
        if together.min() <= most_seconds and math.isfinite(together[1:].min(initial=math.inf)):
            cluster[one] = cluster[other] = clusters
            clusters += 1
    for group in range(groups.count):
        if cluster[group] < 0:
            cluster[group] = clusters
            clusters += 1
    number: dict[int, int] = {}
    return [number.setdefault(each, len(number)) for each in cluster]
