"""Refusals of a codegen, as data from which the model can be replanned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import onnx.inliner
from onnx import NodeProto

from byoc.codegen._interface import CompileError

if TYPE_CHECKING:
    from byoc.codegen._operations import Operation
    from byoc.codegen._region import Region


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

    `nodes` names the nodes at fault, as in CompileError; it is empty when the whole region is. With
    `too_large`, a region with fewer nodes may work. With `failed`, the codegen did not refuse it, but
    has a defect. With `options`, the codegen gets the region once more, compiled with these options.
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
