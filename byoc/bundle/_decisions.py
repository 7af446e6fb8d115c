"""The decisions of a plan, node by node: `decisions.json.gz` in a bundle.

It is a table: a row is a node, a unit, a tensor or a region, and refers to others by number. Numbers
that may be missing are -1 then. What many rows share (a reason, a rule, a type) stands once.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from gzip import GzipFile
from io import BytesIO
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from byoc._dataclasses import dataclass
from byoc.bundle._report import ReportedCause
from byoc.codegen import escape_line
from byoc.errors import InputError
from byoc.model import ONLY_VARIANT, Variant
from byoc.support import StrictModel, dump_json, read_limited

DECISIONS_FILE = "decisions.json.gz"
DECISIONS_FORMAT: Literal[3] = 3  # 1 has no attributes of nodes, 2 no ranges of integers
MAX_DECISION_BYTES = 1 << 28
"""The size limit of the table, unpacked; 100,000 nodes take a twentieth of it."""
MAX_DECISION_VALUES = 1 << 23
"""The most values in it: each takes tens of bytes in memory. A node and its tensors have about 20."""
# There is one before or in each value but the first, and texts may hold more.
_VALUE_MARKS = (b",", b":", b"[", b"{")

_Finite = Annotated[float, Field(allow_inf_nan=False)]
Names = tuple[str, ...]
Numbers = tuple[Annotated[int, Field(ge=0)], ...]
OptionalNumber = Annotated[int, Field(ge=-1)]
OptionalNumbers = tuple[OptionalNumber, ...]


class DecidedReason(StrictModel):
    """A reason for staying on the host, and what would take it away, empty where nothing is known.

    `causes` are what the text is made of, as data: those of the first unit that has it.
    """

    text: str
    remedy: str = ""
    causes: tuple[ReportedCause, ...] = ()


class DecidedOperator(StrictModel):
    """An operator: its domain, empty for ONNX's own, and its type."""

    domain: str
    name: str


class DecidedType(StrictModel):
    """A type of tensors; `bytes` are those at the planned sizes of open dimensions, None if unknown."""

    dtype: str
    shape: tuple[int | str | None, ...] | None
    bytes: Annotated[int, Field(ge=0)] | None


class DecidedTensors(StrictModel):
    """The tensors of a graph: names and types; those that are known before the model runs by number."""

    names: Names
    types: OptionalNumbers
    constant: Numbers


class DecidedNodes(StrictModel):
    """The nodes of a graph. A name is the node's own or that of its first output.

    `inputs` and `outputs` are tensors, -1 for one that is left out; what bodies capture comes after the
    inputs. A constant node is in no unit; `inserted` are the nodes that byoc added. `attributes` are the
    stated ones, -1 for a node without any; in format 1 there are none.
    """

    names: Names
    operators: Numbers
    inputs: tuple[OptionalNumbers, ...]
    outputs: tuple[OptionalNumbers, ...]
    units: OptionalNumbers
    inserted: Numbers
    attributes: OptionalNumbers = ()


class DecidedUnits(StrictModel):
    """The units of a graph, what they cost and where they are.

    `seconds` are columns, for the host and each accelerator, None where that does not support the unit.
    `estimated` are the units whose cost is an estimate. `reasons` are why units are on the host, `rules`
    are those that accepted nodes, for the device that the unit is on.
    """

    kinds: tuple[Literal["node", "composite", "qdq"], ...]
    composites: OptionalNumbers
    devices: Numbers
    regions: OptionalNumbers
    reasons: OptionalNumbers
    operations: tuple[Annotated[_Finite, Field(ge=0)], ...]
    seconds: tuple[tuple[_Finite | None, ...], ...]
    rules: tuple[Numbers, ...]
    estimated: Numbers


class DecidedBoundary(StrictModel):
    """A tensor that enters or leaves a region.

    `bytes` are sent, in `seconds`; `layout` is empty for ONNX's own, `scale` and `zero_point` None where
    it is not quantized, of a tensor with many those of the first. `converts` says who converts what.
    """

    tensor: Annotated[int, Field(ge=0)]
    enters: bool
    bytes: Annotated[int, Field(ge=0)] | None
    seconds: Annotated[_Finite, Field(ge=0)] | None
    dtype: str = ""
    layout: str = ""
    scale: _Finite | None = None
    zero_point: int | None = None
    converts: dict[str, str] = Field(default_factory=dict)


class DecidedRegion(StrictModel):
    """A region: its name, its device by number, the seconds of a run of it, and its boundary."""

    name: str
    device: Annotated[int, Field(ge=1)]
    seconds: Annotated[_Finite, Field(ge=0)]
    boundary: tuple[DecidedBoundary, ...]


