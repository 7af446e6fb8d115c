"""`byoc simplify` folds constants and shapes, keeps names and results, and makes nothing large."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, Ran, parse, prepared, sample_cases

import byoc
from byoc.passes import count_operators
from byoc.verification import run_plain

FLATTEN = """
flatten (float[2, 3, 4] image) => (float[2, 12] flat) {
  shape = Shape(image)
  zero = Constant <value = int64[1] {0}> ()
  first = Gather(shape, zero)
  rest = Constant <value = int64[1] {-1}> ()
  wanted = Concat <axis = 0> (first, rest)
  bent = Relu(image)
  flat = Reshape(bent, wanted)
}
"""


def named(text: str) -> onnx.ModelProto:
    """Return a model whose nodes have names and metadata."""
    model = parse(text)
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
        node.metadata_props.add(key="layer", value=str(number))
    model.metadata_props.add(key="author", value="nobody")
    return model


def test_shape_arithmetic_is_folded_and_names_stay(tmp_path: Path) -> None:
    model = named(FLATTEN)
    done = byoc.simplify(model, output=tmp_path / "s.onnx", rules=VANILLA)

    written = onnx.load(tmp_path / "s.onnx")
    assert [node.op_type for node in written.graph.node] == ["Relu", "Reshape"]
    assert [node.name for node in written.graph.node] == ["node5", "node6"]
    assert [node.metadata_props[0].value for node in written.graph.node] == ["5", "6"]
    assert [(each.key, each.value) for each in written.metadata_props] == [("author", "nobody")]
    assert written.graph.input == model.graph.input
    assert written.graph.output == model.graph.output
    assert done.effect.equal
    assert done.before is not None
    assert done.after is not None
    assert done.after.nodes.total == 2 < done.before.nodes.total


def test_a_large_constant_is_not_made() -> None:
    text = """
    large (float[1] x) => (float[N] y) {
      size = Constant <value = int64[1] {SIZE}> ()
      many = ConstantOfShape <value = float[1] {1.0}> (size)
      y = Add(x, many)
    }
    """
    small = byoc.simplify(parse(text.replace("SIZE", "1000")), verify=False)
    assert count_operators(small.model.proto) == {"Add": 1}
    kept = byoc.simplify(
        parse(text.replace("SIZE", "1000")), verify=False, pass_options={"largest": "1kB"}
    )
    assert "ConstantOfShape" in count_operators(kept.model.proto)
    huge = byoc.simplify(parse(text.replace("SIZE", "1000000000000000")), verify=False)
    assert "ConstantOfShape" in count_operators(huge.model.proto)


def test_initializers_that_are_inputs_as_well() -> None:
    model = parse(
        "old (float[2] x, float[2] w) => (float[2] y) { v = Neg(w) y = Add(x, v) }", ir=3, opset=9
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    done = byoc.simplify(model)
    assert done.effect.equal
    assert count_operators(done.model.proto) == {"Add": 1}
    assert [value.name for value in done.model.proto.graph.input] == ["x"]


def test_external_weights_and_bodies(tmp_path: Path) -> None:
    text = """
    chosen (bool c, float[64, 64] x) => (float[64, 64] y) {
      t = Transpose(w)
      y = If (c) <
        then_branch = one () => (float[64, 64] a) { a = MatMul(x, t) },
        else_branch = two () => (float[64, 64] b) { b = Sub(x, t) }
      >
    }
    """
    model = parse(text.replace("float[64, 64] x)", "float[64, 64] x, float[64, 64] w)"))
    del model.graph.input[2:]
    weights = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    done = byoc.simplify(path)
    assert done.effect.equal
    assert count_operators(done.model.proto) == {"If": 1, "MatMul": 1, "Sub": 1}


def test_as_a_pass_it_changes_what_is_planned() -> None:
    model = parse(FLATTEN)
    plain, simple = (
        byoc.partition(model, VANILLA, passes=passes, no_passes="all", what_if=False).report
        for passes in ((), "simplify")
    )
    assert simple.nodes.total == 2
    assert plain.nodes.total > 2
    assert [effect.name for effect in simple.passes] == ["simplify"]


def test_the_command(byoc: Callable[..., Ran], tmp_path: Path) -> None:
    path, output = tmp_path / "m.onnx", tmp_path / "s.onnx"
    onnx.save(named(FLATTEN), path)
    ran = byoc("simplify", path, "-o", output, "--rules", VANILLA)
    assert ran.code == 0, ran.err
    first, before, after, last = ran.out.splitlines()
    assert first.startswith("Pass simplify: 7 to 2 nodes (Constant 2 to 0, ")
    assert first.endswith("; outputs equal, bit by bit")
    assert before.startswith("before: ")
    assert after.startswith("after: ")
    assert last == f"Written to {output}"
    document = json.loads(byoc("simplify", path, "--rules", VANILLA, "--format", "json").out)
    assert document["nodes_after"] == {"Relu": 1, "Reshape": 1}
    assert document["after"]["nodes"] == 2
    assert byoc("simplify", tmp_path / "no.onnx").code == 1


@pytest.mark.parametrize(
    "name", sample_cases(["squeezenet", "shufflenet", "densenet121"], "squeezenet", "shufflenet")
)
def test_models_of_the_zoo_keep_their_outputs(name: str) -> None:
    done = byoc.simplify(f"zoo:{name}")
    assert done.effect.compared
    assert done.effect.largest_error < 1e-4


def test_the_original_is_left_as_it_is() -> None:
    model = named(FLATTEN)
    before = model.SerializeToString(deterministic=True)
    byoc.simplify(model)
    assert model.SerializeToString(deterministic=True) == before


def test_open_sizes_stay_open() -> None:
    text = FLATTEN.replace("[2, 3, 4]", "[N, 3, 4]").replace("[2, 12]", "[N, 12]")
    done = byoc.simplify(parse(text))
    x = np.random.default_rng(0).standard_normal((5, 3, 4), np.float32)
    outputs = run_plain(done.model.proto, prepared(text), {"image": x})
    assert outputs["flat"].shape == (5, 12)
    fixed = byoc.simplify(parse(text), dims={"N": 2})
    assert count_operators(fixed.model.proto) == {"Relu": 1, "Reshape": 1}


def test_random_nodes_are_neither_folded_nor_merged() -> None:
    text = """
    noisy (float[2, 3] x, bool c) => (float[2, 3] y) {
      half = Constant <value_float = 0.5> ()
      train = Constant <value = bool {1}> ()
      seeded = RandomNormal <shape = [2, 3], seed = 1.0> ()
      dropped = Dropout <seed = 3> (seeded, half, train)
      one = RandomNormalLike(x)
      two = RandomNormalLike(x)
      noise = Sub(one, two)
      sum = Add(noise, dropped)
      y = If (c) <
        then_branch = yes () => (float[2, 3] a) { a = Add(x, sum) },
        else_branch = no () => (float[2, 3] b) {
          first = RandomNormal <shape = [2, 3]> ()
          second = RandomNormal <shape = [2, 3]> ()
          rest = Sub(first, second)
          b = Add(x, rest)
        }
      >
    }
    """
    done = byoc.simplify(named(text), verify=False)
    counts = count_operators(done.model.proto)
    assert (counts["RandomNormal"], counts["RandomNormalLike"], counts["Dropout"]) == (3, 2, 1)
    assert counts["Sub"] == 2
    assert "Constant" not in counts
    onnx.checker.check_model(done.model.proto)


def test_models_whose_outputs_are_random_are_not_compared() -> None:
    text = "draw (float[2] x) => (float[2] y) { noise = RandomNormalLike(x) y = Add(x, noise) }"
    effect = byoc.simplify(parse(text)).effect
    assert (effect.compared, effect.equal) == (0, False)
    assert "differ from one run to the next" in effect.not_compared


def test_equal_nodes_of_vendors_and_calls_with_random_nodes_are_not_merged() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17, "vendor": 1, "local": 1]>
    vendored (float[2] x) => (float[2] y) {
      a = vendor.Draw(x)
      b = vendor.Draw(x)
      c = local.Outer(x)
      d = local.Outer(x)
      e = local.Plain(x)
      f = local.Plain(x)
      y = Sum(a, b, c, d, e, f)
    }
    <domain: "local", opset_import: ["": 17]>
    Draw (x) => (y) { y = RandomUniformLike(x) }
    <domain: "local", opset_import: ["": 17, "local": 1]>
    Outer (x) => (y) { y = local.Draw(x) }
    <domain: "local", opset_import: ["": 17]>
    Plain (x) => (y) { y = Relu(x) }
    """
    model = onnx.parser.parse_model(text)
    done = byoc.simplify(model, verify=False).model.proto
    called = Counter((node.domain, node.op_type) for node in done.graph.node)
    assert called[("vendor", "Draw")] == 2
    assert called[("local", "Outer")] == 2
    assert {each.name for each in done.functions} == {"Draw", "Outer", "Plain"}
    assert list(done.opset_import) == list(model.opset_import)


def test_functions_beside_bodies_and_sequences_of_constants_are_left_alone() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17, "local": 1]>
    bodies (float[2] x, bool c) => (float[2] y, float[2] s) <float[2] w = {1, 2}> {
      a = local.Plain(x)
      b = Neg(w)
      l = SequenceConstruct(b, w)
      i = Constant<value = int64 {1}>()
      s = SequenceAt(l, i)
      y = If(c) <
        then_branch = g () => (float[2] t) { t = Add(a, b) },
        else_branch = h () => (float[2] e) { e = local.Branches(c, a) }
      >
    }
    <domain: "local", opset_import: ["": 17]>
    Plain (x) => (y) { y = Relu(x) }
    <domain: "local", opset_import: ["": 17]>
    Branches (c, x) => (y) {
      y = If(c) <
        then_branch = g () => (float[2] t) { t = Abs(x) },
        else_branch = h () => (float[2] e) { e = Exp(x) }
      >
    }
    """
    done = byoc.simplify(onnx.parser.parse_model(text))
    assert not done.effect.not_compared
    called = {node.op_type for node in done.model.proto.graph.node}
    assert {"Plain", "SequenceConstruct"} <= called
    assert {each.name for each in done.model.proto.functions} == {"Plain", "Branches"}
