"""Samples of special values for a graph whose inputs are known from a realistic one.

Three kinds are made, in few runs: `ends` (finite values: ends of types, limits of floats, halves, equal
keys), `nan`, and `infinities`. A fourth, `empty`, has no elements where extents are open. What an input
cannot be is not asked: ids stay below their tables, and sizes as they are.
"""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.model import get_constant_value, is_quantize
from byoc.model.ranges import Interval
from byoc.rules import Arithmetic, ArithmeticContract, find_exceeded
from byoc.samples import count_turns, list_halves, list_special_values, spread_values
from byoc.verification._special_traits import SpecialTraits
from byoc.verification._verification_result import SpecialKind

Array = NDArray[Any]
Values = Mapping[str, Any]
Ends = Callable[[str, Any], tuple[float, float]]
"""Gives the least and the largest value that an input may have, by its name and a realistic value."""

_MOST_TURNS = 16
"""The most samples in which small inputs take the finite values in turn."""
_MOST_ELEMENTS = 4000
"""Elements of all samples of finite values, unless there is but one: inputs take a few dozen of them."""
# Both are operations of one run: of what adds up floats, and of all else.
MOST_SUMMED = 4e6
_MOST_FLAT = 2e7
"""Operations of one run beyond which a graph is not run on special values: it would take longer than
all else that verifies it. What adds up floats shows less, and its compiled form may be a simulator's."""
_SUMMED_EVERY = 3  # of the elements of what is added up, so that results are not all at their ends
_LEAST_NORMAL = 1e-4  # above the denormals of float16
_LARGEST = {
    "float16": (2 - 2.0**-10) * 2.0**15,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float64": inf,
}
"""Finite magnitudes of the dtypes that a target may compute in."""
_HALF = 0.5  # between two integers, where roundings differ
_DISTINCT_STEP = 1 << 14
_MOST_DISTINCT = {1: 1, 2: 2048, 4: 1 << 24}
"""Magnitudes up to which whole numbers of so many bytes are exact, as floats as well."""
_INSIDE = (1 << 20, 1000, 100, 10, 3)
"""Magnitudes of whole numbers of which the largest is asked that no promise is left with."""
_SUMMED = (0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 20.0, 100.0)
"""Magnitudes of floats that are added up: the exponential of the last is no float32."""
_DIVISORS = (
    1,
    2,
    3,
    7,
    44,
    100,
    -2,
    -3,
    -7,
)  # neither 0 nor -1: the least integer by it stops a process


@dataclass(frozen=True, eq=False)
class SpecialSample:
    """Inputs of a graph with special values of a kind."""

    kind: SpecialKind
    inputs: Values


def is_too_large(traits: SpecialTraits) -> bool:
    """Return whether a graph computes so much that it is not run on special values."""
    return traits.operations > (_MOST_FLAT if traits.is_flat else MOST_SUMMED)


def make_special_samples(
    traits: SpecialTraits,
    base: Values,
    promises: Arithmetic,
    find_ends: Ends,
    contract: ArithmeticContract | None = None,
) -> Iterator[SpecialSample]:
    """Yield the samples of special values, the finite ones first.

    `base` are realistic inputs, which stay where nothing special can be; `promises` are those for all
    that the graph computes, since what is not promised is not asked. A region has a `contract`, of which
    they are: whole numbers are then also asked that stay inside of it, and floats that are added up get
    values beyond realistic ones, which a whole network might turn into anything.
    """
    if is_too_large(traits):
        return
    yield from _make_ends(traits, base, promises, find_ends, contract is not None)
    if contract is not None and (promises.exact_below is not None or promises.overflow != "wraps"):
        most = _find_inside(traits, base, contract)
        if most is not None:
            yield from _make_ends(traits, base, promises, _limit_whole(find_ends, most), False)
    if promises.equal_keys == "any" and traits.keyed and traits.is_flat:
        yield SpecialSample("ends", _make_distinct(traits, base, find_ends))
    floats = [name for name in base if _is_float(base[name]) and traits.is_free(name)]
    floats = [name for name in floats if not traits.is_cast_to_whole(name)]
    if floats:
        yield SpecialSample("nan", _put_unbounded(traits, base, floats, "nan"))
        if traits.is_flat:  # elsewhere the order of sums decides whether infinities make NaN
            yield SpecialSample("infinities", _put_unbounded(traits, base, floats, "infinite"))


