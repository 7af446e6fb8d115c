"""Every kind of constraint accepts and refuses, with its exact sentence."""

from typing import Any

import pytest
import yaml
from helpers.ruling import marks, rules, verdict
from helpers.support import parse, prepared
from onnx import helper

from byoc.model import GraphIndex, prepare_model
from byoc.patterns import Mark
from byoc.rules import annotate_graph

CONV = """
g (float[1,4,9,9] x) => (float[1,4,7,5] y) <float[4,2,3,5] w, float[4] b> {
  y = Conv <group = 2, strides = [1, 1]> (x, w, b)
}
"""
RELU = "g (float[2] x) => (float[2] y) { y = Relu (x) }"


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ("attributes: {kernel_shape: {each: {min: 3, max: 5}}}", "yes"),
        (
            "attributes: {kernel_shape: {each: {min: 4, max: 4}}}",
            "Conv: kernel_shape[0] is 3, at least 4 is supported",
        ),
        ("attributes: {kernel_shape: {each: {one_of: [3, 5]}}}", "yes"),
        (
            "attributes: {kernel_shape: {each: {one_of: [1, 3]}}}",
            "Conv: kernel_shape[1] is 5; supported: 1, 3",
        ),
        ("attributes: {kernel_shape: {length: 2}}", "yes"),
        ("attributes: {pads: {length: [2, 6]}}", "Conv: pads has 4 elements; supported: 2, 6"),
        ("attributes: {group: {min: 1, max: 2}}", "yes"),
        ("attributes: {group: {max: 1}}", "Conv: group is 2, at most 1 is supported"),
        ("attributes: {group: {min: 2.5}}", "Conv: group is 2, at least 2.5 is supported"),
        ("attributes: {group: {one_of: [1, 4]}}", "Conv: group is 2; supported: 1, 4"),
        ("attributes: {auto_pad: {one_of: [NOTSET, VALID]}}", "yes"),
        ("attributes: {auto_pad: {one_of: VALID}}", "Conv: auto_pad is NOTSET; supported: VALID"),
        ("attributes: {dilations: {absent: true}}", "Conv: dilations must be absent"),
        ("attributes: {dilations: {absent: false}}", "yes"),
        ("tensors: {X: {rank: 4}, W: {constant: true}, B: {constant: true}}", "yes"),
        ("tensors: {X: {rank: [3, 5]}}", "Conv: X has rank 4; supported: 3, 5"),
        ("tensors: {X: {constant: true}}", "Conv: X must be a constant"),
        ("tensors: {W: {constant: false}}", "Conv: W must not be a constant"),
        ("tensors: {B: {absent: true}}", "Conv: B is given, but must be absent"),
        ("tensors: {B: {absent: false}}", "yes"),
        ("tensors: {Y: {dtype: float32, rank: 4}}", "yes"),
        ("tensors: {Y: {dtype: [float16, float64]}}", "Conv: Y is float32; supported: float16, float64"),
        ("dtype: [float16, float32]", "yes"),
        (
            "dtype: float16",
            "Conv: X is float32; supported: float16; W is float32; supported: float16; "
            "B is float32; supported: float16; Y is float32; supported: float16",
        ),
        ("opset: {min: 11, max: 17}", "yes"),
        ("opset: {min: 18}", "Conv: the operator set is 17, at least 18 is supported"),
        ("opset: {max: 16}", "Conv: the operator set is 17, at most 16 is supported"),
    ],
)
def test_constraints_of_a_convolution(constraint: str, says: str) -> None:
    assert verdict(CONV, f"[{{op: Conv, {constraint}}}]") == says


def test_all_objections_in_order() -> None:
    ops = """
      - op: Conv
        opset: {max: 12}
        tensors: {X: {rank: 3}, W: {constant: false}}
        attributes: {group: {one_of: 1}, strides: {each: {min: 2}}}
    """
    assert verdict(CONV, ops) == (
        "Conv: the operator set is 17, at most 12 is supported; X has rank 4; supported: 3; "
        "W must not be a constant; group is 2; supported: 1; strides[0] is 1, at least 2 is supported"
    )


def test_an_absent_input() -> None:
    text = "g (float[1,1,3,3] x) => (float[1,1,1,1] y) <float[1,1,3,3] w> { y = Conv (x, w) }"
    assert verdict(text, "[{op: Conv, tensors: {B: {absent: true}}}]") == "yes"
    assert verdict(text, "[{op: Conv, tensors: {B: {absent: false}}}]") == "Conv: B is absent"
    assert verdict(text, "[{op: Conv, tensors: {B: {constant: true, rank: 1}}}]") == "yes"
    clip = "g (float[2] x, float m) => (float[2] y) { y = Clip (x, , m) }"
    assert verdict(clip, "[{op: Clip, tensors: {min: {absent: true}, max: {absent: false}}}]") == "yes"


