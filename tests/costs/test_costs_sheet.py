"""Whole models against a formula sheet of its own, written from the operators' documentation.

It has the operators that make up networks; whatever it lacks counts as one operation an element, which
must not matter: the sums agree within 1 %.
"""

from collections.abc import Callable
from math import prod

import onnx
import pytest
from helpers.support import LIGHT
from onnx import NodeProto

from byoc.costs import build_tasks
from byoc.model import prepare_model
from byoc.zoo import load_model, load_structure

EXPORTED = (
    *("bert", "convnext_tiny", "detr", "efficientnet_b0", "gpt2", "mobilenet_v3_large"),
    *("segformer_b0", "t5", "vit_tiny"),
)
DECODERS = ("decoder_int4", "decoder_fp16")

# Operations for each element of the output: function names are what the documentation's formulas apply.
ELEMENTWISE = {
    "Sigmoid": 4,  # 1 / (1 + exp(-x))
    "HardSigmoid": 4,  # max(0, min(1, alpha * x + beta))
    "HardSwish": 5,
    "Clip": 2,
    "Softmax": 5,  # exp(x - max) over its sum
    "LayerNormalization": 7,  # sum, difference, square, sum, quotient, scale, bias
    "BatchNormalization": 2,  # a scale and a shift
    "SimplifiedLayerNormalization": 4,  # square, sum, quotient, scale
    "SkipSimplifiedLayerNormalization": 5,
    **dict.fromkeys(("Reshape", "Transpose", "Concat", "Gather", "Unsqueeze", "Squeeze", "Slice"), 0),
    **dict.fromkeys(("Cast", "Shape", "Expand", "Split", "Flatten", "Dropout", "Identity", "Pad"), 0),
}


def count_by_hand(sizes: Callable[[str], tuple[int, ...]], node: NodeProto) -> float:  # noqa: PLR0911 - a line for each operator
    """Count a node by the documentation of its operator."""
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    y = prod(sizes(node.output[0]))
    if node.op_type == "Conv":
        m, *window = sizes(node.input[1])
        assert m == sizes(node.output[0])[1]
        return y * (2 * prod(window) + (len(node.input) > 2))
    if node.op_type in ("MatMul", "Gemm"):
        rows = sizes(node.input[0])
        inner = rows[0] if attributes.get("transA") else rows[-1]
        return y * (2 * inner + (len(node.input) > 2))
    if node.op_type == "MatMulNBits":
        return 2 * y * attributes["K"] + (y if len(node.input) > 5 and node.input[5] else 0)
    if node.op_type == "GroupQueryAttention":
        return count_group_query(node, sizes, attributes)
    if node.op_type in ("MaxPool", "AveragePool"):
        return y * prod(attributes["kernel_shape"])
    if node.op_type == "LRN":
        return y * (2 * attributes["size"] + 4)
    if node.op_type.startswith("Reduce") or node.op_type == "GlobalAveragePool":
        return prod(sizes(node.input[0]))
    if node.op_type == "Sum":
        return y * (len(node.input) - 1)
    return y * ELEMENTWISE.get(node.op_type, 1)


def count_group_query(
    node: NodeProto, sizes: Callable[[str], tuple[int, ...]], attributes: dict[str, int]
) -> float:
    """Count each pair of a query and an earlier key, and the rotation of queries and keys."""
    heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
    batch, queries, _ = sizes(node.input[0])
    past, size = sizes(node.input[3])[2:]
    total = sizes(node.output[1])[2]
    before = past - queries if past == total else past
    pairs = sum(before + query + 1 for query in range(queries))
    rotated = 3 * batch * queries * (heads + kv_heads) * size if attributes.get("do_rotary") else 0
    return batch * heads * pairs * (4 * size + 6) + rotated


@pytest.mark.parametrize("name", [*LIGHT, *EXPORTED, *DECODERS])
def test_the_sum_agrees_with_the_sheet(name: str) -> None:
    if name in LIGHT:
        index = prepare_model(load_structure(name), name).index
    else:
        index = load_model(f"zoo:{name}").index
    tasks = build_tasks(index)
    rows = [i for i in range(len(index.nodes)) if i not in index.constant_nodes]
    by_hand = sum(count_by_hand(tasks.sizes.get_shape, index.nodes[i]) for i in rows)
    assert tasks.operations[rows].sum() == pytest.approx(by_hand, rel=0.01)
    assert by_hand > 1e6
