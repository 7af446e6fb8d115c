"""A folder of samples: NumPy arrays, archives of them, or images.

- `*.npz`: each file is a sample, its keys the names of the inputs.
- `*.npy`, for a model of one input: each file is a sample. With one dimension more than the input has,
  it is a stack of samples, each without that first dimension.
- a folder for each input, named after it, with `*.npy` files of the same names in each.
- images (`*.png`, `*.jpg`, `*.jpeg`, `*.bmp`), for a model of one input.

Samples are ordered by file name. Other files, and folders not named after an input, are ignored.
"""

import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError, shorten_text
from byoc.model import Model, TensorType
from byoc.quantization._calibration_samples import (
    Inputs,
    Sample,
    SampleSource,
    check_inputs,
    hash_values,
)
from byoc.quantization._image_inputs import SUFFIXES, Preprocessing, find_image_shape, read_image

_ARCHIVES, _SINGLE, _COLUMNS, _IMAGES = ".npz files", ".npy files", "folders of inputs", "images"


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
    kinds: dict[str, list[Path]] = {}
    for path in found:
        kind = _sample_kind(path, inputs)
        if kind:
            kinds.setdefault(kind, []).append(path)
    if len(kinds) > 1:
        raise InputError(f"{folder}: holds {' and '.join(kinds)}: it must be one of these")
    for kind, paths in kinds.items():
        if kind != _IMAGES:
            images.refuse_for(f"{folder} (holds {kind})")
        if kind == _ARCHIVES:
            yield from (_SampleFiles(str(path), [path], partial(_read_archive, path)) for path in paths)
        elif kind == _COLUMNS:
            yield from _column_items(paths, model)
        elif len(inputs) != 1:
            raise InputError(
                f"{folder}: holds {kind}, and the model has {len(inputs)} inputs ({', '.join(inputs)}):"
                " expected .npz files, or a folder of .npy files for each input"
            )
        elif kind == _IMAGES:
            yield from _image_items(folder, paths, inputs[0], model.index.types.get(inputs[0]), images)
        else:
            for path in paths:
                yield from _array_items({inputs[0]: path}, model)


def _sample_kind(path: Path, inputs: Sequence[str]) -> str:
    """Return the kind of samples that an entry of the folder holds, empty if none."""
    if path.is_dir():
        return _COLUMNS if path.name in inputs else ""
    suffix = path.suffix.lower()
    return _IMAGES if suffix in SUFFIXES else {".npy": _SINGLE, ".npz": _ARCHIVES}.get(suffix, "")


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
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise _unreadable_error(path, error) from None


def _read_archive(path: Path) -> Inputs:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, SyntaxError, AttributeError, zipfile.BadZipFile) as error:
        raise _unreadable_error(path, error) from None


def _unreadable_error(path: Path, error: Exception) -> InputError:
    reason = (error.strerror if isinstance(error, OSError) else None) or shorten_text(str(error), 200)
    return InputError(f"{path}: cannot be read as {path.suffix.lower()}: {reason}")
