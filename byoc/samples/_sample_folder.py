"""Samples from files: NumPy arrays, archives of them, images, or ONNX's test data, most in a folder.

- `*.npz`: each file is a sample, its keys the names of the inputs.
- `*.npy`, for a model of one input: each file is a sample. With one dimension more than the input has,
  it is a stack of samples, each without that first dimension.
- a folder for each input, named after it, with `*.npy` files of the same names in each.
- ONNX's test data: folders `test_data_set_*` with `input_0.pb`, `input_1.pb` and so on, or these files.
- images (`*.png`, `*.jpg`, `*.jpeg`, `*.bmp`), for a model of one input.

Samples are ordered by file name. Other files, and folders not named after an input, are ignored.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from byoc._dataclasses import dataclass
from byoc.errors import InputError, shorten_text
from byoc.model import Model, TensorType
from byoc.samples._arrays import READ_ERRORS, describe_read_error, read_npz, restore_dtype
from byoc.samples._image_inputs import SUFFIXES, Preprocessing, find_image_shape, read_image
from byoc.samples._sample_source import (
    RANDOM,
    Inputs,
    Sample,
    SampleSource,
    check_inputs,
    hash_values,
    make_random_samples,
    wrap_samples,
)

MAX_SAMPLES = 16
"""The most samples that a bundle is verified on."""

_TEST_SET, _TENSOR = "test_data_set_", re.compile(r"input_(\d+)\.pb")

_MAX_CHARACTERS = 200  # of a file's name in a message
# Elements, or samples, without a byte: a header of 100 bytes can state any number.
_MAX_EMPTY = 1_000_000


class _FileKind(StrEnum):
    """A kind of samples that a folder may hold."""

    ARCHIVES = ".npz files"
    SINGLE = ".npy files"
    COLUMNS = "folders of inputs"
    IMAGES = "images"
    TEST_SETS = "ONNX test data"
    TENSORS = "tensors of ONNX"


@dataclass(frozen=True, eq=False)
class _SampleFiles:
    """A sample that is still in its files; `name` identifies it in errors."""

    name: str
    files: Sequence[Path]
    read: Callable[[], Inputs]


def read_folder(
    folder: Path, model: Model, images: Preprocessing | None = None, most: int | None = None
) -> SampleSource:
    """Return the samples in a folder, at most `most`, checked against the model as they are read.

    Raises InputError, naming the folder or a file in it, if there are no samples for such a model, and
    later for a file that cannot be read or does not fit.
    """
    try:
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except NotADirectoryError:
        raise InputError(f"{folder}: is a file, and samples come from a folder, or 'random'") from None
    except (OSError, ValueError) as error:  # ValueError: no folder can have this name
        raise InputError(f"{folder}: cannot be read: {getattr(error, 'strerror', error)}") from None
    # Only as many files are looked into as are wanted: a stack may hold many.
    items = list(islice(_find_items(folder, found, model, images or Preprocessing()), most))
    if not items:
        raise InputError(f"{folder}: holds no samples: no .npy, .npz or image files")

    def start(number: int) -> Iterator[Sample]:
        for item in items[number:]:
            inputs = item.read()
            check_inputs(inputs, model.index, item.name)
            yield Sample(item.name, inputs)

    identity = hash_values(
        [images, *((item.name, list(map(_file_stamp, item.files))) for item in items)]
    )
    return SampleSource(folder.resolve().name, start, len(items), identity)


def _file_stamp(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return path.name, status.st_size, status.st_mtime_ns


def _find_items(
    folder: Path, found: Sequence[Path], model: Model, images: Preprocessing
) -> Iterator[_SampleFiles]:
    inputs = model.index.inputs
    kinds: dict[_FileKind, list[Path]] = {}
    for path in found:
        kind = _sample_kind(path, inputs)
        if kind:
            kinds.setdefault(kind, []).append(path)
    if len(kinds) > 1:
        raise InputError(f"{folder}: holds {' and '.join(kinds)}: it must be one of these")
    for kind, paths in kinds.items():
        if kind != _FileKind.IMAGES:
            images.refuse_for(f"{folder} (holds {kind})")
        match kind:
            case _FileKind.TEST_SETS:
                yield from (_tensor_item(path, path.iterdir(), inputs) for path in paths)
            case _FileKind.TENSORS:
                yield _tensor_item(folder, paths, inputs)
            case _FileKind.ARCHIVES:
                yield from (_archive_item(path, model) for path in paths)
            case _FileKind.COLUMNS:
                yield from _column_items(paths, model)
            case _:
                yield from _single_items(folder, kind, paths, model, images)


def _single_items(
    folder: Path, kind: _FileKind, paths: Sequence[Path], model: Model, images: Preprocessing
) -> Iterator[_SampleFiles]:
    """Yield samples of files that hold one input each, for a model of one input."""
    inputs = model.index.inputs
    if len(inputs) != 1:
        raise InputError(
            f"{folder}: holds {kind}, and the model has {len(inputs)} inputs ({', '.join(inputs)}):"
            " expected .npz files, or a folder of .npy files for each input"
        )
    if kind == _FileKind.IMAGES:
        yield from _image_items(folder, paths, inputs[0], model.index.types.get(inputs[0]), images)
        return
    for path in paths:
        yield from _array_items({inputs[0]: path}, model)


def _archive_item(path: Path, model: Model) -> _SampleFiles:
    return _SampleFiles(str(path), [path], partial(_read_archive, path, model))


def _sample_kind(path: Path, inputs: Sequence[str]) -> _FileKind | None:
    """Return the kind of samples that an entry of the folder holds, None if none."""
    if path.is_dir():
        if path.name.startswith(_TEST_SET):
            return _FileKind.TEST_SETS
        return _FileKind.COLUMNS if path.name in inputs else None
    if _TENSOR.fullmatch(path.name):
        return _FileKind.TENSORS
    suffix = path.suffix.lower()
    return (
        _FileKind.IMAGES
        if suffix in SUFFIXES
        else {".npy": _FileKind.SINGLE, ".npz": _FileKind.ARCHIVES}.get(suffix)
    )


def _tensor_item(folder: Path, files: Iterable[Path], inputs: Sequence[str]) -> _SampleFiles:
    """Return the sample in files `input_N.pb`, where N counts the inputs of the model."""
    found = {int(match[1]): path for path in files if (match := _TENSOR.fullmatch(path.name))}
    for number, path in found.items():
        if number >= len(inputs):
            raise InputError(f"{path}: the model has only {len(inputs)} inputs")
    named = {inputs[number]: path for number, path in sorted(found.items())}

    def read() -> Inputs:
        return {name: _read_tensor(path) for name, path in named.items()}

    return _SampleFiles(str(folder), list(named.values()), read)


def _read_tensor(path: Path) -> NDArray[Any]:
    try:
        tensor = onnx.load_tensor(path)
        if not uses_external_data(tensor):  # which may be any file of the working directory
            return numpy_helper.to_array(tensor)
        reason = "its values are in another file, which is not read"
    except Exception as error:  # protobuf's and ONNX's errors share no base
        reason = shorten_text(str(error), 200)
    raise InputError(f"{path}: not a tensor of ONNX: {reason}")


def _image_items(
    folder: Path, paths: Sequence[Path], name: str, kind: TensorType | None, how: Preprocessing
) -> Iterator[_SampleFiles]:
    if kind is None:
        raise InputError(f"{folder}: images cannot be the input '{name}', which is no tensor")
    shape = find_image_shape(kind, name, str(folder))
    how.check(shape.channels, str(folder))

    def read(path: Path) -> Inputs:
        return {name: read_image(path, kind, shape, how)}

    for path in paths:
        yield _SampleFiles(str(path), [path], partial(read, path))


def _column_items(columns: Sequence[Path], model: Model) -> Iterator[_SampleFiles]:
    """Yield the samples of folders named after inputs, which hold files of the same names."""
    files = {column.name: sorted(path.name for path in column.glob("*.npy")) for column in columns}
    first, *others = columns
    for other in others:
        lacking = sorted(set(files[first.name]) ^ set(files[other.name]))
        if lacking:
            holder = first if lacking[0] in files[first.name] else other
            lacking_folder = other if holder is first else first
            raise InputError(f"{holder / lacking[0]}: there is no such file in '{lacking_folder}'")
    for name in files[first.name]:
        yield from _array_items({column.name: column / name for column in columns}, model)


def _array_items(paths: dict[str, Path], model: Model) -> Iterator[_SampleFiles]:
    """Yield the sample in one .npy file per input, or the samples if the files are stacks."""
    shapes = {name: _map_file(path).shape for name, path in paths.items()}
    lengths = {}
    for name, shape in shapes.items():
        rank = model.index.get_rank(name)
        lengths[name] = shape[0] if rank is not None and len(shape) == rank + 1 else None
    where = str(next(iter(paths.values())))
    if len(set(lengths.values())) > 1:
        counts = ", ".join(
            f"'{n}': {'one sample' if v is None else f'{v} samples'}" for n, v in lengths.items()
        )
        raise InputError(f"{where}: the inputs' files of this name differ in their samples: {counts}")
    length = next(iter(lengths.values()))
    files = list(paths.values())
    if length is None:
        yield _SampleFiles(where, files, partial(_read_entries, paths, None))
    for i in range(length or 0):
        yield _SampleFiles(f"{where}[{i}]", files, partial(_read_entries, paths, i))


def _read_entries(paths: dict[str, Path], number: int | None) -> Inputs:
    arrays = {name: _map_file(path) for name, path in paths.items()}
    return {name: np.array(a if number is None else a[number]) for name, a in arrays.items()}


def _map_file(path: Path) -> NDArray[Any]:
    """Return a memory-mapped array from a file, so that stacks may be larger than memory."""
    try:
        if path.stat().st_size == 0:
            raise InputError(f"{path}: is empty")
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except READ_ERRORS as error:
        raise _unreadable_error(path, error) from None
    if array.nbytes == 0 and max((array.size, *array.shape)) > _MAX_EMPTY:
        raise InputError(f"{path}: {array.dtype}{list(array.shape)} has no bytes")
    return array


def _read_archive(path: Path, model: Model) -> Inputs:
    types = model.index.types
    return {name: restore_dtype(array, types.get(name)) for name, array in read_npz(path).items()}


def _unreadable_error(path: Path, error: Exception) -> InputError:
    reason = (error.strerror if isinstance(error, OSError) else None) or describe_read_error(error)
    return InputError(f"{path}: cannot be read as {path.suffix.lower()}: {shorten_text(reason, 200)}")


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


def read_samples(
    data: str | Path | Inputs | Iterable[Inputs], model: Model, most: int | None = None
) -> tuple[Sample, ...]:
    """Return the samples of a file (.npz; .npy for a model of one input), of a folder, or in memory.

    Raises InputError that names the file and the input where a sample cannot be read or does not fit.
    """
    if isinstance(data, Mapping):
        data = [data]
    if not isinstance(data, (str, Path)):
        return tuple(wrap_samples(data, model, most).read_from(0))
    path = Path(data)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):  # a name that no file can have
        is_folder = exists = False
    if not exists:
        raise InputError(f"{shorten_text(str(path), _MAX_CHARACTERS)}: no such file or folder")
    if is_folder:
        return tuple(read_folder(path, model, most=most).read_from(0))
    found = []
    for item in islice(_find_file_items(path, model), most):
        inputs = item.read()
        check_inputs(inputs, model.index, item.name)
        found.append(Sample(item.name, inputs))
    return tuple(found)


def _find_file_items(path: Path, model: Model) -> Iterator[_SampleFiles]:
    inputs = model.index.inputs
    match path.suffix.lower():
        case ".npy" if len(inputs) == 1:
            yield from _array_items({inputs[0]: path}, model)
        case ".npy":
            raise InputError(
                f"{path}: is one array, and the model has {len(inputs)} inputs ({', '.join(inputs)}): "
                "expected an .npz file"
            )
        case _:
            yield _archive_item(path, model)
