"""Depthwise convolutions in groups of channels with like ranges, where a tensor has one scale.

A depthwise convolution reads each channel by itself: one with a small range has few levels, and nothing
makes up for that. Where no factor equalizes channels, since a HardSwish or the like stands before, the
convolution before it, the functions between, and the depthwise one are computed in groups of channels,
each a tensor with a scale of its own. A Concat joins what they make. The channels are then in another
order, and so are the weights of what reads them. In floating point nothing changes but the order of
sums, and a target computes as many products as before.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from byoc._dataclasses import dataclass, replace
from byoc.model import EditableGraph, Model, build_node, copy_without, prepare_model, set_attribute
from byoc.quantization._calibrators import CHANNELS, EIGHT_BIT_STEPS
from byoc.quantization._channel_classes import (
    ChannelChain,
    ChannelStatistics,
    find_chains,
    measure_channels,
)
from byoc.quantization._weights import read_constant
from byoc.samples import model_samples

# Writing a model in which some convolutions are computed in groups of channels.

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupedModel:
    """A model with channels in groups, and the `count` of chains that have them.

    `sources` has by each new tensor the one whose channels it holds, some or all.
    """

    model: Model
    count: int
    sources: Mapping[str, str]


class GroupWriter:
    """Writes a model with chains in groups of channels."""

    def __init__(self, model: Model, chains: Sequence[tuple[ChannelChain, Sequence[Integers]]]) -> None:
        self.model = model
        self.index = model.index
        self.graph = EditableGraph.of_index(self.index)
        self.count = len(chains)
        self.chain_of = {number: entry for entry in chains for number in entry[0].nodes}
        self.order_of = {n: np.concatenate(groups) for chain, groups in chains for n in chain.readers}
        self.parts: dict[str, list[str]] = {}
        self.sources: dict[str, str] = {}

    def write(self) -> GroupedModel:
        """Return the model."""
        for number, node in enumerate(self.index.nodes):
            if number in self.chain_of:
                chain, groups = self.chain_of[number]
                self.graph.replace(number, *self._make_groups(number, node, groups))
                if number == chain.nodes[-1]:
                    self._join(chain)
            elif number in self.order_of:
                ordered = deepcopy(node)
                ordered.input[1] = self._store(self._read_weights(number), node.input[1], "ordered")
                self.graph.replace(number, ordered)
        model = self.model
        proto = copy_without(model.proto)
        self.graph.write_to(proto.graph)
        self.graph.write_stored(proto.graph, self.graph.list_unread_stored())
        grouped = replace(
            prepare_model(proto, model.source, model.folder),
            lost=model.lost,
            make_samples=partial(model_samples, model),
        )
        return GroupedModel(grouped, self.count, self.sources)

    def _read_weights(self, number: int) -> NDArray[Any]:
        """Return the weights of a convolution, for its input channels in the order that they are in."""
        weights = read_constant(self.index, self.index.nodes[number].input[1], self.model.folder)
        return weights[:, self.order_of[number]] if number in self.order_of else weights

    def _store(self, values: NDArray[Any], name: str, what: str) -> str:
        return self.graph.store(np.ascontiguousarray(values), f"{name}_{what}")

    def _make_groups(
        self, number: int, node: NodeProto, groups: Sequence[Integers]
    ) -> Iterator[NodeProto]:
        """Yield a node of a chain once for each group of channels."""
        made = []
        for place, channels in enumerate(groups):
            what = f"group{place + 1}"
            copy = deepcopy(node)
            copy.name = self.graph.names.new_node(f"{node.name or node.output[0]}_{what}")
            for position, name in enumerate(node.input):
                if name in self.parts:
                    copy.input[position] = self.parts[name][place]
            if node.op_type == "Conv":
                copy.input[1] = self._store(self._read_weights(number)[channels], node.input[1], what)
                if len(node.input) > 2 and node.input[2]:
                    bias = read_constant(self.index, node.input[2], self.model.folder)
                    copy.input[2] = self._store(bias[channels], node.input[2], what)
                if number == self.chain_of[number][0].depthwise:
                    set_attribute(copy, helper.make_attribute("group", len(channels)))
            copy.output[0] = self.graph.names.new_tensor(f"{node.output[0]}_{what}")
            self.sources[copy.output[0]] = node.output[0]
            made.append(copy.output[0])
            yield copy
        self.parts[node.output[0]] = made

    def _join(self, chain: ChannelChain) -> None:
        """Add the Concat of what the groups of a chain make."""
        name = self.graph.names.new_tensor(f"{chain.last}_groups")
        node = build_node("Concat", self.parts.pop(chain.last), [name], name, axis=CHANNELS)
        self.graph.insert_after(chain.nodes[-1], node)
        self.graph.link(chain.last, name)
        self.sources[name] = chain.last


# Channels of a depthwise convolution in groups of like ranges, by the noise that is expected.

Float64Array = NDArray[np.float64]
BLOCKS = (8, 4)
"""The channels that groups are made of: 8 are computed together, 4 are for a few channels."""

_SMALLER = 0.5  # of the noise of groups of larger blocks, at most, for some of smaller ones
_MOST_GROUPS = 4  # that are cut in turn
_LEFT = 0.5  # of the noise, at most, for another group


@dataclass(frozen=True, eq=False)
class ChannelSplit:
    """Channels of a depthwise convolution in groups, and the noise that is expected in what it makes.

    `groups` are int64 numbers of channels, `[channels of a group]` each. The noise of a channel is a
    share of its signal, and `noise` the mean over channels.
    """

    groups: Sequence[NDArray[np.int64]]
    noise: float


def split_channels(
    model: Model, node: NodeProto, statistics: Mapping[str, ChannelStatistics]
) -> list[ChannelSplit]:
    """Return the channels of a depthwise convolution in one group and in several, by falling noise.

    `statistics` has those of what it reads and makes. A further group has to leave less than half of the
    noise, and groups of smaller blocks less than half of that of as many groups of larger ones.
    """
    seen, made = statistics[node.input[0]], statistics[node.output[0]]
    weights = read_constant(model.index, node.input[1], model.folder).astype(np.float64)
    gathered = (weights.reshape(len(weights), -1) ** 2).sum(axis=1)
    variance = np.maximum(made.power - made.mean**2, 0)
    share = gathered / np.maximum(variance, 1e-12 * max(float(variance.max()), 1e-30)) / 12
    found: dict[int, ChannelSplit] = {}
    smaller: list[ChannelSplit] = []
    for block in BLOCKS:
        least = np.inf
        for split in _search_splits(seen, share, block):
            if split.noise > _LEFT * least:
                break
            least = split.noise
            known = found.setdefault(len(split.groups), split)
            if split.noise < _SMALLER * known.noise:
                smaller.append(split)
    return sorted([*found.values(), *smaller], key=lambda split: -split.noise)


def _search_splits(seen: ChannelStatistics, share: Float64Array, block: int) -> Iterator[ChannelSplit]:
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
            shares = np.minimum(share[members] * (width / EIGHT_BIT_STEPS) ** 2, 1.0)
            noise[first, behind] = shares.sum() / len(order)
    best = noise[0]
    ends: list[list[int]] = [[behind] for behind in range(count + 1)]
    for _ in range(min(_MOST_GROUPS, count)):
        cuts = pairwise([0, *ends[count]])
        groups = [np.concatenate(blocks[first:behind]) for first, behind in cuts]
        yield ChannelSplit(groups, float(best[count]))
        sums = best[:, np.newaxis] + noise
        before = np.argmin(sums, axis=0)
        best = sums[before, np.arange(count + 1)]
        ends = [[*ends[before[behind]], behind] for behind in range(count + 1)]


# Depthwise convolutions in groups of channels with like ranges, where a tensor has one scale.

_LITTLE = 1e-3  # of the noise of all depthwise convolutions: one that has less is split no further
_LEAST_SECONDS = 1e-5  # that a step counts as, of those of the model
_TINY = 1e-12  # keeps a quotient finite


@dataclass(frozen=True)
class _GroupStep:
    """The change of a chain from one of its splits to another, and the seconds that it adds.

    `chain`, `before` and `after` are numbers, of the chain and of its splits. `worth` is the noise that
    the change takes away, for each second.
    """

    chain: int
    before: int
    after: int
    seconds: float
    worth: float


@dataclass(frozen=True, eq=False)
class ChannelGroups:
    """The depthwise convolutions of a model that may be computed in groups of channels.

    `chains` has the splits of each: its channels in one group, and in several with less and less noise.
    """

    model: Model
    chains: Sequence[tuple[ChannelChain, Sequence[ChannelSplit]]]

    def choose(self, predict: Callable[[GroupedModel], float], most: float) -> GroupedModel:
        """Return the model with the groups that lower the noise most for the time that they take.

        `predict` returns the seconds of a model with some groups. All that are chosen take at most a
        share `most` of the seconds without groups.
        """
        plain = predict(self._write({}))
        left = most * plain
        chosen_splits: dict[int, int] = {}
        taken: list[_GroupStep] = []
        for step in sorted(self._list_steps(predict, plain), key=lambda step: -step.worth):
            if step.seconds <= left and chosen_splits.get(step.chain, 0) == step.before:
                chosen_splits[step.chain] = step.after
                left -= step.seconds
                taken.append(step)
        chosen = self._write(chosen_splits)
        while taken and predict(chosen) > (1 + most) * plain:  # seconds of chains alone do not add up
            step = taken.pop()
            chosen_splits[step.chain] = step.before
            chosen = self._write(chosen_splits)
        return chosen

    def _write(self, chosen_splits: Mapping[int, int]) -> GroupedModel:
        """Write the model with some chains, by number, at the split of a number, 0 for one group."""
        chosen = []
        for number, at in chosen_splits.items():
            chain, splits = self.chains[number]
            chosen += [(chain, splits[at].groups)] if at else []
        return GroupWriter(self.model, chosen).write() if chosen else GroupedModel(self.model, 0, {})

    def _list_steps(
        self, predict: Callable[[GroupedModel], float], plain: float
    ) -> Iterator[_GroupStep]:
        """Yield the steps of each chain to less noise, each of which is worth less than the one before.

        They are those of the lower convex hull of noise over seconds; `plain` are the seconds without
        groups.
        """
        least = max(_LEAST_SECONDS * plain, _TINY)
        for chain, (_, splits) in enumerate(self.chains):
            numbers = range(1, len(splits))
            seconds = [0.0, *(predict(self._write({chain: number})) - plain for number in numbers)]
            now = 0
            while now + 1 < len(splits):
                steps = []
                for after in range(now + 1, len(splits)):
                    longer = seconds[after] - seconds[now]
                    worth = (splits[now].noise - splits[after].noise) / max(longer, least)
                    steps.append(_GroupStep(chain, now, after, longer, worth))
                best = max(steps, key=lambda step: step.worth)
                yield best
                now = best.after


def find_channel_groups(
    model: Model, samples: Sequence[Mapping[str, Any]], by_channel: Collection[str]
) -> ChannelGroups:
    """Return the groups of channels that lower the noise of depthwise convolutions much.

    `samples` are those that ranges are measured on. What reads tensors in `by_channel` stays as it is.
    """
    index = model.index
    chains = [
        each
        for each in find_chains(index, min(BLOCKS) + 1)
        if index.nodes[each.depthwise].input[0] not in by_channel
    ]
    if not chains:
        return ChannelGroups(model, ())
    nodes = [index.nodes[each.depthwise] for each in chains]
    names = sorted({name for node in nodes for name in (node.input[0], node.output[0])})
    statistics = measure_channels(model, names, samples, "channels")
    splits = [split_channels(model, node, statistics) for node in nodes]
    little = _LITTLE * sum(found[0].noise for found in splits)  # found[0]: all channels in one group
    kept = [[found[0], *_take_needed(found, little)] for found in splits]
    return ChannelGroups(model, tuple(zip(chains, kept, strict=True)))


def _take_needed(splits: Sequence[ChannelSplit], little: float) -> list[ChannelSplit]:
    """Return the splits into several groups, up to the first that leaves little noise."""
    return [after for before, after in pairwise(splits) if before.noise > little]
