"""Calibration: run a model on samples, collect statistics of its tensors, choose their ranges.

The first pass over the samples takes each tensor's extremes, computed inside the model. Calibrators that
need histograms take a second pass over groups of tensors that fit into memory together, one pass per
group. The statistics take a few kB per tensor, whatever the number of samples.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.model import Model, copy_without, find_external_data
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization._calibration_file import CalibrationOptions, write_ranges
from byoc.quantization._calibrators import (
    BINS,
    Calibrator,
    ChannelRange,
    GivenQuantization,
    Histogram,
    Range,
    Ranges,
    count_values,
    find_calibrator,
    find_edges,
)
from byoc.quantization._equalization import find_usual_ends
from byoc.quantization._prepare_model import (
    EXTREMES,
    add_extremes,
    add_outputs,
    check_tensors,
    count_channels,
    find_activations,
    find_free_outputs,
)
from byoc.samples import Sample, SampleSource, find_samples, hash_values
from byoc.support import check_output, report_step, show_progress, take_keywords, write_atomically
from byoc.zoo import Source, load_model

# The progress of a calibration, kept in a file so that an interrupted one can be continued.
#
# The file is a NumPy archive (.npz) that is replaced as a whole. It identifies the calibration that
# it belongs to; another one is not continued from it.

_FORMAT = "3"
Purpose = Mapping[str, str]
"""What a calibration is of: `model`, `method`, `tensors` and `data`, each as a text that tells it."""


@dataclass(eq=False)
class CalibrationState:
    """Statistics of the tensors, one entry for each, and the progress of the calibration.

    `channel_low` and `channel_high` are those of channels, tensor after tensor. `usual` has sums over
    samples, `[outputs, 3]`: of the ends that usual values of an output lie between, and of the samples
    that have some. `stage` counts the
    passes over the data, `done` the samples of the present pass so far, `samples` those of the first.
    `infinite` is the first sample in which a tensor is infinite, or -1. `counts` are those of the
    histograms and exist from the second pass on.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    size: NDArray[np.int64]
    infinite: NDArray[np.int64]
    channel_low: NDArray[np.float32]
    channel_high: NDArray[np.float32]
    usual: NDArray[np.float64]
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    stage: int = 0
    done: int = 0
    samples: int = 0

    @classmethod
    def start(cls, tensors: int, channels: int, outputs: int) -> "CalibrationState":
        """Return the statistics before the first sample; `channels` is the number of all channels."""
        return cls(
            np.full(tensors, np.inf, np.float32),
            np.full(tensors, -np.inf, np.float32),
            np.zeros(tensors, np.int64),
            np.full(tensors, -1, np.int64),
            np.full(channels, np.inf, np.float32),
            np.full(channels, -np.inf, np.float32),
            np.zeros((outputs, 3)),
        )


def save_state(path: Path, purpose: Purpose, seen: CalibrationState) -> None:
    """Write the progress of a calibration. Raises InputError if the file cannot be written."""
    document = json.dumps({"format": _FORMAT, **purpose})
    write_atomically(path, lambda file: np.savez(file, purpose=np.array(document), **vars(seen)))


def load_state(path: Path, purpose: Purpose, sizes: tuple[int, int, int]) -> CalibrationState:
    """Return the progress of a calibration from its file, or the initial one if there is no file.

    `sizes` are the numbers of tensors, of all channels, and of outputs with usual values.

    Raises InputError if the file belongs to another calibration, or cannot be read.
    """
    if not path.exists():
        return CalibrationState.start(*sizes)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            saved_purpose = json.loads(str(archive["purpose"]))
            arrays = {name: archive[name] for name in CalibrationState.__dataclass_fields__}
            fields = {name: array if array.ndim else array.item() for name, array in arrays.items()}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        raise InputError(
            f"{path}: is not the state of a calibration, or is damaged: remove it to start anew"
        ) from None
    expected = {"format": _FORMAT, **purpose}
    others = [name for name in expected if saved_purpose.get(name) != expected[name]]
    if others:
        raise InputError(
            f"{path}: is the state of a calibration with another {' and another '.join(others)}: remove"
            " it to start anew, or write to another file"
        )
    return CalibrationState(**fields)


