"""Scales for each channel: the tensors that get them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from byoc.model import Model
from byoc.quantization._candidates import TargetRequirements
from byoc.quantization._observed_model import count_channels
from byoc.quantization._quantize_model import quantize
from byoc.quantization._ranges import ChannelRange, Ranges
from byoc.rules import Target


def find_channel_tensors(
    floats: Model, targets: Sequence[Target], ranges: Ranges, dtype: str | None = None
) -> tuple[str, ...]:
    """Return the tensors of a prepared model that get a scale for each channel (axis 1).

    A depthwise convolution reads them, where no other channel makes up for one that is inexact, and all
    that make and read them take such scales by the rules of the targets. `ranges` are those of tensors.
    """
    index = floats.index
    wishes = [TargetRequirements(target) for target in targets if target.has_quantized_rules]
    if not any(requirement.names_channels for requirement in wishes):
        return ()
    tried = {
        name: ChannelRange(np.zeros(count), np.zeros(count))
        for name, count in count_channels(index, [*ranges.tensors]).items()
    }
    return quantize(floats, targets, replace(ranges, channels=tried), dtype).channels
