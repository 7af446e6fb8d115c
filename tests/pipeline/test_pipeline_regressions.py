"""Valid models and rules that once came out wrong, were refused, or never came to an end."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, parse, prepared
from onnx import TensorProto, helper, numpy_helper

import byoc
from byoc.model import prepare_model
from byoc.patterns import group_units, parse_pattern
from byoc.rules import annotate_graph, load_rules

COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlink: {bandwidth: .inf}\n"
)


def partition(model: onnx.ModelProto, folder: Path, composites: str = "[]") -> byoc.Result:
    """Cut a model with rules that take everything, as much of it as goes."""
    (folder / "near.yaml").write_text(COSTS, encoding="utf-8")
    (folder / "all.yaml").write_text(
        f"target: all\ncost_model: {folder / 'near.yaml'}\ndtype: any\nops: [{{op: '*'}}]\n"
        f"composites: {composites}\n",
        encoding="utf-8",
    )
    return byoc.partition(
        model, folder / "all.yaml", strategy="all-supported", output=folder / "out.byoc"
    )


def verified(result: byoc.Result) -> bool:
    return result.verification is not None and result.verification.passed


def test_a_bundle_s_model_is_not_partitioned_again(tmp_path: Path) -> None:
    made = partition(parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }"), tmp_path)
    (region,) = made.report.regions
    path, rules = tmp_path / "out.byoc" / "model.onnx", tmp_path / "all.yaml"
    asked: list[Callable[[], object]] = [
        lambda: byoc.partition(path, rules, output=tmp_path / "again.byoc"),
        lambda: byoc.explain(path, rules),
        lambda: byoc.list_tasks(path, rules=rules),
        lambda: byoc.compare_rules(rules, path),
    ]
    for ask in asked:
        with pytest.raises(byoc.InputError) as caught:
            ask()
        assert str(caught.value) == (
            f"{path}: is partitioned already: '{region.name}' is a region of all; "
            "take the model that it was made of"
        )


def test_names_of_composites_do_not_meet(tmp_path: Path) -> None:
    composites = json.dumps(
        [
            {"name": "p", "pattern": "a = Add|Sum(x, z)\ny = Relu(a)"},
            {"name": "p_sum", "pattern": "a = Mul(x, z)\ny = Relu(a)"},
        ]
    )
    with pytest.raises(byoc.InputError, match="'p_sum' is what a variant of 'p' is called"):
        partition(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path, composites)
    with pytest.raises(byoc.InputError, match="'all_0' is what a region is called"):
        partition(
            parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"),
            tmp_path,
            json.dumps([{"name": "all_0", "pattern": "y = Relu(x)"}]),
        )


def test_names_of_attributes_do_not_meet() -> None:
    with pytest.raises(ValueError, match="the name 'r' is the beginning of 'r_batch'"):
        parse_pattern("p", "r = ReverseSequence(x, l)\nr_batch = Softmax(r)")


def test_a_training_dropout_is_drawn_once() -> None:
    text = """g (float[64] x) => (float[64] z)
        <float[64] c = {1}, float half = {0.5}, bool on = {1}> {
        d = Dropout(c, half, on)
        a = Add(x, d)
        s = Sin(a)
        n = Sub(a, d)
        z = Add(n, s)
    }"""
    model = parse(text)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(64, np.float32), "c"))

    assert prepare_model(model, "m").index.constant_nodes == frozenset()


def test_a_quantized_model_is_compared_as_it_is_written(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    weight = generator.integers(-127, 127, (8, 3, 3, 3)).astype(np.int8)
    initializers = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.float32(0.013), "ws"),
        numpy_helper.from_array(np.int8(0), "wz"),
        numpy_helper.from_array(np.float32(0.021), "xs"),
        numpy_helper.from_array(np.uint8(121), "xz"),
        numpy_helper.from_array(np.float32(0.043), "ys"),
        numpy_helper.from_array(np.uint8(117), "yz"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "qdq",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 14, 14])],
        initializers,
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])

    result = partition(model, tmp_path)

    assert result.verification is not None
    assert [output.absolute for output in result.verification.outputs] == [0.0]
    # The weight's DequantizeLinear is nobody's unit: it goes where the convolution goes.
    assert result.report.to_json()["nodes"] == {"total": 6, "offloaded": 6, "host": 0, "constant": 1}


def test_a_function_called_in_a_body(tmp_path: Path) -> None:
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) {
            a = Relu(x)
            y = If (c) <
                then_branch = t () => (float[2] u) { u = mine.Twice(a) },
                else_branch = e () => (float[2] v) { v = Neg(a) }
            >
        }"""
    )
    body = [helper.make_node("Add", ["p", "p"], ["q"])]
    model.functions.append(helper.make_function("mine", "Twice", ["p"], ["q"], body, model.opset_import))
    model.opset_import.append(helper.make_opsetid("mine", 1))

    assert verified(partition(model, tmp_path))
    (tmp_path / "out.byoc").rename(tmp_path / "first.byoc")
    result = byoc.partition(model, VANILLA, strategy="host-only", output=tmp_path / "out.byoc")
    assert verified(result)