def test_an_attribute_without_a_default() -> None:
    text = "g (float[2,3] x) => (float[3,2] y) { y = Transpose (x) }"
    assert verdict(text, "[{op: Transpose, attributes: {perm: {absent: true}}}]") == "yes"
    assert verdict(text, "[{op: Transpose, attributes: {perm: {absent: false}}}]") == (
        "Transpose: perm must be given"
    )
    assert verdict(text, "[{op: Transpose, attributes: {perm: {each: {max: 0}, length: 9}}}]") == "yes"


def test_an_operator_that_no_rule_names() -> None:
    assert verdict(RELU, "[{op: Conv}]") == "Relu is not among the operators of dla"


def test_one_rule_for_several_operators() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Relu (x)\n y = Neg (a) }"
    assert [mark.rule for mark in marks(text, "[{op: Conv}, {op: [Neg, Relu]}]")] == ["ops[1]", "ops[1]"]


def test_any_of_several_rules_may_accept() -> None:
    ops = "[{op: Relu, dtype: int8}, {op: Neg}, {op: Relu, tensors: {X: {rank: 1}}}]"
    assert marks(RELU, ops) == [Mark(verdict=marks(RELU, ops)[0].verdict, rule="ops[2]")]
    assert verdict(RELU, ops) == "yes"


def test_the_first_rule_that_accepts_is_named() -> None:
    assert marks(RELU, "[{op: Relu, opset: {max: 17}}, {op: Relu}]")[0].rule == "ops[0]"


def test_the_nearest_of_several_rules_gives_the_reasons() -> None:
    """Three objections, one, one: the second rule is nearest."""
    ops = """
      - {op: Conv, dtype: float32, attributes: {group: {one_of: 1}, kernel_shape: {each: {max: 1}}}}
      - {op: Conv, attributes: {group: {one_of: 4}}}
      - {op: Conv, attributes: {strides: {each: {min: 1}}, dilations: {length: 3}}}
    """
    assert verdict(CONV, ops) == "Conv: group is 2; supported: 4"
    assert marks(CONV, ops)[0].rule == ""


def test_standalone() -> None:
    ops = "[{op: Relu, standalone: false}]"
    (mark,) = marks(RELU, ops)
    assert (bool(mark.verdict), mark.rule, mark.standalone) == (True, "ops[0]", False)


def test_optional_outputs_that_nothing_reads_do_not_count() -> None:
    text = (
        "g (float[1,1,4,4] x) => (float[1,1,2,2] y{}) {{ y, i = MaxPool <kernel_shape = [3, 3]> (x) }}"
    )
    ops = "[{op: MaxPool, tensors: {Indices: {absent: true}}}]"
    assert verdict(text.format(""), ops) == "yes"
    assert verdict(text.format(", int64[1,1,2,2] i"), ops) == (
        "MaxPool: Indices is given, but must be absent"
    )


def test_a_training_output_of_another_type_that_nothing_reads() -> None:
    text = "g (float[2] x) => (float[2] y) { y, mask = Dropout (x) }"
    assert verdict(text, "[{op: Dropout}]") == "yes"


def test_every_variadic_input_counts() -> None:
    text = """
        g (float[2] x, double[2] z) => (float[4] y) {
          c = Cast <to = 1> (z)
          y = Concat <axis = 0> (x, c, x)
        }"""
    assert verdict(text, "[{op: Concat, tensors: {inputs: {rank: 1}}}]") == "yes"
    refused = verdict(text, "[{op: Concat, tensors: {inputs: {rank: 2}}}]")
    assert refused == "Concat: inputs has rank 1; supported: 2"


def test_types_that_the_operator_fixes_are_not_held_to_the_target() -> None:
    """Reshape's shape is int64 in ONNX itself; only what may vary follows the file's dtype."""
    text = "g (float[2,3] x) => (float[6] y) <int64[1] s = {6}> { y = Reshape (x, s) }"
    model = prepared(text).index
    assert str(annotate_graph(model, rules("[{op: Reshape}]"))[0].verdict) == "yes"
    asked = rules("[{op: Reshape, tensors: {shape: {dtype: int64, constant: false}}}]")
    assert str(annotate_graph(model, asked)[0].verdict) == "Reshape: shape must not be a constant"


def test_dtype_of_a_tensor_over_a_rule_over_the_file() -> None:
    text = "g (float[2] x) => (int8[2] y) { y = Cast <to = 3> (x) }"
    assert verdict(text, "[{op: Cast}]") == "Cast: output is int8; supported: float32"
    assert verdict(text, "[{op: Cast, dtype: [float32, int8]}]") == "yes"
    assert verdict(text, "[{op: Cast, tensors: {output: {dtype: int8}}}]") == "yes"
    assert verdict(text, "[{op: Cast, dtype: int8, tensors: {input: {dtype: float32}}}]") == "yes"


