"""Arrays by name in .npz and .npy files, and their comparison with declared types.

Elements that numpy has no dtype for (bfloat16, ...) are stored as untyped bytes, which `restore_dtype`
turns back into their type.
"""

import re
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.model import TensorType, make_native, to_numpy_dtype
from byoc.support import describe_missing_file, write_atomically

# Special values: where arithmetic goes wrong that is right elsewhere.
#
# They are the ends of each integer type, whole numbers around the limits of floats, negative
# numbers, halves, NaN, infinities, negative zero and denormals. `spread_values` puts them into
# arrays so that the inputs of an operator meet in all pairs, and every value occurs more than once:
# equal keys.

Array = NDArray[Any]

# Whole numbers below these are exact in float16, float32 and float64; 2^31 is the end of 32 bits.
_FLOAT_LIMITS = (2**24, 2**31, 2**53, 2**11)
_SMALL = (0, 1, 2, 3, 7, 44, 100, 127, 128, 200)
# Halves round to even, thirds are no binary fractions, 1,000 is beyond a byte and 1e6 beyond float16.
# The largest floats are not among them: how far right executions go depends on the order of their steps.
_EVERYDAY = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.5, 1 / 3, 2 / 3, 7.0, 100.25, 1000.0, 1e6)
_FLOAT_ENDS = {
    "float16": (2.0**-24, 2.0**-14, 2.0**-10),
    "bfloat16": (2.0**-133, 2.0**-126, 2.0**-7),
    "float32": (2.0**-149, 2.0**-126, 2.0**-23),
    "float64": (2.0**-1074, 2.0**-1022, 2.0**-52),
}
"""The smallest denormal, the smallest normal number, and the distance of 1 from the next."""
_BYTE_INTEGERS = re.compile(r"u?int(8|16|32|64)")


@dataclass(frozen=True)
class SpecialValues:
    """The special values of a dtype: `finite` numbers, `infinite` ones, and NaN where there is one."""

    finite: Array
    infinite: Array
    nan: Array


def list_special_values(dtype: str, low: float = -inf, high: float = inf) -> SpecialValues:
    """Return the special values of a dtype from `low` to `high`; none of what is neither int nor float.

    `dtype` is ONNX's name. Denormals are among the finite ones; infinities and NaN are there whatever
    the ends.
    """
    none = np.zeros(0)
    if dtype in _FLOAT_ENDS:
        kind = to_numpy_dtype(dtype)
        finite = _list_floats(dtype)
        numbers = finite.astype(np.float64)
        finite = finite[(numbers >= low) & (numbers <= high)]
        return SpecialValues(finite, np.array([inf, -inf]).astype(kind), np.full(1, np.nan).astype(kind))
    if _BYTE_INTEGERS.fullmatch(dtype):
        kind = to_numpy_dtype(dtype)
        limits = np.iinfo(kind)
        ends = max(low, limits.min), min(high, limits.max)
        whole = _list_integers(*(int(end) for end in ends)) if ends[0] <= ends[1] else []
        return SpecialValues(np.array(whole, kind), none, none)
    return SpecialValues(np.array([False, True]) if dtype == "bool" else none, none, none)


def _list_integers(low: int, high: int) -> list[int]:
    """Return the special whole numbers from one to another, the ends first."""
    near = [limit + step for limit in _FLOAT_LIMITS for step in (-1, 0, 1)]
    found = [low, high, 0, 1, -1, low + 1, high - 1, *near, *_SMALL]
    found += [-n for n in (*near, *_SMALL)]
    return [n for n in dict.fromkeys(found) if low <= n <= high]


def _list_floats(dtype: str) -> Array:
    values = np.array([*_EVERYDAY, *_FLOAT_ENDS[dtype][:2], 1 + _FLOAT_ENDS[dtype][2]])
    with np.errstate(over="ignore"):
        found = values.astype(to_numpy_dtype(dtype))
    found = found[np.isfinite(found.astype(np.float64))]
    return np.concatenate([found, -found])


def list_halves(scale: Array, zero_point: int, dtype: str) -> Array:
    """Return float32 numbers that lie exactly between two steps of a QuantizeLinear.

    `scale` holds its scales, `zero_point` is that of the first. Numbers whose quotient is rounded are
    left out, so that each is a half by the operator's definition.
    """
    limits = np.iinfo(dtype)
    steps = np.array([limits.min, limits.min + 1, -3, -2, -1, 0, 1, 2, limits.max - 1], np.float64)
    halves = (steps - zero_point + 0.5).astype(np.float32)
    first = np.float32(np.asarray(scale, np.float32).reshape(-1)[0])
    values = halves * first
    exact: Array = values[values / first == halves]
    return exact


def spread_values(base: Array, values: Array, number: int = 0, turn: int = 0, every: int = 1) -> Array:
    """Return an array with special values in place of one in `every` of its elements.

    `number` is that of the input: each value meets its equal first, and then, as far as there are
    elements, all others, those at the beginning of `values` before the rest. Each occurs twice in a row,
    as equal keys do. `turn` counts the samples: small arrays take other values in each.
    """
    made = np.array(base)
    if not made.size or not values.size:
        return made
    flat = made.reshape(-1)
    places = np.arange(0, flat.size, every)
    counted = np.arange(places.size) + turn * places.size
    one, other = _list_pairs(len(values))
    pair = counted // 2 % len(one)
    # A third input and those behind it take what neither of the first two has.
    chosen = other[pair] if number == 1 else (one[pair] + number // 2 * (other[pair] + 1)) % len(values)
    flat[places] = values[chosen].astype(flat.dtype)
    return made


@cache
def _list_pairs(count: int) -> tuple[Array, Array]:
    """Return all pairs of numbers below `count`: of equals, and then by their sums."""
    one, other = (each.reshape(-1) for each in np.indices((count, count)))
    order = np.lexsort((one, np.where(one == other, -1, one + other)))
    return one[order], other[order]


def count_turns(sizes: Sequence[int], values: int, most: int) -> int:
    """Return the number of samples in which small inputs take all values twice, at most `most`.

    Several inputs take all pairs of values.
    """
    wanted = values * max(2, values if len(sizes) > 1 else 0)
    least = min((size for size in sizes if size), default=wanted)
    return max(1, min(most, -(-wanted // least)))


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


_WRITES_NPZ = "; numpy.savez(FILE, NAME=array) writes one"


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name, native as `make_native` has it.

    Raises InputError naming the file and the array."""
    start = _first_bytes(path)
    if start.startswith(_NPY):
        raise InputError(f"{path}: one array without a name, not an .npz file (see --input NAME=FILE)")
    if not start.startswith(_ZIP):
        raise InputError(f"{path}: not an .npz file{_WRITES_NPZ}")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: _read_member(archive, name, path) for name in archive.files}
    except READ_ERRORS as error:
        raise InputError(
            f"{path}: not an .npz file: {describe_read_error(error)}{_WRITES_NPZ}"
        ) from None


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, native as `make_native` has it.

    Raises InputError naming the file.
    """
    start = _first_bytes(path)
    if start.startswith(_ZIP):
        raise InputError(f"{path}: arrays by name, not an .npy file (see --inputs FILE)")
    if not start.startswith(_NPY):
        raise InputError(f"{path}: not an .npy file; numpy.save(FILE, array) writes one")
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
    except FileNotFoundError:
        raise InputError(describe_missing_file(path)) from None
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
