"""Depthwise convolutions in groups of channels with like ranges, where a tensor has one scale.

A depthwise convolution reads each channel by itself: one with a small range has few levels, and nothing
makes up for that. Where no factor equalizes channels, since a HardSwish or the like stands before, the
convolution before it, the functions between, and the depthwise one are computed in groups of channels,
each a tensor with a scale of its own. A Concat joins what they make. The channels are then in another
order, and so are the weights of what reads them. In floating point nothing changes but the order of
sums, and a target computes as many products as before.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model import (
    GraphIndex,
    Model,
    get_stated_attributes,
    is_onnx,
)
from byoc.quantization._arithmetic import is_depthwise, read_constant
from byoc.quantization._channel_classes import find_channel_classes, list_linear_nodes
from byoc.quantization._channel_statistics import ChannelStatistics, measure_channels
from byoc.quantization._group_writer import ChannelChain, GroupedModel, GroupWriter, Integers

Float64Array = NDArray[np.float64]
_FUNCTIONS = frozenset(
    [
        *("Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Gelu"),
        *("Mish", "Softplus", "Swish", "Identity"),
    ]
)
_WITH_NUMBERS = frozenset({"Add", "Sub", "Mul", "Div"})
_BLOCKS = (8, 4)  # channels that groups are made of: 8 are computed together, 4 are for a few channels
_FINER = 0.5  # of the noise of groups of larger blocks, at most, for some of smaller ones
_MOST_GROUPS = 4
_LEFT = 0.5  # of the noise, at most, for another group
_LITTLE = 1e-3  # of the noise of all depthwise convolutions: one that has less is split no further
_LEVELS = 255
_LEAST_SECONDS = 1e-5  # that a step counts as, of those of the model
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class _Split:
    """Channels of a depthwise convolution in groups, and the noise that is expected in what it makes.

    The noise is the mean of its shares in the channels' signals.
    """

    groups: Sequence[Integers]
    noise: float


@dataclass(frozen=True)
class _GroupStep:
    """A chain's channels in other groups, split `last` of the chain instead of `first`; its seconds.

    `worth` is the noise that the groups take away, for each of these seconds.
    """

    place: int
    first: int
    last: int
    seconds: float
    worth: float


@dataclass(frozen=True, eq=False)
class ChannelGroups:
    """The depthwise convolutions of a model that may be computed in groups of channels.

    `chains` has each with its channels in one group, and in several, with less and less noise.
    """

    model: Model
    chains: Sequence[tuple[ChannelChain, Sequence[_Split]]]

    def choose(self, predict: Callable[[GroupedModel], float], most: float) -> GroupedModel:
        """Return the model with the groups that lower the noise most for the time that they take.

        `predict` returns the seconds of a model with some groups. All that are chosen take at most a
        share `most` of the seconds without groups.
        """
        plain = predict(self._write({}))
        left = most * plain
        counts: dict[int, int] = {}
        taken: list[_GroupStep] = []
        for step in sorted(self._list_steps(predict, plain), key=lambda step: -step.worth):
            if step.seconds <= left and counts.get(step.place, 0) == step.first:
                counts[step.place] = step.last
                left -= step.seconds
                taken.append(step)
        chosen = self._write(counts)
        while taken and predict(chosen) > (1 + most) * plain:  # seconds of chains alone do not add up
            step = taken.pop()
            counts[step.place] = step.first
            chosen = self._write(counts)
        return chosen

    def _write(self, counts: Mapping[int, int]) -> GroupedModel:
        """Write the model with some chains, by their places, at one of their splits, 0 for one group."""
        chosen = [(self.chains[i][0], self.chains[i][1][n].groups) for i, n in counts.items() if n]
        return GroupWriter(self.model, chosen).write() if chosen else GroupedModel(self.model, 0, {})

    def _list_steps(
        self, predict: Callable[[GroupedModel], float], plain: float
    ) -> Iterator[_GroupStep]:
        """Yield the steps of each chain to less noise, each of which is worth less than the one before.

        They are those of the lower convex hull of noise over seconds.
        """
        least = max(_LEAST_SECONDS * plain, _TINY)
        for place, (_, splits) in enumerate(self.chains):
            numbers = range(1, len(splits))
            seconds = [0.0, *(predict(self._write({place: number})) - plain for number in numbers)]
            now = 0
            while now + 1 < len(splits):
                steps = []
                for last in range(now + 1, len(splits)):
                    longer = seconds[last] - seconds[now]
                    worth = (splits[now].noise - splits[last].noise) / max(longer, least)
                    steps.append(_GroupStep(place, now, last, longer, worth))
                best = max(steps, key=lambda step: step.worth)
                yield best
                now = best.last


def find_channel_groups(
    model: Model, samples: Sequence[Mapping[str, Any]], by_channel: Collection[str]
) -> ChannelGroups:
    """Return the groups of channels that lower the noise of depthwise convolutions much.

    `samples` are those that ranges are measured on. What reads tensors in `by_channel` stays as it is.
    """
    index = model.index
    chains = [
        each for each in _find_chains(index) if index.nodes[each.depthwise].input[0] not in by_channel
    ]
    if not chains:
        return ChannelGroups(model, ())
    nodes = [index.nodes[each.depthwise] for each in chains]
    names = sorted({name for node in nodes for name in (node.input[0], node.output[0])})
    statistics = measure_channels(model, names, samples, "channels")
    splits = [_split_channels(model, node, statistics) for node in nodes]
    little = _LITTLE * sum(found[0].noise for found in splits)
    kept = [[found[0], *_take_needed(found, little)] for found in splits]
    return ChannelGroups(model, tuple(zip(chains, kept, strict=True)))


def _take_needed(splits: Sequence[_Split], little: float) -> list[_Split]:
    """Return the splits behind those that leave more noise than is little."""
    return [after for before, after in pairwise(splits) if before.noise > little]


def _find_chains(index: GraphIndex) -> Iterator[ChannelChain]:
    """Yield the chains around depthwise convolutions that no factors equalize; none shares a node."""
    linear = set(list_linear_nodes(index))
    classes = find_channel_classes(index)
    taken: set[int] = set()
    for number in sorted(linear):
        node = index.nodes[number]
        if not _is_splittable(index, node):
            continue
        before = _walk_up(index, node.input[0], linear)
        after, last = _walk_down(index, node.output[0])
        readers = index.consumers.get(last, ())
        fixed = classes.fixed[classes.of_tensor[node.input[0]]].all()
        if before is None or not fixed or not readers or last in index.outputs:
            continue
        if not all(_absorbs_order(index, reader, last, linear) for reader in readers):
            continue
        chain = ChannelChain((*before, number, *after), number, tuple(sorted(set(readers))), last)
        if taken.isdisjoint(chain.nodes):
            taken.update(chain.nodes)
            yield chain


def _is_splittable(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a convolution makes one channel of each that it reads, and of enough for groups."""
    shape = index.get_shape(node.input[1])
    groups = get_stated_attributes(node).get("group", 1)
    return (
        is_depthwise(index, node) and groups > min(_BLOCKS) and shape is not None and shape[0] == groups
    )


