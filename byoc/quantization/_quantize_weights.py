"""Quantization of weights alone: those of matrix products to 4 bits, with a scale for each block.

Activations stay as they are, so no data is needed; where there is some, weights are rounded by what they
are multiplied with. A product becomes com.microsoft's MatMulNBits where
a target's rules take that, or where it stays on the host; else it reads a DequantizeLinear of blocks,
which any target has whose compiler unpacks constants.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

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
from byoc.model.schemas import get_schema
from byoc.planning import QuantizedWeight
from byoc.quantization._precision import LEAST_BLOCK, read_constant
from byoc.quantization._prepare_model import SIXTEEN_BITS, upgrade_ir, upgrade_opset
from byoc.quantization._weight_blocks import WeightBlocks, round_to_blocks
from byoc.quantization._weight_rounding import WeightedNode, measure_moments
from byoc.rules import Annotator, Target
from byoc.samples import model_samples
from byoc.support import report_step

_FLOATS = ("float32", "float16")
_CONTRIB = "com.microsoft"
_MATRIX_RANK = 2  # of the weights of MatMulNBits
_BITS = 4  # of a stored weight
_BIAS = 5  # the input of MatMulNBits that is added
_MAX_INPUTS = 8192
"""Products that sum up more are rounded without moments, which would take over half a gibibyte."""


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """A model whose matrix products have weights of 4 bits; `left` says why others have not, by name.

    `without_data` are the names of those that were rounded without the samples that were given.
    """

    model: Model
    weights: tuple[QuantizedWeight, ...]
    left: Mapping[str, str]
    without_data: tuple[str, ...] = ()


def _shorten_block(block: int, inputs: int) -> int:
    """Return the shortest block that holds all inputs, where that is shorter."""
    return min(block, max(LEAST_BLOCK, 1 << (inputs - 1).bit_length()))


def quantize_weights(
    model: Model, targets: Sequence[Target], block: int, samples: Sequence[Mapping[str, Any]] = ()
) -> QuantizedWeights:
    """Return a model whose MatMul and Gemm nodes have weights of 4 bits in blocks.

    With `samples` the errors of products on them are made small, else those of the weights. A table that
    Gather reads as well is one tensor of 4 bits for both, where its blocks are along its rows.

    Left as they are: those in bodies, those of other types than float32 and float16, small ones, and
    those that need DequantizeLinear where the model cannot be of an operator set with blocks (21).
    Raises InputError for weights that are not finite, and samples that the model does not run with.
    """
    products, left = _find_products(model.index)
    if products:  # before IR 4 every initializer is an input, and integers and scales are none
        model = upgrade_ir(model)
    rewriter = _choose_forms(model, products, left, targets, block)
    without_data: tuple[str, ...] = ()
    if samples and rewriter.products:
        rounded = _round_on_samples(rewriter, samples)
        keys = dict.fromkeys(map(rewriter.make_key, rewriter.products))
        without_data = tuple(key.name for key in keys if key not in rounded)
        rewriter = replace(rewriter, rounded=rewriter.rounded | rounded)
    left = {name: why for name, why in left.items() if name not in rewriter.lookups}
    return replace(rewriter.quantize(), left=left | rewriter.left, without_data=without_data)


def _choose_forms(
    model: Model,
    products: Sequence["_Product"],
    left: dict[str, str],
    targets: Sequence[Target],
    block: int,
) -> "_ProductRewriter":
    """Choose a form for each product that a target takes; `left` gets those that have none."""
    fitting, taken = [each for each in products if each.fits], _find_taken(model.index, targets)
    rewriter = _ProductRewriter(model, fitting, block, {})
    found = _find_taken(rewriter.quantize().model.index, targets)
    if targets and not found.issuperset(each.output for each in fitting):
        other = replace(rewriter, symmetric=True)
        without_zeros = _find_taken(other.quantize().model.index, targets)
        if not found.issuperset(without_zeros):  # some target takes no zeros
            rewriter, found = other, without_zeros
    lost = taken - found
    plain = {each.output: each for each in products if not each.fits or each.output in lost}
    if not plain:
        return rewriter
    try:  # again, these by DequantizeLinear, or not at all where that has no blocks
        raised = upgrade_opset(model, SIXTEEN_BITS)
    except InputError as error:
        left |= {product.weights: str(error) for product in plain.values()}
        return replace(rewriter, products=[each for each in products if each.output not in plain])
    again, _ = _find_products(raised.index)
    return replace(rewriter, model=raised, products=again, plain=frozenset(plain))


def _round_on_samples(
    rewriter: "_ProductRewriter", samples: Sequence[Mapping[str, Any]]
) -> "dict[_RoundingKey, WeightBlocks]":
    """Return the weights of products by the moments of their inputs, where these can be measured.

    Weights of several products are rounded by the sum of their moments. They have zeros where they have
    them without moments. Left out are those whose inputs are 0 in all samples, finite in none, or so
    large that their squares are beyond float32.
    """
    model = rewriter.model
    readers: dict[_RoundingKey, list[_Product]] = {}
    for product in rewriter.products:
        readers.setdefault(rewriter.make_key(product), []).append(product)
    nodes: dict[str, WeightedNode] = {}
    keys: dict[str, _RoundingKey] = {}
    for key, read in readers.items():
        found = [WeightedNode(model.index.nodes[each.number], each.shape) for each in read]
        if found[0].inputs <= _MAX_INPUTS and all(each.can_be_patched for each in found):
            nodes |= {each.output: weighted for each, weighted in zip(read, found, strict=True)}
            keys |= {each.output: key for each in read}
    summed: dict[_RoundingKey, NDArray[np.float64]] = {}
    waiting = Counter(keys.values())
    done = {}
    for weighted, moments in measure_moments(model, nodes.values(), samples):
        key = keys[weighted.node.output[0]]
        summed[key] = summed.get(key, 0.0) + moments.products[0]
        waiting[key] -= 1
        if not waiting[key]:
            report_step(f"round {key.name}")
            total = summed.pop(key)
            # Nothing was measured where inputs are 0, finite in no sample, or their squares are not.
            if not (total.any() and np.isfinite(total).all()):
                continue
            if readers[key][0].table in rewriter.lookups:  # who takes rows wants all features alike
                total += np.eye(len(total)) * np.diag(total).mean()
            done[key] = rewriter.round(readers[key][0], total)
    return done


@dataclass(frozen=True)
class _Product:
    """A matrix product by a constant: the node's number and output, and the weights' name and shape.

    `inputs` is the axis of the weights that is summed over. `fits` says that MatMulNBits can do it.
    `table` is the stored matrix that has a row for each output, the weights or what they are the
    transpose of; empty where there is none.
    """

    number: int
    output: str
    weights: str
    shape: tuple[int, ...]
    inputs: int
    fits: bool
    table: str


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
    fits = _fits_contrib(index, node, shape[1 - inputs])
    table = _find_table(index, name, inputs)
    return _Product(number, node.output[0], name, shape, inputs, fits, table)


def _find_table(index: GraphIndex, name: str, inputs: int) -> str:
    """Return the stored matrix with a row for each output of a product by some weights, or empty."""
    if inputs:
        return name if name in index.stored_tensors else ""
    number = index.producers.get(name)
    maker = None if number is None else index.nodes[number]
    if maker is None or not is_onnx(maker) or maker.op_type != "Transpose":
        return ""
    is_turned = list(get_stated_attributes(maker).get("perm", (1, 0))) == [1, 0]
    return maker.input[0] if is_turned and maker.input[0] in index.stored_tensors else ""


def _find_lookups(
    index: GraphIndex, products: Sequence[_Product], block: int
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the nodes that take rows of tables of products, by their names, and why others are left."""
    schema = get_schema("GatherBlockQuantized", _CONTRIB, 1)
    found: dict[str, list[int]] = {}
    left = {}
    for table, product in ((each.table, each) for each in products if each.table):
        inputs = product.shape[product.inputs]
        size = _shorten_block(block, inputs)
        gathers = [
            number
            for number in index.consumers.get(table, ())
            if number not in index.constant_nodes and _takes_rows(index.nodes[number], table)
        ]
        if gathers and inputs % size:
            left[table] = f"read by Gather, whose rows of {inputs} are no whole blocks of {size}"
        elif gathers and schema is not None and "bits" not in schema.attributes:
            left[table] = "read by Gather, and this onnxruntime has no GatherBlockQuantized of bytes"
        elif gathers:
            found[table] = gathers
    return found, left


