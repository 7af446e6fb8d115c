"""Nodes that no runtime executes are refused by name, and no others: onnxruntime is asked."""

import random
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.support import parse
from onnx import TensorProto, helper

from byoc.errors import InputError
from byoc.model import prepare_model

WRONG_TERMS = ("..ij,jk->ik", "i...j...,jk->ik", "i....j,jk->ik", "i1,1k->ik", "ij,jk-ik", "ij,j\tk->ik")


def _make_einsum(equation: str, ranks: Sequence[int | None], size: int = 2) -> onnx.ModelProto:
    """Return a model of one Einsum; an input without a rank comes from a Reshape by an input."""
    inputs = [f"a{number}" for number in range(len(ranks))]
    nodes, values = [], []
    for name, rank in zip(inputs, ranks, strict=True):
        if rank is None:
            nodes.append(helper.make_node("Reshape", [f"{name}_data", f"{name}_shape"], [name]))
            values.append(helper.make_tensor_value_info(f"{name}_data", TensorProto.FLOAT, [size]))
            values.append(helper.make_tensor_value_info(f"{name}_shape", TensorProto.INT64, ["r"]))
        else:
            values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [size] * rank))
    nodes.append(helper.make_node("Einsum", inputs, ["y"], "einsum", equation=equation))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", values, [output])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def _is_created(model: onnx.ModelProto) -> bool:
    """Return whether onnxruntime makes a session of a model."""
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        assert "ShapeInferenceError" in str(error)
        return False
    return True


def _refusal(model: onnx.ModelProto) -> str:
    """Return the sentence that refuses a model, empty where it is taken."""
    try:
        prepare_model(model, "m.onnx")
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("equation", "ranks", "sentence"),
    [
        ("ij,jk->ik", (2,), "its equation 'ij,jk->ik' has 2 operands for 1 input"),
        ("ij->ij", (2, 2), "its equation 'ij->ij' has 1 operand for 2 inputs"),
        ("ij,jk,->ik", (2, 2), "its equation 'ij,jk,->ik' has 3 operands for 2 inputs"),
        (
            "ijk,jk->ik",
            (2, 2),
            "its equation 'ijk,jk->ik' does not fit input 0, which has 2 dimensions, not 3 letters",
        ),
        (
            "ij,j k",
            (2, 1),
            "its equation 'ij,j k' does not fit input 1, which has 1 dimension, not 2 letters",
        ),
        (
            "...ij->...",
            (1,),
            "its equation '...ij->...' does not fit input 0, which has 1 dimension, not 2 letters",
        ),
        (
            "ij,jk->il",
            (2, 2),
            "its equation 'ij,jk->il' has 'l' in the output, which no input has",
        ),
        (
            "...i,...j->...",
            (3, 2),
            "the ellipses of its equation '...i,...j->...' stand for different dimensions: 2 of input "
            "0, 1 of input 1",
        ),
    ],
)
def test_an_einsum_that_onnxruntime_refuses(
    equation: str, ranks: tuple[int, ...], sentence: str
) -> None:
    model = _make_einsum(equation, ranks)
    assert not _is_created(model)
    assert _refusal(model) == f"m.onnx: Einsum 'einsum': {sentence}"


@pytest.mark.parametrize("equation", WRONG_TERMS)
def test_an_equation_at_which_inference_does_not_return_is_not_inferred(equation: str) -> None:
    assert "is not letters and one ellipsis" in _refusal(_make_einsum(equation, (2, 2)))


@pytest.mark.parametrize("place", ["body", "function", "passed on", "default"])
def test_equations_anywhere_are_read(place: str) -> None:
    wrong = '"..ij,jk->ik"'
    einsum = f"y = Einsum<equation={wrong}>(a, a)"
    referring = "y = Einsum<equation: string = @how>(a, a)"
    head = '<ir_version: 10, opset_import: ["" : 17, "f" : 1]>'
    main = "g (float[2, 2] a, bool c) => (float[2, 2] y)"
    functions = {
        "function": f'<domain: "f", opset_import: ["" : 17]> F (a) => (y) {{ {einsum} }}',
        "passed on": '<domain: "f", opset_import: ["" : 17, "f" : 1]> F <say> (a) => (y) '
        '{ y = f.G<how: string = @say>(a) } <domain: "f", opset_import: ["" : 17]> G <how> (a) => (y) '
        f"{{ {referring} }}",
        "default": f'<domain: "f", opset_import: ["" : 17]> F <how: string = {wrong}> (a) => (y) '
        f"{{ {referring} }}",
    }
    bodies = {
        "body": "y = If (c) <then_branch = t () => (float[2, 2] z) "
        f"{{ z = Einsum<equation={wrong}>(a, a) }}, "
        "else_branch = e () => (float[2, 2] w) { w = Relu(a) }>",
        "passed on": f"y = f.F<say={wrong}>(a)",
    }
    body = bodies.get(place, "y = f.F(a)")
    model = onnx.parser.parse_model(f"{head} {main} {{ {body} }} {functions.get(place, '')}")
    refusal = _refusal(model)
    assert refusal.startswith("m.onnx: ")
    problem = "the operand '..ij' of its equation '..ij,jk->ik' is not letters and one ellipsis"
    assert refusal.endswith(problem)


