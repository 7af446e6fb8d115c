"""A manifest's entry for padding: which dimensions of a variant may be smaller, and what is done."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.model import Dim, TensorType, evaluate_dim, list_dim_names
from byoc.padding import FirstValue, PaddedInput, PaddingDecision, PaddingRule, RowSplit
from byoc.support import StrictModel

_LARGEST_SIZE = 2**31 - 1
_Extent = Annotated[int, Field(ge=0, le=_LARGEST_SIZE)] | str


class FirstValueEntry(StrictModel):
    """A condition on an input; the fields are those of `FirstValue`."""

    axis: Annotated[int, Field(ge=0)] = Field(description="The axis.")
    value: Literal[0, 1] = Field(description="What the input has at index 0 of it.")


class PaddedInputEntry(StrictModel):
    """The padding of an input; the fields are those of `PaddedInput`."""

    shape: tuple[_Extent, ...] = Field(
        description="The unpadded extents, expressions of the dimensions."
    )
    value: Literal["edge", 0, 1] = Field(
        description="What stands behind it along its last padded axis: a number, or its last entries."
    )
    first: FirstValueEntry | None = Field(
        description="What a caller's array has to have; null for nothing."
    )
    room: Annotated[int, Field(ge=0, le=_LARGEST_SIZE)] = Field(
        0, description="The entries at its end that the caller's array lacks: the model writes them."
    )
    made: bool = Field(False, description="Whether it is no caller's, but ones of its shape.")


class PaddingEntry(StrictModel):
    """The padding of a variant; the fields are those of `PaddingRule` and `PaddingDecision`."""

    dims: dict[str, Annotated[int, Field(ge=1, le=_LARGEST_SIZE)]] = Field(
        description="The dimensions that may be smaller, and their sizes in the variant."
    )
    equal: dict[str, str] = Field(
        description="Dimensions that have the size of another one, or of an expression."
    )
    inputs: dict[str, PaddedInputEntry] = Field(description="The inputs that are padded.")
    outputs: dict[str, tuple[_Extent, ...]] = Field(description="The outputs that are cut, to what.")
    reads_values: bool = Field(description="Whether the proof rests on values.")
    refused: dict[str, str] = Field(description="Why other dimensions are not padded.")
    least: Annotated[int, Field(ge=0, le=_LARGEST_SIZE)] = Field(
        1, description="The smallest size of each that is padded; 0 for a cache."
    )

    @property
    def decision(self) -> PaddingDecision:
        """The decision that it describes."""
        return PaddingDecision(self.rule, self.refused)

    @property
    def rule(self) -> PaddingRule | None:
        """The rule, None where nothing is padded."""
        if not self.dims:
            return None
        return PaddingRule(
            self.dims,
            {name: _read_input(each) for name, each in self.inputs.items()},
            self.outputs,
            self.equal,
            self.reads_values,
            self.least,
        )


def _read_input(entry: PaddedInputEntry) -> PaddedInput:
    first = None if entry.first is None else FirstValue(entry.first.axis, entry.first.value)
    return PaddedInput(entry.shape, entry.value, first, entry.room, entry.made)


class RowSplitEntry(StrictModel):
    """The split of a batch into calls of a row, or some, each; the fields are those of `RowSplit`."""

    dim: str = Field(description="The dimension that is the batch.")
    most: Annotated[int, Field(ge=1, le=_LARGEST_SIZE)] = Field(description="The largest batch.")
    inputs: dict[str, Annotated[int, Field(ge=0)]] = Field(
        min_length=1, description="The axis of rows of each input that has one."
    )
    outputs: dict[str, Annotated[int, Field(ge=0)]] = Field(
        min_length=1, description="The axis of rows of each output."
    )
    size: Annotated[int, Field(ge=1, le=_LARGEST_SIZE)] = Field(
        default=1, description="The rows of a call."
    )

    @property
    def split(self) -> RowSplit:
        """The split that it describes."""
        return RowSplit(self.dim, self.most, self.inputs, self.outputs, self.size)


def describe_split(split: RowSplit) -> RowSplitEntry:
    """Return the manifest's entry for a split."""
    return RowSplitEntry.model_validate(vars(split))


