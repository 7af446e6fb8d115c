"""Reading instances of a public placement benchmark: the file and its mistakes.

The benchmark is that of Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, Efficient
Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020 (github.com/msr-fiddle/
dnn-partitioning, whose README defines the format):

- `maxFPGAs` identical accelerators with `maxSizePerFPGA` bytes each; `maxCPUs` cores.
- `nodes` with `id`, `supportedOnFpga`, `cpuLatency`, `fpgaLatency`, `size` in bytes on an
  accelerator, `isBackwardNode`, and `colorClass`: nodes of one class are on the same device.
- `edges` with `sourceId`, `destId` and `cost`: the time to move the result of the source between host
  and accelerator, in either direction; the same for all edges of a source.

The format names no unit of time. The numbers have the magnitude of milliseconds (92 for a BERT of 24
layers on a GPU), so 1 is read as 0.001 seconds. All results scale with the unit.
"""

from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from byoc.codegen import parse_strict_json
from byoc.errors import InputError
from byoc.numerics import find_cycle
from byoc.support import StrictModel, make_file_error, read_limited, validate_content

# The tolerance of the benchmark's own programs.
_SAME_COST = 1e-6
_MOST_BYTES = 1 << 28

_Number = Annotated[int, Field(strict=True, ge=-(2**62), le=2**62)]
# Anything larger is a mistake; sums of this many stay finite.
_Amount = Annotated[float, Field(strict=True, ge=0, le=1e200)]


class _InstanceObject(StrictModel):
    """An object of the file. Keys that the format does not name are ignored, as its programs do."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")


class InstanceNode(_InstanceObject):
    """A node of the file, times in the file's unit."""

    id: _Number
    supported_on_fpga: bool
    is_backward_node: bool = False
    cpu_latency: _Amount
    fpga_latency: _Amount | None = None
    size: _Amount = 0.0
    color_class: _Number | None = None

    @model_validator(mode="after")
    def _is_timed(self) -> "InstanceNode":
        if self.supported_on_fpga and self.fpga_latency is None:
            raise ValueError("fpgaLatency must be given, since supportedOnFpga is true")
        return self


class InstanceEdge(_InstanceObject):
    """An edge of the file."""

    source_id: _Number
    dest_id: _Number
    cost: _Amount


class InstanceFile(_InstanceObject):
    """The content of the file."""

    max_size_per_fpga: Annotated[_Amount, Field(alias="maxSizePerFPGA")]
    max_fpgas: Annotated[int, Field(alias="maxFPGAs", strict=True, ge=0, le=256)]
    max_cpus: Annotated[int, Field(alias="maxCPUs", strict=True, ge=0, le=1_000_000)]
    nodes: Annotated[tuple[InstanceNode, ...], Field(max_length=1_000_000)]
    edges: Annotated[tuple[InstanceEdge, ...], Field(max_length=1_000_000)]

    @property
    def is_training(self) -> bool:
        """Whether some nodes are of the backward pass."""
        return any(node.is_backward_node for node in self.nodes)


def read_instance_text(path: Path) -> bytes:
    """Return the content of a file. Raises InputError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            text = read_limited(file, _MOST_BYTES)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {why}") from None
    if len(text) > _MOST_BYTES:
        raise InputError(f"{path}: cannot be read: it has more than {_MOST_BYTES} bytes")
    return text


def parse_json_text(text: bytes, path: Path) -> Any:
    """Parse JSON; `path` is for error messages. Raises InputError for what is none."""
    try:
        return parse_strict_json(text.removeprefix(BOM_UTF8))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None


def validate_instance_file(content: object, path: Path) -> InstanceFile:
    """Return the instance that the content of a file describes.

    Raises InputError with a line for each mistake.
    """
    file, mistakes = validate_content(content, InstanceFile)
    if file is not None:
        mistakes = list(_find_wrong_ids(file)) or list(_find_wrong_edges(file))
    if file is None or mistakes:
        raise make_file_error(path, mistakes)
    return file


def _find_wrong_ids(file: InstanceFile) -> Iterator[str]:
    """Yield ids that occur twice, and edges that name no node."""
    first: dict[int, int] = {}
    for number, node in enumerate(file.nodes):
        if first.setdefault(node.id, number) != number:
            yield f"nodes[{number}].id: {node.id} is the id of nodes[{first[node.id]}] already"
    for number, edge in enumerate(file.edges):
        for key, end in (("sourceId", edge.source_id), ("destId", edge.dest_id)):
            if end not in first:
                yield f"edges[{number}].{key}: there is no node {end}"


def _find_wrong_edges(file: InstanceFile) -> Iterator[str]:
    """Yield different costs for the edges of one source, and a cycle."""
    position = {node.id: number for number, node in enumerate(file.nodes)}
    before: list[list[int]] = [[] for _ in file.nodes]
    first: dict[int, int] = {}
    for number, edge in enumerate(file.edges):
        before[position[edge.dest_id]].append(position[edge.source_id])
        other = first.setdefault(edge.source_id, number)
        if abs(edge.cost - file.edges[other].cost) > _SAME_COST:
            yield (
                f"edges[{number}].cost: {edge.cost:g}, but edges[{other}] out of the same node, "
                f"{edge.source_id}, costs {file.edges[other].cost:g}: what a node makes has one cost"
            )
    if cycle := sorted({file.nodes[number].id for number in find_cycle(before)}):
        yield f"edges: they form a circle through node {', '.join(map(str, cycle[:5]))}"
