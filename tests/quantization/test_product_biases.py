"""Products join their biases: the same numbers, in every form that can be joined, and no other."""

import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper
from onnx.helper import make_node
from onnx.reference import ReferenceEvaluator
from quantizing import target

from byoc.model import Model, prepare_model
from byoc.quantization._biases import join_biases
from byoc.quantization._calibrators import Ranges
from byoc.quantization._quantize_model import prepare_floats

SHAPE = [2, 3, 8]


def build(*nodes: NodeProto, shape: list[int] | None = None, outputs: tuple[str, ...] = ("y",)) -> Model:
    draw = np.random.default_rng(3).standard_normal
    stored = {"w": draw((8, 5)), "v": draw((8, 5)), "b": draw(5), "row": draw((1, 1, 5))}
    stored |= {
        "heads": np.asarray([2, 3, 5, 1]),
        "back": np.asarray(SHAPE),
        "flat": np.asarray([3, 2, 5]),
        "copies": np.asarray([0, 3, 5, 1]),
        "u": draw((5, 4)),
        "c": draw(4),
    }
    stored |= {"number": draw(1), "grid": draw((3, 5)), "stack": draw((2, 8, 5))}
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", 1, shape or SHAPE)],
        [helper.make_tensor_value_info(name, 1, None) for name in outputs],
        [
            numpy_helper.from_array(value if value.dtype.kind == "i" else value.astype(np.float32), name)
            for name, value in stored.items()
            if name in used
        ],
    )
    imports = [helper.make_opsetid("", 20)]
    return prepare_model(helper.make_model(graph, opset_imports=imports, ir_version=9), "m.onnx", None)


def linear(
    bias: str, made: str = "y", weights: str = "w", read: str = "x", *, first: bool = True
) -> list[NodeProto]:
    sums = f"{made}_sums"
    operands = [sums, bias] if first else [bias, sums]
    return [make_node("MatMul", [read, weights], [sums]), make_node("Add", operands, [made])]


def count(model: Model, operator: str) -> int:
    return sum(node.op_type == operator for node in model.index.nodes)


JOINED = {
    "bias behind": build(*linear("b")),
    "bias before": build(*linear("b", first=False)),
    "bias of three dimensions": build(*linear("row")),
    "matrix": build(*linear("b"), shape=[6, 8]),
    "four dimensions": build(*linear("b"), shape=[2, 2, 3, 8]),
    "function": build(*linear("b", "s"), make_node("Gelu", ["s"], ["y"])),
    "function and another reader": build(
        *linear("b", "s"), make_node("Relu", ["s"], ["r"]), make_node("Add", ["r", "s"], ["y"])
    ),
    "two products of one tensor": build(
        *linear("b", "p"), *linear("row", "q", "v"), make_node("Mul", ["p", "q"], ["y"])
    ),
    "view behind": build(*linear("b", "s"), make_node("Reshape", ["s", "heads"], ["y"])),
    "view that copies an extent": build(*linear("b", "s"), make_node("Reshape", ["s", "copies"], ["y"])),
    "view before": build(
        make_node("Reshape", ["x", "back"], ["z"]), *linear("b", read="z"), shape=[6, 8]
    ),
    "view before that another reads": build(
        make_node("Reshape", ["x", "back"], ["z"]),
        *linear("b", read="z"),
        make_node("Relu", ["z"], ["v"]),
        shape=[6, 8],
        outputs=("y", "v"),
    ),
    "products in a row": build(
        *linear("b", "s"),
        make_node("Gelu", ["s"], ["g"]),
        make_node("MatMul", ["g", "u"], ["p"]),
        make_node("Add", ["p", "c"], ["y"]),
    ),
    "products with a view between": build(
        *linear("b", "s"),
        make_node("Reshape", ["s", "flat"], ["f"]),
        make_node("MatMul", ["f", "u"], ["p"]),
        make_node("Add", ["p", "c"], ["y"]),
    ),
    "sum that is an output as well": build(
        *linear("b", "s"), make_node("Relu", ["s"], ["y"]), outputs=("s", "y")
    ),
}
LEFT = {
    "one number": build(*linear("number")),
    "numbers for rows": build(*linear("grid")),
    "weights of three dimensions": build(*linear("b", weights="stack")),
    "product that is an output": build(*linear("b"), outputs=("y", "y_sums")),
    "product read twice": build(*linear("b", "s"), make_node("Mul", ["s", "s_sums"], ["y"])),
    "vector": build(*linear("b"), shape=[8]),
}


@pytest.mark.parametrize("name", JOINED)
def test_joined_products_compute_the_same(name: str) -> None:
    model = JOINED[name]
    joined = join_biases(model)
    assert count(joined, "Gemm") == count(model, "MatMul")
    assert not count(joined, "MatMul")
    assert joined.index.get_shape("y") == model.index.get_shape("y")
    shape = model.index.get_shape("x")
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    one, other = (ReferenceEvaluator(each.proto).run(None, {"x": x}) for each in (model, joined))
    for expected, actual in zip(one, other, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LEFT)
def test_other_products_are_left(name: str) -> None:
    assert join_biases(LEFT[name]) is LEFT[name]


def test_products_that_share_an_input_share_its_view() -> None:
    assert count(join_biases(JOINED["two products of one tensor"]), "Reshape") == 3


@pytest.mark.parametrize(
    ("name", "views"), [("view behind", 2), ("view before", 2), ("products in a row", 2)]
)
def test_no_view_stands_behind_another(name: str, views: int) -> None:
    assert count(join_biases(JOINED[name]), "Reshape") == views


def test_ranges_that_are_given_keep_their_tensors() -> None:
    model = JOINED["function"]
    assert count(prepare_floats(model, [target()]), "Gemm") == 1
    given = prepare_floats(model, [target()], None, Ranges("minmax", 1, "data", {}))
    assert count(given, "MatMul") == 1
