"""Samples for calibration, read one at a time, starting from any of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc.errors import InputError, suggest_nearest
from byoc.model import DTYPE_NUMBERS
from byoc.samples._sample_search import model_samples

if TYPE_CHECKING:
    from byoc.model import GraphIndex, Model, TensorType

Inputs = Mapping[str, NDArray[Any]]
"""A sample: a value for each input of a model, by its name."""

RANDOM = "random"
DEFAULT_RANDOM = 32


@dataclass(frozen=True, eq=False)
class Sample:
    """A sample, and its name in errors."""

    name: str
    inputs: Inputs


@dataclass(frozen=True, eq=False)
class SampleSource:
    """Named samples: `start(number)` reads them from that one on, one at a time, each time anew.

    `total` is their number, None if unknown. `identity` is equal for equal samples, and empty if that
    cannot be determined; `random` marks random data, and `once` data that can be started only once.
    """

    name: str
    read_from: Callable[[int], Iterator[Sample]]
    total: int | None
    identity: str = ""
    random: bool = False
    once: bool = False


def make_random_samples(model: Model, most: int | None = None) -> SampleSource:
    """Return random samples: the zoo's own for its models, seeded noise for others.

    Their seeds start at 1, since 0 is the one that results are verified on.
    """
    total = DEFAULT_RANDOM if most is None else most

    def start(number: int) -> Iterator[Sample]:
        for seed in range(number + 1, total + 1):
            yield Sample(f"{RANDOM} {seed}", model_samples(model, seed))

    return SampleSource(RANDOM, start, total, f"{RANDOM} {total}", random=True)


def wrap_samples(samples: Iterable[Inputs], model: Model, most: int | None = None) -> SampleSource:
    """Return the samples of a caller, one or more mappings of arrays.

    Raises InputError, once they are read, for samples that do not fit the model.
    """

    def start(number: int) -> Iterator[Sample]:
        for inputs in islice(samples, number, most):  # enumerate would hold two at a time
            number += 1
            name = f"sample {number}"
            check_inputs(inputs, model.index, name)
            yield Sample(name, inputs)
            del inputs

    total = len(samples) if isinstance(samples, Sized) else None
    total = total if total is None or most is None else min(total, most)
    return SampleSource("samples", start, total, once=iter(samples) is samples)


def hash_values(parts: Iterable[object]) -> str:
    """Return a hash of values by their representation."""
    result = hashlib.sha256()
    for part in parts:
        result.update(repr(part).encode())
    return result.hexdigest()


def check_inputs(inputs: Mapping[str, object], index: GraphIndex, where: str) -> None:
    """Raise InputError, beginning with `where`, unless a sample has the inputs of the model.

    An input with a default may be left out, and open dimensions may have any size.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(f"{where}: expected arrays by the names of the model's inputs")
    defaults = {tensor.name for tensor in index.graph.initializer}
    missing = [name for name in index.inputs if name not in inputs and name not in defaults]
    unknown = [name for name in inputs if name not in index.inputs]
    if unknown:
        hint = suggest_nearest(unknown[0], index.inputs)
        raise InputError(f"{where}: the model has no input '{unknown[0]}'{hint}")
    if missing:
        raise InputError(f"{where}: there is no value for the input '{missing[0]}'")
    for name, value in inputs.items():
        check_array(value, name, index.types.get(name), where)


def check_array(value: object, name: str, kind: TensorType | None, where: str) -> None:
    """Raise InputError, beginning with `where`, for a value that does not have an input's type."""
    if kind is None or not isinstance(value, np.ndarray):
        raise InputError(
            f"{where}: the input '{name}' needs a NumPy array, or is not a tensor in the model"
        )
    found = f"is {value.dtype}{list(value.shape)}, and the model takes {kind}"
    if value.dtype != numpy_dtype(kind) and not (kind.dtype == "string" and value.dtype.kind in "OU"):
        raise InputError(f"{where}: the input '{name}' {found}")
    if kind.shape is None:
        return
    fits = len(value.shape) == len(kind.shape) and all(
        want == have for want, have in zip(kind.shape, value.shape, strict=True) if isinstance(want, int)
    )
    if not fits:
        raise InputError(f"{where}: the input '{name}' {found}")


def numpy_dtype(kind: TensorType) -> np.dtype[Any]:
    """Return NumPy's dtype of a tensor's elements."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(DTYPE_NUMBERS[kind.dtype]))
