"""A model that is run on samples part by part, while its weights are replaced by rounded ones.

Products are rounded in the order in which they are computed, each by the moments of what it reads where
those before are rounded. What it is rounded from makes up for their errors as well: of all weights
`W'` those for which `W' x'` is nearest to `W x`, with `x` and `x'` the inputs before and after.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import TypeProto, ValueInfoProto, helper
from scipy import linalg

from byoc._dataclasses import dataclass
from byoc.model import (
    DTYPE_NUMBERS,
    GraphIndex,
    Model,
    drop_named,
    extract_nodes,
    find_boundary,
    read_array,
)
from byoc.onnxrt import open_session, session_runner, without_optimizations
from byoc.quantization._weight_rounding import WeightedNode
from byoc.support import report_step

Array = NDArray[Any]
Float64Array = NDArray[np.float64]
Values = Mapping[str, Any]
Samples = Sequence[Values]
Key = TypeVar("Key", bound=Hashable)
_MEMORY = 1 << 30  # bytes of tensors of samples that are kept from part to part


@dataclass(frozen=True)
class ReplaceableWeights:
    """Weights of a model under some key: their value as it is stored, and the inputs that read it.

    `readers` are numbers of nodes with positions of inputs.
    """

    key: Hashable
    value: Array
    readers: tuple[tuple[int, int], ...]


class _ModelPart:
    """The nodes of a model from one number to another that some tensors need."""

    def __init__(
        self,
        model: Model,
        weights: Sequence[ReplaceableWeights],
        span: range,
        names: Sequence[str],
        given: Samples,
    ) -> None:
        """Take the numbers of nodes, the tensors that are wanted, and those before by samples."""
        self.wanted = tuple(names)
        self.made = [name for name in names if name not in given[0]]
        nodes = _find_needed(model.index, span, self.made)
        self.weights: dict[str, ReplaceableWeights] = {}
        if not nodes:
            return
        proto = extract_nodes(model.index, nodes, "part", model.index.type_protos)
        border = find_boundary(model.index, nodes)
        places = {number: place for place, number in enumerate(sorted({*nodes, *border.constant_nodes}))}
        del proto.graph.input[:], proto.graph.output[:]
        self._inputs = border.inputs
        for name in border.inputs:
            kind = model.index.type_protos.get(name)
            proto.graph.input.append(_state_type(name, kind, [each[name] for each in given]))
        for number, each in enumerate(weights):
            readers = [(places[reader], place) for reader, place in each.readers if reader in places]
            for reader, place in readers:
                proto.graph.node[reader].input[place] = f"weights:{number}"
            if readers:
                self.weights[f"weights:{number}"] = each
                stated = _state_type(f"weights:{number}", None, [each.value])
                proto.graph.input.append(stated)
        proto.graph.output.extend(ValueInfoProto(name=name) for name in self.made)
        read = {name for names in GraphIndex.of_model(proto).reads for name in names}
        drop_named(proto.graph.initializer, {each.name for each in proto.graph.initializer} - read)
        with without_optimizations():
            self._compute = session_runner(open_session(proto, model.folder))

    @property
    def keys(self) -> set[Hashable]:
        """The keys of the weights that these nodes read."""
        return {each.key for each in self.weights.values()}

    def run(self, given: Values, replaced: Mapping[Any, Array]) -> dict[str, Any]:
        """Return the wanted tensors of a sample, with some weights replaced, by their keys."""
        found = {name: given[name] for name in self.wanted if name in given}
        if not self.made:
            return found
        values = {name: given[name] for name in self._inputs}
        for name, each in self.weights.items():
            value = replaced.get(each.key, each.value)
            values[name] = np.ascontiguousarray(value, each.value.dtype)
        return found | self._compute(values)


def _find_needed(index: GraphIndex, span: range, names: Iterable[str]) -> list[int]:
    """Return the numbers of a range whose nodes compute some tensors, without constant nodes."""
    needed, found = set(names), []
    for number in reversed(span):
        if number not in index.constant_nodes and needed.intersection(index.node_outputs[number]):
            found.append(number)
            needed.update(index.reads[number])
    return found[::-1]


def _state_type(name: str, known: TypeProto | None, values: Sequence[Any]) -> ValueInfoProto:
    """Return a tensor's dtype, and its rank where it has one for all samples; other types as known."""
    if not isinstance(values[0], np.ndarray):
        return ValueInfoProto(name=name, type=known)
    dtype = known.tensor_type.elem_type if known is not None else 0
    dtype = dtype or DTYPE_NUMBERS[str(values[0].dtype)]
    ranks = {each.ndim for each in values}
    return helper.make_tensor_value_info(name, dtype, [None] * ranks.pop() if len(ranks) == 1 else None)


def _add_defaults(model: Model, samples: Samples) -> Samples:
    """Return samples with the inputs that they leave at their defaults."""
    index = model.index
    stored = {each.name: each for each in index.graph.initializer if each.name in index.inputs}
    defaults = {name: read_array(each, model.folder) for name, each in stored.items()}
    return [{**defaults, **sample} for sample in samples]


