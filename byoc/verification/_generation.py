"""Verification of generated sequences: a bundle and its original choose tokens in a loop."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from byoc.bundle import Bundle, require_consent
from byoc.codegen import Executor, open_region_session
from byoc.errors import InputError
from byoc.model import Model, read_recorded_dimensions
from byoc.onnxrt import without_optimizations
from byoc.runtime import Session, VariantSession, load_bundle, load_variants, open_stateful
from byoc.samples import DecoderInputs, find_decoder_inputs
from byoc.support import check_minimum, report_step
from byoc.verification._bundle_check import open_given
from byoc.verification._bundle_runs import load_all_executors
from byoc.verification._generation_noise import GenerationNoise, open_right_loops
from byoc.verification._generation_result import Generation, GenerationRun, TokenDifference
from byoc.verification._output_error import OutputError
from byoc.verification._plain_models import (
    PlainModel,
    convert_errors,
    make_reference_executor,
    open_original,
)
from byoc.verification._tensor_comparison import compare_tensors
from byoc.verification._thresholds import (
    DEFAULT_THRESHOLDS,
    EPSILON,
    Thresholds,
)
from byoc.verification._token_loop import (
    BundleLoop,
    PlainLoop,
    Prompt,
    TokenLoop,
    TokenStep,
    choose_tokens,
    is_state_step,
    run_together,
)
from byoc.zoo import ZOO, load_model

_ROUNDINGS = 4.0  # units of a logit's last place that two right executions may differ by
_OPEN_PROMPTS = (1, 7, 33)


@dataclass(frozen=True)
class GenerationOptions:
    """The number of tokens that are generated, and the lengths and seeds of the prompts before them.

    Without `prompts` their lengths are those that reach each variant; `seeds` of them begin at `seed`.
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
    asked: Thresholds = DEFAULT_THRESHOLDS

    def verify(self) -> Generation:
        """Compare the sequences. Raises InputError where the model is no decoder, or does not run."""
        require_consent(self.bundle)
        lengths = self.options.prompts or self._list_prompts()
        seeds = range(self.options.seed, self.options.seed + self.options.seeds)
        prompts = [Prompt(seed, length, self.options.tokens) for length in lengths for seed in seeds]
        runs = []
        for number, prompt in enumerate(prompts, 1):
            report_step(f"generate {number} of {len(prompts)}")
            runs.append(self._compare(prompt))
        reached = {name for run in runs for name in run.variants}
        names = [each.variant.name for each in self.bundle.variants]
        return Generation(
            self._reference.source,
            tuple(runs),
            self._original.source if self._computed else "",
            self._reference.judge,
            tuple(name for name in names if name not in reached),
            self._not_here,
        )

    @cached_property
    def _original(self) -> Model:
        """The model as the user gave it, the dimensions of variants open. Raises InputError."""
        asked = self.bundle.manifest.asked
        name = str(self.against or asked.get("model", ""))
        if self.against is None and not name.startswith(ZOO):
            raise InputError(
                f"{self.bundle.display_path}: sequences are compared with those of the original model: "
                "name it (--against)"
            )
        try:
            given = read_recorded_dimensions(asked)
        except ValueError as error:
            raise InputError(f"{self.bundle.display_path}: in the manifest asked.{error}") from None
        return load_model(name, given.dims, given.shapes)

    @cached_property
    def _decoder(self) -> DecoderInputs:
        return find_decoder_inputs(self._original)

    @cached_property
    def _computed(self) -> str:
        """The dtype that regions compute in, empty where it is the model's own."""
        found = (each.variant.report.precision for each in self.bundle.variants)
        return next((each.dtype or "mixed" for each in found if each is not None), "")

    @cached_property
    def _thresholds(self) -> Thresholds:
        return self.asked.for_computation_in(self._computed)

    @cached_property
    def _not_here(self) -> dict[str, str]:
        return {}

    @cached_property
    def _plain(self) -> PlainModel:
        """The original, to run plainly."""
        with convert_errors(InputError, self._original.source):
            return open_original(self._original.proto, self._original)

    @cached_property
    def _reference(self) -> "_Reference":
        """The model to compare with: the original, or the bundle's own where precision is lower."""
        if not self._computed:
            loop = PlainLoop(self._plain.run, self._decoder)
            return _Reference(self._original.source, loop, self._plain.judge)
        session = self._load(_load_reference_executors, optimized=False)
        return _Reference("its own model on plain onnxruntime", self._keep_state(session))

    @cached_property
    def _bundle_session(self) -> Session | VariantSession:
        return self._load(partial(load_all_executors, not_here=self._not_here), optimized=False)

    def _load(self, load: Any, optimized: bool) -> Session | VariantSession:
        """Load all variants of the bundle, with executors that a function gives for each."""
        with (
            convert_errors(InputError, "the bundle does not run"),
            nullcontext() if optimized else without_optimizations(),
        ):
            return load_variants(
                self.bundle, load_one=lambda variant: load_bundle(variant, load(variant))
            )

    def _keep_state(self, session: Session | VariantSession) -> BundleLoop:
        pairs = {pair.past: pair.present for pair in self._decoder.pairs}
        return BundleLoop(open_stateful(session, pairs))

    def _list_prompts(self) -> tuple[int, ...]:
        """Return lengths of prompts that reach each variant: its own, and the least padded to it."""
        sessions = self._bundle_session
        variants = sessions.sessions.values() if isinstance(sessions, VariantSession) else [sessions]
        axes = [(each.types[self._decoder.tokens].shape or ())[1] for each in variants]
        own = sorted({extent for extent in axes if isinstance(extent, int)})
        if len(own) < len(set(axes)):
            return _OPEN_PROMPTS
        least = [1, *(extent + 1 for extent in own)]
        lengths = sorted({length for pair in zip(least, own, strict=False) for length in pair})
        return tuple(length for length in lengths if self._can_begin(length)) or (own[0],)

    def _can_begin(self, length: int) -> bool:
        """Return whether a variant reads a prompt of a length."""
        session = self._bundle_session
        decoder = self._decoder
        tokens = decoder.draw_prompt(0, length)
        state = decoder.make_empty_state(length)
        inputs = decoder.make_step(tokens, 0, decoder.make_kept(0, length)) | state
        try:
            if isinstance(session, VariantSession):
                session.fit(inputs)
            else:
                session.check_inputs(inputs)
        except InputError:
            return False
        return True

    def _compare(self, prompt: Prompt) -> GenerationRun:
        """Compare one sequence."""
        bundle = self._keep_state(self._bundle_session)
        reference = self._reference.loop
        precise = PlainLoop(self._plain.run, self._decoder) if self._computed else None
        loops: tuple[TokenLoop, ...] = (reference, bundle, *([precise] if precise else []))
        tokens: list[int] = []
        logits: dict[int, OutputError] = {}
        state: dict[int, OutputError] = {}
        differing: list[TokenDifference] = []
        same = choices = 0
        for count, step in enumerate(run_together(self._decoder, prompt, loops), 1):
            tokens.append(int(step.chosen[0]))
            choices += len(step.chosen)
            logits[step.position] = _compare_step(
                {self._decoder.logits: step.logits[0]},
                {self._decoder.logits: step.logits[1]},
                self._thresholds,
            )
            differing += _find_differences(step)
            if precise is not None:
                same += int(np.sum(choose_tokens(step.logits[2]) == step.chosen))
            if is_state_step(count, prompt.tokens):
                state[step.position] = _compare_step(reference.state, bundle.state, self._thresholds)
        run = GenerationRun(
            prompt.seed,
            prompt.length,
            tuple(tokens),
            choices,
            tuple(differing),
            logits,
            state,
            bundle.variants,
            None if precise is None else same,
        )
        return run if run.within else self._noise.allow(run, prompt)

    @cached_property
    def _noise(self) -> GenerationNoise:
        """The noise of sequences, measured where one is off."""
        others: Sequence[TokenLoop] = ()
        if self._computed:
            others = [self._keep_state(self._load(_load_optimized_executors, optimized=True))]
        elif not self._reference.judge:  # onnxruntime runs it
            others = open_right_loops(self._original, self._decoder)
        return GenerationNoise(self._decoder, self._reference.loop, others, self._thresholds)


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


