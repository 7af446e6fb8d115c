"""The pass that drops clamps which change no number that a quantized tensor can stand for.

A quantized network keeps the activations of the float network that it was made of: a Clip(0, 6) between
DequantizeLinear and QuantizeLinear whose scale and zero point span just 0 to 6. In integers it is
nothing, and a target without a rule for it is cut there. Clamping and quantizing are both monotone, so
that it is enough to look at the ends.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field
from byoc.model import (
    FLOAT_DTYPES,
    GraphIndex,
    find_constant_value,
    get_stated_attributes,
    is_dequantize,
    is_quantize,
)
from byoc.model.ranges import limit_of_dtype
from byoc.passes._cleaning import CleanPass
from byoc.passes._simplify import GraphEdits

CLAMPS = frozenset({"Clip", "Max", "Min", "Relu"})
"""The operators that clamp, Max and Min by constants."""
# What only moves elements of its first input, or leaves some out.
_MOVERS = frozenset(
    [
        *("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice"),
        *("SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    ]
)
_BOUNDS_OPSET = 11  # ONNX opset from which Clip's bounds are inputs
_MOST_BITS = 16  # of integers whose round trip through float32 is exact: its significand has 24 bits
# Scales between these give normal float32 numbers for every integer of 16 bits, so that a quotient of a
# product by the same scale is off by 2**-23 of it, which rounds back to the integer.
_LEAST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100
Array = NDArray[Any]


@dataclass(frozen=True)
class DropClamps(CleanPass):
    """Drop a Clip, Relu, Min or Max that changes no number which a quantized tensor can stand for.

    Either all that its DequantizeLinear can make is within the bounds, or what is beyond them becomes
    the same integer with and without it. A DequantizeLinear and a QuantizeLinear of one scale that had
    nothing but such clamps between them go as well.
    """

    kept: str = field(
        default="",
        metadata={
            "help": "Operators, with commas between, that stay where what is clamped is no dequantized "
            "tensor."
        },
    )
    name: ClassVar[str] = "drop-clamps"
    operators: ClassVar[frozenset[str]] = CLAMPS

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Drop the clamps that can be dropped, in order."""
        kept = {name.strip() for name in self.kept.split(",")}
        behind: dict[int, None] = {}
        for number in numbers:
            bounds = _read_bounds(edits, number)
            if bounds is None or number in edits.index.constant_nodes:
                continue
            given, low, high = bounds
            source = _find_source(edits, given)
            if not source.is_quantized and edits.index.node_kinds[number].op_type in kept:
                continue
            made = edits.index.node_outputs[number][0]
            targets = _find_targets(edits, made)
            if _is_idle(source, low, high, targets) and edits.bypass(number, given, made):
                behind.update((each.number, None) for each in targets or ())
        for number in behind:
            _drop_round_trip(edits, number)


def _read_bounds(edits: GraphEdits, number: int) -> tuple[str, float, float] | None:
    """Return the clamped tensor and the bounds; None where they are not known or a node does more."""
    index = edits.index
    node, names = index.nodes[number], [name for name in index.node_inputs[number] if name]
    op = node.op_type
    given, constants = names[0], list(index.node_inputs[number][1:])
    if op in ("Max", "Min"):
        computed = [name for name in names if not index.is_constant(name)]
        shapes = [index.get_shape(name) for name in (*computed, node.output[0])]
        if len(computed) != 1 or shapes[0] is None or shapes[0] != shapes[1]:
            return None
        given, constants = computed[0], [name for name in names if name not in computed]
    values: list[Array] = []
    if op == "Clip" and index.get_opset(node) < _BOUNDS_OPSET:
        stated, widest = get_stated_attributes(node), float(np.finfo(np.float32).max)
        values = [np.array(stated.get("min", -widest)), np.array(stated.get("max", widest))]
    elif op == "Relu":
        values = [np.array(0.0), np.array(inf)]
    elif op == "Clip":
        found = [_read(edits, name) if name else np.array([]) for name in (*constants, "", "")[:2]]
        if any(value is None for value in found):
            return None
        none = (-inf, inf)
        values = [
            np.array(end) if value is None or not value.size else value
            for value, end in zip(found, none, strict=True)
        ]
    else:
        joined = [_read(edits, name) for name in constants]
        if not joined or any(value is None or not value.size for value in joined):
            return None
        # Max is idle if its largest constant is, Min if its least one is.
        ends = np.concatenate([value.ravel() for value in joined if value is not None])
        values = [ends, np.array(inf)] if op == "Max" else [np.array(-inf), ends]
    low, high = (value.astype(np.float64) for value in values)
    if np.isnan(low).any() or np.isnan(high).any() or low.max() > high.min():
        return None
    return given, float(low.max()), float(high.min())


def _read(edits: GraphEdits, name: str) -> Array | None:
    """Return the value of a constant as it is stored."""
    if not edits.index.is_constant(name):
        return None
    return find_constant_value(edits.index, name, edits.folder)


# What a tensor may be, and what is made of it.


@dataclass(frozen=True)
class _Source:
    """The numbers that a tensor may have, from `low` to `high`, NaN apart, and its dtype."""

    low: float
    high: float
    dtype: str
    is_quantized: bool


