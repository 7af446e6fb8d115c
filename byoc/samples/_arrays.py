"""Arrays by name in .npz and .npy files, and their comparison with declared types.

Elements that numpy has no dtype for (bfloat16, ...) are stored as untyped bytes, which `restore_dtype`
turns back into their type.
"""

import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.model import TensorType, make_native, to_numpy_dtype
from byoc.support import write_atomically

_NPY, _ZIP = b"\x93NUMPY", b"PK"
# Exceptions of numpy and zipfile for malformed headers that they do not check for.
_HEADER_ERRORS = (
    TypeError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
)
READ_ERRORS = (
    OSError,
    ValueError,
    EOFError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    *_HEADER_ERRORS,
)
"""What numpy raises for files that are no arrays."""


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name, native as `make_native` has it.

    Raises InputError naming the file and the array."""
    start = _first_bytes(path)
    if start.startswith(_NPY):
        raise InputError(f"{path}: one array without a name, not an .npz file (see --input NAME=FILE)")
    if not start.startswith(_ZIP):
        raise InputError(f"{path}: not an .npz file")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: _read_member(archive, name, path) for name in archive.files}
    except READ_ERRORS as error:
        raise InputError(f"{path}: not an .npz file: {describe_read_error(error)}") from None


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, native as `make_native` has it.

    Raises InputError naming the file.
    """
    if not _first_bytes(path).startswith(_NPY):
        raise InputError(f"{path}: not an .npy file")
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except READ_ERRORS as error:
        raise InputError(f"{path}: {describe_read_error(error)}") from None
    return make_native(array)


def restore_dtype(array: NDArray[Any], kind: TensorType | None) -> NDArray[Any]:
    """Return an array of untyped bytes with the dtype of `kind`; return any other array as it is."""
    if kind is None or array.dtype.kind != "V" or kind.dtype == "string":
        return array
    dtype = to_numpy_dtype(kind.dtype)
    return array.view(dtype) if dtype.itemsize == array.dtype.itemsize else array


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name; an existing file is replaced atomically.

    The elements of a sequence become `NAME[0]`, `NAME[1]`, ..., a map becomes `NAME.keys` and
    `NAME.values`; an empty optional is left out. Raises
    InputError when the file cannot be written.
    """
    write_atomically(path, lambda file: _write_members(file, _plain_arrays(arrays)))


def _write_members(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the members as `numpy.savez` does; that takes names as arguments, so not every name."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _plain_arrays(arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return plain arrays: sequences flattened, strings in numpy's dtype, foreign elements as bytes."""
    found: dict[str, NDArray[Any]] = {}
    for name, value in arrays.items():
        if isinstance(value, list | tuple):
            found |= _plain_arrays({f"{name}[{i}]": each for i, each in enumerate(value)})
        elif isinstance(value, Mapping):
            keys, values = np.array([*value]), read_map_values([value])
            found |= _plain_arrays({f"{name}.keys": keys, f"{name}.values": values})
        elif value is not None:
            array = make_native(np.asarray(value))
            if array.dtype.kind == "O":
                array = array.astype(np.str_)
            elif array.dtype.isbuiltin != 1 and array.dtype.kind != "U":
                array = array.view(f"V{array.dtype.itemsize}")
            found[name] = array
    return found


def read_map_values(maps: Iterable[Mapping[Any, Any]]) -> NDArray[Any]:
    """Return the values of maps, one after the other, as an array of one axis.

    Those of a map of float32 have become Python's floats, and are float32 again.
    """
    array = np.array([value for each in maps for value in each.values()])
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        short = array.astype(np.float32)
    return short if np.array_equal(short, array, equal_nan=True) else array


def _read_member(archive: Any, name: str, path: Path) -> NDArray[Any]:
    try:
        member: NDArray[Any] = archive[name]
    except READ_ERRORS as error:
        raise InputError(f"{path}: {name}: {describe_read_error(error)}") from None
    if not isinstance(member, np.ndarray):
        raise InputError(f"{path}: {name}: not an array")
    return make_native(member)


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_NPY))
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {why}") from None


def describe_read_error(error: BaseException) -> str:
    """Describe on one line why numpy does not read a file."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, (TypeError, ArithmeticError)):
        return f"its header is wrong: {text}"
    return "it holds pickled objects, which are not read" if "allow_pickle" in text else text


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The dtype and the shape of a tensor; open extents are None.

    `fixed` holds the axes of the others with their extents, empty where none is open. What does not fit
    may still have the type: `describe_mismatch` decides, which takes longer.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    fixed: tuple[tuple[int, int], ...] = ()
    is_open: bool = False

    @classmethod
    def of(cls, kind: TensorType | None) -> "ArrayForm | None":
        """Return the form of a type, None for text and for tensors whose rank is not known."""
        if kind is None or kind.dtype == "string" or kind.shape is None:
            return None
        shape = tuple(dim if isinstance(dim, int) else None for dim in kind.shape)
        is_open = None in shape
        fixed = tuple((i, dim) for i, dim in enumerate(shape) if dim is not None) if is_open else ()
        return cls(to_numpy_dtype(kind.dtype), shape, fixed, is_open)

    def fits(self, value: Any) -> bool:
        """Return whether a value is an array of this form, contiguous in memory."""
        if type(value) is not np.ndarray:
            return False
        dtype = value.dtype
        if dtype is not self.dtype and (dtype != self.dtype or dtype.isbuiltin != self.dtype.isbuiltin):
            return False
        shape = value.shape
        if shape != self.shape:
            if not self.is_open or len(shape) != len(self.shape):
                return False
            for axis, extent in self.fixed:
                if shape[axis] != extent:
                    return False
        return value.flags.c_contiguous


def describe_mismatch(value: Any, kind: TensorType) -> str:
    """Describe a value that does not have a type, such as `float64[1, 3]`; return "" when it has.

    An unknown dimension matches any extent; strings may be numpy objects, bytes or text.
    """
    array = np.asarray(value)
    if _same_dtype(array, kind.dtype) and _same_shape(array.shape, kind):
        return ""
    return f"{array.dtype}{list(array.shape)}"


def fits_types(inputs: Mapping[str, Any], types: Mapping[str, TensorType]) -> bool:
    """Return whether values by name have the types that are known of these names."""
    return not any(
        describe_mismatch(value, types[name]) for name, value in inputs.items() if name in types
    )


def _same_dtype(array: np.ndarray[Any, Any], dtype: str) -> bool:
    if dtype == "string":
        return array.dtype.kind in "OSU"
    return bool(array.dtype == to_numpy_dtype(dtype))


def _same_shape(shape: tuple[int, ...], kind: TensorType) -> bool:
    if kind.shape is None:
        return True
    return len(shape) == len(kind.shape) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, kind.shape, strict=True)
    )
