"""Calibration: run a model on samples, collect statistics of its tensors, choose their ranges.

The first pass over the samples takes each tensor's extremes, computed inside the model. Calibrators that
need histograms take a second pass over groups of tensors that fit into memory together, one pass per
group. The statistics take a few kB per tensor, whatever the number of samples.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.model import Model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization._calibration_options import CalibrationOptions
from byoc.quantization._calibration_samples import (
    RANDOM,
    Inputs,
    Sample,
    SampleSource,
    hash_values,
    make_random_samples,
    wrap_samples,
)
from byoc.quantization._calibration_state import CalibrationState, hash_model, load_state, save_state
from byoc.quantization._calibrators import (
    BINS,
    Calibrator,
    Histogram,
    MinMax,
    count_values,
    find_calibrator,
    find_edges,
    read_options,
)
from byoc.quantization._image_inputs import Preprocessing
from byoc.quantization._observed_model import (
    EXTREMES,
    add_extremes,
    add_outputs,
    check_tensors,
    find_activations,
)
from byoc.quantization._ranges import GivenQuantization, Range, Ranges, write_ranges
from byoc.quantization._sample_folder import read_folder
from byoc.support import check_output, report_step, show_progress, take_keywords
from byoc.zoo import Source, load_model

_MOST_BYTES = 2**30  # of the tensors that one run gives out
_SAVE_SAMPLES, _SAVE_SECONDS = 10, 30.0
# Beyond these float32 has no room for the bins of a histogram.
_LEAST, _GREATEST = 1e-30, 1e37
_RANDOM_NOTE = "calibrated on random data: the ranges say little about real data"


def measure_ranges(
    model: Model,
    tensors: Sequence[str] | None,
    data: SampleSource,
    method: Calibrator,
    state: Path | None = None,
) -> Ranges:
    """Measure the ranges of tensors, by default of all non-constant floats of the main graph.

    The model runs on onnxruntime without optimizations, on one thread, so that results are reproducible.
    `state` is a file for the progress: an earlier run with the same arguments is continued from it, and
    it is removed at the end. Tensors that are infinite somewhere, as masks are, or always empty, have no
    range, and a note says so.

    Raises InputError for a tensor that cannot be calibrated, a sample that does not fit or on which the
    model does not run, values that are NaN, and the state of another calibration; MissingRuntimeError.
    """
    if tensors is not None:
        check_tensors(model.index, tensors)
    names = find_activations(model.index) if tensors is None else list(dict.fromkeys(tensors))
    if not names:
        raise InputError(f"{model.source}: has no float tensors to calibrate")
    if data.once and method.needs_histogram:
        raise InputError(
            f"{data.name}: an iterator can be gone through once, and {method.name} does so twice: give a"
            " list"
        )
    state = state if data.identity else None
    purpose = {}
    if state is not None:
        purpose = {
            "model": hash_model(model),
            "method": f"{method}",
            "tensors": hash_values(names),
            "data": data.identity,
        }
    found = _Calibration(model, names, data, method, state, purpose).run()
    if state is not None:
        state.unlink(missing_ok=True)
    return found


@dataclass(frozen=True, eq=False)
class _Calibration:
    model: Model
    names: Sequence[str]
    data: SampleSource
    method: Calibrator
    state: Path | None
    purpose: dict[str, str]

    def run(self) -> Ranges:
        seen = CalibrationState.start(len(self.names))
        if self.state is not None:
            seen = load_state(self.state, self.purpose, len(self.names))
        self._observe(seen)
        return self._choose_ranges(seen)

    def _observe(self, seen: CalibrationState) -> None:
        if seen.stage == 0:
            proto = add_extremes(self.model.index, self.names)
            self._run_pass(seen, proto, "extremes", self._take_extremes)
            if not seen.done:
                raise InputError(f"{self.data.name}: there are no samples")
            seen.samples, seen.stage, seen.done = seen.done, 1, 0
            seen.counts = np.zeros(
                (len(self.names), BINS if self.method.needs_histogram else 0), np.int64
            )
            self._save(seen)
        groups = self._group_tensors(seen) if self.method.needs_histogram else []
        for number, group in enumerate(groups, 1):
            if number < seen.stage:
                continue
            proto = add_outputs(self.model.index, [self.names[i] for i in group])
            title = "histograms" if len(groups) == 1 else f"histograms {number} of {len(groups)}"
            self._run_pass(seen, proto, title, self._make_counter(group))
            seen.stage, seen.done = number + 1, 0
            self._save(seen)

    def _run_pass(
        self, seen: CalibrationState, proto: Any, title: str, take: Callable[..., None]
    ) -> None:
        """Run a model on the remaining samples; `take` receives the outputs."""
        with without_optimizations():
            session = open_session(proto, self.model.folder)
        saved = monotonic()
        of = "" if self.data.total is None else f" of {self.data.total}"
        for sample in self.data.read_from(seen.done):
            report_step(f"{title}: sample {seen.done + 1}{of}")
            take(seen, _run_sample(session, sample), sample.name)
            del sample  # before the next one is read
            seen.done += 1
            if seen.done % _SAVE_SAMPLES == 0 or monotonic() - saved > _SAVE_SECONDS:
                self._save(seen)
                saved = monotonic()

    def _save(self, seen: CalibrationState) -> None:
        if self.state is not None:
            save_state(self.state, self.purpose, seen)

    def _take_extremes(self, seen: CalibrationState, outputs: list[Any], sample: str) -> None:
        rows = np.array([np.asarray(value, np.float64) for value in outputs]).reshape(-1, len(EXTREMES))
        low, high, check, size = rows.T
        some = size > 0
        infinite = some & (np.isinf(low) | np.isinf(high))
        wrong = np.flatnonzero(some & np.isnan(check) & ~infinite)
        if wrong.size:
            raise InputError(
                f"{sample}: the tensor '{self.names[wrong[0]]}' is not a number (NaN) in places"
            )
        seen.infinite[infinite & (seen.infinite < 0)] = seen.done
        seen.low[some] = np.minimum(seen.low, low.astype(np.float32))[some]
        seen.high[some] = np.maximum(seen.high, high.astype(np.float32))[some]
        seen.size[:] = np.maximum(seen.size, size.astype(np.int64))

    def _make_counter(self, group: Sequence[int]) -> Callable[..., None]:
        def take(seen: CalibrationState, outputs: list[Any], sample: str) -> None:
            for i, output in zip(group, outputs, strict=True):
                values = self.method.select_values(np.asarray(output, np.float32).ravel())
                seen.counts[i] += count_values(values, self._find_ends(seen, i))

        return take

    def _find_ends(self, seen: CalibrationState, i: int) -> tuple[float, float]:
        return self.method.find_ends(float(seen.low[i]), float(seen.high[i]))

    def _group_tensors(self, seen: CalibrationState) -> list[list[int]]:
        """Return the tensors that need histograms, in groups whose values fit into memory together."""
        groups: list[list[int]] = []
        room = 0
        for i in range(len(self.names)):
            if not self._needs_histogram(seen, i):
                continue
            size = 4 * int(seen.size[i])
            if not groups or size > room:
                groups.append([])
                room = _MOST_BYTES
            groups[-1].append(i)
            room -= size
        return groups

    def _needs_histogram(self, seen: CalibrationState, i: int) -> bool:
        """Return whether a tensor needs a histogram beyond its extremes."""
        if seen.infinite[i] >= 0 or not seen.size[i] or seen.low[i] == seen.high[i]:
            return False
        return _LEAST < max(abs(float(seen.low[i])), abs(float(seen.high[i]))) < _GREATEST

    def _choose_ranges(self, seen: CalibrationState) -> Ranges:
        tensors: dict[str, Range | GivenQuantization] = {}
        notes = [_RANDOM_NOTE] if self.data.random else []
        for i, name in enumerate(self.names):
            if seen.infinite[i] >= 0:
                notes.append(f"'{name}' is infinite in sample {seen.infinite[i] + 1}, and has no range")
            elif not seen.size[i]:
                notes.append(f"'{name}' is empty in all samples, and has no range")
            else:
                report_step(f"{self.method.name}: tensor {i + 1} of {len(self.names)}")
                tensors[name] = self._choose_range(seen, i)
        return Ranges(
            method=self.method.name,
            samples=seen.samples,
            source=self.data.name,
            tensors=tensors,
            random=self.data.random,
            model=self.model.name,
            options=read_options(self.method),
            notes=tuple(notes),
        )

    def _choose_range(self, seen: CalibrationState, i: int) -> Range:
        low, high = float(seen.low[i]), float(seen.high[i])
        nothing: NDArray[Any] = np.zeros(0)
        if not self.method.needs_histogram or not self._needs_histogram(seen, i):
            return MinMax(self.method.symmetric).choose_range(Histogram(nothing, nothing, low, high))
        edges = find_edges(self._find_ends(seen, i))
        return self.method.choose_range(Histogram(seen.counts[i], edges, low, high))


def _run_sample(session: Any, sample: Sample) -> list[Any]:
    try:
        return list(run_session(session, sample.inputs).values())
    except InputError as error:
        raise InputError(f"{sample.name}: {error}") from None


_STATE_SUFFIX = ".partial"


@take_keywords(CalibrationOptions)
def calibrate(model: Source | Model, options: CalibrationOptions) -> Ranges:
    """Measure the ranges of a model's tensors on some data.

    `model` is a path, `zoo:NAME`, a protobuf, or what `byoc.load_model` returned.

    Raises InputError for data that does not fit the model or gives NaN, for options that the method does
    not have, and for an output that cannot be written; MissingRuntimeError without onnxruntime.
    """
    if options.samples is not None and options.samples < 1:
        raise InputError(f"{options.samples} samples: there must be at least 1")
    own = {"percentile": options.percentile, "bits": options.bits}
    chosen = find_calibrator(options.method, symmetric=options.symmetric, **own)
    path = None if options.output is None else Path(options.output)
    state = None
    if path is not None:
        check_output(path)
        state = path.with_name(path.name + _STATE_SUFFIX)
    loaded = load_model(model, options.dims)
    samples = find_samples(options.data, loaded, options.images, options.samples)
    tensors = options.tensors or None
    with show_progress(options.progress):
        found = measure_ranges(loaded, tensors, samples, chosen, state)
    if path is not None:
        write_ranges(path, found)
    return found


def find_samples(
    data: str | Path | Iterable[Inputs], model: Model, images: Preprocessing, most: int | None
) -> SampleSource:
    """Return the samples that `calibrate` uses for the same arguments."""
    if data == RANDOM:
        images.refuse_for("random data")
        return make_random_samples(model, most)
    if isinstance(data, (str, Path)):
        return read_folder(Path(data), model, images, most)
    images.refuse_for("samples in memory")
    return wrap_samples(data, model, most)
