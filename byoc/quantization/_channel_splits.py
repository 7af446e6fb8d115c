"""Channels of a depthwise convolution in groups of like ranges, by the noise that is expected."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model import Model
from byoc.quantization._arithmetic import read_constant
from byoc.quantization._channel_statistics import ChannelStatistics
from byoc.quantization._ranges import EIGHT_BIT_STEPS

Float64Array = NDArray[np.float64]
BLOCKS = (8, 4)
"""The channels that groups are made of: 8 are computed together, 4 are for a few channels."""

_SMALLER = 0.5  # of the noise of groups of larger blocks, at most, for some of smaller ones
_MOST_GROUPS = 4
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