class DecidedRange(StrictModel):
    """A tensor in integers: the real values `[low, high]` that these stand for, and those of the data.

    `data` are the least and the greatest value on the calibration data, and `clipped` is the share of
    the values there that the method left outside of the range that it chose. `tensor` is the one that
    has the user's name. Tensors with a scale for each channel have no such row.
    """

    tensor: Annotated[int, Field(ge=0)]
    dtype: str
    low: _Finite
    high: _Finite
    data: tuple[_Finite, _Finite]
    clipped: Annotated[_Finite, Field(ge=0, le=1)] = 0.0

    @property
    def unused(self) -> float:
        """The share of the integers that no value of the data needs."""
        inside = min(self.high, self.data[1]) - max(self.low, self.data[0])
        return 1 - max(0.0, inside) / ((self.high - self.low) or 1.0)

    @property
    def beyond(self) -> float:
        """The share of the data's range that is outside of the integers', and so saturates."""
        width = self.data[1] - self.data[0]
        inside = min(self.high, self.data[1]) - max(self.low, self.data[0])
        return 1 - max(0.0, inside) / width if width else 0.0


class DecidedGraph(StrictModel):
    """A graph: its path, how often it runs, and its tables.

    `around` are the numbers of the graph and the node that a body is in, -1 for the main graph. A body
    that was not placed by itself has no units and no `trips`: its nodes are where the node around it is.
    `ranges` are those of tensors in integers, where byoc quantized the model by ranges of its tensors.
    """

    path: str
    trips: Annotated[_Finite, Field(ge=0)] | None
    around: tuple[OptionalNumber, OptionalNumber]
    inputs: Numbers
    outputs: Numbers
    tensors: DecidedTensors
    nodes: DecidedNodes
    units: DecidedUnits
    regions: tuple[DecidedRegion, ...]
    ranges: tuple[DecidedRange, ...] = ()

    def find_device(self, node: int) -> int:
        """Return the device of a node, 0 for the host; -1 where it goes with its readers or its body."""
        unit = self.nodes.units[node]
        return -1 if unit < 0 else self.units.devices[unit]

    def find_problems(self, tables: "DecisionDocument", number: int) -> Iterator[str]:
        """Yield a sentence for each mistake in its numbers."""
        nodes, units, tensors = self.nodes, self.units, self.tensors
        count = len(nodes.names), len(units.kinds), len(tensors.names)
        newer = ("attributes",) if tables.format > 1 else ()
        yield from _find_lengths(nodes, ("operators", "inputs", "outputs", "units", *newer), count[0])
        columns = ("composites", "devices", "regions", "reasons", "operations", "rules")
        yield from _find_lengths(units, columns, count[1])
        yield from _find_lengths(tensors, ("types",), count[2])
        if len({*nodes.units} - {-1}) != count[1]:
            yield "nodes.units"  # a unit without nodes
        if [*map(len, units.seconds)] != [count[1]] * len(tables.devices):
            yield "units.seconds"
        stops: tuple[tuple[str, Iterable[int], int], ...] = (
            ("around", self.around[:1], number),
            ("inputs", self.inputs, count[2]),
            ("outputs", self.outputs, count[2]),
            ("tensors.types", tensors.types, len(tables.types)),
            ("tensors.constant", tensors.constant, count[2]),
            ("nodes.operators", nodes.operators, len(tables.operators)),
            ("nodes.inputs", _flatten(nodes.inputs), count[2]),
            ("nodes.outputs", _flatten(nodes.outputs), count[2]),
            ("nodes.units", nodes.units, count[1]),
            ("nodes.inserted", nodes.inserted, count[0]),
            ("nodes.attributes", nodes.attributes, len(tables.attributes)),
            ("units.composites", units.composites, len(tables.composites)),
            ("units.devices", units.devices, len(tables.devices)),
            ("units.regions", units.regions, len(self.regions)),
            ("units.reasons", units.reasons, len(tables.reasons)),
            ("units.rules", _flatten(units.rules), len(tables.rules)),
            ("units.estimated", units.estimated, count[1]),
            ("regions.device", (each.device for each in self.regions), len(tables.devices)),
            ("regions.boundary", _list_boundary(self.regions), count[2]),
            ("ranges", (each.tensor for each in self.ranges), count[2]),
        )
        for name, numbers, stop in stops:
            if max(numbers, default=-1) >= stop:
                yield name


def _find_lengths(table: StrictModel, columns: Iterable[str], length: int) -> Iterator[str]:
    return (name for name in columns if len(getattr(table, name)) != length)


def _flatten(rows: Sequence[Sequence[int]]) -> Iterator[int]:
    return (number for row in rows for number in row)


def _list_boundary(regions: Iterable[DecidedRegion]) -> Iterator[int]:
    return (each.tensor for region in regions for each in region.boundary)


@dataclass(frozen=True)
class PlacedNode:
    """A node that is placed: what it is called, and where it is and why.

    `name` and `output`, its first, are behind the path of its graph. `reason` is why it is on the host
    and `causes` the kinds of that, `rule` the location of the rule that accepted it; empty where that is
    not known, as the `region` is then. `operations` are those of one run.
    """

    name: str
    output: str
    operator: str
    device: str
    region: str = ""
    reason: str = ""
    causes: tuple[str, ...] = ()
    rule: str = ""
    operations: float = 0.0


