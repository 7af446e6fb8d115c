"""Clean-up keeps what a model computes, bit for bit, and what it is called by; and drops what it can."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import cut, same_as_original
from helpers.failing import rules
from helpers.support import VANILLA, Ran, examples, parse, prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from unclean_models import Maker

import byoc
from byoc.model import Model, NodeRecords, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import clean_model, count_operators, list_clean_passes

EXACT = list_clean_passes(reshape=True, batchnorm=False)
ALL = list_clean_passes(reshape=True, batchnorm=True)


def clean(model: onnx.ModelProto | Model, *names: str) -> onnx.ModelProto:
    """Return a model cleaned by the passes of some names, else by all that are exact."""
    passes = [each for each in ALL if each.name in names] if names else EXACT
    loaded = model if isinstance(model, Model) else prepare_model(model, "m")
    before = loaded.proto.SerializeToString(deterministic=True)
    cleaned = clean_model(loaded, passes).model
    assert loaded.proto.SerializeToString(deterministic=True) == before
    check_types(cleaned)
    return cleaned.proto


def check_types(cleaned: Model) -> None:
    """Check that a cleaned model is valid, with the types and records that are found for it anew."""
    fresh = prepare_model(cleaned.proto, "cleaned")
    for own, other in zip(cleaned.index.walk(), fresh.index.walk(), strict=True):
        for name in (name for node in own.nodes for name in node.output if name):
            assert own.types.get(name) == other.types.get(name), name
        records, read = own.records, NodeRecords.read(own.nodes)
        assert (list(records.inputs), list(records.outputs)) == (read.inputs, read.outputs)
        assert [kind.attributes for kind in records.kinds] == [kind.attributes for kind in read.kinds]
        assert list(map(records.kinds.index, records.kinds)) == list(map(read.kinds.index, read.kinds))


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    with without_optimizations():
        return run_session(open_session(model), inputs)


def check_equal(model: onnx.ModelProto, cleaned: onnx.ModelProto, inputs: Mapping[str, Any]) -> None:
    assert list(cleaned.graph.input) == list(model.graph.input)
    assert list(cleaned.graph.output) == list(model.graph.output)
    wanted, got = run(model, inputs), run(cleaned, inputs)
    for name in wanted:
        assert np.asarray(wanted[name]).dtype == np.asarray(got[name]).dtype
        assert np.asarray(wanted[name]).shape == np.asarray(got[name]).shape
        assert np.asarray(wanted[name]).tobytes() == np.asarray(got[name]).tobytes()


def ramp(*shape: int) -> NDArray[np.float32]:
    return np.linspace(-2, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def operators(model: onnx.ModelProto) -> dict[str, int]:
    return {name: count for name, count in count_operators(model).items() if name != "Constant"}


@given(st.data())
@settings(max_examples=examples(25), deadline=None)
def test_random_models_compute_the_same_bit_for_bit(data: st.DataObject) -> None:
    open_batch = data.draw(st.booleans())
    maker = Maker(lambda most: data.draw(st.integers(0, most)), "N" if open_batch else 1)
    model = maker.model(data.draw(st.integers(1, 14)))
    cleaned = clean(model)
    for batch in (1, 3) if open_batch else (1,):
        for chosen in (True, False):
            check_equal(model, cleaned, {"x": ramp(batch, 2, 3, 4), "c": np.array(chosen)})
    again = clean(cleaned)
    assert again.SerializeToString(deterministic=True) == cleaned.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("text", "opset", "left"),
    [
        # Dropout: the mask that is read, training by an input or an attribute, an old one, an output.
        ("d, m = Dropout(x) y = Relu(d)", 17, {"Relu": 1}),
        ("d, m = Dropout(x) k = Cast <to = 1> (m) y = Mul(d, k)", 17,
         {"Dropout": 1, "Cast": 1, "Mul": 1}),
        ("r = Constant <value_float = 0.0> () d = Dropout(x, r) y = Relu(d)", 13, {"Relu": 1}),
        ("d = Dropout <ratio = 0.5> (x) y = Relu(d)", 10, {"Relu": 1}),
        ("d = Dropout <is_test = 1> (x) y = Neg(d)", 6, {"Neg": 1}),
        ("d = Dropout(x) y = Neg(d)", 6, {"Dropout": 1, "Neg": 1}),
        ("a = Relu(x) y = Dropout(a)", 17, {"Relu": 1}),
        # Identity: between input and output, of two outputs, of an output, in a row.
        ("y = Identity(x)", 17, {"Identity": 1}),
        ("a = Relu(x) b = Identity(a) c = Identity(b) y = Neg(c)", 17, {"Relu": 1, "Neg": 1}),
        ("a = Relu(x) z = Neg(a) y = Identity(a)", 17, {"Relu": 1, "Neg": 1}),
        ("a = Relu(x) b = Identity(a) y = Identity(b)", 17, {"Relu": 1}),
        # Shapes: known, combined, of an output, of what is not known.
        ("s = Shape(x) a = Relu(x) y = Reshape(a, s)", 17, {"Relu": 1, "Reshape": 1}),
        ("n = Size(x) f = Cast <to = 1> (n) y = Div(x, f)", 17, {"Cast": 1, "Div": 1}),
        ("s = Shape <start = 1> (x) p = ReduceProd(s) f = Cast <to = 1> (p) y = Mul(x, f)", 17,
         {"Cast": 1, "Mul": 1}),
        # Flatten: one of which the shape is known.
        ("a = Flatten <axis = 2> (x) y = Relu(a)", 17, {"Reshape": 1, "Relu": 1}),
        ("a = Flatten <axis = -1> (x) y = Relu(a)", 13, {"Reshape": 1, "Relu": 1}),
        ("y = Flatten <axis = 0> (x)", 17, {"Reshape": 1}),
    ],
)  # fmt: skip
def test_what_is_left(text: str, opset: int, left: dict[str, int]) -> None:
    rank = "2, 12" if "Flatten" not in text else "1, 24" if "axis = 0" in text else "6, 4"
    if "axis = -1" in text:
        rank = "6, 4"
    model = parse(f"m (float[2, 3, 4] x) => (float[{rank}] y) {{ {text} }}", opset=opset)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    cleaned = clean(model)
    assert operators(cleaned) == left
    if opset > 6:
        check_equal(model, cleaned, {"x": ramp(2, 3, 4)})


def test_dropout_that_may_train_stays() -> None:
    text = (
        "m (float[4] x, bool t) => (float[4] y) { r = Constant <value_float = 0.5> () %s y = Relu(d) }"
    )
    assert operators(clean(parse(text % "d = Dropout(x, r, t)")))["Dropout"] == 1
    for value, count in ((1, 1), (0, 0)):
        constant = f"k = Constant <value = bool {{{value}}}> () d = Dropout(x, r, k)"
        assert operators(clean(parse(text % constant))).get("Dropout", 0) == count


def test_dropout_goes_where_a_folded_shape_alone_read_its_mask() -> None:
    text = """m (float[2, 3] x) => (float[2, 3] y%s) {
        d, mask = Dropout(x)
        n = Not(mask)
        s = Shape(n)
        y = Reshape(d, s)
    }"""
    assert "Dropout" not in operators(clean(parse(text % "")))
    assert operators(clean(parse(text % ", bool[2, 3] n")))["Dropout"] == 1


def test_names_and_metadata_lead_to_what_is_gone() -> None:
    model = parse(
        """m (float[2, 3] x) => (float[6] y) {
          a = Relu(x)
          b = Identity(a)
          c = Dropout(b)
          s = Constant <value = int64[1] {-1}> ()
          e = Flatten(c)
          y = Reshape(e, s)
        }"""
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
        node.metadata_props.add(key="layer", value=str(number))
    loaded = prepare_model(model, "m")
    cleaned = clean_model(loaded, EXACT)
    assert cleaned.model.lost == {"node1", "b", "node2", "c"}
    assert [each.name for each in cleaned.effects] == [
        "drop-identity", "drop-dropout", "flatten-to-reshape",
    ]  # fmt: skip
    nodes = {node.name: node for node in cleaned.model.proto.graph.node}
    assert {name for name in nodes if name} == {"node0", "node3", "node4", "node5"}
    notes = {
        name: {entry.key: entry.value for entry in node.metadata_props} for name, node in nodes.items()
    }
    dropped = "Identity 'node1' dropped; Dropout 'node2' dropped"
    assert notes["node0"] == {"layer": "0", "byoc.cleaned": dropped}
    assert notes["node4"] == {"layer": "4", "byoc.cleaned": "Flatten 'node4' replaced"}
    assert notes["node5"] == {"layer": "5"}


def test_a_model_that_needs_no_cleaning_is_the_same_object() -> None:
    loaded = prepared("m (float[2] x) => (float[2] y) { a = Relu(x) y = Dropout(a) z, w = Dropout(a) }")
    kept = clean_model(
        loaded, list_clean_passes(reshape=True, batchnorm=True, left_out=["drop-dropout"])
    )
    assert kept.model is loaded
    assert kept.effects == ()
    stays = prepared("m (float[2] x) => (float[2] y) { y = Identity(x) }")
    assert clean_model(stays, ALL).model is stays


def test_open_shapes_are_folded_as_far_as_they_are_known() -> None:
    model = parse(
        """m (float[N, 3, 4, 5] x) => (float[M, 60] y) {
          s = Shape(x)
          zero = Constant <value = int64[1] {0}> ()
          one = Constant <value = int64[1] {1}> ()
          four = Constant <value = int64[1] {4}> ()
          first = Gather(s, zero)
          rest = Slice(s, one, four)
          product = ReduceProd(rest)
          wanted = Concat <axis = 0> (first, product)
          y = Reshape(x, wanted)
        }"""
    )
    cleaned = clean(model)
    assert operators(cleaned) == {"Concat": 1, "Gather": 1, "Reshape": 1, "Shape": 1}
    check_equal(model, cleaned, {"x": ramp(2, 3, 4, 5)})


def test_nothing_large_becomes_constant() -> None:
    text = """m (float[4, N_OR_SIZE] x) => (float[4, S] y) {
      s = Shape(x)
      k = ConstantOfShape <value = float[1] {1.5}> (s)
      y = Add(x, k)
    }"""
    small, large = (
        operators(clean(parse(text.replace("N_OR_SIZE", str(size))))) for size in (8, 1_000_000_000)
    )
    assert small == {"Add": 1, "ConstantOfShape": 1}
    assert large == {"Add": 1, "ConstantOfShape": 1, "Shape": 1}


def test_conditions_are_computed_as_before() -> None:
    """Stored ones, an If in the branch of another, end onnxruntime 1.32 as it loads a right model."""
    model = parse(
        """m (float[2] x, bool c) => (float[2] y) {
          two = Constant <value = int64 {2}> ()
          n = Size(x)
          p = Equal(n, two)
          y = If (p) <
            then_branch = t () => (float[2] a) {
              q = Equal(n, two)
              a = If (q) <
                then_branch = tt () => (float[2] aa) {
                  s = Shape(x)
                  f = Cast <to = 1> (s)
                  aa = If (c) <then_branch = g () => (float[2] d) { d = Add(x, f) },
                               else_branch = h () => (float[2] e) { e = Abs(x) }>
                },
                else_branch = te () => (float[2] ab) { ab = Neg(x) }>
            },
            else_branch = e () => (float[2] b) { b = Relu(x) }>
        }"""
    )
    cleaned = clean(model)
    left = operators(cleaned)
    assert (left["If"], left["Equal"], left["Size"], left.get("Shape", 0)) == (3, 1, 1, 0)
    open_session(cleaned)
    check_equal(model, cleaned, {"x": ramp(2), "c": np.array(True)})


def test_stated_shapes_that_may_be_wrong_are_not_folded() -> None:
    model = parse(
        """m (float[N, 3] x) => (int64[2] y, float[2, 3] z) {
          a = Relu(x)
          s = Shape(a)
          one = Constant <value = int64[1] {1}> ()
          z = Reshape(a, s)
          y = Add(s, one)
        }"""
    )
    info = helper.make_tensor_value_info("a", TensorProto.FLOAT, [7, 3])
    model.graph.value_info.append(info)
    del model.graph.output[1].type.tensor_type.shape.dim[:]
    model.graph.output[1].type.tensor_type.ClearField("shape")
    cleaned = clean(model)
    check_equal(model, cleaned, {"x": ramp(2, 3)})


def test_old_initializers_that_are_inputs_go_with_their_readers() -> None:
    text = "m (float[2, 3] x, float[1] r) => (float[2, 3] y) { d = Dropout(x, r) y = Neg(d) }"
    model = parse(text, ir=3, opset=12)
    model.graph.initializer.append(numpy_helper.from_array(np.array([0.5], np.float32), "r"))
    cleaned = clean(model)
    assert [value.name for value in cleaned.graph.input] == ["x"]
    assert not cleaned.graph.initializer
    assert run(cleaned, {"x": ramp(2, 3)})["y"].tolist() == (-ramp(2, 3)).tolist()


def make_norm(op: str, dtype: type, seed: int, **attributes: Any) -> onnx.ModelProto:
    """Return a model of a Conv, ConvTranspose or Gemm with a BatchNormalization behind it."""
    chance = np.random.default_rng(seed)

    def store(name: str, *shape: int, low: float = -1.0) -> TensorProto:
        return numpy_helper.from_array(chance.uniform(low, 1, shape).astype(dtype), name)

    group = attributes.get("group", 1)
    if op == "Gemm":
        shape, weight, channels = [5, 8], (6, 8) if attributes.get("transB") else (8, 6), 6
    else:
        shape, channels = [2, 4, 6, 6], 6
        weight = (6, 4 // group, 3, 3) if op == "Conv" else (4, 6 // group, 3, 3)
    biased = bool(seed % 2)
    stored = [store("w", *weight), *([store("b", channels)] if biased else [])]
    stored += [store("scale", channels), store("shift", channels), store("mean", channels)]
    stored.append(store("variance", channels, low=0.1))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node(op, ["x", "w", *(["b"] if biased else [])], ["c"], "before", **attributes),
        helper.make_node(
            "BatchNormalization",
            ["c", "scale", "shift", "mean", "variance"],
            ["n"],
            "norm",
            epsilon=1e-3,
        ),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "norm",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        stored,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("op", "dtype", "attributes"),
    [
        ("Conv", np.float32, {}),
        ("Conv", np.float32, {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("ConvTranspose", np.float32, {}),
        ("ConvTranspose", np.float32, {"group": 2, "strides": [2, 2]}),
        ("Gemm", np.float32, {}),
        ("Gemm", np.float64, {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_batch_normalization_is_folded(
    op: str, dtype: type, attributes: dict[str, Any], seed: int
) -> None:
    model = make_norm(op, dtype, seed, **attributes)
    assert operators(clean(model)) == operators(model)
    cleaned = clean(model, "fold-batchnorm")
    assert operators(cleaned) == {op: 1, "Relu": 1}
    assert len(cleaned.graph.initializer) == 2
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    values = ramp(*shape).astype(dtype)
    wanted, got = (run(each, {"x": values})["y"] for each in (model, cleaned))
    scale = 50 * np.finfo(dtype).eps * np.abs(wanted).max()
    assert np.abs(wanted - got).max() <= scale
    assert cleaned.graph.node[0].name == "before"
    (note,) = cleaned.graph.node[0].metadata_props
    assert note.value == f"BatchNormalization 'norm' folded into {op} 'before'"


@pytest.mark.parametrize("why", ["read twice", "an output", "training", "weight", "infinite"])
def test_batch_normalization_that_stays(why: str) -> None:
    model = make_norm("Conv", np.float32, 1)
    norm = model.graph.node[1]
    if why == "read twice":
        model.graph.node.append(helper.make_node("Neg", ["c"], ["z"]))
        model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    elif why == "an output":
        model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    elif why == "training":
        norm.attribute.append(helper.make_attribute("training_mode", 1))
        norm.output.extend(["new_mean", "new_variance"])
    elif why == "weight":
        model.graph.initializer.pop(0)
        model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [6, 4, 3, 3]))
    else:
        for tensor in model.graph.initializer:
            if tensor.name == "scale":
                tensor.CopyFrom(numpy_helper.from_array(np.full(6, np.inf, np.float32), "scale"))
    assert "BatchNormalization" in operators(clean(model, "fold-batchnorm"))


def test_shared_weights_of_two_convolutions_stay_apart() -> None:
    model = make_norm("Conv", np.float32, 1)
    model.graph.node.insert(0, helper.make_node("Conv", ["x", "w", "b"], ["other"], "plain"))
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, None))
    cleaned = clean(model, "fold-batchnorm")
    assert {"w", "b"} <= {tensor.name for tensor in cleaned.graph.initializer}
    values = {"x": ramp(2, 4, 6, 6)}
    assert np.array_equal(run(model, values)["other"], run(cleaned, values)["other"])
    assert np.allclose(run(model, values)["y"], run(cleaned, values)["y"], atol=1e-4)


CLASSIFIER = """
classifier (float[1, 4, 2, 2] x) => (float[1, 16] y) {
  a = Relu(x)
  d = Dropout(a)
  y = Flatten(d)
}
"""


def test_it_runs_unasked_and_is_told_and_verified_against_the_original(tmp_path: Path) -> None:
    model = parse(CLASSIFIER)
    result = cut(model, tmp_path / "m.byoc")
    (effect,) = result.report.passes
    assert (effect.name, effect.scope, effect.changed) == ("drop-dropout", "model", 1)
    assert effect.nodes_before == {"Dropout": 1, "Flatten": 1, "Relu": 1}
    assert effect.nodes_after == {"Flatten": 1, "Relu": 1}
    assert effect.distribution.startswith("onnx-byoc ")
    assert result.verification is not None
    assert result.verification.passed
    onnx.save(model, tmp_path / "classifier.onnx")
    assert byoc.verify(tmp_path / "m.byoc", against=tmp_path / "classifier.onnx").passed
    same_as_original(model, tmp_path / "m.byoc", {"x": ramp(1, 4, 2, 2)})
    assert byoc.open_bundle(tmp_path / "m.byoc").variant.report.passes[0].name == "drop-dropout"


@pytest.mark.parametrize("left_out", ["all", "drop-dropout", ["fold-shapes", "drop-dropout"]])
def test_it_is_off_by_option(left_out: Any) -> None:
    result = cut(parse(CLASSIFIER), no_passes=left_out)
    assert result.report.passes == ()
    assert result.report.nodes.total == 3


def test_a_wrong_name_is_told() -> None:
    sentence = (
        r"^drop-dropuot: no pass that runs without being asked for \(did you mean drop-dropout\?\); "
    )
    with pytest.raises(byoc.InputError, match=sentence):
        cut(parse(CLASSIFIER), no_passes="drop-dropuot")


def test_flatten_becomes_what_the_rules_speak_of(tmp_path: Path) -> None:
    for ops, left in ((("Relu", "Reshape"), "Reshape"), (("Relu", "Flatten"), "Flatten"),
                      (("Relu", "Reshape", "Flatten"), "Flatten"), (("Relu",), "Flatten")):  # fmt: skip
        path = rules(tmp_path, "npu", *ops)
        model = byoc.partition(parse(CLASSIFIER), path, what_if=False).plan.model.proto
        assert set(operators(model)) == {"Relu", left}


def test_batch_normalization_is_folded_where_a_rule_file_wants_it(tmp_path: Path) -> None:
    model = make_norm("Conv", np.float32, 1)
    plain = byoc.partition(model, rules(tmp_path, "npu", "Conv", "Relu"), what_if=False)
    path = rules(tmp_path, "npu", "Conv", "Relu", more="wants: folded_batchnorm\n")
    folded = byoc.partition(
        model, path, what_if=False, output=tmp_path / "m.byoc", strategy="all-supported"
    )
    assert (plain.report.nodes.total, plain.report.passes) == (3, ())
    assert (folded.report.nodes.total, folded.report.passes[0].name) == (2, "fold-batchnorm")
    assert folded.verification is not None
    assert folded.verification.passed
    assert 0 < folded.verification.worst.relative < 1e-5
    inherited = tmp_path / "more.yaml"
    inherited.write_text("extends: npu.yaml\ntarget: npu2\nwants: []\n")
    assert byoc.partition(model, inherited, what_if=False).report.nodes.total == 3


def test_saved_placements_survive_in_both_directions(tmp_path: Path) -> None:
    model = parse(CLASSIFIER)
    for saved, used in (("all", ()), ((), "all")):
        path = tmp_path / "placement.yaml"
        byoc.save_placement(cut(model, no_passes=saved).plan, path)
        result = cut(model, no_passes=used, placement=path)
        assert not [note for note in result.report.notes if "placement.yaml" in str(note)]


def test_explain_knows_what_is_gone(byoc: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parse(CLASSIFIER), path)
    ran = byoc("explain", path, "--rules", VANILLA, "--node", "d")
    assert (ran.code, ran.out) == (1, "")
    assert (
        ran.err == f"byoc: {path}: there is no node 'd': clean-up dropped it (--no-pass all keeps it)\n"
    )
    assert byoc("explain", path, "--rules", VANILLA, "--node", "d", "--no-pass", "all").code == 0


def test_external_weights_stay_where_they_are(tmp_path: Path) -> None:
    model = make_norm("Conv", np.float32, 1)
    model.graph.node.insert(1, helper.make_node("Dropout", ["c"], ["d"]))
    model.graph.node[2].input[0] = "d"
    path = tmp_path / "m.onnx"
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    onnx.save(whole, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    loaded = byoc.load_model(path)
    exact = clean_model(loaded, EXACT).model
    assert operators(exact.proto) == {"BatchNormalization": 1, "Conv": 1, "Relu": 1}
    assert all(each.data_location == TensorProto.EXTERNAL for each in exact.proto.graph.initializer)
    folded = clean_model(loaded, ALL).model
    assert operators(folded.proto) == {"Conv": 1, "Relu": 1}
    values = {"x": ramp(2, 4, 6, 6)}
    assert np.allclose(run(model, values)["y"], run(folded.proto, values)["y"], atol=1e-4)


def test_quantized_groups_stay_whole() -> None:
    model = parse(
        """m (float[1, 4] x) => (float[1, 4] y)
        <float s = {0.1}, int8 z = {0}> {
          q = QuantizeLinear(x, s, z)
          i = Identity(q)
          d = DequantizeLinear(i, s, z)
          o = Dropout(d)
          r = Relu(o)
          p = QuantizeLinear(r, s, z)
          y = DequantizeLinear(p, s, z)
        }"""
    )
    cleaned = clean(model)
    assert operators(cleaned) == {"DequantizeLinear": 2, "QuantizeLinear": 2, "Relu": 1}
    check_equal(model, cleaned, {"x": ramp(1, 4)})
