"""The door to calibration: a model and data in, ranges out, and a file of them."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from byoc.calibrate.collect import collect
from byoc.calibrate.folder import folder_data
from byoc.calibrate.images import Preprocessing
from byoc.calibrate.methods import find_method
from byoc.calibrate.samples import RANDOM, Data, Inputs, given_data, random_data
from byoc.errors import InputError
from byoc.graph.load import Model
from byoc.quantize.ranges import Ranges, write_ranges
from byoc.textfile import check_output

DEFAULT_METHOD = "minmax"
_PARTIAL = ".partial"


def calibrate(  # noqa: PLR0913 - each is a choice of the caller's, and has a default
    model: Model,
    data: str | Path | Iterable[Inputs],
    output: str | Path | None = None,
    *,
    method: str = DEFAULT_METHOD,
    symmetric: bool = False,
    percentile: float | None = None,
    bits: int | None = None,
    samples: int | None = None,
    tensors: Sequence[str] | None = None,
    images: Preprocessing | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Ranges:
    """Return what the values of a model's tensors lie in when it runs on some data.

    Args:
        model: the model, as `byoc.load_model` gives it.
        data: a folder (see `byoc.calibrate.folder`), the word `random`, or samples: arrays by the names
            of the inputs.
        output: where to write `calibration.yaml`. Beside it, with `.partial` added, is kept how far an
            interrupted run had come; the same call goes on from there. Not so for samples in memory.
        method: `minmax`, `percentile`, `entropy` or `mse`.
        symmetric: whether each range is to be from minus to plus the same value.
        percentile: how many per cent of the values are to be in the range, for `percentile`; 99.99.
        bits: what is quantized to, for `mse`; 8.
        samples: at most so many are used; of random data, 32 unless given.
        tensors: whose ranges are wanted; by default all float32 and float16 tensors of the main graph
            that are no constants.
        images: what becomes of pixels, where the data is images.
        progress: called with a line at each step.

    Raises InputError for data that does not fit the model or gives NaN, for options that do not go with
    the method, and an output that cannot be written; MissingRuntimeError without onnxruntime.
    """
    if samples is not None and samples < 1:
        raise InputError(f"{samples} samples: there must be at least 1")
    chosen = find_method(method, symmetric=symmetric, percentile=percentile, bits=bits)
    place = None if output is None else Path(output)
    state = None
    if place is not None:
        check_output(place)
        state = place.with_name(place.name + _PARTIAL)
    found = collect(model, tensors, data_of(data, model, images, samples), chosen, progress, state)
    if place is not None:
        write_ranges(place, found)
    return found


def data_of(
    data: str | Path | Iterable[Inputs], model: Model, images: Preprocessing | None, most: int | None
) -> Data:
    """Return the samples that `calibrate` would use, as it takes them."""
    asked = images or Preprocessing()
    if data == RANDOM:
        asked.refuse_for("random data")
        return random_data(model, most)
    if isinstance(data, (str, Path)):
        return folder_data(Path(data), model, images, most)
    asked.refuse_for("samples in memory")
    return given_data(data, model, most)
