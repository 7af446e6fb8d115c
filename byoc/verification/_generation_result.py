"""Verified generations: loops of tokens, results, noise, the longest possible one."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import Executor
from byoc.errors import InputError
from byoc.model import Model, inline_functions, to_numpy_dtype
from byoc.onnxrt import open_session, run_session, with_session_mode, without_optimizations
from byoc.runtime import Session, StatefulSession, Trace, VariantSession
from byoc.samples import DecoderInputs
from byoc.verification._quantization_noise import (
    QUANTIZED_NETWORK_TOLERANCE,
    Thresholds,
    make_exact_products,
)
from byoc.verification._rounding_noise import AccumulationNoise
from byoc.verification._unit_noise import OutputError, measure_difference

# Loops of tokens: a decoder that reads a prompt and then what was chosen, its state fed back.

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


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """Another token than the original chooses, at a position of the sequence, the prompt's first is 0.

    `margin` is by how much the original's logit of its own token is above that of the other one, and
    `noise` what two right executions may differ by in it.
    """

    position: int
    row: int
    expected: int
    found: int
    margin: float
    noise: float

    @property
    def is_tie(self) -> bool:
        """True if a right execution may choose the other token: both lie within the noise."""
        return self.margin <= self.noise


@dataclass(frozen=True, slots=True)
class GenerationRun:
    """One generated sequence: the prompt of a seed and length, and the tokens behind it.

    Tokens are those that the original chooses, of the first sequence of a batch; both read them, so that
    each is chosen behind the same ones. `logits` has the error at each position whose token was chosen,
    `state` the worst of a state at some of them. `variants` are those that ran, with the number of
    steps. `same_as_original` counts the tokens that a model of a higher precision chooses likewise, None
    without one.
    """

    seed: int
    prompt: int
    tokens: tuple[int, ...]
    choices: int
    differences: tuple[TokenDifference, ...]
    logits: Mapping[int, OutputError]
    state: Mapping[int, OutputError]
    variants: Mapping[str, int]
    same_as_original: int | None = None

    @property
    def ties(self) -> int:
        """The number of tokens that differ, and may."""
        return sum(each.is_tie for each in self.differences)

    @property
    def wrong(self) -> tuple[TokenDifference, ...]:
        """The tokens that differ, and may not."""
        return tuple(each for each in self.differences if not each.is_tie)

    @property
    def worst_logits(self) -> OutputError:
        """The largest error of the logits."""
        return max(self.logits.values(), key=OutputError.severity)

    @property
    def worst_state(self) -> OutputError | None:
        """The largest error of the state, None where it was not compared."""
        return max(self.state.values(), key=OutputError.severity, default=None)

    @property
    def within(self) -> bool:
        """True if each token is right, and logits and state are within tolerance or noise."""
        errors = (*self.logits.values(), *self.state.values())
        return not self.wrong and all(error.within for error in errors)


@dataclass(frozen=True, slots=True)
class Generation:
    """The comparison of sequences that a bundle generates with those of `against`.

    `original` is the model before its precision was lowered, empty where it was not. `not_reached` are
    the variants that no step ran. `not_here` has the reasons of the regions that this machine cannot
    run: onnxruntime ran them. `judge` computed what is expected where that was not onnxruntime.
    """

    against: str
    runs: tuple[GenerationRun, ...]
    original: str = ""
    judge: str = ""
    not_reached: tuple[str, ...] = ()
    not_here: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if every sequence is right."""
        return all(run.within for run in self.runs)


def require_generated(generation: Generation) -> None:
    """Raise InputError if a sequence is not right; the message names the first that is not."""
    for run in generation.runs:
        problem = describe_problem(run)
        if problem:
            where = f"seed {run.seed}, prompt of {run.prompt}"
            raise InputError(f"verification failed: {where}: {problem}")


def describe_problem(run: GenerationRun) -> str:
    """Return the first error of a sequence, as part of a sentence; empty where it is right."""
    if run.wrong:
        first = run.wrong[0]
        return (
            f"at position {first.position} the token is {first.found} instead of {first.expected}, "
            f"whose logit is {first.margin:.2g} larger; noise explains {first.noise:.2g}"
        )
    for position, error in (*run.logits.items(), *run.state.items()):
        if not error.within:
            told = error.problem or f"differs {error.error_phrase}"
            return f"at position {position} '{error.name}' {told}"
    return ""