def _compare_step(
    expected: Mapping[str, Any], actual: Mapping[str, Any], thresholds: Thresholds
) -> OutputError:
    """Return the largest error of several tensors."""
    return max(compare_tensors(expected, actual, thresholds), key=OutputError.severity)


def _find_differences(step: TokenStep) -> Iterator[TokenDifference]:
    """Yield the tokens that the bundle chooses otherwise, with the rounding of their logits as noise."""
    expected = step.logits[0][:, -1]
    epsilon = EPSILON.get(str(expected.dtype), 0.0)
    for row, (own, other) in enumerate(zip(step.chosen, choose_tokens(step.logits[1]), strict=True)):
        if own != other:
            weights = expected[row].astype(np.float64)
            rounding = _ROUNDINGS * epsilon * float(np.max(np.abs(weights)))
            margin = float(weights[own] - weights[other])
            yield TokenDifference(step.position, row, int(own), int(other), margin, rounding)


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

    Raises InputError when the bundle or the original cannot be read or run, and when the model is no
    decoder with tokens of an open length, state and logits; MissingRuntimeError without onnxruntime.
    """
    options = GenerationOptions(tokens, tuple(prompts), seeds, seed)
    opened = open_given(bundle, isolate, call_timeout)
    return GenerationCheck(opened, against, options, thresholds).verify()
