"""A model that is run on samples while its weights are replaced by rounded ones, product after product.

Products are rounded in the order in which they are computed, each by the moments of what it reads where
those before are rounded. What it is rounded from makes up for their errors as well: of all weights
`W'` those for which `W' x'` is nearest to `W x`, with `x` and `x'` the inputs before and after.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from scipy import linalg

from byoc.model import DTYPE_NUMBERS, Model, copy_without
from byoc.onnxrt import open_session, session_runner, without_optimizations
from byoc.quantization._weight_rounding import WeightedNode
from byoc.support import report_step

Array = NDArray[Any]
Float64Array = NDArray[np.float64]
Samples = Sequence[Mapping[str, Any]]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class ReplaceableWeights:
    """Weights of a model under some key: their value as it is stored, and the inputs that read it.

    `readers` are numbers of nodes with positions of inputs.
    """

    key: Hashable
    value: Array
    readers: tuple[tuple[int, int], ...]


class RoundedModel:
    """A model of which some weights are replaced between runs."""

    def __init__(
        self, model: Model, weights: Sequence[ReplaceableWeights], inner: Iterable[str]
    ) -> None:
        """Take weights under keys that differ, and the inner tensors that are asked for."""
        proto = copy_without(model.proto)
        self.outputs = tuple(each.name for each in proto.graph.output)
        self.floats = {f"weights:{number}": each.value for number, each in enumerate(weights)}
        self.weights = dict(self.floats)
        self._inputs = dict(zip([each.key for each in weights], self.floats, strict=True))
        for each, name in zip(weights, self.floats, strict=True):
            dtype = DTYPE_NUMBERS[str(each.value.dtype)]
            proto.graph.input.append(helper.make_tensor_value_info(name, dtype, each.value.shape))
            for number, position in each.readers:
                proto.graph.node[number].input[position] = name
        known = set(self.outputs)
        added = sorted(set(inner) - known)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
        with without_optimizations():
            self._session = open_session(proto, model.folder)

    def replace(self, key: Hashable, value: Array) -> None:
        """Replace weights from the next run on."""
        name = self._inputs[key]
        self.weights[name] = np.ascontiguousarray(value, self.floats[name].dtype)

    def restore(self, key: Hashable) -> None:
        """Take weights as they were given from the next run on."""
        self.weights[self._inputs[key]] = self.floats[self._inputs[key]]

    def run(self, names: Sequence[str], sample: Mapping[str, Any], *, rounded: bool) -> dict[str, Array]:
        """Return tensors for a sample, with the weights as they are replaced, or as they were given."""
        weights = self.weights if rounded else self.floats
        return session_runner(self._session, names)({**sample, **weights})


def measure_output_noise(
    rounded: RoundedModel, replaced: Mapping[Key, Array], samples: Samples
) -> dict[Key, float]:
    """Return what each of some rounded weights alone makes of noise in the outputs, over their power.

    The shares of outputs are added up; what is not finite, and outputs of 0, count nothing.
    """
    names = rounded.outputs
    exact = [rounded.run(names, sample, rounded=False) for sample in samples]
    found = {}
    for number, (key, value) in enumerate(replaced.items()):
        report_step(f"noise of weights: {number + 1} of {len(replaced)}")
        rounded.replace(key, value)
        noise, power = (dict.fromkeys(names, 0.0) for _ in range(2))
        for sample, expected in zip(samples, exact, strict=True):
            made = rounded.run(names, sample, rounded=True)
            for output in names:
                one, other = (np.asarray(each[output], np.float64) for each in (expected, made))
                noise[output] += float(np.square(one - other).sum())
                power[output] += float(np.square(one).sum())
        rounded.restore(key)
        shares = [noise[each] / power[each] for each in names if power[each] > 0]
        found[key] = sum(share for share in shares if np.isfinite(share))
    return found


@dataclass(frozen=True, eq=False)
class InputMoments:
    """Moments `[K, K]` of a product's inputs before and after others were rounded, of either half.

    `after` are the means of the products of inputs after that, `across` of inputs before and after.
    """

    after: tuple[Float64Array, Float64Array]
    across: tuple[Float64Array, Float64Array]

    @property
    def total(self) -> Float64Array:
        """The moments of the inputs after rounding, of both halves."""
        return self.after[0] + self.after[1]

    @property
    def is_measured(self) -> bool:
        """Whether some input was not 0, and the squares of all are finite."""
        everything = (*self.after, *self.across)
        return bool(self.total.any()) and all(np.isfinite(each).all() for each in everything)

    def correct(self, weights: Float64Array) -> Float64Array:
        """Return weights `[N, K]` that make up for the errors of their inputs.

        How far they may move is damped; of several dampings, that is taken which leaves the least error
        on the half that the weights were not fitted to, none at all where no damping leaves less.
        """
        drift = [across - after for across, after in zip(self.across, self.after, strict=True)]
        if not any(each.any() for each in drift):
            return weights
        wanted = [weights @ each for each in drift]
        gains = []
        for damping in _DAMPINGS:
            gain = 0.0
            for fitted, held in ((0, 1), (1, 0)):
                moved = _solve(self.after[fitted], wanted[fitted], damping)
                gain += 2 * float((moved * wanted[held]).sum())
                gain -= float(((moved @ self.after[held]) * moved).sum())
            gains.append(gain)
        best = int(np.argmax(gains))
        if not gains[best] > 0:
            return weights
        return weights + _solve(self.total, wanted[0] + wanted[1], _DAMPINGS[best])


_DAMPINGS = (0.01, 0.1, 1.0)
"""Shares of the mean square of inputs that are added to each."""


def _solve(moments: Float64Array, wanted: Float64Array, damping: float) -> Float64Array:
    """Return `D` with `D (H + damping) = wanted`, 0 where there are no moments."""
    mean = float(np.diag(moments).mean())
    if not mean > 0:
        return np.zeros_like(wanted)
    damped = moments.copy()
    damped[np.diag_indices_from(damped)] += damping * mean
    solved: Float64Array = linalg.solve(damped, wanted.T, assume_a="pos", check_finite=False).T
    return solved


def sum_moments(
    rounded: RoundedModel, nodes: Sequence[WeightedNode], samples: Samples, *, is_rounded: bool
) -> InputMoments:
    """Return the moments of what products with the same weights read, over samples.

    Where nothing `is_rounded` yet, inputs are the same before and after. Samples whose inputs are not
    finite count nothing.
    """
    width = nodes[0].inputs
    after, across = (np.zeros((2, width, width)) for _ in range(2))
    names = sorted({each.node.input[0] for each in nodes})
    count = 0
    for number, sample in enumerate(samples):
        exact = rounded.run(names, sample, rounded=False)
        found = rounded.run(names, sample, rounded=True) if is_rounded else exact
        for node in nodes:
            old, new = (
                node.take_patches(np.asarray(x, np.float32), np.random.default_rng(number))[0]
                for x in (exact[node.node.input[0]], found[node.node.input[0]])
            )
            if not (np.isfinite(old).all() and np.isfinite(new).all()):
                continue
            with np.errstate(over="ignore", invalid="ignore"):  # squares of 1e20 are infinite
                squares = new.T @ new
                after[number % 2] += squares
                across[number % 2] += old.T @ new if is_rounded else squares
            count += len(new)
    share = 1 / max(count, 1)
    return InputMoments((after[0] * share, after[1] * share), (across[0] * share, across[1] * share))


# The bits of weights, tensor by tensor, under one budget of bytes, for the least noise of outputs.
#
# The noise of an output is taken as the sum of what each tensor's weights make, as of errors that do
# not depend on one another. What remains is a knapsack with a choice for each tensor. Its linear
# relaxation gives a lower bound, and a choice above it by at most what one tensor's step makes; dynamic
# programming is exact where tensors are few.


class WeightOption(NamedTuple):
    """A tensor of weights in some bits: these, the bytes that it takes, and the noise that it makes."""

    bits: int
    nbytes: int
    noise: float


@dataclass(frozen=True)
class BitChoice:
    """An option for each tensor, the noise of all together, and what no choice is below."""

    options: tuple[WeightOption, ...]
    bound: float

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(each.nbytes for each in self.options)

    @property
    def noise(self) -> float:
        """The noise of all tensors."""
        return _sum_noise(self.options)


def choose_options(tensors: Sequence[Sequence[WeightOption]], budget: int) -> BitChoice | None:
    """Choose an option for each tensor of at most so many bytes together, with the least noise.

    Each tensor begins with its smallest option. Steps along the lower convex hull of bytes and noise are
    taken by the noise that a byte saves; the first that does not fit gives the bound of the linear
    relaxation (Sinha and Zoltners, "The Multiple-Choice Knapsack Problem", Operations Research 27,
    1979), and later ones are taken where they fit. Dynamic programming finds what is better. Returns
    None where the smallest options do not fit.
    """
    hulls = [_find_hull(options) for options in tensors]
    chosen = [hull[0] for hull in hulls]
    left = budget - sum(each.nbytes for each in chosen)
    if left < 0:
        return None
    steps = sorted(
        (
            (before.noise - after.noise) / (before.nbytes - after.nbytes),  # below 0: the steepest first
            number,
            place,
        )
        for number, hull in enumerate(hulls)
        for place, (before, after) in enumerate(pairwise(hull))
    )
    bound = None
    for slope, number, place in steps:
        before, after = hulls[number][place : place + 2]
        grows = after.nbytes - chosen[number].nbytes
        if chosen[number] == before and grows <= left:
            chosen[number] = after
            left -= grows
        elif bound is None:
            bound = sum(each.noise for each in chosen) + slope * left
    found = min(_search(tensors, budget), tuple(chosen), key=_sum_noise)
    noise = _sum_noise(found)
    return BitChoice(found, noise if bound is None else max(min(bound, noise), 0.0))


def _sum_noise(options: Sequence[WeightOption]) -> float:
    return sum(each.noise for each in options)


def _find_hull(options: Sequence[WeightOption]) -> list[WeightOption]:
    """Return the options on the lower convex hull of bytes and noise, the smallest first."""
    hull: list[WeightOption] = []
    for each in sorted(options, key=lambda option: (option.nbytes, option.noise)):
        if hull and each.noise >= hull[-1].noise:
            continue
        while len(hull) > 1 and _is_above(hull[-2], hull[-1], each):
            hull.pop()
        hull.append(each)
    return hull


def _is_above(first: WeightOption, middle: WeightOption, last: WeightOption) -> bool:
    """Return whether an option lies on or above the line between a smaller and a larger one."""
    down = (first.noise - middle.noise) * (last.nbytes - first.nbytes)
    return down <= (first.noise - last.noise) * (middle.nbytes - first.nbytes)


_STATES = 4096
"""Sums of bytes and noise that are kept at once: with more, the search is no longer exact."""


def _search(tensors: Sequence[Sequence[WeightOption]], budget: int) -> tuple[WeightOption, ...]:
    """Return the options of the least noise within a budget, by dynamic programming.

    Of sums of bytes and noise those are kept than which no other has less of both, and of too many the
    one of the least noise in each of equal ranges of bytes.
    """
    least = sum(min(each.nbytes for each in options) for options in tensors)
    states: list[tuple[int, float, Any]] = [(0, 0.0, None)]
    for options in tensors:
        least -= min(each.nbytes for each in options)
        sums = sorted(
            (nbytes + each.nbytes, noise + each.noise, number, each)
            for number, (nbytes, noise, _) in enumerate(states)
            for each in options
            if nbytes + each.nbytes + least <= budget
        )
        kept: list[tuple[int, float, Any]] = []
        for nbytes, noise, number, option in sums:
            if not kept or noise < kept[-1][1]:
                kept.append((nbytes, noise, (option, states[number][2])))
        states = kept if len(kept) <= _STATES else _thin(kept)
    chain, found = states[-1][2], []
    while chain is not None:
        option, chain = chain
        found.append(option)
    return tuple(reversed(found))


def _thin(states: list[tuple[int, float, Any]]) -> list[tuple[int, float, Any]]:
    """Return the states of the least noise in equal ranges of bytes; the smallest is among them."""
    first, last = states[0][0], states[-1][0]
    best = {(each[0] - first) * (_STATES - 2) // max(last - first, 1): each for each in states}
    return [states[0], *(each for each in best.values() if each is not states[0])]