def find_worst_by_count(runs: Sequence[GenerationRun]) -> dict[int, tuple[OutputError, OutputError]]:
    """Return the worst errors of logits and state of all runs, by the number of tokens chosen so far.

    They are those at which states were compared.
    """
    found: dict[int, tuple[OutputError, OutputError]] = {}
    for run in runs:
        for position, state in run.state.items():
            count = position - run.prompt + 2
            own = run.logits[position], state
            before = found.get(count, own)
            logits, kept = (
                max(pair, key=OutputError.severity) for pair in zip(before, own, strict=True)
            )
            found[count] = logits, kept
    return dict(sorted(found.items()))


# The noise of generated sequences: how far right executions of the same tokens lie apart.

_NOISE_SIDES = 2.0  # the original is off by its noise to one side, the bundle to the other
_LOGITS = 2.0  # that a margin lies between
_SOURCE = "other right executions of the sequence"


@dataclass(frozen=True)
class _Spread:
    """The largest differences of right executions: of logits, and of each state by its input's name."""

    logits: float
    state: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class GenerationNoise:
    """Measures the noise of sequences where tokens, logits or states are off.

    `reference` is what a bundle is compared with, `others` are right executions of the same model.
    """

    decoder: DecoderInputs
    reference: TokenLoop
    others: Sequence[TokenLoop]
    thresholds: Thresholds

    def allow(self, run: GenerationRun, prompt: Prompt) -> GenerationRun:
        """Return a sequence with the noise of what is off; thresholds that the user set stay."""
        spread = self._measure(prompt)
        margin = _LOGITS * spread.logits
        return replace(
            run,
            differences=tuple(replace(each, noise=max(each.noise, margin)) for each in run.differences),
            logits={n: self._allow(error, spread.logits) for n, error in run.logits.items()},
            state={
                n: self._allow(error, spread.state.get(error.name, 0.0))
                for n, error in run.state.items()
            },
        )

    def _allow(self, error: OutputError, spread: float) -> OutputError:
        if error.within or not error.is_measurable or not error.relative:
            return error
        if self.thresholds.is_asked(error.dtype, error.measure):
            return error
        most = QUANTIZED_NETWORK_TOLERANCE * error.absolute / error.relative
        return replace(error, noise=min(spread, most), noise_source=_SOURCE)

    def _measure(self, prompt: Prompt) -> _Spread:
        """Return twice the largest differences from the reference over a sequence."""
        logits, state = 0.0, {pair.past: 0.0 for pair in self.decoder.pairs}
        reference = self.reference
        for other in self.others:
            steps = run_together(self.decoder, prompt, (reference, other))
            for step in steps:
                logits = max(logits, measure_difference(*step.logits).largest)
                for name, kept in reference.state.items() if step.compares_state else ():
                    state[name] = max(state[name], measure_difference(kept, other.state[name]).largest)
        return _Spread(
            _NOISE_SIDES * logits, {name: _NOISE_SIDES * moved for name, moved in state.items()}
        )


def open_right_loops(model: Model, decoder: DecoderInputs) -> tuple[TokenLoop, ...]:
    """Open other right executions of a model, as `NoiseGauge` measures noise by them.

    They are onnxruntime's with optimizations, those with the weights of contractions moved by as much as
    their sums round, and one whose MatMulNBits do not round their activations where the model does.
    """
    flat = inline_functions(model.proto)
    with with_session_mode("fast"):
        sessions = [open_session(model.proto, model.folder)]
    exact = make_exact_products(flat)
    if exact is not None:
        with without_optimizations():
            sessions.append(open_session(exact, model.folder))
    moved = AccumulationNoise(flat, model.folder, {}).executors
    runs: list[Executor] = [*(partial(run_session, session) for session in sessions), *moved]
    return tuple(PlainLoop(run, decoder) for run in runs)


