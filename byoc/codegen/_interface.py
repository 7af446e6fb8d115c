"""The Protocol of a codegen plug-in, and the values that it exchanges with byoc."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import onnx.inliner
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass, field
from byoc.errors import InputError, find_message

if TYPE_CHECKING:
    from byoc.codegen._operations import Operation
    from byoc.codegen._region import Region


API_VERSION = 4
"""The version of this interface; a codegen's `api` is the version that it was written for."""

NOTE = "note"
"""The name of the metadata that `byoc partition` prints: a sentence, without the region's name."""

SRAM, SRAM_LIMIT = "sram", "sram_limit"
"""The names of the metadata that the report has as a region's `sram`: whole numbers of bytes.

The first is the most that a run uses of the memory on the chip, the second what may be used.
"""

_MAX_DETAIL = 20_000  # characters of a traceback; its end names the fault

AnyArray = NDArray[np.generic]

Executor = Callable[[Mapping[str, AnyArray]], Mapping[str, AnyArray]]
"""Runs a compiled region: from inputs by name to outputs by name, in the declared dtypes and shapes."""


class CompileError(InputError):
    """A codegen cannot compile a region, for the reason in the message.

    `nodes` names the nodes at fault, each by its name or else its first output; it is empty when the
    codegen does not know them. With `lasting` the same region will be refused again, and the refusal is
    cached as an artifact would be; what may pass (a time limit, a service without an answer) is not.
    `detail` is the whole text where the message is a line of it: a traceback of a tool chain.
    """

    def __init__(
        self, reason: str, nodes: Sequence[str] = (), *, lasting: bool = True, detail: str = ""
    ) -> None:
        """Keep the rest beside the message, which is made one line: compilers say it in several.

        Of a traceback that is the last line, and `detail` is the traceback unless it is given.
        """
        text = str(reason)
        message = find_message(text)
        super().__init__(" ".join(message.split()))
        self.nodes = (nodes,) if isinstance(nodes, str) else tuple(nodes)
        self.lasting = lasting
        self.detail = detail or ("" if message == text else text[-_MAX_DETAIL:])
        if self.detail:
            self.add_note(self.detail)  # shown where the exception is


class ResourceError(CompileError):
    """A region is too large for the device; a region with fewer nodes may compile."""


class NotHereError(InputError):
    """This machine cannot run an artifact that is right, for the reason in the message.

    `load` raises it where the device, the simulator or the processor that the artifact is for is
    missing. The region is kept: it is in the bundle, compiled, and was not verified here.
    """

    def __init__(self, reason: str) -> None:
        """Make the message one line."""
        super().__init__(" ".join(str(reason).split()))


@dataclass(frozen=True)
class Cycles:
    """A time in cycles of a device: their number, and how many there are in a second."""

    count: float
    hertz: float

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return self.count / self.hertz


@dataclass(frozen=True)
class OperatorTime:
    """The time that some nodes of a region, which ran as one operation, took in a run.

    `nodes` are named as in CompileError; none where the operation is part of no node. `time` is in
    seconds, or in cycles of the device. `name` is the compiler's own name for the operation.
    """

    nodes: tuple[str, ...]
    time: float | Cycles
    name: str = ""


def to_seconds(estimate: float | Cycles) -> float:
    """Return the seconds of an estimate, which may be in cycles."""
    return estimate.seconds if isinstance(estimate, Cycles) else estimate


@dataclass(frozen=True, eq=False)
class Artifact:
    """The result of compiling a region.

    `files` maps plain file names to contents, which are stored in the bundle; `metadata` goes into the
    manifest. Loading the bundle restores both unchanged.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have a missing entry of the metadata say what is wrong with the artifact."""
        if isinstance(self.metadata, Mapping):  # a codegen's own may be anything
            object.__setattr__(self, "metadata", ArtifactMetadata(self.metadata))


class ArtifactMetadata(dict[str, str]):
    """An artifact's metadata by name; one that is missing raises InputError instead of KeyError."""

    def __missing__(self, name: str) -> str:
        """Raise InputError, as the codegen that asks did not make the artifact."""
        raise InputError(
            f"the artifact has no '{name}' among its metadata in the manifest, where this codegen "
            "stores it: another codegen made it, or the manifest was changed; make the bundle anew by "
            "`byoc partition`"
        )