def hash_model(model: Model) -> str:
    """Return a hash of a model that is equal for equal models.

    Files with external data are identified by their size and time of change, since they may be huge.
    """
    result = hashlib.sha256(
        copy_without(model.proto, "initializer").SerializeToString(deterministic=True)
    )
    for tensor in model.proto.graph.initializer:
        location = find_external_data(tensor, model.folder)
        if location is None:
            result.update(tensor.SerializeToString(deterministic=True))
            continue
        status = location.path.stat()
        plain = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
        result.update(plain.SerializeToString(deterministic=True))
        result.update(repr((location.offset, status.st_size, status.st_mtime_ns)).encode())
    return result.hexdigest()


# Calibration: run a model on samples, collect statistics of its tensors, choose their ranges.

_STATE_SUFFIX = ".partial"
_MAX_BYTES = 2**30  # of the tensors that one run gives out
_SAVE_SAMPLES, _SAVE_SECONDS = 10, 30.0
# Beyond these float32 has no room for the bins of a histogram.
_LEAST, _GREATEST = 1e-30, 1e37
_RANDOM_NOTE = "calibrated on random data: the ranges say little about real data"


@take_keywords(CalibrationOptions)
def calibrate(model: Source | Model, options: CalibrationOptions) -> Ranges:
    """Measure the ranges of a model's tensors on some data.

    `model` is a path, `zoo:NAME`, a protobuf, or what `byoc.load_model` returned. It runs on onnxruntime
    without optimizations, on one thread, so that results are reproducible. Tensors that are infinite
    somewhere, or always empty, have no range, and a note says so; scores of an attention and their mask
    are measured without what a Softmax makes nothing of. Of what a depthwise
    convolution reads the least and greatest values of the channels are measured, too.

    Raises InputError for data that does not fit the model or gives NaN, for options that the method does
    not have, and for an output that cannot be written; MissingRuntimeError without onnxruntime.
    """
    if options.samples is not None and options.samples < 1:
        raise InputError(f"{options.samples} samples: there must be at least 1")
    own = {"percentile": options.percentile, "bits": options.bits}
    method = find_calibrator(options.method, symmetric=options.symmetric, **own)
    output = None if options.output is None else Path(options.output)
    if output is not None:
        check_output(output)
    loaded = load_model(model, options.dims, options.shapes)
    data = find_samples(options.data, loaded, options.images, options.samples)
    names = list(dict.fromkeys(options.tensors or ()))
    check_tensors(loaded.index, names)
    names = names or find_activations(loaded.index)
    if not names:
        raise InputError(f"{loaded.source}: has no float tensors to calibrate")
    if data.once and method.needs_histogram:
        raise InputError(
            f"{data.name}: an iterator can be gone through once, and {method.name} does so twice: give a"
            " list"
        )
    channels = count_channels(loaded.index, names)
    outputs = find_free_outputs(loaded.index, names)
    sizes = len(names), sum(channels.values()), len(outputs)
    state, seen, purpose = None, CalibrationState.start(*sizes), {}
    if output is not None and data.identity:
        state = output.with_name(output.name + _STATE_SUFFIX)
        purpose = {
            "model": hash_model(loaded),
            "method": f"{method}",
            "tensors": hash_values(names),
            "data": data.identity,
        }
        seen = load_state(state, purpose, sizes)
    with show_progress(options.progress):
        found = _Calibration(loaded, names, channels, outputs, data, method, seen, state, purpose).run()
    if state is not None:
        state.unlink(missing_ok=True)
    if output is not None:
        write_ranges(output, found)
    return found