def _walk_up(index: GraphIndex, name: str, linear: set[int]) -> tuple[int, ...] | None:
    """Return the convolution of all channels and the functions behind it that make a tensor."""
    found: list[int] = []
    while name not in index.outputs and len(index.consumers.get(name, ())) == 1:
        number = index.producers.get(name)
        if number is None:
            return None
        found.append(number)
        node = index.nodes[number]
        if number in linear:
            dense = node.op_type == "Conv" and get_stated_attributes(node).get("group", 1) == 1
            return tuple(reversed(found)) if dense else None
        position = _find_operand(index, number)
        if position is None:
            return None
        name = node.input[position]
    return None


def _walk_down(index: GraphIndex, name: str) -> tuple[tuple[int, ...], str]:
    """Return the functions of each element behind a tensor, and the last tensor that they make."""
    found: list[int] = []
    while name not in index.outputs and len(index.consumers.get(name, ())) == 1:
        (number,) = index.consumers[name]
        if _find_operand(index, number) is None:
            break
        found.append(number)
        name = index.nodes[number].output[0]
    return tuple(found), name


def _find_operand(index: GraphIndex, number: int) -> int | None:
    """Return the input that a node computes a function of each element of, None if it does not."""
    node = index.nodes[number]
    if not is_onnx(node) or number in index.constant_nodes:
        return None
    if node.op_type in _FUNCTIONS:
        return 0
    constants = [position for position, name in enumerate(node.input) if _is_number(index, name)]
    if node.op_type not in _WITH_NUMBERS or len(constants) != 1:
        return None
    return 1 - constants[0]