def test_a_body_that_reads_what_is_no_tensor(tmp_path: Path) -> None:
    model = parse(
        """g (float[4] x, bool c) => (float[2] y) <int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
            s = SplitToSequence <axis = 0> (x, two)
            y = If (c) <
                then_branch = t () => (float[2] u) { u = SequenceAt(s, zero) },
                else_branch = e () => (float[2] v) { v = SequenceAt(s, one) }
            >
        }"""
    )
    result = partition(model, tmp_path)

    assert verified(result)
    reasons = [item.reason for item in result.report.host_reasons]
    assert "If: the type of 's', which a body reads, is not known" in reasons


def test_a_body_is_never_part_of_a_composite(tmp_path: Path) -> None:
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) {
            i = If (c) <
                then_branch = t () => (float[2] u) { u = Neg(x) },
                else_branch = e () => (float[2] v) { v = Abs(x) }
            >
            y = Relu(i)
        }"""
    )
    composites = json.dumps([{"name": "choose", "pattern": "i = *(c)\ny = Relu(i)"}])

    assert verified(partition(model, tmp_path, composites))


def test_a_default_does_not_steer_shapes(tmp_path: Path) -> None:
    model = parse(
        """g (float[2, 3] x, int64[2] shape) => (float[a, b] y) <int64[2] shape = {3, 2}> {
            r = Reshape(x, shape)
            y = Relu(r)
        }"""
    )
    assert verified(partition(model, tmp_path))

    session = byoc.load(tmp_path / "out.byoc")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert session({"x": x})["y"].shape == (3, 2)
    assert session({"x": x, "shape": np.array([6, 1])})["y"].shape == (6, 1)


@pytest.mark.parametrize(
    "call", ["my.Conv()", 'my.MaxPool <kernel_shape = "3x3"> (x)', "my.Reshape(x)", "my.Gemm(x)"]
)
def test_an_operator_of_another_domain_is_not_what_its_name_says(call: str) -> None:
    model = parse(f"g (float[2] x) => (float[2] y) {{ a = {call}\n y = Relu(a) }}")
    model.opset_import.append(helper.make_opsetid("my", 1))

    report = byoc.partition(model, VANILLA).report

    assert report.nodes.total == 2
    assert any("estimate" in note.text for note in report.notes)


def test_an_ambiguous_pattern_comes_to_an_end() -> None:
    """31 additions in a tree whose leaves are all the same but for one: 2**31 orders."""
    leaves = [f"l{i}" for i in range(32)]
    lines, level, number = [], leaves, 0
    while len(level) > 1:
        above = []
        for left, right in zip(level[::2], level[1::2], strict=True):
            lines.append(f"n{number} = Add({left}, {right})")
            above.append(f"n{number}")
            number += 1
        level = above
    pattern = parse_pattern("tree", "\n".join(lines).replace("l31", "l0"))
    inputs = ", ".join(f"float[2] {leaf}" for leaf in leaves)
    model = prepared(f"g ({inputs}) => (float[2] {level[0]}) {{ {chr(10).join(lines)} }}")
    marks = annotate_graph(model.index, load_rules(str(VANILLA)))

    units = group_units(model.index, [pattern], marks)

    assert len(units) == 31


def test_a_pattern_of_a_thousand_lines() -> None:
    lines = ["a0 = Relu(x)", *(f"a{i} = Relu(a{i - 1})" for i in range(1, 1000))]
    with pytest.raises(ValueError, match="the pattern has 1000 lines, at most 100 are possible"):
        parse_pattern("long", "\n".join(lines))


def test_external_data_in_bodies_is_taken_along(tmp_path: Path) -> None:
    weight = np.arange(600, dtype=np.float32)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w.bin").write_bytes(weight.tobytes())
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[600])
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="w.bin")
    value = helper.make_tensor_value_info("b", TensorProto.FLOAT, [600])

    def body(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["r", "w"], ["b"])], op, [], [value], [outside])

    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["c"], ["y"], then_branch=body("Add"), else_branch=body("Mul")),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [600]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [600])
    model = helper.make_model(
        helper.make_graph(nodes, "bodies", inputs, [output]),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    path = tmp_path / "model" / "m.onnx"
    path.write_bytes(model.SerializeToString())

    (tmp_path / "near.yaml").write_text(COSTS, encoding="utf-8")
    (tmp_path / "all.yaml").write_text(
        f"target: all\ncost_model: {tmp_path / 'near.yaml'}\ndtype: any\nops: [{{op: '*'}}]\n"
    )
    for strategy in ("host-only", "all-supported"):
        byoc.partition(path, tmp_path / "all.yaml", strategy=strategy, output=tmp_path / "b")
        x = np.ones(600, np.float32)
        for condition, expected in ((True, weight + 1), (False, weight)):
            got = byoc.load(tmp_path / "b")({"x": x, "c": np.array(condition)})["y"]
            assert np.array_equal(got, expected)


def test_a_model_newer_than_the_runtime_reads(tmp_path: Path) -> None:
    """onnx itself writes IR 14 by default; onnxruntime 1.31 reads up to 13."""
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", ir=14)

    assert verified(partition(model, tmp_path))
    assert onnx.load(tmp_path / "out.byoc" / "model.onnx").ir_version == 13


def test_what_the_runtime_cannot_run_is_not_refused(tmp_path: Path) -> None:
    """No release of onnxruntime runs an operator of a vendor's own domain."""
    model = parse("g (float[2] x) => (float[2] y) { z = Relu(x) y = com.example.Own(z) }")
    model.opset_import.add(domain="com.example", version=1)

    result = partition(model, tmp_path)

    assert result.verification is None
    reason = "com.example:Own(-1) is not a registered function/op"
    assert reason in result.report.not_verified
    assert result.report.not_verified.startswith("g: onnxruntime cannot load the model: ")


