"""Quantization of weights alone: those of matrix products to 4 bits, with a scale for each block.

Activations stay as they are, so no data is needed. A product becomes com.microsoft's MatMulNBits where
a target's rules take that, or where it stays on the host; else it reads a DequantizeLinear of blocks,
which any target has whose compiler unpacks constants.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product as pair
from math import inf, log10
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.model import (
    DTYPE_NUMBERS,
    EditableGraph,
    GraphIndex,
    Model,
    build_node,
    copy_without,
    drop_named,
    get_stated_attributes,
    is_large,
    is_onnx,
    prepare_model,
)
from byoc.planning import QuantizedWeight
from byoc.quantization._precision import LEAST_BLOCK, read_constant
from byoc.quantization._prepare_model import SIXTEEN_BITS, upgrade_ir, upgrade_opset
from byoc.rules import Annotator, Target
from byoc.samples import model_samples

# Integers of 4 bits for the weights of a matrix product, with a scale for each block of them.
#
# A block is some weights of one output that follow one another along the inputs that are summed
# over. `real = scale * (stored - zero)`, stored from 0 to 15, as com.microsoft's MatMulNBits has it. The
# zero of symmetric weights is 8, and is not stored; real values below zero reach further there: from -8
# to 7 scales. A zero of its own for each block takes 4 bits more.

_ZERO = 8  # the zero point of symmetric weights in unsigned 4 bits
_LEAST, _MOST = 0, 15
_CHUNK = 1 << 20
"""The number of weights that are rounded together, for the memory that it takes."""
_SHRINKS = (1.0, 0.92, 0.85)
"""Smaller scales clip the largest weight, and round the others less."""
_WORTH = 0.97
"""Zeros are stored where they lower the squared error by more than the bytes that they may add, 3 %."""


@dataclass(frozen=True, eq=False)
class WeightBlocks:
    """Weights `[N, K]` as integers of 0 to 15, `[N, B, block]`, with scales and zeros `[N, B]`.

    `zeros` is None where all are 8. The last block of a row is filled up with zeros, where `K` is no
    multiple of the block. `squares` is the sum of the squared weights, `error` that of the squared
    errors.
    """

    stored: NDArray[np.uint8]
    scales: NDArray[np.floating]
    inputs: int
    squares: float
    error: float
    zeros: NDArray[np.uint8] | None = None

    @property
    def block(self) -> int:
        """The number of weights that share a scale."""
        return int(self.stored.shape[-1])

    @property
    def decibels(self) -> float:
        """The ratio of the weights to their errors; infinite where there are none."""
        return inf if not self.error else 10 * log10(self.squares / self.error)

    def restore(self) -> NDArray[np.float32]:
        """Return the weights `[N, K]` that the integers stand for."""
        scales = self.scales.astype(np.float32)[..., None]
        zeros = np.float32(_ZERO) if self.zeros is None else self.zeros.astype(np.float32)[..., None]
        values = (self.stored.astype(np.float32) - zeros) * scales
        return values.reshape(len(values), -1)[:, : self.inputs]

    def pack(self) -> NDArray[np.uint8]:
        """Return the integers as MatMulNBits stores them, the earlier of two in the lower half."""
        return self.stored[..., ::2] | np.left_shift(self.stored[..., 1::2], np.uint8(4))

    def pack_zeros(self) -> NDArray[np.uint8] | None:
        """Return the zeros as MatMulNBits stores them, `[N, bytes]`, None where all are 8."""
        if self.zeros is None:
            return None
        padded = np.pad(self.zeros, [(0, 0), (0, self.zeros.shape[1] % 2)])
        return padded[:, ::2] | np.left_shift(padded[:, 1::2], np.uint8(4))

    def center(self) -> NDArray[np.int8]:
        """Return the integers `[N, K]` from -8 to 7."""
        values = self.stored.astype(np.int8) - np.int8(_ZERO)
        return values.reshape(len(values), -1)[:, : self.inputs]


def round_to_blocks(
    weights: NDArray[np.floating], block: int, *, symmetric: bool = True
) -> WeightBlocks:
    """Round weights `[N, K]` to 4 bits in blocks; scales are of the dtype of the weights.

    For each block several scales are tried, and the one of the least squared error is taken: that of
    onnxruntime (the largest weight by magnitude becomes -8), one for which it becomes 7, smaller ones,
    and for each the best scale of the integers that follow from it (least squares). Unless `symmetric`,
    zeros from the least and the greatest weight are tried as well, and stored where that is worth it.
    """
    count, inputs = weights.shape
    blocks = -(-inputs // block)
    plain, moved = [_RoundedBlocks.make_empty(count, blocks, block, weights.dtype) for _ in range(2)]
    squares = 0.0
    for rows in _split_rows(count, inputs):
        floats = np.zeros((len(weights[rows]), blocks * block), np.float32)
        floats[:, :inputs] = weights[rows]
        values = floats.reshape(-1, blocks, block)
        found = _round_blocks(values, weights.dtype)
        shifted = found if symmetric else _round_with_zeros(values, weights.dtype, found)
        plain.put(rows, found)
        moved.put(rows, shifted)
        squares += float(np.square(values, dtype=np.float64).sum())
    is_worth = float(moved.errors.sum()) < _WORTH * float(plain.errors.sum())
    taken = moved if is_worth else plain
    zeros = taken.zeros if is_worth else None
    return WeightBlocks(taken.stored, taken.scales, inputs, squares, float(taken.errors.sum()), zeros)


def _split_rows(count: int, inputs: int) -> Iterator[slice]:
    step = max(1, _CHUNK // inputs)
    yield from (slice(first, first + step) for first in range(0, count, step))


class _RoundedBlocks(NamedTuple):
    """Weights as integers `[N, B, block]`, with scales, squared errors and zeros of blocks, `[N, B]`."""

    stored: NDArray[np.uint8]
    scales: NDArray[np.floating]
    errors: NDArray[np.float64]
    zeros: NDArray[np.uint8]

    @classmethod
    def make_empty(
        cls, count: int, blocks: int, block: int, dtype: "np.dtype[np.floating]"
    ) -> "_RoundedBlocks":
        """Return room for the blocks of `count` outputs."""
        shape = count, blocks
        stored = np.empty((*shape, block), np.uint8)
        return cls(stored, np.empty(shape, dtype), np.empty(shape), np.empty(shape, np.uint8))

    def put(self, rows: slice, part: "_RoundedBlocks") -> None:
        """Put the blocks of some outputs in their place."""
        self.stored[rows], self.scales[rows] = part.stored, part.scales
        self.errors[rows], self.zeros[rows] = part.errors, part.zeros


def _round_blocks(values: NDArray[np.float32], dtype: "np.dtype[np.floating]") -> _RoundedBlocks:
    """Round weights `[N, B, block]` by the best of several scales, as `round_to_blocks` says."""
    largest = np.take_along_axis(values, abs(values).argmax(axis=2)[..., None], axis=2)[..., 0]
    zeros = np.full(largest.shape, _ZERO, np.uint8)
    best = _round_by_scales(values, _convert_scales(largest / -_ZERO, dtype), zeros)
    starts = [largest / -_ZERO * shrink for shrink in _SHRINKS]
    starts.append(abs(largest) / (_MOST - _ZERO))
    for start in starts:
        best = _improve(values, best, start, zeros)
    return best


def _round_with_zeros(
    values: NDArray[np.float32], dtype: "np.dtype[np.floating]", symmetric: _RoundedBlocks
) -> _RoundedBlocks:
    """Round weights `[N, B, block]` by the best of several scales and zeros, or symmetrically.

    The least and the greatest weight become 0 and 15; smaller ranges clip one of them, or both.
    """
    best = symmetric
    low, high = np.minimum(values.min(axis=2), 0), np.maximum(values.max(axis=2), 0)
    for below, above in pair(_SHRINKS, _SHRINKS):
        least, most = low * np.float32(below), high * np.float32(above)
        with np.errstate(over="ignore"):
            scales = (most / _MOST - least / _MOST).astype(np.float32)
        ratios = -least / np.where(scales == 0, np.float32(1), scales)
        zeros = np.where(scales == 0, _ZERO, np.clip(np.rint(ratios), _LEAST, _MOST)).astype(np.uint8)
        best = _improve(values, best, scales.astype(dtype, copy=False), zeros)
    return best


def _improve(
    values: NDArray[np.float32],
    best: _RoundedBlocks,
    start: NDArray[np.floating],
    zeros: NDArray[np.uint8],
) -> _RoundedBlocks:
    """Return the best of some blocks, of those by other scales, and by the scales that fit these."""
    dtype = best.scales.dtype
    first = _round_by_scales(values, _convert_scales(start, dtype), zeros)
    fitted = _fit_scales(values, first, dtype)
    return _choose_better(_choose_better(best, first), _round_by_scales(values, fitted, zeros))


def _round_by_scales(
    values: NDArray[np.float32], scales: NDArray[np.floating], zeros: NDArray[np.uint8]
) -> _RoundedBlocks:
    """Round weights `[N, B, block]` by scales and zeros `[N, B]`."""
    wide, offset = scales.astype(np.float32)[..., None], zeros.astype(np.float32)[..., None]
    ratios = values / np.where(wide == 0, np.float32(1), wide)  # 1 over a small scale may be infinite
    centered = np.clip(np.rint(ratios), _LEAST - offset, _MOST - offset)
    with np.errstate(invalid="ignore"):
        errors = np.square(values - centered * wide, dtype=np.float64).sum(axis=2)
    return _RoundedBlocks((centered + offset).astype(np.uint8), scales, errors, zeros)


def _fit_scales(
    values: NDArray[np.float32], rounded: _RoundedBlocks, dtype: "np.dtype[np.floating]"
) -> NDArray[np.floating]:
    """Return the scales of the least squared error for given integers and zeros."""
    centered = rounded.stored.astype(np.float32) - rounded.zeros.astype(np.float32)[..., None]
    energy = np.square(centered).sum(axis=2)
    with np.errstate(over="ignore"):  # what is infinite is not chosen
        products = (values * centered).sum(axis=2)
    scales: NDArray[np.float32] = np.zeros_like(energy)
    np.divide(products, energy, out=scales, where=energy != 0)
    return _convert_scales(scales, dtype)


def _convert_scales(
    scales: NDArray[np.floating], dtype: "np.dtype[np.floating]"
) -> NDArray[np.floating]:
    """Return scales in the dtype of the weights; one too small for it becomes its least number.

    Weights of that dtype are multiples of this number (6e-8 of float16), so that such a block is exact.
    """
    converted = scales.astype(dtype, copy=False)
    least = np.copysign(np.finfo(dtype).smallest_subnormal, scales)
    return np.where((converted == 0) & (scales != 0), least, converted)


def _choose_better(one: _RoundedBlocks, other: _RoundedBlocks) -> _RoundedBlocks:
    """Take each block from the one that has the smaller error; the first where errors are equal."""
    better = other.errors < one.errors
    return _RoundedBlocks(
        np.where(better[..., None], other.stored, one.stored),
        np.where(better, other.scales, one.scales),
        np.where(better, other.errors, one.errors),
        np.where(better, other.zeros, one.zeros),
    )


_FLOATS = ("float32", "float16")
_CONTRIB = "com.microsoft"
_MATRIX_RANK = 2  # of the weights of MatMulNBits
_BITS = 4  # of a stored weight
_BIAS = 5  # the input of MatMulNBits that is added


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """A model whose matrix products have weights of 4 bits; `left` says why others have not, by name."""

    model: Model
    weights: tuple[QuantizedWeight, ...]
    left: Mapping[str, str]


def _shorten_block(block: int, inputs: int) -> int:
    """Return the shortest block that holds all inputs, where that is shorter."""
    return min(block, max(LEAST_BLOCK, 1 << (inputs - 1).bit_length()))


def quantize_weights(model: Model, targets: Sequence[Target], block: int) -> QuantizedWeights:
    """Return a model whose MatMul and Gemm nodes have weights of 4 bits in blocks.

    Left as they are: those in bodies, those of other types than float32 and float16, small ones, and
    those that need DequantizeLinear where the model cannot be of an operator set with blocks (21).
    Raises InputError for weights that are not finite.
    """
    products, left = _find_products(model.index)
    if products:  # before IR 4 every initializer is an input, and integers and scales are none
        model = upgrade_ir(model)
    rounded: dict[tuple[str, int, bool], WeightBlocks] = {}
    fitting, taken = [each for each in products if each.fits], _find_taken(model.index, targets)
    quantized = _ProductRewriter(model, block, rounded).quantize(fitting)
    found, symmetric = _find_taken(quantized.model.index, targets), False
    if targets and not found.issuperset(each.output for each in fitting):
        other = _ProductRewriter(model, block, rounded, symmetric=True).quantize(fitting)
        without_zeros = _find_taken(other.model.index, targets)
        if not found.issuperset(without_zeros):  # some target takes no zeros
            quantized, found, symmetric = other, without_zeros, True
    lost = taken - found
    plain = {each.output: each for each in products if not each.fits or each.output in lost}
    if plain:  # again, these by DequantizeLinear, or not at all where that has no blocks
        try:
            raised = upgrade_opset(model, SIXTEEN_BITS)
        except InputError as error:
            left |= {product.weights: str(error) for product in plain.values()}
            others = [each for each in products if each.output not in plain]
            rewriter = _ProductRewriter(model, block, rounded, symmetric=symmetric)
            quantized = rewriter.quantize(others)
        else:
            rewriter = _ProductRewriter(raised, block, rounded, frozenset(plain), symmetric)
            quantized = rewriter.quantize(_find_products(raised.index)[0])
    return replace(quantized, left=left)


@dataclass(frozen=True)
class _Product:
    """A matrix product by a constant: the node's number and output, and the weights' name and shape.

    `inputs` is the axis of the weights that is summed over. `fits` says that MatMulNBits can do it.
    """

    number: int
    output: str
    weights: str
    shape: tuple[int, ...]
    inputs: int
    fits: bool


def _find_products(index: GraphIndex) -> tuple[list[_Product], dict[str, str]]:
    """Return the products to quantize, and why other large matrices are left, by their names."""
    products = []
    left: dict[str, str] = {}
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes:
            continue
        verdict = _read_product(index, number, node)
        if isinstance(verdict, _Product):
            products.append(verdict)
            continue
        for name in index.reads[number]:
            stored = index.stored_tensors.get(name)
            if stored is not None and is_large(stored) and len(stored.dims) >= _MATRIX_RANK:
                left.setdefault(name, verdict)
    taken = {product.weights for product in products}
    return products, {name: reason for name, reason in left.items() if name not in taken}


def _read_product(index: GraphIndex, number: int, node: NodeProto) -> _Product | str:
    """Return a node as a product by large constant weights, or why it is none."""
    what = node.op_type
    if not is_onnx(node) or what not in ("MatMul", "Gemm"):
        return f"read by {what}, not by MatMul or Gemm"
    name = node.input[1]
    kind = index.types.get(name)
    if not index.is_constant(name):
        return f"not the second operand of {what}"
    if kind is None or kind.shape is None or len(kind.shape) != _MATRIX_RANK:
        return f"no matrix, but read by {what}"
    if kind.dtype not in _FLOATS:
        return f"of {kind.dtype}"
    shape = tuple(extent for extent in kind.shape if isinstance(extent, int))
    if len(shape) < _MATRIX_RANK or not _is_large_matrix(shape, kind.dtype):
        return "at most 1 KiB"
    attributes = get_stated_attributes(node)
    inputs = 1 if attributes.get("transB", 0) else 0
    return _Product(
        number, node.output[0], name, shape, inputs, _fits_contrib(index, node, shape[1 - inputs])
    )


def _is_large_matrix(shape: Sequence[int], dtype: str) -> bool:
    return is_large(TensorProto(data_type=DTYPE_NUMBERS[dtype], dims=shape))


def _fits_contrib(index: GraphIndex, node: NodeProto, outputs: int) -> bool:
    """Return whether MatMulNBits can do what a MatMul or Gemm does."""
    if index.get_rank(node.input[0]) == 1:
        return False
    if node.op_type == "MatMul":
        return True
    attributes = get_stated_attributes(node)
    bias = _get_bias(node)
    scales = [attributes.get("alpha", 1.0), attributes.get("beta", 1.0) if bias else 1.0]
    shape = index.get_shape(bias) if bias else (outputs,)
    return scales == [1.0, 1.0] and not attributes.get("transA", 0) and shape == (outputs,)


def _get_bias(node: NodeProto) -> str:
    """Return the name of what a Gemm adds to its product, empty where it adds nothing."""
    _, _, *added = node.input
    return added[0] if added else ""


def _find_taken(index: GraphIndex, targets: Sequence[Target]) -> frozenset[str]:
    """Return the first outputs of the nodes that some target takes."""
    found: set[str] = set()
    for target in targets:
        annotator = Annotator(target, index)
        found.update(
            node.output[0]
            for number, node in enumerate(index.nodes)
            if number not in index.constant_nodes and annotator.annotate_node(number).verdict
        )
    return frozenset(found)


@dataclass(eq=False)
class _ProductRewriter:
    """Writes products of a model with weights of 4 bits, once; those in `plain` by DequantizeLinear.

    `rounded` has the integers of weights by their name, the axis of inputs, and whether they are
    symmetric, and takes new ones. Those behind a DequantizeLinear always are.
    """

    model: Model
    block: int
    rounded: dict[tuple[str, int, bool], WeightBlocks]
    plain: frozenset[str] = frozenset()
    symmetric: bool = False
    described: list[QuantizedWeight] = field(default_factory=list)
    stored: dict[tuple[str, int, bool], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin the edits of the model's graph."""
        self.graph = EditableGraph.of_index(self.model.index)

    def quantize(self, products: Sequence[_Product]) -> QuantizedWeights:
        """Return the model with these products quantized."""
        model = self._rewrite(products) if products else self.model
        return QuantizedWeights(model, tuple(self.described), {})

    def _rewrite(self, products: Sequence[_Product]) -> Model:
        index, graph = self.model.index, self.graph
        for product in products:
            graph.replace(product.number, *self._replace(product))
        graph.drop_unread(
            [product.weights for product in products],
            lambda number, nodes: number in index.constant_nodes,
        )
        proto = copy_without(self.model.proto)
        graph.write_to(proto.graph)
        graph.write_stored(proto.graph, graph.list_unread_stored())
        drop_named(proto.graph.value_info, graph.list_gone())
        if not any(each.domain == _CONTRIB for each in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
        prepared = prepare_model(proto, self.model.source, self.model.folder)
        samples = partial(model_samples, self.model)
        return replace(prepared, make_samples=samples, planned=self.model.planned)

    def _replace(self, product: _Product) -> Iterator[NodeProto]:
        """Yield the nodes for a product, and keep its integers and scales."""
        node = self.model.index.nodes[product.number]
        contrib = product.output not in self.plain
        blocks = self._round(product, self.symmetric or not contrib)
        stored, scales, *zeros = self._store(product, blocks, contrib)
        operator = "MatMulNBits" if contrib else f"DequantizeLinear and {node.op_type}"
        self.described.append(QuantizedWeight(product.weights, product.shape, operator, blocks.decibels))
        if contrib:
            yield _make_contrib_product(node, product, [stored, scales, *zeros], blocks.block)
            return
        made = self.graph.names.new_tensor(f"{product.weights}_dq")
        yield build_node(
            "DequantizeLinear",
            [stored, scales],
            [made],
            self.graph.names.new_node(f"{product.weights}_DequantizeLinear"),
            axis=product.inputs,
            block_size=blocks.block,
        )
        result = deepcopy(node)
        result.input[1] = made
        yield result

    def _round(self, product: _Product, symmetric: bool) -> WeightBlocks:
        key = product.weights, product.inputs, symmetric
        if key not in self.rounded:
            value = read_constant(self.model.index, product.weights, self.model.folder)
            if not np.isfinite(value).all():
                raise InputError(f"{self.model.source}: '{product.weights}' is not finite everywhere")
            block = _shorten_block(self.block, product.shape[product.inputs])
            rows = value if product.inputs else value.T
            self.rounded[key] = round_to_blocks(rows, block, symmetric=symmetric)
        return self.rounded[key]

    def _store(self, product: _Product, blocks: WeightBlocks, contrib: bool) -> tuple[str, ...]:
        """Store integers, scales and zeros as an operator takes them, and return their names."""
        key = product.weights, product.inputs, contrib
        if key in self.stored:
            return self.stored[key]
        if contrib:
            numbers, scales = numpy_helper.from_array(blocks.pack()), blocks.scales
        else:
            numbers = _make_int4(blocks.center() if product.inputs else blocks.center().T)
            scales = blocks.scales if product.inputs else blocks.scales.T
        names: tuple[str, ...] = (
            self.graph.store(numbers, f"{product.weights}_Q4"),
            self.graph.store(np.ascontiguousarray(scales), f"{product.weights}_scales"),
        )
        zeros = blocks.pack_zeros()
        if zeros is not None:
            names += (self.graph.store(zeros.reshape(-1), f"{product.weights}_zeros"),)
        self.stored[key] = names
        return names


def _make_contrib_product(
    node: NodeProto, product: _Product, weights: Sequence[str], block: int
) -> NodeProto:
    """Return the MatMulNBits that does what a node does, with integers, scales, zeros of these names."""
    inputs = [node.input[0], *weights]
    if _get_bias(node):  # behind zero points and an order
        inputs += [""] * (_BIAS - len(inputs)) + [_get_bias(node)]
    result = build_node(
        "MatMulNBits",
        inputs,
        list(node.output),
        node.name,
        _CONTRIB,
        doc_string=node.doc_string,
        K=product.shape[product.inputs],
        N=product.shape[1 - product.inputs],
        bits=_BITS,
        block_size=block,
    )
    result.metadata_props.extend(node.metadata_props)
    return result


def _make_int4(values: NDArray[np.int8]) -> TensorProto:
    """Return integers of 4 bits as ONNX stores them: the earlier of two in the lower half of a byte."""
    flat = np.zeros(-(-values.size // 2) * 2, np.uint8)
    flat[: values.size] = np.ascontiguousarray(values).reshape(-1).view(np.uint8) & 0xF
    packed = flat[::2] | (flat[1::2] << 4)
    return TensorProto(data_type=TensorProto.INT4, dims=values.shape, raw_data=packed.tobytes())