@pytest.mark.parametrize(
    ("equation", "ranks"),
    [
        *(("ij,jk->ik", (2, 2)), ("i j , j k -> i k", (2, 2)), ("ij,jk", (2, 2)), ("ii->i", (2,))),
        *(("iJ,Jk->ik", (2, 2)), ("->", (0,)), ("", (0,)), (",->", (0, 0)), ("i,->i", (1, 0))),
        *(("...ij,jk->...ik", (2, 2)), ("...ij,...jk->...ik", (3, 3)), ("ij...->ij", (2,))),
        *(("ij,jk->...ik", (2, 2)), ("...", (2,)), ("i...j", (3,)), ("ij->ij...", (2,)), ("ij->", (2,))),
        *(("ij,jk->ik", (None, 2)), ("ijk,jk->ik", (None, None)), ("...i,...->i", (None, 1))),
    ],
)
def test_what_onnxruntime_takes_is_taken(equation: str, ranks: tuple[int | None, ...]) -> None:
    model = _make_einsum(equation, ranks)
    assert _is_created(model)
    assert _refusal(model) == ""


def test_random_equations_are_judged_as_onnxruntime_judges_them() -> None:
    chosen = random.Random(7)
    found = {True: 0, False: 0}
    for _ in range(300):
        count = chosen.randint(1, 3)
        terms = ["".join(chosen.choices("ijk", k=chosen.randint(0, 3))) for _ in range(count)]
        for number in range(count):
            if chosen.random() < 0.3:
                at = chosen.randint(0, len(terms[number]))
                terms[number] = terms[number][:at] + "..." + terms[number][at:]
        ranks = [
            len(term.replace("...", "")) + (chosen.randint(0, 1) if "..." in term else 0)
            for term in terms
        ]
        equation = ",".join(terms)
        if chosen.random() < 0.7:
            letters = sorted(set(equation) - {",", "."})
            equation += "->" + "".join(chosen.sample(letters, chosen.randint(0, len(letters))))
        fault = chosen.choice(["", "", "rank", "label", "operand"])
        if fault == "rank":
            ranks[chosen.randrange(count)] += 1
        if fault == "label":
            equation = equation.partition("->")[0] + "->z"
        if fault == "operand":
            ranks.append(1)
        if not equation.partition("->")[0]:
            continue  # onnxruntime creates it whatever the rank, and it does not run
        model = _make_einsum(equation, ranks)
        created = _is_created(model)
        assert (_refusal(model) == "") == created, (equation, ranks)
        found[created] += 1
    assert min(found.values()) > 50


GROUPED = {
    "Conv": "g (float[1, 4, 5, 5] x, float[4, 4, 3, 3] w) => (float y) { y = Conv<group=G>(x, w) }",
    "ConvTranspose": "g (float[1, 4, 5, 5] x, float[4, 4, 3, 3] w) => (float y) "
    "{ y = ConvTranspose<group=G>(x, w) }",
    "ConvInteger": "g (uint8[1, 4, 5, 5] x, uint8[4, 4, 3, 3] w) => (int32 y) "
    "{ y = ConvInteger<group=G>(x, w) }",
    "DeformConv": "g (float[1, 4, 5, 5] x, float[4, 4, 3, 3] w, float[1, 18, 3, 3] o) => (float y) "
    "{ y = DeformConv<group=G>(x, w, o) }",
}


def _make_grouped(op: str, group: int) -> onnx.ModelProto:
    model = parse(GROUPED[op].replace("G", str(group)), opset=19)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("op", GROUPED)
def test_a_convolution_of_no_groups(op: str) -> None:
    wrong, right = _make_grouped(op, 0), _make_grouped(op, 1)
    assert _refusal(right) == ""
    assert _refusal(wrong) == f"m.onnx: {op} 'y': its group is 0, and has to be at least 1"
    sizes = {"x": (1, 4, 5, 5), "w": (4, 4, 3, 3), "o": (1, 18, 3, 3)}
    dtype = np.uint8 if op == "ConvInteger" else np.float32
    inputs = {value.name: np.ones(sizes[value.name], dtype) for value in right.graph.input}
    assert onnxruntime.InferenceSession(right.SerializeToString()).run(None, inputs)
    with pytest.raises(Exception, match=r"group"):
        onnxruntime.InferenceSession(wrong.SerializeToString()).run(None, inputs)
