"""The entry point of calibration: from a model and data to ranges, and to a file of them."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from byoc.calibrate.collect import measure_ranges
from byoc.calibrate.folder import read_folder
from byoc.calibrate.images import Preprocessing
from byoc.calibrate.methods import find_calibrator
from byoc.calibrate.samples import RANDOM, SampleSource, Inputs, wrap_samples, make_random_samples
from byoc.errors import InputError
from byoc.graph.load import Model
from byoc.quantize.ranges import Ranges, write_ranges
from byoc.textfile import check_output

DEFAULT_METHOD = "minmax"
_STATE_SUFFIX = ".partial"


def calibrate(  # noqa: PLR0913 - each is a choice of the caller's, and has a default
    model: Model,
    data: str | Path | Iterable[Inputs],
    output: str | Path | None = None,
    *,
    method: str = DEFAULT_METHOD,
    samples: int | None = None,
    tensors: Sequence[str] | None = None,
    images: Preprocessing | None = None,
    progress: Callable[[str], None] = lambda step: None,
    **options: float | None,
) -> Ranges:
    """Measure the ranges of a model's tensors on some data.

    Args:
        model: the model, as `byoc.load_model` returns it.
        data: a folder of samples (arrays or images), the word `random`, or samples: arrays by the names
            of the inputs.
        output: path of the `calibration.yaml` to write. The progress is kept beside it in a file with
            `.partial` added; after an interruption the same call continues from there, unless the
            samples are in memory.
        method: `minmax`, `percentile`, `entropy` or `mse`.
        samples: the greatest number of samples to use; for random data 32 by default.
        tensors: names of the tensors to calibrate; by default all float32 and float16 tensors of the
            main graph that are not constant.
        images: normalization of pixels, if the data is images.
        progress: called with a line of text at each step.
        options: options of the method. `symmetric` (default False): each range is symmetric around zero.
            `percentile` (default 99.99): per cent of the values inside the range, for `percentile`.
            `bits` (default 8): bits to quantize to, for `mse`.

    Raises InputError for data that does not fit the model or gives NaN, for options that the method does
    not have, and for an output that cannot be written; MissingRuntimeError without onnxruntime.
    """
    if samples is not None and samples < 1:
        raise InputError(f"{samples} samples: there must be at least 1")
    chosen = find_calibrator(method, **options)
    path = None if output is None else Path(output)
    state = None
    if path is not None:
        check_output(path)
        state = path.with_name(path.name + _STATE_SUFFIX)
    found = measure_ranges(model, tensors, find_samples(data, model, images, samples), chosen, progress, state)
    if path is not None:
        write_ranges(path, found)
    return found


def find_samples(
    data: str | Path | Iterable[Inputs], model: Model, images: Preprocessing | None, most: int | None
) -> SampleSource:
    """Return the samples that `calibrate` uses for the same arguments."""
    preprocessing = images or Preprocessing()
    if data == RANDOM:
        preprocessing.refuse_for("random data")
        return make_random_samples(model, most)
    if isinstance(data, (str, Path)):
        return read_folder(Path(data), model, images, most)
    preprocessing.refuse_for("samples in memory")
    return wrap_samples(data, model, most)