def _is_number(index: GraphIndex, name: str) -> bool:
    shape = index.get_shape(name)
    return index.is_constant(name) and shape is not None and all(extent == 1 for extent in shape)


def _absorbs_order(index: GraphIndex, number: int, name: str, linear: set[int]) -> bool:
    """Return whether a node reads channels in any order, as a convolution of all channels does."""
    node = index.nodes[number]
    return (
        number in linear
        and node.op_type == "Conv"
        and node.input[0] == name
        and get_stated_attributes(node).get("group", 1) == 1
    )


def _split_channels(
    model: Model, node: NodeProto, statistics: Mapping[str, ChannelStatistics]
) -> list[_Split]:
    """Return the channels of a depthwise convolution in one group and in several, by falling noise."""
    seen, made = statistics[node.input[0]], statistics[node.output[0]]
    weights = read_constant(model.index, node.input[1], model.folder).astype(np.float64)
    gathered = (weights.reshape(len(weights), -1) ** 2).sum(axis=1)
    variance = np.maximum(made.power - made.mean**2, 0)
    share = gathered / np.maximum(variance, 1e-12 * max(float(variance.max()), 1e-30)) / 12
    found: dict[int, _Split] = {}
    finer: list[_Split] = []
    for block in _BLOCKS:
        least = np.inf
        for split in _search_splits(seen, share, block):
            if split.noise > _LEFT * least:
                break
            least = split.noise
            known = found.setdefault(len(split.groups), split)
            if split.noise < _FINER * known.noise:
                finer.append(split)
    return sorted([*found.values(), *finer], key=lambda split: -split.noise)


def _search_splits(seen: ChannelStatistics, share: Float64Array, block: int) -> Iterator[_Split]:
    """Yield the channels in groups of least noise: all in one, in two, and so on.

    `share` is what a squared step adds to the noise of a channel, relative to its signal. Groups are
    intervals of the channels sorted by their ranges, of whole blocks but for one.
    """
    order = np.argsort(seen.reach, kind="stable")
    blocks = np.split(order, range(block, len(order), block))
    if len(blocks) > 1 and len(blocks[-1]) < block:
        blocks[-2:] = [np.concatenate(blocks[-2:])]
    count = len(blocks)
    noise = np.full((count + 1, count + 1), np.inf)
    for first in range(count):
        for behind in range(first + 1, count + 1):
            members = np.concatenate(blocks[first:behind])
            width = max(seen.high[members].max(), 0.0) - min(seen.low[members].min(), 0.0)
            shares = np.minimum(share[members] * (width / _LEVELS) ** 2, 1.0)
            noise[first, behind] = shares.sum() / len(order)
    best = noise[0]
    ends: list[list[int]] = [[behind] for behind in range(count + 1)]
    for _ in range(min(_MOST_GROUPS, count)):
        cuts = pairwise([0, *ends[count]])
        groups = [np.concatenate(blocks[first:behind]) for first, behind in cuts]
        yield _Split(groups, float(best[count]))
        sums = best[:, np.newaxis] + noise
        before = np.argmin(sums, axis=0)
        best = sums[before, np.arange(count + 1)]
        ends = [[*ends[before[behind]], behind] for behind in range(count + 1)]