def test_an_operator_set_that_the_runtime_does_not_read_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest operator set depends on the release of onnxruntime; its message does not."""

    def refuse(*given: object, **options: object) -> None:
        raise RuntimeError("ONNX Runtime only *guarantees* ... Opset 28 is under development and ...")

    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)

    result = partition(model, tmp_path)

    assert result.verification is None
    assert result.report.not_verified == (
        "g: onnxruntime cannot load the model: it does not read operator set 28 yet "
        "(onnx.version_converter makes an older one)"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"targets": ["dlb"]}, "the manifest and the model do not name the same regions"),
        ({"regions": []}, "the manifest and the model do not name the same regions"),
        ({"model": "weights.bin"}, "'weights.bin' is not an ONNX model"),
    ],
)
def test_a_manifest_that_does_not_fit(change: dict[str, object], sentence: str, tmp_path: Path) -> None:
    byoc.partition("zoo:squeezenet", VANILLA, output=tmp_path / "b", verify=False, what_if=False)
    path = tmp_path / "b" / "manifest.json"
    manifest = json.loads(path.read_text())
    for part in (manifest, *manifest["variants"]):
        part.update({key: value for key, value in change.items() if key in part})
    path.write_text(json.dumps(manifest))

    with pytest.raises(byoc.InputError, match=sentence):
        byoc.load(tmp_path / "b")


def test_weights_without_a_hash(tmp_path: Path) -> None:
    byoc.partition("zoo:squeezenet", VANILLA, output=tmp_path / "b", verify=False, what_if=False)
    path = tmp_path / "b" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["weights.bin"]
    path.write_text(json.dumps(manifest))

    with pytest.raises(byoc.InputError, match=r"the file .weights\.bin. has no hash"):
        byoc.load(tmp_path / "b")


def test_an_operand_that_is_always_left_out_is_left_out_of_the_function(tmp_path: Path) -> None:
    """onnxruntime takes a Split's second input for sizes, even an empty one beside `num_outputs`."""
    model = parse(
        """g (float[2, 4] x) => (float[2, 2] y) {
            a, b = Split <axis = 1, num_outputs = 2> (x)
            s = Sigmoid(b)
            y = Mul(a, s)
        }""",
        opset=18,
    )
    pattern = "a, b = Split(x, sizes?)\ns = Sigmoid(b)\ny = Mul(a, s)"
    composites = json.dumps([{"name": "glu", "pattern": pattern}])

    assert verified(partition(model, tmp_path, composites))
    function = next(
        f for f in onnx.load(tmp_path / "out.byoc" / "model.onnx").functions if f.name.startswith("glu")
    )
    assert list(function.node[0].input) == ["x"]