def make_empty_sample(
    shapes: Mapping[str, tuple[Any, ...] | None], base: Values
) -> SpecialSample | None:
    """Return the inputs without elements along all open extents, None where there are none such."""
    inputs = {}
    for name, value in base.items():
        shape = shapes.get(name)
        array = np.asarray(value)
        if shape is None or len(shape) != array.ndim:
            return None
        cut = tuple(slice(None) if isinstance(dim, int) else slice(0, 0) for dim in shape)
        inputs[name] = array[cut] if array.ndim else array
    is_open = any(np.shape(inputs[name]) != np.shape(base[name]) for name in base)
    return SpecialSample("empty", inputs) if is_open else None


def _make_distinct(traits: SpecialTraits, base: Values, find_ends: Ends) -> Values:
    """Return inputs whose elements are all different, so that one selection of keys is right."""
    inputs = dict(base)
    for name, value in base.items():
        array = np.asarray(value)
        if not traits.is_free(name) or array.dtype.kind not in "iuf" or not array.size:
            continue
        order = np.random.default_rng(array.size).permutation(array.size)
        most = _MOST_DISTINCT.get(array.dtype.itemsize, _MOST_DISTINCT[4])
        step = max(1, min(_DISTINCT_STEP, most // array.size))
        found = ((order - array.size // 2) * step).reshape(array.shape)
        low, high = find_ends(name, array)
        if array.dtype.kind in "iu":
            ends = np.iinfo(array.dtype)
            low, high = max(low, ends.min), min(high, ends.max)
            found += max(0, int(min(low, 2**62)) - int(found.min()))
        if low <= found.min() and found.max() <= high:
            inputs[name] = found.astype(array.dtype)
    return inputs


def _find_inside(traits: SpecialTraits, base: Values, contract: ArithmeticContract) -> int | None:
    """Return the magnitude up to which whole inputs leave no promise of a contract; None for none."""
    for most in _INSIDE:
        given = {}
        for name, value in base.items():
            array = np.asarray(value)
            if array.dtype.kind in "iu" and array.size and traits.is_free(name):
                ends = np.iinfo(array.dtype)
                given[name] = Interval(max(-most, int(ends.min)), min(most, int(ends.max)))
            elif (found := measure_whole(array)) is not None:
                given[name] = found
        if not find_exceeded(traits.index, contract, given):
            return most
    return None


def measure_whole(value: Any) -> Interval | None:
    """Return the interval of whole numbers or booleans; None for others, and for no elements."""
    array = np.asarray(value)
    if array.dtype.kind not in "biu" or not array.size:
        return None
    return Interval(int(array.min()), int(array.max()))


def _limit_whole(find_ends: Ends, most: int) -> Ends:
    def find(name: str, value: Any) -> tuple[float, float]:
        low, high = find_ends(name, value)
        whole = np.asarray(value).dtype.kind in "iu"
        return (max(low, -most), min(high, most)) if whole else (low, high)

    return find


def _make_ends(
    traits: SpecialTraits, base: Values, promises: Arithmetic, find_ends: Ends, sums: bool
) -> Iterator[SpecialSample]:
    """Yield samples of finite values until small inputs have taken all of them.

    With `sums`, floats that are added up are asked as well.
    """
    chosen = {}
    for name, value in base.items():
        array = np.asarray(value)
        values = _choose_finite(traits, name, array, promises, find_ends)
        if not values.size and sums and _is_float(array) and traits.is_free(name):
            values = _choose_summed(traits, name, array, promises, find_ends)
        if values.size and array.size:
            chosen[name] = values
    if not chosen:
        return
    sizes = [np.size(base[name]) for name in chosen]
    every = 1 if traits.is_flat else _SUMMED_EVERY
    most = max(map(len, chosen.values()))
    turns = min(_MOST_TURNS, max(1, _MOST_ELEMENTS // sum(sizes)))
    for turn in range(count_turns(sizes, most * every, turns)):
        inputs = dict(base)
        for number, (name, values) in enumerate(chosen.items()):
            inputs[name] = spread_values(np.asarray(base[name]), values, number, turn, every)
        yield SpecialSample("ends", inputs)


def _choose_finite(
    traits: SpecialTraits, name: str, base: Array, promises: Arithmetic, find_ends: Ends
) -> Array:
    """Return the finite values that an input is asked with, none where it stays as it is."""
    dtype, none = str(base.dtype), np.zeros(0)
    low, high = find_ends(name, base)
    if name in traits.divisors and base.dtype.kind in "iu":
        return np.array([n for n in _DIVISORS if low <= n <= high and (n > 0 or dtype[0] != "u")], dtype)
    if name in traits.shifts:
        return np.arange(0, base.dtype.itemsize * 8).astype(base.dtype)
    if not traits.is_free(name) or base.dtype.kind in "OUSc" or not base.size:
        return none
    if _is_float(base):
        return _choose_floats(traits, name, base, promises, (low, high))
    if base.dtype.kind not in "iu":
        return list_special_values(dtype).finite
    if promises.exact_below is not None:
        low, high = max(low, -promises.exact_below), min(high, promises.exact_below)
    if traits.divides_by_minus_one:
        low = max(low, np.iinfo(base.dtype).min + 1)
    power = traits.find_power(name)
    most = float(np.iinfo(base.dtype).max) ** (1 / power) if power > 1 else inf
    most = min(most, traits.find_most_reduced(name))
    if traits.is_cast_to_whole(name):
        most = min(most, 2.0**24)  # beyond, the way through a float may leave the type
    return list_special_values(dtype, max(low, -most), min(high, most)).finite


def _choose_floats(
    traits: SpecialTraits, name: str, base: Array, promises: Arithmetic, ends: tuple[float, float]
) -> Array:
    """Return the finite floats that an input is asked with."""
    low, high = ends
    quantized = _list_halves_of(traits, name)
    if not traits.is_flat and not quantized.size:
        return np.zeros(0)  # sums of floats have no special finite values
    if not traits.is_flat or traits.is_cast_to_whole(name):
        numbers = base.astype(np.float64)
        low, high = max(low, float(numbers.min())), min(high, float(numbers.max()))
    if promises.computes:  # what is beyond it is infinite there
        most = _LARGEST[promises.computes]
        low, high = max(low, -most), min(high, most)
    values = list_special_values(str(base.dtype), low, high).finite
    numbers = values.astype(np.float64)
    if promises.denormals == "flushed" or promises.computes:
        values = values[(numbers == 0) | (np.abs(numbers) > _LEAST_NORMAL)]
    if promises.halves == "any":
        values = values[values.astype(np.float64) % 1 != _HALF]
        quantized = quantized[:0]
    return np.concatenate([values, quantized.astype(base.dtype)])


def _choose_summed(
    traits: SpecialTraits, name: str, base: Array, promises: Arithmetic, find_ends: Ends
) -> Array:
    """Return the finite floats that an input is asked with whose products or sums are rounded."""
    low, high = find_ends(name, base)
    numbers = base.astype(np.float64)
    if base.size and (traits.is_cast_to_whole(name) or promises.computes):
        low, high = max(low, float(numbers.min())), min(high, float(numbers.max()))
    values = np.array([sign * each for each in _SUMMED for sign in (1, -1)])
    return values[(values >= low) & (values <= high)].astype(base.dtype)


def _list_halves_of(traits: SpecialTraits, name: str) -> Array:
    """Return the halves of the first QuantizeLinear that reads an input, none where there is none."""
    index = traits.index
    for number in index.consumers.get(name, ()):
        node = index.nodes[number]
        if not is_quantize(node) or len(node.input) < 3:
            continue
        scale, zero = (get_constant_value(index, each) for each in node.input[1:3])
        dtype = index.get_dtype(node.output[0]) or ""
        if scale is not None and zero is not None and dtype in ("int8", "uint8", "int16", "uint16"):
            return list_halves(scale, int(np.asarray(zero).reshape(-1)[0]), dtype)
    return np.zeros(0, np.float32)


def _put_unbounded(
    traits: SpecialTraits, base: Values, names: list[str], which: Literal["nan", "infinite"]
) -> Values:
    """Return the inputs with NaN or infinities: one where they spread, every third elsewhere."""
    inputs = dict(base)
    for name in names if traits.is_flat else names[:1]:
        array = np.asarray(base[name])
        values = getattr(list_special_values(str(array.dtype)), which)
        every = _SUMMED_EVERY if traits.is_flat else max(array.size, 1)
        inputs[name] = spread_values(array, values, every=every)
    return inputs


def _is_float(value: Any) -> bool:
    return "float" in str(np.asarray(value).dtype) and bool(
        list_special_values(str(np.asarray(value).dtype)).nan.size
    )
