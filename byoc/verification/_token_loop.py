"""Loops of tokens: a decoder that reads a prompt and then what was chosen, its state fed back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import Executor
from byoc.errors import InputError
from byoc.runtime import StatefulSession, Trace
from byoc.samples import DecoderInputs

_STATE_COUNTS = (1, 2, 5)  # and ten, a hundred times as many, ...

Array = NDArray[Any]
Values = Mapping[str, Any]


class TokenLoop(Protocol):
    """A decoder that keeps its state from step to step."""

    def begin(self, length: int) -> None:
        """Begin a sequence whose prompt has a length."""

    def run(self, inputs: Values) -> Values:
        """Return the outputs of a step for the inputs that are not state. Raises InputError."""

    @property
    def state(self) -> Values:
        """The state behind the last step, by names of inputs."""


@dataclass(eq=False)
class PlainLoop:
    """A model that a function runs; its state is fed back here."""

    execute: Executor
    decoder: DecoderInputs
    state: Values = field(default_factory=dict)

    def begin(self, length: int) -> None:
        """Begin with an empty state."""
        self.state = self.decoder.make_empty_state(length)

    def run(self, inputs: Values) -> Values:
        """Run the model, and keep its state."""
        found = self.execute({**inputs, **self.state})
        self.state = {pair.past: found[pair.present] for pair in self.decoder.pairs}
        return found


@dataclass(eq=False)
class BundleLoop:
    """A bundle whose session keeps the state; `variants` counts the steps of each."""

    session: StatefulSession
    variants: dict[str, int] = field(default_factory=dict)

    def begin(self, length: int) -> None:
        """Begin with an empty state, and count anew."""
        self.session.reset()
        self.variants = {}

    def run(self, inputs: Values) -> Values:
        """Run the bundle."""
        trace = Trace()
        found = self.session.run(inputs, trace)
        for name in {event.variant for event in trace.events}:
            self.variants[name] = self.variants.get(name, 0) + 1
        return found

    @property
    def state(self) -> Values:
        """The state that the session keeps."""
        return self.session.state


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt of seeded tokens, and how many tokens are to be chosen behind it."""

    seed: int
    length: int
    tokens: int


@dataclass(frozen=True, eq=False)
class TokenStep:
    """A step of several loops: the logits of each, and the last position that was read.

    `compares_state` says that the states are compared behind it, which takes long.
    """

    position: int
    chosen: NDArray[np.int64]
    logits: tuple[Array, ...]
    compares_state: bool


def run_together(
    decoder: DecoderInputs, prompt: Prompt, loops: Sequence[TokenLoop]
) -> Iterator[TokenStep]:
    """Run loops step by step on the same tokens: the prompt, then what the first of them chooses.

    Yields a step for each token that is chosen, the greatest logit's, `chosen` by sequences of the
    batch. Raises InputError, which says at which position, where a loop fails.
    """
    tokens = decoder.draw_prompt(prompt.seed, prompt.length)
    kept = decoder.make_kept(prompt.seed, prompt.length)
    for loop in loops:
        loop.begin(prompt.length)
    past = 0
    for count in range(1, prompt.tokens + 1):
        inputs = decoder.make_step(tokens, past, kept)
        past += tokens.shape[1]
        try:
            found = tuple(np.asarray(loop.run(inputs)[decoder.logits]) for loop in loops)
        except InputError as error:
            where = f"seed {prompt.seed}, prompt of {prompt.length}, position {past - 1}"
            raise InputError(f"{where}: {error}") from error
        chosen = choose_tokens(found[0])
        yield TokenStep(past - 1, chosen, found, _is_state_compared(count, prompt.tokens))
        tokens = chosen[:, None]


def choose_tokens(logits: Array) -> NDArray[np.int64]:
    """Return the token with the greatest logit at the last position, for each sequence of a batch."""
    return np.asarray(logits[:, -1].astype(np.float64).argmax(axis=-1), np.int64)


def _is_state_compared(count: int, last: int) -> bool:
    """Return whether the state is compared behind so many tokens: 1, 2, 5, 10, 20, 50, ..., the last."""
    leading = count
    while leading % 10 == 0:
        leading //= 10
    return leading in _STATE_COUNTS or count == last
