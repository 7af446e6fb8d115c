"""Rules that sessions follow: inputs are padded and outputs cut, or a model is called row by row."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError
from byoc.model import Dim, evaluate_dim, subtract_dims

# The rule by which inputs are padded to the sizes of a variant, and its outputs cut.

EDGE: Literal["edge"] = "edge"
"""The value of a padded input that repeats the last entry along each padded axis."""


@dataclass(frozen=True)
class FirstValue:
    """A condition on an input: at index 0 of an axis it has this value everywhere."""

    axis: int
    value: Literal[0, 1]


@dataclass(frozen=True)
class PaddedInput:
    """The padding of an input: its unpadded shape, and the value of padding, a number or `edge`.

    The extents are numbers and expressions of the rule's dimensions. The number is filled in along the
    last padded axis; along any other, and where it is `edge`, the last entries are repeated. `first` is
    what the caller's array has to have at index 0 of an axis, None where anything will do.

    `room` is how many entries the caller's array lacks at the end of its last padded axis: the model
    writes there. An input that is `made` does not come from the caller: it is ones of that shape.
    """

    shape: tuple[Dim, ...]
    value: Literal["edge", 0, 1] = EDGE
    first: FirstValue | None = None
    room: int = 0
    made: bool = False

    @cached_property
    def own_shape(self) -> tuple[Dim, ...]:
        """The shape of the caller's array."""
        if not self.room:
            return self.shape
        axis = max(axis for axis, dim in enumerate(self.shape) if isinstance(dim, str))
        return tuple(
            subtract_dims(dim, self.room) if i == axis else dim for i, dim in enumerate(self.shape)
        )


