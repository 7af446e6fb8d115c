"""Accuracies of the outputs of a quantized model on samples, one by one and together."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from byoc.numerics import convert_to_db
from byoc.quantization._accuracy_measures import find_float_outputs, measure_noise_by_sample
from byoc.quantization._channel_statistics import CHANNELS
from byoc.quantization._coarse_tensors import Outputs, join_samples

LEAST_GAIN = 0.25
"""The gain (dB) from which a variant is better than another: less is chance on few samples."""

_LEAST_NOISE = 1e-10  # that counts: 100 dB
_POOR = 10.0  # dB: errors are then a third of what sizes differ by, and more
_NEAR = 0.1  # the quantile of sizes below which values are near to 0
_FEW_VALUES = 32  # with one sign in a channel, in all samples, for which errors are chance
_MAX_ACCURACY = 30.0  # dB; more does not count: errors are then 3 % of the deviation of usual values


class CoarseAccuracy(NamedTuple):
    """Two ratios (dB) of an output that eight bits are too coarse for, each at most 30.

    Noise as a share of the whole power is next to nothing there even where all small values are lost.
    """

    size: float
    sign: float


@dataclass(frozen=True, eq=False)
class OutputAccuracies:
    """The accuracy of outputs on samples.

    `noise` is that of each float output in each sample as a share of its signal, `[samples, outputs]`,
    and `names` are these outputs. `coarse` are the accuracies of those that eight bits are too coarse
    for.
    """

    names: tuple[str, ...]
    noise: NDArray[np.float64]
    coarse: Mapping[str, CoarseAccuracy]

    @property
    def score(self) -> float:
        """The mean of two measures (dB): of the worst output over all samples, and of each in each.

        A few samples with large values decide the former, however many there are; in the latter each
        sample and each output counts alike.
        """
        if not self.noise.size:
            return 0.0
        worst = -10 * np.log10(max(float(self.noise.mean(axis=0).max()), _LEAST_NOISE))
        each = -10 * np.log10(np.maximum(self.noise, _LEAST_NOISE))
        return float((worst + each.mean()) / 2)

    def rate(self, name: str) -> float:
        """Return the rating of an output (dB): the score, or for a coarse one the sum of its ratios."""
        return sum(self.coarse[name]) if name in self.coarse else self.score

    def is_poor(self, name: str) -> bool:
        """Return whether next to nothing is left of an output that eight bits are too coarse for."""
        return name in self.coarse and self.coarse[name].size < _POOR

    def replace_output(self, name: str, other: "OutputAccuracies") -> "OutputAccuracies":
        """Return the accuracies with that of one output from another variant."""
        noise = self.noise.copy()
        for column, each in enumerate(self.names):
            if each == name:
                noise[:, column] = other.noise[:, column]
        coarse = {each: (other if each == name else self).coarse[each] for each in self.coarse}
        return replace(self, noise=noise, coarse=coarse)


def measure_outputs(expected: Outputs, actual: Outputs, coarse: Collection[str]) -> OutputAccuracies:
    """Return the accuracies of outputs against those expected, sample by sample.

    `coarse` are the outputs that eight bits are too coarse for.
    """
    noise = measure_noise_by_sample(expected, actual)
    ratios = {
        name: CoarseAccuracy(
            measure_size_accuracy(name, expected, actual),
            measure_sign_accuracy(name, expected, actual),
        )
        for name in coarse
    }
    return OutputAccuracies(find_float_outputs(expected), noise, ratios)


def measure_size_accuracy(name: str, expected: Outputs, actual: Outputs) -> float:
    """Return the signal-to-noise ratio (variance to noise) of the sizes of an output, to 30 dB.

    Sizes are asinh(x / s), where a tenth of the values that are not 0 are nearer to 0 than s: so noise
    counts by itself in these, and in larger ones by its share of the value.
    """
    signal, other = join_samples(expected, name), join_samples(actual, name)
    sizes = np.abs(signal[signal != 0])
    near = max(float(np.quantile(sizes, _NEAR)), float(np.finfo(np.float32).tiny)) if sizes.size else 1.0
    signal, other = np.arcsinh(signal / near), np.arcsinh(other / near)
    noise = float(np.mean((signal - other) ** 2))
    return min(convert_to_db(float(np.var(signal)), noise), _MAX_ACCURACY)


def measure_sign_accuracy(name: str, expected: Outputs, actual: Outputs) -> float:
    """Return the accuracy of the signs of an output in its worst channel, at most 30 dB.

    It is the share of errors, 1 - F1, of the sign that is the rarer one in a channel (axis 1; an output
    without is one channel): where logits are above 0 stands for where applications find something.
    Channels with few values of a sign do not count.
    """
    signs, others = (_split_channels(outputs, name) > 0 for outputs in (expected, actual))
    counts, wholes = signs.sum(axis=1), signs.shape[1]
    found = [_MAX_ACCURACY]
    for sign, other, count in zip(signs, others, counts, strict=True):
        if min(count, wholes - count) < _FEW_VALUES:
            continue
        rarer = count <= wholes - count
        kept = int(((sign == rarer) & (other == rarer)).sum())
        wrong = int((sign != other).sum())
        found.append(convert_to_db(2 * kept + wrong, wrong))
    return min(found)


def _split_channels(outputs: Outputs, name: str) -> NDArray[np.float64]:
    """Return the values of an output in all samples, `[channels, values]`; one channel if these vary."""
    values = [np.asarray(each[name], np.float64) for each in outputs]
    counts = {each.shape[CHANNELS] if each.ndim > CHANNELS else 1 for each in values}
    if len(counts) > 1 or counts == {1}:
        return join_samples(outputs, name).reshape(1, -1)
    rows = [np.moveaxis(each, CHANNELS, 0).reshape(each.shape[CHANNELS], -1) for each in values]
    return np.concatenate(rows, axis=1)
