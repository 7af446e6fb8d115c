"""The comparison of one generated sequence, step by step: tokens, logits and states."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from byoc.verification._generation_result import GenerationRun, TokenDifference
from byoc.verification._output_error import OutputError
from byoc.verification._tensor_comparison import compare_tensors
from byoc.verification._thresholds import EPSILON, Thresholds
from byoc.verification._token_loop import Prompt, TokenStep, choose_tokens

_ROUNDINGS = 4.0  # units of a logit's last place that two right executions may differ by


@dataclass(eq=False)
class SequenceComparison:
    """The comparison of a sequence of a bundle with its reference, as far as both have come.

    `name` is that of the logits. The loops of each step are those of the reference, of the bundle and,
    where the reference is of lower precision, of the original.
    """

    name: str
    thresholds: Thresholds
    _tokens: list[int] = field(default_factory=list)
    _choices: int = 0
    _differences: list[TokenDifference] = field(default_factory=list)
    _logits: dict[int, OutputError] = field(default_factory=dict)
    _state: dict[int, OutputError] = field(default_factory=dict)
    _same_as_original: int | None = None

    def add_step(self, step: TokenStep) -> None:
        """Compare the tokens and the logits of a step."""
        reference, bundle, *original = step.logits
        self._tokens.append(int(step.chosen[0]))
        self._choices += len(step.chosen)
        self._differences += _find_differences(step)
        self._logits[step.position] = self._find_worst({self.name: reference}, {self.name: bundle})
        for logits in original:
            same = int(np.sum(choose_tokens(logits) == step.chosen))
            self._same_as_original = same + (self._same_as_original or 0)

    def add_state(self, position: int, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> None:
        """Compare the states behind a position, by the names of the inputs that read them."""
        self._state[position] = self._find_worst(expected, actual)

    def _find_worst(self, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> OutputError:
        """Return the largest error of several tensors."""
        return max(compare_tensors(expected, actual, self.thresholds), key=OutputError.severity)

    def make_run(self, prompt: Prompt, variants: Mapping[str, int]) -> GenerationRun:
        """Return the sequence behind a prompt; `variants` are as in `GenerationRun`."""
        return GenerationRun(
            seed=prompt.seed,
            prompt=prompt.length,
            tokens=tuple(self._tokens),
            choices=self._choices,
            differences=tuple(self._differences),
            logits=self._logits,
            state=self._state,
            variants=variants,
            same_as_original=self._same_as_original,
        )


def _find_differences(step: TokenStep) -> Iterator[TokenDifference]:
    """Yield the tokens that the bundle chooses otherwise, with the rounding of their logits as noise."""
    expected = step.logits[0][:, -1]
    epsilon = EPSILON.get(str(expected.dtype), 0.0)
    for row, (own, other) in enumerate(zip(step.chosen, choose_tokens(step.logits[1]), strict=True)):
        if own != other:
            logits = expected[row].astype(np.float64)  # shape (vocabulary,)
            rounding = _ROUNDINGS * epsilon * float(np.max(np.abs(logits)))
            margin = float(logits[own] - logits[other])
            yield TokenDifference(step.position, row, int(own), int(other), margin, rounding)