def check_split(
    entry: RowSplitEntry,
    types: Mapping[str, TensorType | None],
    outputs: Mapping[str, TensorType | None],
    place: Path,
) -> None:
    """Raise InputError, which begins with `place`, unless an entry fits a model of a call's rows.

    Each axis has to be there and as long, as far as that is known of an output, which each have one.
    """
    for side, axes, known in (("input", entry.inputs, types), ("output", entry.outputs, outputs)):
        for name, axis in axes.items():
            kind = known.get(name)
            shape = None if kind is None else kind.shape
            is_known = side == "input" or shape is not None
            extent = shape[axis] if shape is not None and axis < len(shape) else 0
            is_open = side == "output" and not isinstance(extent, int)
            if name not in known or (is_known and extent != entry.size and not is_open):
                where = f"{place}: split: {side} {quote_name(name)}"
                raise InputError(
                    f"{where}: the model has no axis {axis} there that is {entry.size} long"
                )
    missing = sorted(outputs.keys() - entry.outputs.keys())
    if missing:
        raise InputError(f"{place}: split: nothing is said of output {quote_name(missing[0])}")


def describe_padding(decision: PaddingDecision) -> PaddingEntry:
    """Return the manifest's entry for a decision."""
    rule = decision.rule or PaddingRule({}, {}, {})
    return PaddingEntry.model_validate(
        {
            "dims": dict(rule.dims),
            "equal": dict(rule.equal),
            "inputs": {
                name: {
                    "shape": each.shape,
                    "value": each.value,
                    "first": None if each.first is None else vars(each.first),
                    "room": each.room,
                    "made": each.made,
                }
                for name, each in rule.inputs.items()
            },
            "outputs": dict(rule.outputs),
            "reads_values": rule.reads_values,
            "refused": dict(decision.refusals),
            "least": rule.least,
        }
    )


def check_padding(
    entry: PaddingEntry,
    types: Mapping[str, TensorType | None],
    outputs: Mapping[str, TensorType | None],
    place: Path,
) -> None:
    """Raise InputError, which begins with `place`, unless an entry fits a model's inputs and outputs.

    At the largest sizes each shape has to be that of the model, as far as that is known of an output,
    and expressions may speak of the entry's dimensions alone.
    """
    sides = (
        ("input", {n: e.shape for n, e in entry.inputs.items()}, types),
        ("output", entry.outputs, outputs),
    )
    for side, shapes, known in sides:
        for name, shape in shapes.items():
            where = f"{place}: padding: {side} {quote_name(name)}"
            kind = known.get(name)
            stated = None if kind is None else kind.shape
            if name not in known or (stated is None and side == "input"):
                raise InputError(f"{where}: the model has none of that name, or not of a known shape")
            if not all(list_dim_names(dim) <= entry.dims.keys() for dim in shape):
                raise InputError(f"{where}: it speaks of a dimension that is not padded")
            whole = tuple(evaluate_dim(dim, entry.dims) for dim in shape)
            if stated is not None and not _fits(whole, stated, side == "input"):
                raise InputError(f"{where}: it is {list(whole)} there, and {kind} in the model")
            if side == "input":
                _check_input(entry.inputs[name], whole, kind, where)


def _check_input(
    entry: PaddedInputEntry, whole: Sequence[int | None], kind: TensorType | None, where: str
) -> None:
    """Raise InputError unless an input has what is said of its axes and of how it is made."""
    if entry.first is not None and entry.first.axis >= len(whole):
        raise InputError(f"{where}: it has no axis {entry.first.axis}")
    open_extents = [
        size or 0 for dim, size in zip(entry.shape, whole, strict=True) if isinstance(dim, str)
    ]
    if entry.room and not (open_extents and entry.room < open_extents[-1]):
        raise InputError(f"{where}: it has no room for {entry.room} entries")
    if entry.made and (kind is None or kind.dtype != "bool"):
        raise InputError(f"{where}: it is made, and not of bool")


def _fits(whole: Sequence[int | None], stated: Sequence[Dim], is_input: bool) -> bool:
    """Return whether extents are those of the model; the open ones of an output may be any."""
    if len(whole) != len(stated):
        return False
    pairs = zip(whole, stated, strict=True)
    return all(own == dim or not (is_input or isinstance(dim, int)) for own, dim in pairs)
