"""The results of a verified generation: the tokens that were chosen, logits and state by position."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from byoc.errors import InputError
from byoc.verification._output_error import OutputError


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