@dataclass(frozen=True)
class PaddingRule:
    """The dimensions that may be smaller than a variant has them, and what is done then.

    `dims` has the largest size of each, that of the variant, and `least` is the smallest: 1 or more, and
    0 where the model writes to a cache. `equal` has dimensions that are to be of the size of another,
    with the name of that one or an expression of it. Inputs that are not in `inputs`, and outputs that
    are not in `outputs`, are the same for all sizes. An output is cut to its shape here. `reads_values`
    says that the proof rests on what values are, not only on which elements each is computed from: it
    holds for the model's own dtypes alone.
    """

    dims: Mapping[str, int]
    inputs: Mapping[str, PaddedInput]
    outputs: Mapping[str, tuple[Dim, ...]]
    equal: Mapping[str, str] = field(default_factory=dict)
    reads_values: bool = False
    least: int = 1

    def __post_init__(self) -> None:
        """Set `least` to 0 where the model writes to a cache, which may be empty."""
        if self.is_static:
            object.__setattr__(self, "least", 0)

    @property
    def is_static(self) -> bool:
        """Whether it is that of a model which writes to a cache of a fixed length."""
        return any(each.made for each in self.inputs.values())

    @cached_property
    def padded_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes that padding gives inputs."""
        return {
            name: tuple(evaluate_dim(dim, self.dims) or 0 for dim in each.shape)
            for name, each in self.inputs.items()
        }

    def describe_smaller(self) -> str:
        """Return the sizes that are padded: `seq 1 to 15`."""
        return ", ".join(f"{name} {self.least} to {size - 1}" for name, size in self.dims.items())

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes of the dimensions together with those that follow from them."""
        return {**sizes, **{name: evaluate_dim(other, sizes) or 0 for name, other in self.equal.items()}}

    def list_trial_sizes(self) -> list[dict[str, int]]:
        """Return sizes to verify the rule at: all at the smallest, and all at half of the largest.

        Where the model writes to a cache, size 0 and the largest are tried, too: the padded model is not
        the caller's.
        """
        found: list[dict[str, int]] = []
        least = max(self.least, 1)
        halves = {n: max(s // 2, least) for n, s in self.dims.items()}
        trials = [dict.fromkeys(self.dims, least), halves]
        if self.is_static:
            trials = [dict.fromkeys(self.dims, 0), *trials, dict(self.dims)]
        for sizes in trials:
            if sizes not in found and (self.is_static or sizes != dict(self.dims)):
                found.append(sizes)
        return found


@dataclass(frozen=True)
class RowSplit:
    """The split of a batch into rows: its dimension, and the axes of that length in inputs and outputs.

    Inputs that are not in `inputs` are the same in each call. `most` is the largest batch, `size` the
    rows of a call: the last one has rows that are there twice, and are cut.
    """

    dim: str
    most: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    size: int = 1

    @property
    def how(self) -> str:
        """The calls of a batch in words: `row by row`, or `in calls of 4`."""
        return "row by row" if self.size == 1 else f"in calls of {self.size}"

    @property
    def range(self) -> str:
        """The batches that are split: `batch 2 to 256`."""
        return f"{self.dim} {self.size + 1} to {self.most}"

    def describe(self) -> str:
        """Return the batches that are split, and how: `batch 2 to 256 row by row`."""
        return f"{self.range} {self.how}"

    def count_rows(self, arrays: Mapping[str, Any]) -> int:
        """Return the number of rows of inputs, 0 where they disagree or are no arrays of such axes."""
        counts = set()
        for name, axis in self.inputs.items():
            shape = getattr(arrays.get(name), "shape", ())
            counts.add(shape[axis] if axis < len(shape) else 0)
        return int(counts.pop()) if len(counts) == 1 else 0

    def list_rows(self, arrays: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the inputs of each call, as contiguous arrays."""
        count = self.count_rows(arrays)
        for first in range(0, count, self.size):
            rows = np.minimum(np.arange(first, first + self.size), count - 1)
            yield {
                name: np.ascontiguousarray(np.take(value, rows, self.inputs[name]))
                if name in self.inputs
                else value
                for name, value in arrays.items()
            }

    def join(self, calls: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
        """Return the outputs of all calls as those of one of `count` rows.

        Raises InputError for an output of another number of rows than a call has.
        """
        joined = {}
        for name, axis in self.outputs.items():
            rows = [np.asarray(call[name]) for call in calls]
            if any(row.ndim <= axis or row.shape[axis] != self.size for row in rows):
                what = "one row" if self.size == 1 else f"{self.size} rows"
                raise InputError(f"output '{name}' is {list(rows[0].shape)}, not {what} on axis {axis}")
            whole = np.concatenate(rows, axis)
            joined[name] = (
                whole if len(rows) * self.size == count else whole.take(np.arange(count), axis)
            )
        return joined


@dataclass(frozen=True)
class PaddingDecision:
    """The rule of a variant, None where nothing can be padded, and why other dimensions cannot.

    `split` is how a batch that is larger than the variant's is run, None where it is not.
    """

    rule: PaddingRule | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)
    split: RowSplit | None = None

    def describe(self) -> str:
        """Return it as people read it: `seq 1 to 16; not batch: REASON`. Empty where nothing is open."""
        told = (
            []
            if self.rule is None
            else [f"{n} {self.rule.least} to {size}" for n, size in self.rule.dims.items()]
        )
        parts = [", ".join(told)] if told else []
        return "; ".join([*parts, *(f"not {name}: {why}" for name, why in self.refusals.items())])


Arrays = Mapping[str, Any]


def find_unpadded_sizes(rule: PaddingRule, inputs: Arrays) -> dict[str, int]:
    """Return the sizes of a rule's dimensions that inputs have.

    Raises InputError where an input has another rank, an extent that contradicts another or is beyond
    the largest, and where it is not at index 0 what the rule needs.
    """
    sizes: dict[str, int] = {}
    given = {name: each for name, each in rule.inputs.items() if name in inputs and not each.made}
    shapes = {name: np.shape(inputs[name]) for name in given}
    for name, shape in shapes.items():
        expected = given[name].own_shape
        if len(shape) != len(expected):
            raise InputError(f"input '{name}' has {len(shape)} dimensions, not {len(expected)}")
        for dim, extent in zip(expected, shape, strict=True):
            if dim in rule.dims and sizes.setdefault(str(dim), extent) != extent:
                raise InputError(f"input '{name}' has {dim}={extent}, another has {sizes[str(dim)]}")
    for name, largest in rule.dims.items():
        if name not in sizes:
            raise InputError(f"no input says what {name} is")
        if not rule.least <= sizes[name] <= largest:
            raise InputError(f"{name} is {sizes[name]}, and may be {rule.least} to {largest}")
    extents: dict[Dim, int | None] = {}  # caches by the dozen have few extents among them
    for name, shape in shapes.items():
        own_shape = given[name].own_shape
        for dim in own_shape:
            if dim not in extents:
                extents[dim] = evaluate_dim(dim, sizes)
        own = tuple(extents[dim] for dim in own_shape)
        if shape != own:
            raise InputError(f"input '{name}' is {list(shape)}, not {list(own)}")
        _check_first(name, inputs[name], given[name])
    return sizes


def _check_first(name: str, value: Any, padded: PaddedInput) -> None:
    first = padded.first
    if first is None:
        return
    if not bool(np.all(np.take(value, 0, first.axis) == first.value)):
        raise InputError(
            f"input '{name}' is padded only where it is {first.value:g} at index 0 of axis {first.axis}"
        )


def pad_inputs(rule: PaddingRule, inputs: Arrays, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return inputs at the largest sizes of a rule, with those that are made for it; others as they are.

    Along the last padded axis they are continued with the rule's value, along any other with their last
    entries. `sizes` are those that `find_unpadded_sizes` finds.
    """
    padded = dict(inputs)
    for name, each in rule.inputs.items():
        if each.made:
            shape = [evaluate_dim(dim, sizes) or 0 for dim in each.shape]
            padded[name] = _pad_array(np.ones(shape, bool), each, rule.padded_shapes[name])
        elif name in inputs:
            padded[name] = _pad_array(np.asarray(inputs[name]), each, rule.padded_shapes[name])
    return padded


def make_padded_shapes(rule: PaddingRule, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return arrays of the dtypes and shapes that padding gives inputs, which take no memory."""
    dtypes = {name: np.asarray(value).dtype for name, value in inputs.items() if name in rule.inputs}
    dtypes |= {name: np.dtype(bool) for name, each in rule.inputs.items() if each.made}
    return {name: _make_stand_in(dtype, rule.padded_shapes[name]) for name, dtype in dtypes.items()}


@lru_cache(maxsize=1024)  # each token of a decoder asks for those of its variants
def _make_stand_in(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _pad_array(array: NDArray[Any], padded: PaddedInput, shape: tuple[int, ...]) -> NDArray[Any]:
    if array.shape == shape:
        return array
    missing = [(0, whole - extent) for whole, extent in zip(shape, array.shape, strict=True)]
    open_axes = [axis for axis, dim in enumerate(padded.shape) if isinstance(dim, str)]
    if padded.value != EDGE and open_axes:
        last = open_axes[-1]
        widths = [(0, 0)] * array.ndim
        widths[last], missing[last] = missing[last], (0, 0)
        fill = np.array(padded.value).astype(array.dtype)
        array = np.pad(array, widths, constant_values=fill)
    if not array.size:
        return np.zeros(shape, array.dtype)
    return array if array.shape == shape else np.pad(array, missing, mode="edge")


def cut_outputs(rule: PaddingRule, outputs: Arrays, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return outputs without what padding added, by the sizes that the inputs have.

    Raises InputError where an output is not as long as the rule says.
    """
    found = dict(outputs)
    for name, dims in rule.outputs.items():
        if name not in outputs:
            continue
        array = np.asarray(outputs[name])
        shape = [evaluate_dim(dim, sizes) for dim in dims]
        if len(shape) != array.ndim or any(
            extent is None or not 0 <= extent <= whole
            for extent, whole in zip(shape, array.shape, strict=True)
        ):
            raise InputError(f"output '{name}' is {list(array.shape)}, too short for {shape}")
        found[name] = np.ascontiguousarray(array[tuple(slice(extent) for extent in shape)])
    return found