@dataclass(frozen=True, eq=False)
class _Scheme:
    """The scales and zero points of a QDQ node, and the least and the largest of its integers."""

    number: int
    scale: Array
    point: Array
    least: int
    largest: int
    dtype: str

    def quantize(self, value: float, *, exactly: bool) -> Array:
        """Return the integer for a number by each scale: `exactly`, or rounded as the dtype rounds."""
        kind = np.dtype(np.float64) if exactly else self.scale.dtype
        with np.errstate(all="ignore"):
            quotient = np.asarray(value).astype(kind) / self.scale.astype(kind)
        rounded = np.rint(quotient.astype(np.float64)) + self.point
        clipped: Array = np.clip(rounded, self.least, self.largest)
        return clipped

    def merges(self, one: float, other: float) -> bool:
        """Return whether two numbers become one integer by each scale."""
        return all(
            np.array_equal(self.quantize(one, exactly=exactly), self.quantize(other, exactly=exactly))
            for exactly in (False, True)
        )


def _read_scheme(edits: GraphEdits, number: int) -> _Scheme | None:
    """Return the scheme of a QDQ node; None where it is not stored, or is not of integers."""
    index, names = edits.index, [*edits.index.node_inputs[number], ""]
    node = index.nodes[number]
    integers = node.output[0] if is_quantize(node) else names[0]
    floats = names[0] if is_quantize(node) else node.output[0]
    dtype, real = index.get_dtype(integers), index.get_dtype(edits.find_root(floats))
    scale = _read(edits, names[1])
    point = np.zeros(1) if not names[2] else _read(edits, names[2])
    if dtype is None or "int" not in dtype or scale is None or point is None or not scale.size:
        return None
    if real not in FLOAT_DTYPES or scale.dtype.name != real:
        return None
    values = scale.astype(np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        return None
    limits = limit_of_dtype(dtype)
    return _Scheme(number, scale, point.astype(np.float64), int(limits.low), int(limits.high), dtype)


def _find_source(edits: GraphEdits, name: str) -> _Source:
    """Return the range of a tensor, as far as dtypes, scales and zero points tell it."""
    index, name = edits.index, edits.find_root(name)
    dtype = index.get_dtype(name) or ""
    limits = limit_of_dtype(dtype)
    known = _Source(limits.low, limits.high, dtype, "int" in dtype)
    maker = index.producers.get(name)
    while maker is not None and _is_mover(index, maker):
        name = edits.find_root(index.node_inputs[maker][0])
        maker = index.producers.get(name)
    if maker is None or not is_dequantize(index.nodes[maker]):
        return known
    scheme = _read_scheme(edits, maker)
    if scheme is None:
        return known
    ends: list[float] = []
    for kind in (np.dtype(np.float64), scheme.scale.dtype):  # as different runtimes round
        with np.errstate(all="ignore"):
            for end in (scheme.least, scheme.largest):
                real = (end - scheme.point).astype(kind) * scheme.scale.astype(kind)
                ends += [float(real.min()), float(real.max())]
    return _Source(min(ends), max(ends), dtype, is_quantized=True)


def _is_mover(index: GraphIndex, number: int) -> bool:
    kind = index.node_kinds[number]
    return kind.is_onnx and kind.op_type in _MOVERS


def _find_targets(edits: GraphEdits, name: str) -> list[_Scheme] | None:
    """Return the scheme by which all readers quantize a tensor; None where one does something else."""
    found: list[_Scheme] = []
    pending = [name]
    while pending:
        tensor = pending.pop()
        readers = edits.list_readers(tensor)
        if edits.is_output(tensor) or not readers:
            return None
        for number in readers:
            node = edits.index.nodes[number]
            first = edits.find_root(node.input[0]) == edits.find_root(tensor)
            if not first or number in edits.replaced or list(node.input).count(node.input[0]) > 1:
                return None
            if _is_mover(edits.index, number):
                pending.append(node.output[0])
                continue
            scheme = _read_scheme(edits, number) if is_quantize(node) else None
            if scheme is None:
                return None
            found.append(scheme)
    return found


def _is_idle(source: _Source, low: float, high: float, targets: Sequence[_Scheme] | None) -> bool:
    """Return whether clamping to bounds changes nothing that is read."""
    sides = ((low, source.low, low <= source.low), (high, source.high, high >= source.high))
    return all(
        holds or (targets is not None and all(each.merges(bound, end) for each in targets))
        for bound, end, holds in sides
    )


def _drop_round_trip(edits: GraphEdits, number: int) -> None:
    """Drop a QuantizeLinear that gives back the very integers that were dequantized, and that node."""
    index = edits.index
    real = edits.find_root(index.node_inputs[number][0])
    maker = index.producers.get(real)
    if maker is None or not is_dequantize(index.nodes[maker]) or number in edits.removed:
        return
    before, after = _read_scheme(edits, maker), _read_scheme(edits, number)
    if before is None or after is None or before.dtype != after.dtype:
        return
    if limit_of_dtype(before.dtype).magnitude > 1 << _MOST_BITS or index.get_dtype(real) != "float32":
        return
    sizes = [(each.scale.size, each.point.size) for each in (before, after)]
    attributes = [list(_list_grid(index, each)) for each in (maker, number)]
    if sizes[0] != sizes[1] or (sizes[0] != (1, 1) and attributes[0] != attributes[1]):
        return
    same = np.array_equal(before.scale, after.scale) and np.array_equal(before.point, after.point)
    normal = before.scale.min() > _LEAST_SCALE and before.scale.max() < _LARGEST_SCALE
    given, made = index.node_inputs[maker][0], index.node_outputs[number][0]
    if same and normal and edits.bypass(number, given, made):
        edits.drop_parameters([real])


def _list_grid(index: GraphIndex, number: int) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that say which elements have which scale."""
    stated = get_stated_attributes(index.nodes[number])
    yield "axis", stated.get("axis", 1)
    yield "block_size", stated.get("block_size", 0)