def measure_ranges(
    model: Model, data: SampleSource, method: str, seen: CalibrationState | None = None
) -> tuple[Ranges, CalibrationState]:
    """Return the ranges of a model's tensors by a method, and the extremes that they are from.

    `seen` are the extremes of the same model and data, if they were measured before. Raises InputError
    as `calibrate` does.
    """
    names = find_activations(model.index)
    channels = count_channels(model.index, names)
    outputs = find_free_outputs(model.index, names)
    if seen is None:
        seen = CalibrationState.start(len(names), sum(channels.values()), len(outputs))
    no_counts = np.zeros((0, 0), np.int64)
    seen = replace(seen, stage=min(seen.stage, 1), done=0, counts=no_counts)
    calibrator = find_calibrator(method)
    run = _Calibration(model, names, channels, outputs, data, calibrator, seen, None, {})
    return run.run(), seen


@dataclass(frozen=True, eq=False)
class _Calibration:
    model: Model
    names: Sequence[str]
    channels: Mapping[str, int]
    outputs: Sequence[str]
    data: SampleSource
    method: Calibrator
    seen: CalibrationState
    state: Path | None
    purpose: dict[str, str]

    def run(self) -> Ranges:
        seen = self.seen
        if seen.stage == 0:
            proto = add_extremes(self.model.index, self.names, self.channels, self.outputs)
            self._run_pass(proto, "extremes", self._take_extremes)
            if not seen.done:
                raise InputError(f"{self.data.name}: there are no samples")
            seen.samples, seen.stage, seen.done = seen.done, 1, 0
            self._start_counts()
            self._save()
        elif not seen.counts.size:
            self._start_counts()
        groups = self._group_tensors() if self.method.needs_histogram else []
        for number, group in enumerate(groups, 1):
            if number < seen.stage:
                continue
            proto = add_outputs(self.model.index, [self.names[i] for i in group])
            title = "histograms" if len(groups) == 1 else f"histograms {number} of {len(groups)}"
            self._run_pass(proto, title, partial(self._count_values, group))
            seen.stage, seen.done = number + 1, 0
            self._save()
        return self._choose_ranges()

    def _start_counts(self) -> None:
        bins = BINS if self.method.needs_histogram else 0
        self.seen.counts = np.zeros((len(self.names), bins), np.int64)

    def _run_pass(self, proto: ModelProto, title: str, take: Callable[[list[Any], str], None]) -> None:
        """Run a model on the remaining samples; `take` receives the outputs."""
        with without_optimizations():
            session = open_session(proto, self.model.folder)
        saved, seen = monotonic(), self.seen
        of = "" if self.data.total is None else f" of {self.data.total}"
        for sample in self.data.read_from(seen.done):
            report_step(f"{title}: sample {seen.done + 1}{of}")
            take(_run_sample(session, sample), sample.name)
            del sample  # before the next one is read
            seen.done += 1
            if seen.done % _SAVE_SAMPLES == 0 or monotonic() - saved > _SAVE_SECONDS:
                self._save()
                saved = monotonic()

    def _save(self) -> None:
        if self.state is not None:
            save_state(self.state, self.purpose, self.seen)

    def _take_extremes(self, outputs: list[Any], sample: str) -> None:
        seen = self.seen
        count = len(self.names) * len(EXTREMES)
        rows = np.array([np.asarray(value, np.float64) for value in outputs[:count]])
        rows = rows.reshape(-1, len(EXTREMES))
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
        end = len(outputs) - len(self.outputs)
        for number, value in enumerate(outputs[end:]):
            ends = find_usual_ends(np.asarray(value))
            seen.usual[number] += (*ends, 1) if ends else 0
        if self.channels:
            lows, highs = (np.concatenate(outputs[first:end:2]) for first in (count, count + 1))
            is_some = dict(zip(self.names, some.tolist(), strict=True))
            kept = np.repeat([is_some[name] for name in self.channels], [*self.channels.values()])
            seen.channel_low[kept] = np.minimum(seen.channel_low, lows)[kept]
            seen.channel_high[kept] = np.maximum(seen.channel_high, highs)[kept]

    def _count_values(self, group: Sequence[int], outputs: list[Any], sample: str) -> None:
        for i, output in zip(group, outputs, strict=True):
            values = self.method.select_values(np.asarray(output, np.float32).ravel())
            self.seen.counts[i] += count_values(values, self._find_ends(i))

    def _find_ends(self, i: int) -> tuple[float, float]:
        return self.method.find_ends(float(self.seen.low[i]), float(self.seen.high[i]))

    def _group_tensors(self) -> list[list[int]]:
        """Return the tensors that need histograms, in groups whose values fit into memory together."""
        groups: list[list[int]] = []
        room = 0
        for i in range(len(self.names)):
            if not self._needs_histogram(i):
                continue
            size = 4 * int(self.seen.size[i])
            if not groups or size > room:
                groups.append([])
                room = _MAX_BYTES
            groups[-1].append(i)
            room -= size
        return groups

    def _needs_histogram(self, i: int) -> bool:
        """Return whether a tensor needs a histogram beyond its extremes."""
        seen = self.seen
        if seen.infinite[i] >= 0 or not seen.size[i] or seen.low[i] == seen.high[i]:
            return False
        return _LEAST < max(abs(float(seen.low[i])), abs(float(seen.high[i]))) < _GREATEST

    def _choose_ranges(self) -> Ranges:
        seen = self.seen
        tensors: dict[str, Range | GivenQuantization] = {}
        notes = [_RANDOM_NOTE] if self.data.random else []
        for i, name in enumerate(self.names):
            if seen.infinite[i] >= 0:
                notes.append(f"'{name}' is infinite in sample {seen.infinite[i] + 1}, and has no range")
            elif not seen.size[i]:
                notes.append(f"'{name}' is empty in all samples, and has no range")
            else:
                report_step(f"{self.method.name}: tensor {i + 1} of {len(self.names)}")
                tensors[name] = self._choose_range(i)
        return Ranges(
            method=self.method.name,
            samples=seen.samples,
            source=self.data.name,
            tensors=tensors,
            random=self.data.random,
            model=self.model.name,
            options=dict(sorted(vars(self.method).items())),
            notes=tuple(notes),
            channels=dict(self._list_channels(tensors)),
            usual=dict(self._list_usual(tensors)),
        )

    def _list_usual(self, tensors: Collection[str]) -> Iterator[tuple[str, Range]]:
        """Yield the usual range of each output that has a range, the mean over samples.

        Six digits of it, which the order of samples does not change.
        """
        for name, (low, high, count) in zip(self.outputs, self.seen.usual, strict=True):
            if name in tensors and count:
                yield name, Range(float(f"{low / count:.6g}"), float(f"{high / count:.6g}"))

    def _list_channels(self, tensors: Collection[str]) -> Iterator[tuple[str, ChannelRange]]:
        """Yield the ranges of the channels of tensors that have a range: all values are inside."""
        start = 0
        for name, count in self.channels.items():
            low, high = (
                values[start : start + count].astype(np.float64)
                for values in (self.seen.channel_low, self.seen.channel_high)
            )
            start += count
            if self.method.symmetric:
                high = np.maximum(abs(low), abs(high))
                low = -high
            if name in tensors:
                yield name, ChannelRange(low, high)

    def _choose_range(self, i: int) -> Range:
        low, high = float(self.seen.low[i]), float(self.seen.high[i])
        if not self.method.needs_histogram or not self._needs_histogram(i):
            return _note_data(self.method.make_range(low, high), (low, high))
        seen = Histogram(self.seen.counts[i], find_edges(self._find_ends(i)), low, high)
        chosen = self.method.choose_range(seen)
        return _note_data(chosen, (low, high), seen.find_share_outside(chosen))


def _note_data(chosen: Range, data: tuple[float, float], clipped: float = 0.0) -> Range:
    """Return a range with what is known of the data, where that differs from it."""
    return chosen if (chosen.low, chosen.high) == data else replace(chosen, data=data, clipped=clipped)


def _run_sample(session: Any, sample: Sample) -> list[Any]:
    try:
        return list(run_session(session, sample.inputs).values())
    except InputError as error:
        raise InputError(f"{sample.name}: {error}") from None
