"""Quantization of weights alone: those of matrix products to few bits, with a scale for each block.

Activations stay as they are, so no data is needed; where there is some, weights are rounded by what they
are multiplied with. A product becomes com.microsoft's MatMulNBits where
a target's rules take that, or where it stays on the host; else it reads a DequantizeLinear of blocks,
which any target has whose compiler unpacks constants.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass, field, replace
from byoc.errors import InputError
from byoc.model import (
    EditableGraph,
    GraphIndex,
    Model,
    build_node,
    copy_without,
    drop_named,
    prepare_model,
)
from byoc.planning import QuantizedWeight
from byoc.quantization._prepare_model import SIXTEEN_BITS, upgrade_ir, upgrade_opset
from byoc.quantization._weight_blocks import WeightBlocks, round_to_blocks
from byoc.quantization._weight_rounding import WeightedNode
from byoc.quantization._weight_samples import (
    BitChoice,
    InputMoments,
    ReplaceableWeights,
    RoundedModel,
    Samples,
    WeightOption,
    choose_options,
    measure_output_noise,
    sum_moments,
)
from byoc.quantization._weights import (
    CONTRIB,
    WeightProduct,
    find_lookups,
    find_products,
    get_bias,
    read_constant,
    shorten_block,
)
from byoc.rules import Annotator, Target
from byoc.samples import model_samples
from byoc.support import report_step

_BITS = 4  # of a stored weight, unless another number is chosen
_TABLE_BITS = 8  # of a table that Gather reads as well: what it gives is what all layers read
_BIAS = 5  # the input of MatMulNBits that is added
_NOISE_SAMPLES = 8  # on which the noise of each tensor of weights is measured
_MAX_INPUTS = 8192
"""Products that sum up more are rounded without moments, which would take over half a gibibyte."""


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """A model whose matrix products have weights in blocks; `left` says why others have not, by name.

    `without_data` are the names of those that were rounded without the samples that were given, `choice`
    says what a budget of bits was spent on, empty without one.
    """

    model: Model
    weights: tuple[QuantizedWeight, ...]
    left: Mapping[str, str]
    without_data: tuple[str, ...] = ()
    choice: str = ""


def quantize_weights(
    model: Model,
    targets: Sequence[Target],
    block: int,
    samples: Samples = (),
    most_bits: float | None = None,
) -> QuantizedWeights:
    """Return a model whose MatMul and Gemm nodes have weights of 4 bits in blocks.

    With `samples` the errors of products on them are made small, else those of the weights. A table that
    Gather reads as well is one tensor of 8 bits for both, where its blocks are along its rows. With
    `most_bits` tensors have 2, 4 or 8 bits or stay as they are, so that a weight of all takes at most so
    many on average, scales and zeros included, and outputs have the least noise.

    Left as they are: those in bodies, those of other types than float32 and float16, small ones, and
    those that need DequantizeLinear where the model cannot be of an operator set with blocks (21).
    Raises InputError for weights that are not finite, samples that the model does not run with, and
    fewer bits than are possible.
    """
    products, left = find_products(model.index)
    if products:  # before IR 4 every initializer is an input, and integers and scales are none
        model = upgrade_ir(model)
    rewriter = _choose_forms(model, products, left, targets, block)
    choice = ""
    if most_bits is not None and rewriter.products:
        rewriter, choice = _choose_bits(rewriter, targets, samples, most_bits)
    without_data: tuple[str, ...] = ()
    if samples and rewriter.products:
        rounded = _round_on_samples(rewriter, samples)
        without_data = tuple(key.name for key in rewriter.readers if key not in rounded)
        rewriter = replace(rewriter, rounded=rewriter.rounded | rounded)
    left = {name: why for name, why in left.items() if name not in rewriter.lookups}
    left |= rewriter.left
    return replace(rewriter.quantize(), left=left, without_data=without_data, choice=choice)


def _choose_bits(
    rewriter: "_ProductRewriter", targets: Sequence[Target], samples: Samples, most: float
) -> "tuple[_ProductRewriter, str]":
    """Return products with the bits of least noise within a budget, and what was chosen, in words.

    Only such bits are chosen with which targets take each product that they take else. Behind a
    DequantizeLinear, and of tables, there are 4 and 8: no compiler takes its int2. Noise is measured on
    samples, each tensor in 4 bits alone, and else the share of the squared weights that is lost.
    """
    usual = _find_taken(rewriter.quantize().model.index, targets)
    names = {key.name for key in rewriter.readers}
    options: dict[str, list[WeightOption]] = {name: [] for name in names}
    shares = {}
    for bits in (2, 4, 8):
        other = replace(rewriter, bits=dict.fromkeys(names, bits))
        lost = usual - _find_taken(other.quantize().model.index, targets)
        for key, read in other.readers.items():
            made = other.round(read[0])
            shares[key.name, bits] = made.error / made.squares if made.squares else 0.0
            is_narrow = bits < _BITS and (
                key.name in other.lookups or any(each.output in other.plain for each in read)
            )
            if not is_narrow and not any(each.output in lost for each in read):
                options[key.name].append(WeightOption(bits, made.nbytes, shares[key.name, bits]))
    scale = _measure_noise(replace(rewriter, bits=dict.fromkeys(names, _BITS)), samples[:_NOISE_SAMPLES])
    elements = 0
    for name, found in options.items():
        unit = scale[name] / shares[name, _BITS] if shares[name, _BITS] else 0.0
        found[:] = [each._replace(noise=each.noise * unit) for each in found]
        stored = read_constant(rewriter.model.index, name, rewriter.model.folder)
        found.append(WeightOption(8 * stored.itemsize, stored.nbytes, 0.0))
        elements += stored.size
    chosen = choose_options(list(options.values()), int(most * elements / 8))
    if chosen is None:
        least = 8 * sum(min(each.nbytes for each in found) for found in options.values()) / elements
        raise InputError(
            f"{rewriter.model.source}: --weight-bits {most:g}: with blocks of {rewriter.block} and the "
            f"forms that targets take weights need {least:.3f} bits on average"
        )
    return _apply(rewriter, dict(zip(options, chosen.options, strict=True)), chosen, elements)


def _apply(
    rewriter: "_ProductRewriter",
    options: Mapping[str, WeightOption],
    chosen: BitChoice,
    elements: int,
) -> "tuple[_ProductRewriter, str]":
    """Return products with bits as chosen, those left out that stay as they are, and that in words."""
    in_float = {name for name, option in options.items() if option.bits > _TABLE_BITS}
    kept = [each for key, read in rewriter.readers.items() if key.name not in in_float for each in read]
    counts = Counter(option.bits for option in options.values())
    used = ", ".join(f"{count} of {bits} bits" for bits, count in sorted(counts.items()))
    over = chosen.noise / chosen.bound - 1 if chosen.bound > 0 else 0.0
    words = (
        f"weights take {8 * chosen.nbytes / elements:.3f} bits on average: {used}; "
        f"no other choice has less expected noise by over {over:.1%}"
    )
    bits = {name: option.bits for name, option in options.items()}
    return replace(rewriter, products=sorted(kept, key=lambda each: each.number), bits=bits), words


def _measure_noise(rewriter: "_ProductRewriter", samples: Samples) -> dict[str, float]:
    """Return the noise that each tensor of weights makes, by name, as measured on samples.

    Without samples it is the lost share of the squared weights, once for each node that reads them.
    """
    readers = rewriter.readers
    if not samples:
        found = {}
        for key, read in readers.items():
            made, places = rewriter.round(read[0]), len(read) + len(rewriter.lookups.get(key.name, ()))
            found[key.name] = places * made.error / made.squares if made.squares else 0.0
        return found
    values = {key: rewriter.round(read[0]).restore() for key, read in readers.items()}
    turned = {key: value if key.inputs else value.T for key, value in values.items()}
    weights = rewriter.list_replaceable(readers)
    measured = measure_output_noise(rewriter.model, weights, turned, samples)
    return {key.name: noise for key, noise in measured.items()}


def _choose_forms(
    model: Model,
    products: Sequence["WeightProduct"],
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
    again, _ = find_products(raised.index)
    return replace(rewriter, model=raised, products=again, plain=frozenset(plain))


def _round_on_samples(
    rewriter: "_ProductRewriter", samples: Samples
) -> "dict[_RoundingKey, WeightBlocks]":
    """Return the weights of products by the moments of their inputs, where these can be measured.

    Tables that Gather reads come first, then products in the order of the model, those that read the
    same at once, each on what the weights before make of its inputs. Weights of several products are
    rounded by the sum of their moments. They have zeros where they have them without moments. Left out
    are those whose inputs are 0 in all samples, finite in none, or so large that their squares are
    beyond float32.
    """
    nodes = rewriter.model.index.nodes
    steps: dict[tuple[bool, tuple[str, ...]], list[_RoundingKey]] = {}
    weighted: dict[_RoundingKey, list[WeightedNode]] = {}
    for key, read in rewriter.readers.items():
        found = [WeightedNode(nodes[each.number], each.shape) for each in read]
        if found[0].inputs <= _MAX_INPUTS and all(each.can_be_patched for each in found):
            weighted[key] = found
            names = tuple(each.node.input[0] for each in found)
            steps.setdefault((key.name not in rewriter.lookups, names), []).append(key)
    rounded = RoundedModel(rewriter.model, rewriter.list_replaceable(weighted), samples)
    done: dict[_RoundingKey, WeightBlocks] = {}
    for (is_product, names), keys in sorted(steps.items(), key=lambda step: step[0][0]):
        report_step(f"round {keys[0].name}")
        numbers = [each.number for each in rewriter.readers[keys[0]]]
        runs = rounded.run(names, min(numbers) if is_product else 0, max(numbers))
        moments = sum_moments(weighted[keys[0]], runs)
        if not moments.is_measured:
            continue
        for key in keys:
            done[key] = rewriter.round(rewriter.readers[key][0], moments)
            value = done[key].restore()
            rounded.replace(key, value if key.inputs else value.T)
    return done


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
    """The key of rounded weights: name, axis of inputs, whether they are symmetric, bits of integers."""

    name: str
    inputs: int
    symmetric: bool
    bits: int


@dataclass(eq=False)
class _ProductRewriter:
    """Writes products of a model with weights in blocks; those in `plain` by DequantizeLinear.

    `rounded` has the integers of weights, and takes new ones. Those behind a DequantizeLinear are always
    symmetric. `bits` are those of weights by name; of others they are 8 where Gather reads them, else 4.
    """

    model: Model
    products: Sequence[WeightProduct]
    block: int
    rounded: dict[_RoundingKey, WeightBlocks]
    plain: frozenset[str] = frozenset()
    symmetric: bool = False
    bits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the nodes that take rows of what is multiplied with."""
        self.lookups, self.left = find_lookups(self.model.index, self.products, self.block)

    def quantize(self) -> QuantizedWeights:
        """Return the model with these products quantized."""
        if not self.products:
            return QuantizedWeights(self.model, (), {})
        self.described: list[QuantizedWeight] = []
        self.stored: dict[tuple[_RoundingKey, bool, bool], tuple[str, ...]] = {}
        self.graph = EditableGraph.of_index(self.model.index)
        return QuantizedWeights(self._rewrite(), tuple(self.described), {})

    @cached_property
    def readers(self) -> "dict[_RoundingKey, list[WeightProduct]]":
        """The products of each tensor of weights, in the order of the model."""
        found: dict[_RoundingKey, list[WeightProduct]] = {}
        for product in self.products:
            found.setdefault(self.make_key(product), []).append(product)
        return found

    def list_replaceable(self, keys: "Iterable[_RoundingKey]") -> "list[ReplaceableWeights]":
        """Return weights as they are read by products, and by the nodes that take rows of them."""
        nodes, found = self.model.index.nodes, []
        for key in keys:
            places = {(number, 0) for number in self.lookups.get(key.name, ())}
            for product in self.readers[key]:
                maker = self.model.index.producers.get(product.weights)
                is_turned = maker is not None and product.table in nodes[maker].input
                places.add((maker, 0) if is_turned and maker is not None else (product.number, 1))
            value = read_constant(self.model.index, key.name, self.model.folder)
            found.append(ReplaceableWeights(key, value, tuple(sorted(places))))
        return found

    def make_key(self, product: WeightProduct) -> _RoundingKey:
        """Return the key of the rounded weights of a product."""
        symmetric = self.symmetric or product.output in self.plain
        # A table may be read by several products as it is, or transposed.
        name, inputs = (product.table, 1) if product.table else (product.weights, product.inputs)
        usual = _TABLE_BITS if product.table in self.lookups else _BITS
        return _RoundingKey(name, inputs, symmetric, self.bits.get(name, usual))

    def round(self, product: WeightProduct, moments: InputMoments | None = None) -> WeightBlocks:
        """Return the integers of a product's weights, by moments of its inputs where they are given."""
        key = self.make_key(product)
        if moments is None and key in self.rounded:
            return self.rounded[key]
        value = read_constant(self.model.index, product.weights, self.model.folder)
        if not np.isfinite(value).all():
            raise InputError(f"{self.model.source}: '{product.weights}' is not finite everywhere")
        block = shorten_block(self.block, product.shape[product.inputs])
        rows = value if product.inputs else value.T
        if moments is not None:
            total = moments.total
            if key.name in self.lookups:  # who takes rows wants all features alike
                total = total + np.eye(len(total)) * np.diag(total).mean()
            else:
                rows = moments.correct(rows.astype(np.float64)).astype(rows.dtype)
            symmetric = self.round(product).zeros is None
            return round_to_blocks(rows, block, bits=key.bits, symmetric=symmetric, moments=total)
        self.rounded[key] = round_to_blocks(rows, block, bits=key.bits, symmetric=key.symmetric)
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
        if not any(each.domain == CONTRIB for each in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid(CONTRIB, 1))
        prepared = prepare_model(proto, self.model.source, self.model.folder)
        samples = partial(model_samples, self.model)
        return replace(prepared, make_samples=samples, planned=self.model.planned)

    def _replace(self, product: WeightProduct) -> Iterator[NodeProto]:
        """Yield the nodes for a product, and keep its integers and scales."""
        node = self.model.index.nodes[product.number]
        contrib = product.output not in self.plain
        blocks = self.round(product)
        stored, scales, *zeros = self._store(product, blocks, contrib)
        operator = "MatMulNBits" if contrib else f"DequantizeLinear and {node.op_type}"
        operator += ", GatherBlockQuantized" if product.table in self.lookups else ""
        described = product.weights, product.shape, operator, blocks.decibels, blocks.bits
        self.described.append(QuantizedWeight(*described))
        if contrib:
            yield _make_contrib_product(node, product, [stored, scales, *zeros], blocks)
            return
        made = self._make_tensor(product, "dq")
        name = self.graph.names.new_node(f"{product.weights}_DequantizeLinear")
        axis = 1 if self._has_rows(product) else product.inputs
        size = blocks.block
        yield build_node(
            "DequantizeLinear", [stored, scales, *zeros], [made], name, axis=axis, block_size=size
        )
        result = deepcopy(node)
        result.input[1] = made
        if axis != product.inputs:
            result.input[1] = self._make_tensor(product, "turned")
            name = self.graph.names.new_node(f"{product.weights}_Transpose")
            yield build_node("Transpose", [made], [result.input[1]], name, perm=[1, 0])
        yield result

    def _gather(self, product: WeightProduct, node: NodeProto) -> Iterator[NodeProto]:
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
            CONTRIB,
            doc_string=node.doc_string,
            gather_axis=0,
            quantize_axis=1,
            block_size=blocks.block,
            bits=blocks.bits,
        )
        result.metadata_props.extend(node.metadata_props)
        yield result

    def _make_tensor(self, product: WeightProduct, what: str) -> str:
        return self.graph.names.new_tensor(f"{product.weights}_{what}")

    def _has_rows(self, product: WeightProduct) -> bool:
        """Return whether weights behind a DequantizeLinear are stored with a row for each output."""
        return bool(product.inputs) or product.table in self.lookups

    def _store(self, product: WeightProduct, blocks: WeightBlocks, contrib: bool) -> tuple[str, ...]:
        """Store integers, scales and zeros as an operator takes them, and return their names."""
        has_rows = contrib or self._has_rows(product)
        key = self.make_key(product), has_rows, contrib
        if key in self.stored:
            return self.stored[key]
        zeros = blocks.pack_zeros()
        if contrib:
            numbers, scales = numpy_helper.from_array(blocks.pack()), blocks.scales
            zeros = None if zeros is None else zeros.reshape(-1)
        elif product.table in self.lookups and blocks.bits == _TABLE_BITS:
            # GatherBlockQuantized has no int8, and zeros of bytes are those of DequantizeLinear, too.
            numbers, scales = numpy_helper.from_array(blocks.unpack()), blocks.scales
            zeros = np.full(scales.shape, 1 << blocks.bits - 1, np.uint8)
        else:
            centered = blocks.center() if has_rows else blocks.center().T
            numbers = _make_int4(centered) if blocks.bits == _BITS else _make_int8(centered)
            scales = blocks.scales if has_rows else blocks.scales.T
        names: tuple[str, ...] = (
            self.graph.store(numbers, f"{product.weights}_Q{blocks.bits}"),
            self.graph.store(np.ascontiguousarray(scales), f"{product.weights}_scales"),
        )
        if zeros is not None:
            names += (self.graph.store(zeros, f"{product.weights}_zeros"),)
        self.stored[key] = names
        return names


