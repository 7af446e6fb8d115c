"""The matrix products of a model whose weights are quantized, and what else reads these weights."""

from collections.abc import Sequence

from onnx import NodeProto, TensorProto

from byoc._dataclasses import dataclass
from byoc.model import DTYPE_NUMBERS, GraphIndex, get_stated_attributes, is_large, is_onnx
from byoc.model.schemas import get_schema
from byoc.quantization._precision import LEAST_BLOCK

_FLOATS = ("float32", "float16")
MATRIX_RANK = 2  # of the weights of MatMulNBits
CONTRIB = "com.microsoft"


def shorten_block(block: int, inputs: int) -> int:
    """Return the shortest block that holds all inputs, where that is shorter."""
    return min(block, max(LEAST_BLOCK, 1 << (inputs - 1).bit_length()))


@dataclass(frozen=True)
class WeightProduct:
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


def find_products(index: GraphIndex) -> tuple[list[WeightProduct], dict[str, str]]:
    """Return the products to quantize, and why other large matrices are left, by their names."""
    products = []
    left: dict[str, str] = {}
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes:
            continue
        verdict = _read_product(index, number, node)
        if isinstance(verdict, WeightProduct):
            products.append(verdict)
            continue
        for name in index.reads[number]:
            stored = index.stored_tensors.get(name)
            if stored is not None and is_large(stored) and len(stored.dims) >= MATRIX_RANK:
                left.setdefault(name, verdict)
    taken = {product.weights for product in products}
    return products, {name: reason for name, reason in left.items() if name not in taken}


def _read_product(index: GraphIndex, number: int, node: NodeProto) -> WeightProduct | str:
    """Return a node as a product by large constant weights, or why it is none."""
    what = node.op_type
    if not is_onnx(node) or what not in ("MatMul", "Gemm"):
        return f"read by {what}, not by MatMul or Gemm"
    name = node.input[1]
    kind = index.types.get(name)
    if not index.is_constant(name):
        return f"not the second operand of {what}"
    if kind is None or kind.shape is None or len(kind.shape) != MATRIX_RANK:
        return f"no matrix, but read by {what}"
    if kind.dtype not in _FLOATS:
        return f"of {kind.dtype}"
    shape = tuple(extent for extent in kind.shape if isinstance(extent, int))
    if len(shape) < MATRIX_RANK or not _is_large_matrix(shape, kind.dtype):
        return "at most 1 KiB"
    attributes = get_stated_attributes(node)
    inputs = 1 if attributes.get("transB", 0) else 0
    fits = _fits_contrib(index, node, shape[1 - inputs])
    table = _find_table(index, name, inputs)
    return WeightProduct(number, node.output[0], name, shape, inputs, fits, table)


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


def find_lookups(
    index: GraphIndex, products: Sequence[WeightProduct], block: int
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the nodes that take rows of tables of products, by their names, and why others are left."""
    schema = get_schema("GatherBlockQuantized", CONTRIB, 1)
    found: dict[str, list[int]] = {}
    left = {}
    for table, product in ((each.table, each) for each in products if each.table):
        inputs = product.shape[product.inputs]
        size = shorten_block(block, inputs)
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
    return is_gather and get_stated_attributes(node).get("axis", 0) in (0, -MATRIX_RANK)


def _is_large_matrix(shape: Sequence[int], dtype: str) -> bool:
    return is_large(TensorProto(data_type=DTYPE_NUMBERS[dtype], dims=shape))


def _fits_contrib(index: GraphIndex, node: NodeProto, outputs: int) -> bool:
    """Return whether MatMulNBits can do what a MatMul or Gemm does."""
    if index.get_rank(node.input[0]) == 1:
        return False
    if node.op_type == "MatMul":
        return True
    attributes = get_stated_attributes(node)
    bias = get_bias(node)
    scales = [attributes.get("alpha", 1.0), attributes.get("beta", 1.0) if bias else 1.0]
    shape = index.get_shape(bias) if bias else (outputs,)
    return scales == [1.0, 1.0] and not attributes.get("transA", 0) and shape == (outputs,)


def get_bias(node: NodeProto) -> str:
    """Return the name of what a Gemm adds to its product, empty where it adds nothing."""
    _, _, *added = node.input
    return added[0] if added else ""
