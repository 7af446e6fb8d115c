"""Rules for operators that only onnxruntime registers: by name, linted, with indices exempt."""

import subprocess
import sys

import onnx
import pytest
import yaml
from helpers.ruling import rules
from helpers.support import parse

from byoc.model import prepare_model
from byoc.rules import annotate_graph, lint_rule_file

pytest.importorskip("onnxruntime")

DECODER = """g (float16[B,S,32] q, float16[B,S,16] k, float16[B,S,16] v, float16[B,2,P,8] pk,
  float16[B,2,P,8] pv, int32[B] n, int32 t) => (float16[B,S,32] y) {
  y, a, b = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, pk, pv, n, t)
}"""
GROUPED = "com.microsoft.GroupQueryAttention"


def says(text: str, ops: str, dtype: str = "float16", *domains: str) -> str:
    """Return what rules say of the last node of a model."""
    model = parse(text)
    for domain in ("com.microsoft", *domains):
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    marks = annotate_graph(prepare_model(model, "test").index, rules(ops, dtype))
    return str(marks[-1].verdict)


def lint(ops: str) -> list[str]:
    return lint_rule_file(
        {"target": "t", "cost_model": "dla", "dtype": "float16", "ops": yaml.safe_load(ops)}
    )


def test_inputs_and_attributes_are_constrained_by_name() -> None:
    assert says(DECODER, f"[{{op: {GROUPED}, tensors: {{past_key: {{rank: 4}}}}}}]") == "yes"
    assert says(DECODER, f"[{{op: {GROUPED}, tensors: {{past_key: {{dims: {{1: {{min: 4}}}}}}}}}}]") == (
        f"{GROUPED}: dimension 1 of past_key is 2, at least 4 is supported"
    )
    assert says(DECODER, f"[{{op: {GROUPED}, attributes: {{num_heads: {{max: 2}}}}}}]") == (
        f"{GROUPED}: num_heads is 4, at most 2 is supported"
    )
    assert says(DECODER, f"[{{op: {GROUPED}, where: 'past_key.shape[3] == 8'}}]") == "yes"


def test_defaults_are_those_of_the_schema() -> None:
    assert (
        says(DECODER, f"[{{op: {GROUPED}, attributes: {{local_window_size: {{one_of: -1}}}}}}]") == "yes"
    )


@pytest.mark.parametrize("dtype", ["float16", "[float16, int8]", "[float16, int64]"])
def test_indices_are_exempt_from_the_dtypes_of_the_file(dtype: str) -> None:
    assert says(DECODER, f"[{{op: {GROUPED}}}]", yaml.safe_load(dtype)) == "yes"
    gather = "g (float16[9,4] x, int32[2] i) => (float16[2,4] y) { y = Gather (x, i) }"
    assert says(gather, "[{op: Gather}]", yaml.safe_load(dtype)) == "yes"


def test_data_is_not_exempt() -> None:
    assert says(DECODER, f"[{{op: {GROUPED}}}]", "float32") == (
        f"{GROUPED}: query is float16; supported: float32; key is float16; supported: float32; "
        "value is float16; supported: float32; past_key is float16; supported: float32; "
        "past_value is float16; supported: float32; output is float16; supported: float32"
    )


def test_misspelt_names_are_errors() -> None:
    (operator,) = lint("[{op: com.microsoft.GroupQueryAttentoin}]")
    assert operator.startswith("ops[0].op: onnxruntime ")
    assert operator.endswith(f"'com.microsoft.GroupQueryAttentoin' (did you mean {GROUPED}?)")
    assert lint("[{op: com.microsoft.MatMulNBits, attributes: {block_sizes: {max: 32}}}]") == [
        "ops[0].attributes.block_sizes: com.microsoft.MatMulNBits has no such attribute "
        "(did you mean block_size?)"
    ]
    (tensor,) = lint(f"[{{op: {GROUPED}, tensors: {{past_keys: {{rank: 4}}}}}}]")
    assert tensor.startswith(
        f"ops[0].tensors.past_keys: {GROUPED} has no such input or output (did you mean past_key?); it "
        "has query, key, value, past_key, past_value, seqlens_k, "
    )
    assert lint("[{op: com.acme.Anything}]") == []


def test_an_input_that_only_later_versions_have_may_be_absent() -> None:
    assert lint(f"[{{op: {GROUPED}, tensors: {{of_tomorrow: {{absent: true}}}}}}]") == []
    for constraint in ("past_keys: {absent: true}", "of_tomorrow: {rank: 4}"):
        (problem,) = lint(f"[{{op: {GROUPED}, tensors: {{{constraint}}}}}]")
        assert "has no such input or output" in problem
    (problem,) = lint("[{op: Relu, tensors: {of_tomorrow: {absent: true}}}]")
    assert "has no such input or output" in problem


def test_a_dimension_of_open_size_meets_what_holds_for_all_sizes() -> None:
    text = "g (float16[N,4] x) => (float16[L,4] y) { c = Concat <axis = 0> (x, x)\n y = Relu (c) }"

    def judge(dims: str) -> str:
        return says(text, f"[{{op: Relu, tensors: {{X: {{dims: {{0: {dims}}}}}}}}}]")

    assert judge("{multiple_of: 2}") == "yes"
    assert judge("{min: 0}") == "yes"
    assert judge("{multiple_of: 4}") == "dimension N of input 'x' is not fixed (--dim N=SIZE)"
    assert judge("{max: 4096}") == "dimension N of input 'x' is not fixed (--dim N=SIZE)"


def test_an_operator_that_nobody_knows_takes_little_with_it() -> None:
    text = """g (float16[2,4] x) => (float16[2,4] y) <float16[4,4] w> {
      a = com.acme.Odd (x)
      b = Relu (a)
      c = MatMul (b, w)
      y = Sigmoid (c)
    }"""
    model = parse(text)
    for name in ("com.microsoft", "com.acme"):
        model.opset_import.append(onnx.helper.make_opsetid(name, 1))
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT16, [4, 4], [0] * 16)
    del model.graph.value_info[:]
    model.graph.initializer.append(weight)
    index = prepare_model(model, "test").index
    marks = annotate_graph(index, rules("[{op: [Relu, MatMul, Sigmoid]}]", "any"))
    assert [str(mark.verdict) for mark in marks] == [
        *("com.acme.Odd is not among the operators of dla", "yes", "yes", "yes"),
    ]


def test_without_onnxruntime_the_file_is_trusted_and_such_nodes_are_refused() -> None:
    code = f'''
import sys; sys.modules["onnxruntime"] = None
import onnx
from byoc.model import prepare_model
from byoc.rules import RuleFile, Target, annotate_graph, lint_rule_file
content = {{"target": "dla", "cost_model": "dla", "dtype": "float16", "ops": [{{
    "op": "{GROUPED}", "tensors": {{"past_key": {{"rank": 4}}}}, "where": "past_key.rank == 4"}}]}}
print(lint_rule_file(content))
imports = 'opset_import: ["" : 17, "com.microsoft" : 1]'
model = onnx.parser.parse_model(f"<ir_version: 8, {{imports}}> " + """{DECODER}""")
index = prepare_model(model, "m").index
print(annotate_graph(index, Target("t", RuleFile.model_validate(content)))[0].verdict)
'''
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "[]"
    assert f"the tensors of {GROUPED} cannot be told by name: onnxruntime is not installed" in lines[1]