def test_types_that_are_not_known() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Odd (x)\n y = Relu (a) }")
    model.graph.node[0].domain = "acme"
    model.opset_import.append(helper.make_opsetid("acme", 1))
    found = annotate_graph(
        prepare_model(model, "test").index, rules("[{op: Relu, tensors: {X: {rank: 1}}}]")
    )
    assert str(found[0].verdict) == "acme.Odd is not among the operators of dla"
    assert str(found[1].verdict) == (
        "the shape of 'a', which Odd 'a' makes, is not known (state it as value_info of the model)"
    )


def test_a_rank_that_is_not_known() -> None:
    text = "g (float[4] x, int64[K] s) => (float[A] y) { a = Reshape (x, s)\n y = Relu (a) }"
    wanted = "the shape of 'a', which Reshape 'a' makes, is not known"
    assert verdict(text, "[{op: Relu, tensors: {X: {rank: 1}}}]").startswith(wanted)
    assert verdict(text, "[{op: Relu, tensors: {Y: {rank: 1}}}]") == "yes"
    assert verdict(text, "[{op: Relu}]") == "yes"


def test_operators_of_other_domains_of_onnx() -> None:
    model = parse("g (float[1,2] x) => (float[1,2] y) { y = Normalizer (x) }")
    model.graph.node[0].domain = "ai.onnx.ml"
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    index = prepare_model(model, "test").index

    def says(ops: str) -> str:
        return str(annotate_graph(index, rules(ops))[0].verdict)

    assert says("[{op: Relu}]") == "ai.onnx.ml.Normalizer is not among the operators of dla"
    assert says("[{op: ai.onnx.ml.Normalizer, opset: {min: 3, max: 3}}]") == "yes"
    assert says("[{op: ai.onnx.ml.Normalizer, opset: {max: 2}}]") == (
        "ai.onnx.ml.Normalizer: the operator set is 3, at most 2 is supported"
    )
    assert says("[{op: ai.onnx.ml.Normalizer, attributes: {norm: {one_of: L2}}}]") == (
        "ai.onnx.ml.Normalizer: norm is MAX; supported: L2"
    )


def test_an_operator_without_a_schema() -> None:
    """A rule may name what only a newer operator set has: in this model it is the user's function."""
    model = parse("g (float[2] x) => (float[2] y) { y = Gelu (x) }", opset=17)
    body = [helper.make_node("Relu", ["a"], ["b"])]
    model.functions.append(helper.make_function("", "Gelu", ["a"], ["b"], body, model.opset_import))
    (mark,) = annotate_graph(GraphIndex.of_model(model), rules("[{op: Gelu}]"))
    assert str(mark.verdict) == "Gelu has no operator schema in ONNX to check it against"


def test_what_nothing_reads_stays_on_the_host() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Relu (x)\n y = Relu (x) }"
    assert [str(mark.verdict) for mark in marks(text, "[{op: Relu}]")] == [
        "nothing reads what Relu makes",
        "yes",
    ]


@pytest.mark.parametrize("alpha", ["0.1", "1e-5", "0.01"])
def test_floats_as_they_are_written(alpha: str) -> None:
    """A float32 in the model, a float64 in the file; 1e-5 is a number in YAML 1.2."""
    text = f"g (float[2] x) => (float[2] y) {{ y = LeakyRelu <alpha = {alpha}> (x) }}"
    low_and_high = {"min": float(alpha), "max": float(alpha), "one_of": [float(alpha)]}
    ops: list[dict[str, Any]] = [{"op": "LeakyRelu", "attributes": {"alpha": low_and_high}}]
    assert verdict(text, yaml.safe_dump(ops)) == "yes"
    assert verdict(text, "[{op: LeakyRelu, attributes: {alpha: {one_of: 0.25}}}]") == (
        f"LeakyRelu: alpha is {float(alpha)}; supported: 0.25"
    )


def test_an_attribute_that_was_text_once() -> None:
    text = 'g (float[2] x) => (double[2] y) { y = Cast <to = "DOUBLE"> (x) }'
    ops = "[{op: Cast, dtype: [float32, float64], attributes: {to: {min: 1, max: 11}}}]"
    assert verdict(text, ops, opset=1) == "Cast: to is DOUBLE, not a number"
    assert verdict(text.replace('"DOUBLE"', "11"), ops, opset=17) == "yes"


def test_there_is_a_mark_for_every_node() -> None:
    text = (
        "g (float[2] x) => (float[2] y) { k = Constant <value_floats = [1.0, 2.0]> ()\n y = Add (x, k) }"
    )
    found = marks(text, "[{op: Add, tensors: {B: {constant: true}}}]")
    assert [str(mark.verdict) for mark in found] == ["Constant is not among the operators of dla", "yes"]
