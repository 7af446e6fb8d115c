"""`interface.json`: addresses of the inputs and outputs of a program, and for people its layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from byoc.bundle.names import escape_line, quote_name
from byoc.bundle.strict import parse_strict_json
from byoc.codegen import TensorContract, Region
from byoc.errors import InputError
from byoc.yamlfile import StrictModel

from .layout import boundary_shape
from .memory import FaultError, check_box, end_of
from .operand import DType, Operand

INTERFACE = "interface.json"
_Word = Annotated[int, Field(ge=0, lt=2**32)]


class BoxEntry(StrictModel):
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


class SocketEntry(StrictModel):
    """An input or output of a program: name, dtype and shape on the host, and its box of the arena.

    A tensor without elements has no box, nor has an input that nothing reads.
    """

    name: str
    dtype: Literal["float32", "int8", "uint8"]
    shape: tuple[_Word, ...]
    box: BoxEntry | None


class LayerEntry(StrictModel):
    """A layer, for people: its result, its operation, and the nodes of the region in it."""

    name: str
    operation: str
    nodes: tuple[str, ...]


class ProgramInterface(StrictModel):
    """The content of the file."""

    inputs: tuple[SocketEntry, ...]
    outputs: tuple[SocketEntry, ...]
    layers: tuple[LayerEntry, ...]


@dataclass(frozen=True)
class Socket:
    """An input or output of a program that was loaded."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    box: Operand | None


def make_box_entry(box: Operand) -> BoxEntry:
    """Return a box as an entry of the file."""
    return BoxEntry(**{**vars(box), "dtype": box.dtype.name})


def read_interface(
    content: bytes, region: Region, arena: int
) -> tuple[Sequence[Socket], Sequence[Socket]]:
    """Return the inputs and outputs of a region's program.

    `arena` is the size of its arena in bytes. Raises InputError with the location in the file if it is
    invalid, has inputs or outputs other than those of the region, or a box that cannot hold its tensor.
    """
    content_read = _parse_interface(content)
    inputs = _check_sockets("inputs", content_read.inputs, region.inputs, arena)
    outputs = _check_sockets("outputs", content_read.outputs, region.outputs, arena)
    for number, socket in enumerate(outputs):
        if socket.box is None and 0 not in socket.shape:
            raise _location_error(f"outputs.{number}.box", f"{quote_name(socket.name)} has no address in the arena")
    return inputs, outputs


def _parse_interface(content: bytes) -> ProgramInterface:
    try:
        parse_strict_json(content)  # refuses duplicate keys and NaN
        return ProgramInterface.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise _location_error(escape_line(".".join(map(str, first["loc"]))), first["msg"]) from None
    except ValueError as error:
        raise InputError(f"{INTERFACE}: {error}") from None


def _check_sockets(
    side: str, entries: Sequence[SocketEntry], contracts: Sequence[TensorContract], arena: int
) -> Sequence[Socket]:
    """Return the inputs or outputs of the file, checked against contracts and boxes."""
    if len(entries) != len(contracts):
        raise _location_error(side, f"there are {len(entries)}, but the region has {len(contracts)}")
    sockets = []
    for number, (each, contract) in enumerate(zip(entries, contracts, strict=True)):
        location = f"{side}.{number}"
        stated = (each.name, each.dtype, each.shape)
        expected = (contract.name, contract.type.dtype, boundary_shape(contract))
        if stated != expected:
            raise _location_error(location, f"{_format_socket(*stated)}, but the region has {_format_socket(*expected)}")
        box = None if each.box is None else each.box.operand()
        if box is not None:
            _check_box(f"{location}.box", each, box, arena)
        sockets.append(Socket(each.name, each.dtype, each.shape, box))
    return sockets


def _check_box(location: str, each: SocketEntry, box: Operand, arena: int) -> None:
    """Raise InputError if a box is outside the arena, or differs from its tensor in type or size."""
    if box.dtype.name.lower() != each.dtype or box.rows * box.cols * box.channels != prod(each.shape):
        extents = f"{box.dtype.name.lower()} of {box.rows} x {box.cols} x {box.channels}"
        raise _location_error(location, f"{extents}, for {_format_socket(each.name, each.dtype, each.shape)}")
    try:
        check_box(each.name, box)
    except FaultError as fault:
        raise _location_error(location, str(fault)) from None
    if end_of(box) > arena:
        raise _location_error(location, f"it ends at byte {end_of(box)}, but the arena has {arena} bytes")


def _format_socket(name: str, dtype: str, shape: object) -> str:
    return f"{quote_name(name)} {dtype} {shape}"


def _location_error(location: str, reason: str) -> InputError:
    return InputError(f"{INTERFACE}: {location}: {reason}" if location else f"{INTERFACE}: {reason}")
