"""Verification of generated sequences: a bundle and its original choose tokens in a loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass, field
from byoc.bundle import Bundle, require_consent
from byoc.codegen import Executor, open_region_session
from byoc.errors import InputError
from byoc.model import Model
from byoc.onnxrt import SessionMode, with_session_mode
from byoc.runtime import Session, VariantSession, load_bundle, load_variants, open_stateful
from byoc.samples import DecoderInputs, find_decoder_inputs
from byoc.support import check_minimum, report_step
from byoc.verification._bundle_check import open_given
from byoc.verification._bundle_runs import load_all_executors, load_recorded_model
from byoc.verification._generation_result import (
    BundleLoop,
    Generation,
    GenerationLimit,
    GenerationNoise,
    GenerationRun,
    PlainLoop,
    Prompt,
    TokenDifference,
    TokenLoop,
    TokenStep,
    choose_tokens,
    open_right_loops,
    run_together,
)
from byoc.verification._noise import compare_tensors
from byoc.verification._quantization_noise import DEFAULT_THRESHOLDS, EPSILON, Thresholds
from byoc.verification._region_cutter import (
    PlainModel,
    convert_errors,
    make_reference_executor,
    open_original,
)
from byoc.verification._region_verification import heed_promises
from byoc.verification._unit_noise import OutputError
from byoc.zoo import ZOO


@dataclass(frozen=True)
class GenerationOptions:
    """The number of tokens that are generated, and the lengths and seeds of the prompts before them.

    Without `prompts` their lengths are those that reach each variant. For each length there are prompts
    of seeds `seed` to `seed + seeds - 1`.
    """

    tokens: int = 200
    prompts: tuple[int, ...] = ()
    seeds: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for a number that is too small."""
        check_minimum("tokens", self.tokens, 1)
        check_minimum("seeds", self.seeds, 1)
        check_minimum("seed", self.seed, 0)
        for length in self.prompts:
            check_minimum("a prompt", length, 1)


@dataclass(frozen=True, eq=False)
class GenerationCheck:
    """A bundle of a decoder, and the original that its sequences are compared with."""

    bundle: Bundle
    against: str | Path | None = None
    options: GenerationOptions = GenerationOptions()
    thresholds: Thresholds = DEFAULT_THRESHOLDS

    def verify(self) -> Generation:
        """Compare the sequences. Raises InputError where the model is no decoder, or does not run."""
        require_consent(self.bundle)
        lengths = self.options.prompts or list_prompt_lengths(self._bundle_session, self._decoder)
        seeds = range(self.options.seed, self.options.seed + self.options.seeds)
        for length in sorted(lengths, reverse=True):  # the longest leaves the least
            self._limit.check(length, self.options.tokens)
        prompts = [Prompt(seed, length, self.options.tokens) for length in lengths for seed in seeds]
        runs = []
        for number, prompt in enumerate(prompts, 1):
            report_step(f"generate {number} of {len(prompts)}")
            runs.append(self._compare(prompt))
        reached = {name for run in runs for name in run.variants}
        names = [each.variant.name for each in self.bundle.variants]
        return Generation(
            against=self._reference.source,
            runs=tuple(runs),
            original=self._original.source if self._region_dtype else "",
            judge=self._reference.judge,
            not_reached=tuple(name for name in names if name not in reached),
            not_here=self._not_here,
        )

    @cached_property
    def _original(self) -> Model:
        """The model as the user gave it, the dimensions of variants open. Raises InputError."""
        name = str(self.against or self.bundle.manifest.asked.get("model", ""))
        if self.against is None and not name.startswith(ZOO):
            raise InputError(
                f"{self.bundle.display_path}: sequences are compared with those of the original model: "
                "name it (--against)"
            )
        return load_recorded_model(self.bundle, name)

    @cached_property
    def _decoder(self) -> DecoderInputs:
        return find_decoder_inputs(self._original, self.bundle.manifest.state or None)

    @cached_property
    def _region_dtype(self) -> str:
        """The dtype that regions compute in, empty where it is the model's own."""
        found = (each.variant.report.precision for each in self.bundle.variants)
        return next((each.dtype or "mixed" for each in found if each is not None), "")

    @cached_property
    def _applied_thresholds(self) -> Thresholds:
        computed = self.thresholds.for_computation_in(self._region_dtype)
        return heed_promises(self.bundle, computed)

    @cached_property
    def _not_here(self) -> dict[str, str]:
        return {}

    @cached_property
    def _original_model(self) -> PlainModel:
        """The original, to run plainly."""
        with convert_errors(InputError, self._original.source):
            return open_original(self._original.proto, self._original)

    @cached_property
    def _reference(self) -> "_Reference":
        """The model to compare with: the original, or the bundle's own where precision is lower."""
        if not self._region_dtype:
            loop = PlainLoop(self._original_model.run, self._decoder)
            return _Reference(self._original.source, loop, self._original_model.judge)
        session = self._load(_load_reference_executors, "definition")
        return _Reference("its own model on plain onnxruntime", self._open_loop(session))

    @cached_property
    def _bundle_session(self) -> Session | VariantSession:
        return self._load(partial(load_all_executors, not_here=self._not_here), "exact")

    @cached_property
    def _limit(self) -> GenerationLimit:
        return GenerationLimit(self._bundle_session, self._decoder, self.bundle.chosen or "")

    def _load(
        self, load: Callable[[Bundle], Mapping[str, Executor]], mode: SessionMode
    ) -> Session | VariantSession:
        """Load all variants of the bundle, with executors that a function gives for each."""

        def load_one(variant: Bundle) -> Session:
            executors = load(variant)
            with convert_errors(InputError, "the bundle does not run"):
                return load_bundle(variant, executors)

        with with_session_mode(mode):
            return load_variants(self.bundle, load_one=load_one)

    def _open_loop(self, session: Session | VariantSession) -> BundleLoop:
        """Return a loop of a bundle at its beginning, its state empty."""
        pairs = {pair.past: pair.present for pair in self._decoder.pairs}
        return BundleLoop(open_stateful(session, pairs))

    def _compare(self, prompt: Prompt) -> GenerationRun:
        """Compare one sequence."""
        bundle = self._open_loop(self._bundle_session)
        reference = self._reference.loop
        loops: list[TokenLoop] = [reference, bundle]
        if self._region_dtype:
            loops.append(PlainLoop(self._original_model.run, self._decoder))
        comparison = SequenceComparison(self._decoder.logits, self._applied_thresholds)
        for step in run_together(self._decoder, prompt, loops):
            comparison.add_step(step)
            if step.compares_state:
                comparison.add_state(step.position, reference.state, bundle.state)
        run = comparison.make_run(prompt, bundle.variants)
        return run if run.within else self._noise.allow(run, prompt)

    @cached_property
    def _noise(self) -> GenerationNoise:
        """The noise of sequences, measured where one is off."""
        others: Sequence[TokenLoop] = ()
        if self._region_dtype:
            others = [self._open_loop(self._load(_load_optimized_executors, "fast"))]
        elif not self._reference.judge:  # onnxruntime runs it
            others = open_right_loops(self._original, self._decoder)
        return GenerationNoise(self._decoder, self._reference.loop, others, self._applied_thresholds)