@runtime_checkable
class Codegen(Protocol):
    """A compiler plug-in: the minimum that a vendor implements. Its constructor takes no arguments.

    Some class attributes are optional: `api`, the version of this interface that it implements (default
    API_VERSION); `Options`, a frozen dataclass, an instance of which is passed to `compile` (without it
    `compile` gets the user's options as a mapping of strings); `concurrent`, True where several threads
    may call its executors at once; `recompiles`, True where `load` itself handles an artifact that
    `compatible` refuses; and `native`, True where `load` executes what an artifact holds (a shared
    library, pickled objects, compiled code), so that only trusted bundles are loaded.

    `parallel` is True where several threads may call `compile` at once. `cached` is False where
    artifacts are not to be kept for the next run. `calibrates` is True where it reads the samples of
    regions (`Region.samples`), which are then measured. `libraries` names the distributions that it
    compiles with, whose versions artifacts depend on; by default all that its own distribution requires.
    `model_driver` is True where a region computes what its ONNX model does, in the same dtypes, so that
    byoc can make a driver of the models (docs/driver.md). `refers_to_weights` is True where an artifact
    refers to constants by where they lie (`Region.external_data`), so that a cached artifact is only
    taken where they lie there again.
    """

    name: str

    def compile(self, region: Region, options: Any) -> Artifact:
        """Compile a region. Raises CompileError with the reason when that is not possible."""
        ...


# Refusals of a codegen, as data from which the model can be replanned.


class CodegenFailedError(CompileError):
    """A codegen did not refuse, but failed: it raised what is no CompileError, or its process died."""


class ArtifactError(CodegenFailedError):
    """The result of one call for several regions is wrong for one of them, `region`."""

    def __init__(self, reason: str, region: str) -> None:
        """Keep the region beside the message."""
        super().__init__(reason)
        self.region = region


@dataclass(frozen=True)
class Refusal:
    """A region that its codegen did not compile, load or run, with the reason.

    `nodes` names the nodes at fault, as in CompileError, whose `detail` is here, too; it is empty when
    the whole region is. With `too_large`, a region with fewer nodes may work. With `failed`, the codegen
    did not refuse it, but has a defect. With `options`, the codegen gets the region once more, compiled
    with these options.
    Without `lasting` the next call may go well. `tried` says what parts of the region showed; `most` is
    then the most nodes that a region may have, 0 where that is not at fault.
    """

    target: str
    codegen: str
    region: str
    reason: str
    nodes: tuple[str, ...] = ()
    too_large: bool = False
    failed: bool = False
    options: Mapping[str, str] | None = None
    lasting: bool = True
    most: int = 0
    tried: str = ""
    detail: str = ""

    def __str__(self) -> str:
        """Return the refusal as a sentence."""
        return f"codegen {self.codegen}: {self.region}: {self.reason}"


class RefusedError(CompileError):
    """Some regions were refused; the default message is that of the first."""

    def __init__(self, refusals: Sequence[Refusal], message: str = "") -> None:
        """Keep all refusals."""
        super().__init__(message or str(refusals[0]), refusals[0].nodes)
        self.refusals = tuple(refusals)


def resolve_node_names(region: Region, names: Sequence[str]) -> tuple[str, ...]:
    """Translate names in a codegen's error: one inside a composite becomes the composite's output.

    The codegen may have read the composite as an operation, or inlined its function.
    """
    if not names or set(names) <= set(_all_names(region.nodes)):
        return tuple(names)
    inside: dict[str, str] = {}
    for operation in region.operations(fold=False, boundary=True):
        inner = (name for each in operation.inner for name in _inner_names(each))
        inside.update(dict.fromkeys(inner, operation.outputs[0]))
    for node, made in _inline_calls(region):
        inside.update(dict.fromkeys(_all_names(made), node.output[0]))
    own = set(_all_names(region.nodes))
    return tuple(name if name in own else inside.get(name, name) for name in names)


def _inner_names(operation: Operation) -> Iterator[str]:
    yield operation.name
    yield from operation.outputs
    for inner in operation.inner:
        yield from _inner_names(inner)


def _inline_calls(region: Region) -> Iterator[tuple[NodeProto, list[NodeProto]]]:
    """Yield each call of a function with the nodes that replace it after inlining."""
    sizes = {(f.domain, f.name): len(f.node) for f in region.model.functions}
    nodes = iter(onnx.inliner.inline_local_functions(region.model).graph.node)
    for node in region.nodes:
        size = sizes.get((node.domain, node.op_type))
        made = list(islice(nodes, 1 if size is None else size))
        if size is not None:
            yield node, made


def _all_names(nodes: Iterable[NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from filter(None, (node.name, *node.output))
