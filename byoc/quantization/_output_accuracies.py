"""Accuracies of the outputs of a quantized model on samples, one by one and together."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.quantization._coarse_outputs import measure_sign_accuracy, measure_size_accuracy
from byoc.quantization._sensitivity import find_float_outputs, measure_noise_by_sample

_LEAST_NOISE = 1e-10  # that counts: 100 dB
_POOR = 10.0  # dB: errors are then a third of what sizes differ by, and more

Outputs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class OutputAccuracies:
    """The accuracy of outputs on samples.

    `noise` is that of each float output in each sample as a share of its signal, `[samples, outputs]`,
    and `names` are these outputs. `coarse` has two ratios (dB) of each output that eight bits are too
    coarse for: of the sizes of its values, and of their signs.
    """

    names: tuple[str, ...]
    noise: NDArray[np.float64]
    coarse: Mapping[str, tuple[float, float]]

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
        return name in self.coarse and self.coarse[name][0] < _POOR

    def take_output(self, name: str, other: "OutputAccuracies") -> "OutputAccuracies":
        """Return the accuracies with those of one output from another variant."""
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
        name: (
            measure_size_accuracy(name, expected, actual),
            measure_sign_accuracy(name, expected, actual),
        )
        for name in coarse
    }
    return OutputAccuracies(find_float_outputs(expected), noise, ratios)
