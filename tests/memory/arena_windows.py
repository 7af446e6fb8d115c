"""Convolution and pooling, a row at a time, in the bytes of an arena: see `arena_kernels`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.memory.reading._row_model import count_channels_at_once
from byoc.model import GraphIndex, collect_attribute_facts

Row = NDArray[np.float32]


@dataclass(frozen=True)
class Look:
    """What kernels may touch: rows of tensors by their names in the model, and scratch."""

    index: GraphIndex
    weights: Mapping[str, NDArray[Any]]
    row: Callable[[str, int], Row]
    scratch: Callable[[], Row]

    def shape(self, name: str) -> tuple[int, ...]:
        kind = self.index.types[name]
        return tuple(int(dim) for dim in kind.shape or () if isinstance(dim, int))

    def attributes(self, node: NodeProto) -> dict[str, Any]:
        return collect_attribute_facts(self.index, node)


Kernel = Callable[[int], None]
"""Computes the row of this number; everything, where the layer is whole."""


def _pads(attributes: Mapping[str, Any], source: Sequence[int], made: Sequence[int]) -> list[int]:
    """Return the padding before the first row and column."""
    mode = attributes.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID"):
        return list(attributes.get("pads", [0, 0]))[:2] if mode == "NOTSET" else [0, 0]
    before = []
    for axis in (0, 1):
        reach = (attributes["kernel_shape"][axis] - 1) * attributes.get("dilations", [1, 1])[axis] + 1
        step = attributes.get("strides", [1, 1])[axis]
        total = max((made[axis] - 1) * step + reach - source[axis], 0)
        before.append((total + (mode == "SAME_LOWER")) // 2)
    return before


@dataclass(frozen=True)
class _Taps:
    """The taps of a kernel over an image: `rows(r)` and `columns` leave out the padding."""

    source: tuple[int, ...]
    made: tuple[int, ...]
    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    before: Sequence[int]

    @classmethod
    def of(cls, look: Look, node: NodeProto) -> "_Taps":
        given = look.attributes(node)
        source, made = look.shape(node.input[0])[2:], look.shape(node.output[0])[2:]
        one = [1, 1]
        strides, dilations = given.get("strides", one), given.get("dilations", one)
        before = _pads(given, source, made)
        return cls(source, made, given["kernel_shape"], strides, dilations, before)

    def rows(self, row: int) -> list[tuple[int, int]]:
        """Taps, and the row of the operand that each reads for result row `row`."""
        first = row * self.strides[0] - self.before[0]
        at = [(tap, first + tap * self.dilations[0]) for tap in range(self.kernel[0])]
        return [(tap, y) for tap, y in at if 0 <= y < self.source[0]]

    def columns(self) -> list[tuple[int, slice, slice]]:
        """Taps, the columns of the result, and those of the operand."""
        found = []
        step = self.strides[1]
        for tap in range(self.kernel[1]):
            shift = tap * self.dilations[1] - self.before[1]
            first = max(-(shift // step), 0)
            last = min((self.source[1] - 1 - shift) // step, self.made[1] - 1)
            if first <= last:
                there = slice(first * step + shift, last * step + shift + 1, step)
                found.append((tap, slice(first, last + 1), there))
        return found


def convolution(look: Look, node: NodeProto) -> Kernel:
    taps, weight = _Taps.of(look, node), look.weights[node.input[1]]
    bias = (
        look.weights[node.input[2]]
        if len(node.input) > 2 and node.input[2]
        else np.zeros(1, dtype=np.float32)
    )
    groups = look.attributes(node)["group"]
    per_tap = np.ascontiguousarray(weight.transpose(2, 3, 0, 1))
    add = _add_depthwise if weight.shape[1] == 1 else _add_product

    def run(row: int) -> None:
        result = look.row(node.output[0], row)
        result[...] = bias[:, None]
        for ky, y in taps.rows(row):
            source = look.row(node.input[0], y)
            for kx, to, columns in taps.columns():
                add(look.scratch(), result[:, to], source[:, columns], per_tap[ky, kx], groups)

    return run


def _add_product(scratch: Row, result: Row, source: Row, weight: Row, groups: int) -> None:
    width = result.shape[1]
    makes, reads = weight.shape[0] // groups, weight.shape[1]
    full = scratch.size // width
    gathers = source.strides[1] != source.itemsize and width > 1
    held = count_channels_at_once(width, reads) if gathers else 0
    block = min(full - held, makes)
    gathered = scratch[: held * width].reshape(held, width)
    for group in range(groups):
        for start in range(0, reads, held or reads):
            inputs = slice(start, min(start + (held or reads), reads))
            operand = source[group * reads + inputs.start : group * reads + inputs.stop]
            if gathers:
                gathered[: len(operand)] = operand
                operand = gathered[: len(operand)]
            for first in range(group * makes, (group + 1) * makes, block):
                some = slice(first, min(first + block, (group + 1) * makes))
                count = some.stop - some.start
                product = scratch[held * width : (held + count) * width].reshape(count, width)
                np.matmul(weight[some, inputs], operand, out=product)
                result[some] += product


def _add_depthwise(scratch: Row, result: Row, source: Row, weight: Row, groups: int) -> None:
    width, times = result.shape[1], weight.shape[0] // groups
    block = scratch.size // width
    for copy in range(times):
        for first in range(0, groups, block):
            some = slice(first, min(first + block, groups))
            count = some.stop - some.start
            product = scratch[: count * width].reshape(count, width)
            made = slice(some.start * times + copy, some.stop * times, times)
            np.multiply(source[some], weight[made], out=product)
            result[made] += product


def pool(look: Look, node: NodeProto) -> Kernel:
    given = look.attributes(node)
    source, made = look.shape(node.input[0]), look.shape(node.output[0])
    whole = list(source[2:])
    extents = given.get("kernel_shape", whole)
    takes_most = "Max" in node.op_type
    padded = given.get("auto_pad", "NOTSET") == "NOTSET" and any(given.get("pads", []))
    if extents == whole and list(made[2:]) == [1, 1] and not padded:
        return _global_pool(look, node, takes_most)
    taps = _Taps.of(look, node)
    counts_pads = given.get("count_include_pad", 0)
    ends = [a + b for a, b in zip(source[2:], _pads_after(given, taps, made[2:]), strict=True)]

    def count(axis: int, at: int) -> int:
        first = at * taps.strides[axis] - taps.before[axis]
        points = [first + tap * taps.dilations[axis] for tap in range(taps.kernel[axis])]
        end = ends[axis] if counts_pads else taps.source[axis]
        return sum((bool(counts_pads) or point >= 0) and point < end for point in points)

    across = np.array([count(1, x) for x in range(made[3])], dtype=np.float32)

    def run(row: int) -> None:
        result = look.row(node.output[0], row)
        result[...] = -np.inf if takes_most else 0
        for _, y in taps.rows(row):
            operand = look.row(node.input[0], y)
            for _, to, columns in taps.columns():
                join = np.maximum if takes_most else np.add
                join(result[:, to], operand[:, columns], out=result[:, to])
        if not takes_most:
            result /= across * np.float32(count(0, row))

    return run


def _pads_after(given: Mapping[str, Any], taps: _Taps, made: Sequence[int]) -> list[int]:
    if given.get("auto_pad", "NOTSET") == "NOTSET":
        return list(given.get("pads", [0] * 4))[2:]
    return [
        max((n - 1) * s + (k - 1) * d + 1 - size - b, 0)
        for n, s, k, d, size, b in zip(
            made, taps.strides, taps.kernel, taps.dilations, taps.source, taps.before, strict=True
        )
    ]


def _global_pool(look: Look, node: NodeProto, takes_most: bool) -> Kernel:
    height, width = look.shape(node.input[0])[2:]

    def run(row: int) -> None:
        result, operand = look.row(node.output[0], 0)[:, 0], look.row(node.input[0], row)
        some = look.scratch()[: len(operand)]
        join = np.maximum if takes_most else np.add
        join.reduce(operand, axis=1, out=some)
        if row == 0:
            result[...] = some
        else:
            join(result, some, out=result)
        if row == height - 1 and not takes_most:
            result /= np.float32(height * width)

    return run