# The number of tokens that a bundle can generate behind a prompt, by shapes that its variants take.

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class GenerationLimit:
    """Counts the tokens that a loaded bundle of a decoder can choose; only shapes are looked at.

    `chosen` is the variant that the user named, empty for none.
    """

    session: Session | VariantSession
    decoder: DecoderInputs
    chosen: str = ""

    def check(self, prompt: int, tokens: int) -> None:
        """Raise InputError, which says how many do, where so many tokens do not fit behind a prompt."""
        most = self.count(prompt, tokens)
        if most >= tokens:
            return
        takes = "no variant takes"
        if isinstance(self.session, Session):
            takes = f"variant '{self.chosen}' alone" if self.chosen else "the bundle"
            takes += " does not take"
        behind = "so nothing can be generated behind the first token"
        if most == 0:
            pieces = ", nor in pieces" if isinstance(self.session, VariantSession) else ""
            raise InputError(f"{takes} a prompt of {prompt} without a past{pieces}{self._explain()}")
        if not self._takes_past():
            raise InputError(f"{takes} a past, {behind}{self._explain() if self.chosen else ''}")
        if most == 1:
            raise InputError(f"{takes} a past of {prompt} and one token, {behind}{self._explain()}")
        raise InputError(f"at most {most} tokens fit behind a prompt of {prompt}, not {tokens}")

    def count(self, prompt: int, most: int) -> int:
        """Return the number of tokens that fit behind a prompt of `prompt` tokens, at most `most`."""
        kept = self.decoder.make_kept(0, prompt)
        if not self._can_read(prompt, kept):
            return 0
        steps = range(1, most)
        full = (count for count in steps if not self._can_run(prompt + count - 1, 1, kept))
        return next(full, most)

    def can_begin(self, prompt: int) -> bool:
        """Return whether a prompt of a length can be read."""
        return self.count(prompt, 1) == 1

    def _can_read(self, prompt: int, kept: Arrays) -> bool:
        """Return whether a prompt can be read, at once or in the pieces that variants take."""
        if self._can_run(0, prompt, kept) or not isinstance(self.session, VariantSession):
            return self._can_run(0, prompt, kept)
        kinds = (each.types[self.decoder.tokens].shape for each in self.session.sessions.values())
        sizes = {size for shape in kinds if shape for size in shape[-1:] if isinstance(size, int)}
        done = 0
        while done < prompt:
            fitting = (
                size
                for size in sorted({min(size, prompt - done) for size in sizes}, reverse=True)
                if self._can_run(done, size, kept)
            )
            piece = next(fitting, 0)
            if not piece:
                return False
            done += piece
        return True

    def _can_run(self, past: int, length: int, kept: Arrays) -> bool:
        """Return whether so many tokens can be read behind a past of others."""
        if past and not self._takes_past():
            return False
        tokens = np.zeros((self.decoder.draw_prompt(0, 1).shape[0], length), np.int64)
        inputs = {**self.decoder.make_step(tokens, past, kept), **self._make_state(past, length)}
        try:
            if isinstance(self.session, VariantSession):
                self.session.select(inputs)
            else:
                self.session.require_inputs(inputs)
        except InputError:
            return False
        return True

    def _takes_past(self) -> bool:
        """Return whether the state may have elements: not where an extent is 0 in each variant."""
        kinds = (self.session.types.get(pair.past) for pair in self.decoder.pairs)
        return not any(kind is not None and 0 in (kind.shape or ()) for kind in kinds)

    def _make_state(self, past: int, length: int) -> Arrays:
        """Return arrays of the dtypes and shapes of the state behind a past, which are not filled."""
        shapes = self.decoder.find_shapes(past, length)
        dtypes = {pair.past: self.session.types[pair.past].dtype for pair in self.decoder.pairs}
        return {
            name: np.broadcast_to(np.zeros((), to_numpy_dtype(dtype)), shapes[name])
            for name, dtype in dtypes.items()
        }

    def _explain(self) -> str:
        """Return the end of a sentence: what else to try, or why variants are not padded."""
        if self.chosen:
            return "; without --variant each step runs the variant that takes it"
        bundle = self.session.bundle
        entries = [each.variant for each in bundle.variants] if bundle is not None else []
        return "".join(
            f"; {entry.name} is not padded along {dim}: {reason}"
            for entry in entries
            for dim, reason in (entry.padding.refused if entry.padding else {}).items()
        )
