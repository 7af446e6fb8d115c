"""The noise of generated sequences: how far right executions of the same tokens lie apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from byoc.codegen import Executor
from byoc.model import Model, inline_functions
from byoc.onnxrt import open_session, run_session, with_session_mode, without_optimizations
from byoc.samples import DecoderInputs
from byoc.verification._accumulation_noise import AccumulationNoise
from byoc.verification._generation_result import GenerationRun
from byoc.verification._output_error import OutputError
from byoc.verification._quantization_noise import make_exact_products
from byoc.verification._tensor_difference import measure_difference
from byoc.verification._thresholds import QUANTIZED_NETWORK_TOLERANCE, Thresholds
from byoc.verification._token_loop import PlainLoop, Prompt, TokenLoop, run_together

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