def _takes_rows(node: NodeProto, table: str) -> bool:
    """Return whether a node is a Gather of rows of a table."""
    is_gather = is_onnx(node) and node.op_type == "Gather" and node.input[0] == table
    return is_gather and get_stated_attributes(node).get("axis", 0) in (0, -_MATRIX_RANK)


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


class _RoundingKey(NamedTuple):
    """The key of rounded weights: their name, the axis of inputs, and whether they are symmetric."""

    name: str
    inputs: int
    symmetric: bool


@dataclass(eq=False)
class _ProductRewriter:
    """Writes products of a model with weights of 4 bits; those in `plain` by DequantizeLinear.

    `rounded` has the integers of weights, and takes new ones. Those behind a DequantizeLinear are always
    symmetric.
    """

    model: Model
    products: Sequence[_Product]
    block: int
    rounded: dict[_RoundingKey, WeightBlocks]
    plain: frozenset[str] = frozenset()
    symmetric: bool = False

    def __post_init__(self) -> None:
        """Find the nodes that take rows of what is multiplied with."""
        self.lookups, self.left = _find_lookups(self.model.index, self.products, self.block)

    def quantize(self) -> QuantizedWeights:
        """Return the model with these products quantized."""
        if not self.products:
            return QuantizedWeights(self.model, (), {})
        self.described: list[QuantizedWeight] = []
        self.stored: dict[tuple[_RoundingKey, bool, bool], tuple[str, ...]] = {}
        self.graph = EditableGraph.of_index(self.model.index)
        return QuantizedWeights(self._rewrite(), tuple(self.described), {})

    def make_key(self, product: _Product) -> _RoundingKey:
        """Return the key of the rounded weights of a product."""
        symmetric = self.symmetric or product.output in self.plain
        if product.table:  # which several products may read as it is, or transposed
            return _RoundingKey(product.table, 1, symmetric)
        return _RoundingKey(product.weights, product.inputs, symmetric)

    def round(self, product: _Product, moments: NDArray[np.float64] | None = None) -> WeightBlocks:
        """Return the integers of a product's weights, by moments of its inputs where they are given."""
        key = self.make_key(product)
        if moments is None and key in self.rounded:
            return self.rounded[key]
        value = read_constant(self.model.index, product.weights, self.model.folder)
        if not np.isfinite(value).all():
            raise InputError(f"{self.model.source}: '{product.weights}' is not finite everywhere")
        block = _shorten_block(self.block, product.shape[product.inputs])
        rows = value if product.inputs else value.T
        if moments is not None:
            symmetric = self.round(product).zeros is None
            return round_to_blocks(rows, block, symmetric=symmetric, moments=moments)
        self.rounded[key] = round_to_blocks(rows, block, symmetric=key.symmetric)
        return self.rounded[key]

    def _rewrite(self) -> Model:
        index, graph = self.model.index, self.graph
        waiting = dict(self.lookups)
        for product in self.products:
            graph.replace(product.number, *self._replace(product))
            for number in waiting.pop(product.table, ()):
                graph.replace(number, *self._gather(product, index.nodes[number]))
        graph.drop_unread(
            [product.weights for product in self.products],
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
        blocks = self.round(product)
        stored, scales, *zeros = self._store(product, blocks, contrib)
        operator = "MatMulNBits" if contrib else f"DequantizeLinear and {node.op_type}"
        operator += ", GatherBlockQuantized" if product.table in self.lookups else ""
        self.described.append(QuantizedWeight(product.weights, product.shape, operator, blocks.decibels))
        if contrib:
            yield _make_contrib_product(node, product, [stored, scales, *zeros], blocks.block)
            return
        made = self._make_tensor(product, "dq")
        name = self.graph.names.new_node(f"{product.weights}_DequantizeLinear")
        axis = 1 if self._has_rows(product) else product.inputs
        size = blocks.block
        yield build_node("DequantizeLinear", [stored, scales], [made], name, axis=axis, block_size=size)
        result = deepcopy(node)
        result.input[1] = made
        if axis != product.inputs:
            result.input[1] = self._make_tensor(product, "turned")
            name = self.graph.names.new_node(f"{product.weights}_Transpose")
            yield build_node("Transpose", [made], [result.input[1]], name, perm=[1, 0])
        yield result

    def _gather(self, product: _Product, node: NodeProto) -> Iterator[NodeProto]:
        """Yield the nodes for a Gather of rows of a table that a product reads."""
        contrib = product.output not in self.plain
        blocks = self.round(product)
        stored, scales, *zeros = self._store(product, blocks, contrib)
        given = [stored, *zeros]
        if contrib:  # MatMulNBits has an axis of blocks more, and its zeros in one row
            shape = self.graph.store(np.array([len(blocks.scales), -1]), f"{product.table}_rows")
            for place, name in enumerate(given):
                given[place] = self._make_tensor(product, "rows")
                made = self.graph.names.new_node(f"{product.table}_Reshape")
                yield build_node("Reshape", [name, shape], [given[place]], made)
        result = build_node(
            "GatherBlockQuantized",
            [given[0], node.input[1], scales, *given[1:]],
            list(node.output),
            node.name,
            _CONTRIB,
            doc_string=node.doc_string,
            gather_axis=0,
            quantize_axis=1,
            block_size=blocks.block,
            bits=_BITS,
        )
        result.metadata_props.extend(node.metadata_props)
        yield result

    def _make_tensor(self, product: _Product, what: str) -> str:
        return self.graph.names.new_tensor(f"{product.weights}_{what}")

    def _has_rows(self, product: _Product) -> bool:
        """Return whether weights behind a DequantizeLinear are stored with a row for each output."""
        return bool(product.inputs) or product.table in self.lookups

    def _store(self, product: _Product, blocks: WeightBlocks, contrib: bool) -> tuple[str, ...]:
        """Store integers, scales and zeros as an operator takes them, and return their names."""
        has_rows = contrib or self._has_rows(product)
        key = self.make_key(product), has_rows, contrib
        if key in self.stored:
            return self.stored[key]
        if contrib:
            numbers, scales = numpy_helper.from_array(blocks.pack()), blocks.scales
        else:
            numbers = _make_int4(blocks.center() if has_rows else blocks.center().T)
            scales = blocks.scales if has_rows else blocks.scales.T
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