@dataclass(frozen=True, eq=False)
class _Reference:
    """The model that a bundle is compared with: its name, and the judge where it is not onnxruntime."""

    source: str
    loop: TokenLoop
    judge: str = ""


def _load_reference_executors(bundle: Bundle) -> dict[str, Executor]:
    return {region.name: make_reference_executor(region) for _, region, _ in bundle.regions()}


def _load_optimized_executors(bundle: Bundle) -> dict[str, Executor]:
    return {region.name: open_region_session(region) for _, region, _ in bundle.regions()}


def verify_generation(  # noqa: PLR0913 - each has a default
    bundle: str | Path | Bundle,
    against: str | Path | None = None,
    *,
    tokens: int = 200,
    prompts: Sequence[int] = (),
    seeds: int = 2,
    seed: int = 0,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    isolate: bool | None = None,
    call_timeout: float | None = None,
) -> Generation:
    """Check that a bundle of a decoder generates the tokens of its model: `byoc verify --generate`.

    Both choose the token with the greatest logit and read it next, the state fed back. The result says
    by `passed` whether all tokens, logits and states are right.

    Args:
        bundle: a folder or packed file, or what `open_bundle` gave for one.
        against: the original, as `verify` takes it; only that of a zoo model is found without it.
        tokens: how many are chosen behind each prompt.
        prompts: the lengths of prompts; by default those that reach each variant.
        seeds: how many prompts of each length are drawn.
        seed: the first of these.
        thresholds: the largest errors of logits and states, as shares of the range, or in dB.
        isolate: run the codegens in processes of their own, by default unless the maker is trusted.
        call_timeout: the most seconds that one of their calls may take, which implies `isolate`.

    Raises InputError when the bundle or the original cannot be read or run, when so many tokens do not
    fit behind a prompt, and when the model is no decoder with tokens of an open length, state and
    logits; MissingRuntimeError without onnxruntime.
    """
    options = GenerationOptions(tokens, tuple(prompts), seeds, seed)
    opened = open_given(bundle, isolate, call_timeout)
    return GenerationCheck(opened, against, options, thresholds).verify()


# The prompts of generated sequences: lengths that reach each variant of a bundle.

# Where a length is open, all lengths reach the same variants: these are the shortest prompt, and two of
# odd lengths below and above 32 positions.
_OPEN_PROMPTS = (1, 7, 33)


def list_prompt_lengths(session: Session | VariantSession, decoder: DecoderInputs) -> tuple[int, ...]:
    """Return lengths of prompts that reach each variant: its own, and the least padded to it."""
    variants = session.sessions.values() if isinstance(session, VariantSession) else [session]
    extents = [(each.types[decoder.tokens].shape or ())[1] for each in variants]
    own = sorted({extent for extent in extents if isinstance(extent, int)})
    if len(own) < len(set(extents)):
        return _OPEN_PROMPTS
    limit = GenerationLimit(session, decoder)
    least = [1, *(extent + 1 for extent in own)]
    lengths = sorted({length for pair in zip(least, own, strict=False) for length in pair})
    return tuple(length for length in lengths if limit.can_begin(length)) or (own[0],)


# The comparison of one generated sequence, step by step: tokens, logits and states.

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
