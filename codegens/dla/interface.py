"""`interface.json`: where the inputs and outputs of a program lie, and for people its layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from byoc.bundle.names import one_line, quoted
from byoc.bundle.strict import read_json
from byoc.codegen import Contract, Region
from byoc.errors import InputError
from byoc.yamlfile import Strict

from .layout import crossing_extents
from .memory import FaultError, check_box, end_of
from .operand import DType, Operand

INTERFACE = "interface.json"
_Word = Annotated[int, Field(ge=0, lt=2**32)]


class BoxEntry(Strict):
    """A box of the arena; the fields are those of `Operand`."""

    tensor: _Word
    address: _Word
    first_row: _Word
    window: _Word
    rows: _Word
    cols: _Word
    channels: _Word
    row_pitch: _Word
    pixel_pitch: _Word
    channel_pitch: _Word
    dtype: Literal["FLOAT32", "INT8", "UINT8"]

    def operand(self) -> Operand:
        """Return the box as commands have them."""
        return Operand(**{**dict(self), "dtype": DType[self.dtype]})


class SocketEntry(Strict):
    """An input or output of a program: its name, dtype and shape outside, and its box of the arena.

    There is no box for one without elements, nor for an input that nothing reads.
    """

    name: str
    dtype: Literal["float32", "int8", "uint8"]
    shape: tuple[_Word, ...]
    box: BoxEntry | None


class LayerEntry(Strict):
    """A layer, for people: its result, what it is, and the nodes of the region that it is made of."""

    name: str
    operation: str
    nodes: tuple[str, ...]


class Interface(Strict):
    """What the file says."""

    inputs: tuple[SocketEntry, ...]
    outputs: tuple[SocketEntry, ...]
    layers: tuple[LayerEntry, ...]


@dataclass(frozen=True)
class Socket:
    """An input or output as a program is run with it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    box: Operand | None


def box_entry(box: Operand) -> BoxEntry:
    """Return a box as it stands in the file."""
    return BoxEntry(**{**vars(box), "dtype": box.dtype.name})


def read_interface(
    content: bytes, region: Region, arena: int
) -> tuple[Sequence[Socket], Sequence[Socket]]:
    """Return the inputs and the outputs that a file tells of a region's program.

    `arena` is how many bytes the program's has. Raises InputError with the place in the file: it is no
    such file, has other inputs or outputs than the region's contracts, or a box that cannot hold one.
    """
    told = _parsed(content)
    inputs = _sockets("inputs", told.inputs, region.inputs, arena)
    outputs = _sockets("outputs", told.outputs, region.outputs, arena)
    for number, socket in enumerate(outputs):
        if socket.box is None and 0 not in socket.shape:
            raise _wrong(f"outputs.{number}.box", f"{quoted(socket.name)} has no place in the arena")
    return inputs, outputs


def _parsed(content: bytes) -> Interface:
    try:
        read_json(content)  # no key twice, no number that is none
        return Interface.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise _wrong(one_line(".".join(map(str, first["loc"]))), first["msg"]) from None
    except ValueError as error:
        raise InputError(f"{INTERFACE}: {error}") from None


def _sockets(
    side: str, entries: Sequence[SocketEntry], contracts: Sequence[Contract], arena: int
) -> Sequence[Socket]:
    """Return one side of the file, each socket held against its contract and its box."""
    if len(entries) != len(contracts):
        raise _wrong(side, f"there are {len(entries)}, and the region has {len(contracts)}")
    sockets = []
    for number, (each, contract) in enumerate(zip(entries, contracts, strict=True)):
        place = f"{side}.{number}"
        told = (each.name, each.dtype, each.shape)
        due = (contract.name, contract.type.dtype, crossing_extents(contract))
        if told != due:
            raise _wrong(place, f"{_shown(*told)}, and the region has {_shown(*due)}")
        box = None if each.box is None else each.box.operand()
        if box is not None:
            _check_box(f"{place}.box", each, box, arena)
        sockets.append(Socket(each.name, each.dtype, each.shape, box))
    return sockets


def _check_box(place: str, each: SocketEntry, box: Operand, arena: int) -> None:
    """Raise InputError for a box of another type or size than its tensor, or outside the arena."""
    if box.dtype.name.lower() != each.dtype or box.rows * box.cols * box.channels != prod(each.shape):
        extents = f"{box.dtype.name.lower()} of {box.rows} x {box.cols} x {box.channels}"
        raise _wrong(place, f"{extents}, for {_shown(each.name, each.dtype, each.shape)}")
    try:
        check_box(each.name, box)
    except FaultError as fault:
        raise _wrong(place, str(fault)) from None
    if end_of(box) > arena:
        raise _wrong(place, f"it ends at byte {end_of(box)}, and the arena has {arena} bytes")


def _shown(name: str, dtype: str, shape: object) -> str:
    return f"{quoted(name)} {dtype} {shape}"


def _wrong(place: str, why: str) -> InputError:
    return InputError(f"{INTERFACE}: {place}: {why}" if place else f"{INTERFACE}: {why}")