class DecisionDocument(StrictModel):
    """The decisions of a plan; what its tables refer to by number stands in the lists here.

    `devices` are the host and the accelerators. Bodies come after the graphs around them.
    """

    format: Literal[1, 2, 3] = DECISIONS_FORMAT
    model: str
    devices: Annotated[Names, Field(min_length=1)]
    operators: tuple[DecidedOperator, ...]
    composites: Names
    rules: Names
    reasons: tuple[DecidedReason, ...]
    types: tuple[DecidedType, ...]
    attributes: Names = ()
    """the attributes of nodes, each text a line `name: value` for each"""
    graphs: Annotated[tuple[DecidedGraph, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        """Raise ValueError for a number that stands for nothing."""
        for number, graph in enumerate(self.graphs):
            for problem in graph.find_problems(self, number):
                raise ValueError(f"graphs.{number}.{problem} does not fit the other tables")
            above, node = graph.around
            if (above < 0) != (number == 0) or not -1 <= node < (
                len(self.graphs[above].nodes.names) if above >= 0 else 0
            ):
                raise ValueError(f"graphs.{number}.around is not a node of a graph before it")
        return self

    def list_placed_nodes(self) -> Iterator[PlacedNode]:
        """Yield the nodes that are placed, bodies included, without those that byoc inserted."""
        for graph in self.graphs:
            yield from self._list_graph_nodes(graph)

    def _list_graph_nodes(self, graph: DecidedGraph) -> Iterator[PlacedNode]:
        nodes, units = graph.nodes, graph.units
        behind = f"{graph.path}/" if graph.path else ""
        sizes, inserted = Counter(nodes.units), {*nodes.inserted}
        for number, unit in enumerate(nodes.units):
            if unit < 0 or number in inserted:
                continue
            outputs = [graph.tensors.names[tensor] for tensor in nodes.outputs[number] if tensor >= 0]
            operator = self.operators[nodes.operators[number]]
            region, reason = units.regions[unit], units.reasons[unit]
            yield PlacedNode(
                name=f"{behind}{nodes.names[number]}",
                output=f"{behind}{next(iter(outputs), '')}",
                operator=f"{operator.domain}.{operator.name}" if operator.domain else operator.name,
                device=self.devices[units.devices[unit]],
                region=graph.regions[region].name if region >= 0 else "",
                reason=self.reasons[reason].text if reason >= 0 else "",
                causes=tuple(each.kind for each in self.reasons[reason].causes) if reason >= 0 else (),
                rule=", ".join(self.rules[rule] for rule in units.rules[unit]),
                operations=units.operations[unit] / sizes[unit],
            )

    def to_json(self) -> bytes:
        """Return the table as JSON on one line."""
        return dump_json(self)

    @classmethod
    def read(cls, content: bytes, path: Path) -> "DecisionDocument":
        """Read the bytes of a decisions file; errors call it `path`.

        Raises InputError with one sentence for what `write_decisions` does not write.
        """
        try:
            unpacked = _unpack(content)
            if not _is_small(unpacked):
                raise ValueError(f"they have more than {MAX_DECISION_VALUES} values")
            return cls.model_validate_json(unpacked, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = [escape_line(".".join(map(str, first["loc"])))] if first["loc"] else []
            reason = escape_line(first["msg"])
            raise InputError(": ".join([f"{path}: not byoc's decisions", *where, reason])) from None
        except (ValueError, zlib.error) as error:
            reason = escape_line(str(error))
            raise InputError(f"{path}: not byoc's decisions: {reason}") from None


def _unpack(content: bytes) -> bytes:
    """Unpack gzip, to no more bytes than are allowed. Raises ValueError and zlib.error."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    unpacked = unpacker.decompress(content, MAX_DECISION_BYTES + 1)
    if len(unpacked) > MAX_DECISION_BYTES:
        raise ValueError(f"they have more than {MAX_DECISION_BYTES} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("the file is cut short or has more behind its end")
    return unpacked


def _is_small(content: bytes) -> bool:
    """Return whether JSON has at most as many bytes and values as are read."""
    values = sum(map(content.count, _VALUE_MARKS))
    return len(content) <= MAX_DECISION_BYTES and values <= MAX_DECISION_VALUES


def write_decisions(folder: Path, document: DecisionDocument, variant: Variant = ONLY_VARIANT) -> bool:
    """Write a variant's decisions into the folder of a bundle, unless they are more than would be read.

    Returns whether they were written.
    """
    content = document.to_json()
    if not _is_small(content):
        return False
    packed = BytesIO()
    with GzipFile("", "wb", 4, packed, mtime=0) as file:
        file.write(content)
    (folder / variant.name_file(DECISIONS_FILE)).write_bytes(packed.getvalue())
    return True


def read_decisions(path: Path, bundle: Path) -> DecisionDocument:
    """Read the decisions of a bundle, which errors name. Raises InputError with one sentence."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, MAX_DECISION_BYTES)
    except OSError as error:
        raise InputError(f"{bundle}: {path.name} cannot be read: {error.strerror}") from None
    return DecisionDocument.read(content, bundle / path.name)