class RoundedModel:
    """A model that runs on samples from product to product, with weights as given and as replaced."""

    def __init__(self, model: Model, weights: Sequence[ReplaceableWeights], samples: Samples) -> None:
        """Take weights under keys that differ."""
        self._model, self._weights = model, weights
        self._replaced: dict[Hashable, Array] = {}
        self._place = 0  # of the first node that was not left behind
        self._values: list[tuple[Values, Values]] = [
            (each, each) for each in _add_defaults(model, samples)
        ]

    def replace(self, key: Hashable, value: Array) -> None:
        """Replace weights from the next run on."""
        self._replaced[key] = value

    def run(self, names: Sequence[str], first: int, end: int) -> Iterator[tuple[Values, Values]]:
        """Yield tensors that nodes before `end` make, for each sample, before and after replacing.

        Both are one object where nothing was replaced. Nodes before `first` are left behind: later
        runs begin with what they made, and see no weights of theirs that are replaced later. It is kept
        if it takes at most a gibibyte for all samples; else the next run begins where this one did.
        """
        index, start = self._model.index, self._place
        made = {name for each in index.node_outputs[start:first] for name in each if name}
        known = {*self._values[0][0], *made} - index.constant_names
        live = [name for name in sorted(known) if max(index.consumers.get(name, (-1,))) >= first]
        wanted = sorted({*live, *names})
        part = _ModelPart(self._model, self._weights, range(start, end), wanted, self._list_given())
        kept: list[tuple[Values, Values]] = []
        used = 0
        for before, after in self._values:
            exact = found = part.run(before, {})
            if after is not before or part.keys & self._replaced.keys():
                found = part.run(after, self._replaced)
            sides = {id(each): each for each in (exact, found)}.values()
            used += sum(getattr(each[name], "nbytes", 0) for each in sides for name in live)
            if used <= _MEMORY:
                exact_live = {name: exact[name] for name in live}
                is_same = found is exact
                kept.append((exact_live, exact_live if is_same else {n: found[n] for n in live}))
            yield exact, found
        if used <= _MEMORY:
            self._values, self._place = kept, first

    def _list_given(self) -> Samples:
        return [before for before, _ in self._values]


def measure_output_noise(
    model: Model,
    weights: Sequence[ReplaceableWeights],
    replaced: Mapping[Key, Array],
    samples: Samples,
) -> dict[Key, float]:
    """Return the noise that each of some rounded weights alone makes in the outputs, over their power.

    The shares of outputs are added up; what is not finite, and outputs of 0, count nothing.
    """
    index, samples = model.index, _add_defaults(model, samples)
    names = [name for name in index.outputs if name in index.producers and not index.is_constant(name)]
    whole = _ModelPart(model, weights, range(len(index.nodes)), names, samples)
    power = dict.fromkeys(names, 0.0)
    noises: dict[Key, dict[str, float]] = {key: dict.fromkeys(names, 0.0) for key in replaced}
    for number, sample in enumerate(samples):
        report_step(f"noise of weights: sample {number + 1} of {len(samples)}")
        exact = {name: np.asarray(value, np.float64) for name, value in whole.run(sample, {}).items()}
        for name in names:
            power[name] += float(np.square(exact[name]).sum())
        for key, value in replaced.items():
            made = whole.run(sample, {key: value})
            for name in names:
                noises[key][name] += float(np.square(exact[name] - made[name]).sum())
    found = {}
    for key, each in noises.items():
        shares = [each[name] / power[name] for name in names if power[name] > 0]
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
        some = weights[:: -(-len(weights) // _TRIED_OUTPUTS)]
        wanted = [some @ each for each in drift]
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
        return weights + _solve(self.total, weights @ (drift[0] + drift[1]), _DAMPINGS[best])


_DAMPINGS = (0.01, 0.1, 1.0)
"""Shares of the mean square of inputs that are added to each."""
_TRIED_OUTPUTS = 64  # at most, that a damping is chosen by: each takes as long as the correction


def _solve(moments: Float64Array, wanted: Float64Array, damping: float) -> Float64Array:
    """Return `D` with `D (H + damping) = wanted`, 0 where there are no moments."""
    mean = float(np.diag(moments).mean())
    if not mean > 0:
        return np.zeros_like(wanted)
    damped = moments.copy()
    damped[np.diag_indices_from(damped)] += damping * mean
    solved: Float64Array = linalg.solve(damped, wanted.T, assume_a="pos", check_finite=False).T
    return solved


def sum_moments(nodes: Sequence[WeightedNode], runs: Iterable[tuple[Values, Values]]) -> InputMoments:
    """Return the moments of what products with the same weights read, from before and after rounding.

    `runs` has it by sample and name. Samples whose inputs are not finite count nothing.
    """
    width = nodes[0].inputs
    after, across = (np.zeros((2, width, width)) for _ in range(2))
    count = 0
    for number, (exact, found) in enumerate(runs):
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
                across[number % 2] += squares if found is exact else old.T @ new
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