def _make_contrib_product(
    node: NodeProto, product: WeightProduct, weights: Sequence[str], blocks: WeightBlocks
) -> NodeProto:
    """Return the MatMulNBits that does what a node does, with integers, scales, zeros of these names."""
    inputs = [node.input[0], *weights]
    if get_bias(node):  # behind zero points and an order
        inputs += [""] * (_BIAS - len(inputs)) + [get_bias(node)]
    result = build_node(
        "MatMulNBits",
        inputs,
        list(node.output),
        node.name,
        CONTRIB,
        doc_string=node.doc_string,
        K=product.shape[product.inputs],
        N=product.shape[1 - product.inputs],
        bits=blocks.bits,
        block_size=blocks.block,
    )
    result.metadata_props.extend(node.metadata_props)
    return result


def _make_int8(values: NDArray[np.int8]) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(values))


def _make_int4(values: NDArray[np.int8]) -> TensorProto:
    """Return integers of 4 bits as ONNX stores them: the earlier of two in the lower half of a byte."""
    flat = np.zeros(-(-values.size // 2) * 2, np.uint8)
    flat[: values.size] = np.ascontiguousarray(values).reshape(-1).view(np.uint8) & 0xF
    packed = flat[::2] | (flat[1::2] << 4)
    return TensorProto(data_type=TensorProto.INT4, dims=values.shape, raw_data=packed.tobytes())
