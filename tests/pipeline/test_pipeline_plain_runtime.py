"""Where plain onnxruntime runs a model it runs the partitioned one, odd constants and calls included."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.support import VANILLA
from onnx import TensorProto, helper

import byoc

X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)


def _rules(folder: Path) -> Path:
    """Write rules that take If and the functions of the model, too; return their path."""
    text = VANILLA.read_text(encoding="utf-8")
    more = text.replace("  - op: [Add, Mul, Sum, Relu, Concat]\n", f"  - op: [{', '.join(TAKEN)}]\n", 1)
    assert more != text
    (folder / "rules.yaml").write_text(more, encoding="utf-8")
    return folder / "rules.yaml"


TAKEN = ("Add", "Mul", "Sum", "Relu", "Concat", "If", "Identity", "custom.F", "custom.G")


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])


def _model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [_value("x")], [_value("y")])
    if any(node.op_type == "If" for node in nodes):
        graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def _function(name: str, overload: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("custom", 1)]
    return helper.make_function("custom", name, ["a"], ["b"], nodes, opsets, overload=overload)


def _sparse(name: str) -> onnx.SparseTensorProto:
    values = helper.make_tensor(name, TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    return helper.make_sparse_tensor(
        values, helper.make_tensor("", TensorProto.INT64, [3], [0, 5, 11]), [4, 4]
    )


def _make_overloads() -> onnx.ModelProto:
    model = _model(
        helper.make_node("F", ["x"], ["p"], domain="custom", overload="of.a"),
        helper.make_node("F", ["p"], ["q"], domain="custom", overload="b"),
        helper.make_node("F", ["q"], ["r"], domain="custom"),
        helper.make_node("Add", ["r", "x"], ["y"]),
    )
    model.functions.extend(
        [
            _function("F", "of.a", helper.make_node("Mul", ["a", "a"], ["b"])),
            _function("F", "b", helper.make_node("Neg", ["a"], ["b"])),
            _function("F", "", helper.make_node("Exp", ["a"], ["b"])),
            _function("F_b", "", helper.make_node("Sin", ["a"], ["b"])),
        ]
    )
    return model


def _make_overloads_that_call_overloads() -> onnx.ModelProto:
    def call(overload: str) -> onnx.NodeProto:
        return helper.make_node("F", ["a"], ["b"], domain="custom", overload=overload)

    model = _model(
        helper.make_node("F", ["x"], ["p"], domain="custom", overload="a"),
        helper.make_node("F", ["p"], ["q"], domain="custom", overload="c"),
        helper.make_node("Add", ["q", "x"], ["y"]),
    )
    bodies = {"c": helper.make_node("Neg", ["a"], ["b"]), "b": call("c"), "a": call("b")}
    model.functions.extend(_function("F", overload, body) for overload, body in bodies.items())
    return model


def _make_overloads_in_bodies() -> onnx.ModelProto:
    def body(output: str, overload: str) -> onnx.GraphProto:
        call = helper.make_node("F", ["r"], [output], domain="custom", overload=overload)
        return helper.make_graph([call], output, [], [_value(output)])

    model = _model(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["c"], ["q"], then_branch=body("s", "a"), else_branch=body("t", "b")),
        helper.make_node("Add", ["q", "r"], ["y"]),
    )
    model.functions.append(_function("F", "a", helper.make_node("Mul", ["a", "a"], ["b"])))
    model.functions.append(_function("F", "b", helper.make_node("Neg", ["a"], ["b"])))
    return model


def _make_sparse_in_bodies() -> onnx.ModelProto:
    def body(output: str, op: str) -> onnx.GraphProto:
        found = helper.make_graph([helper.make_node(op, ["r", "w"], [output])], op, [], [_value(output)])
        found.sparse_initializer.append(_sparse("w"))
        return found

    return _model(
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["c"], ["q"], then_branch=body("s", "Add"), else_branch=body("t", "Mul")),
        helper.make_node("Add", ["q", "r"], ["y"]),
    )


def _make_sparse_at_a_boundary() -> onnx.ModelProto:
    model = _model(
        helper.make_node("Identity", ["w"], ["v"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Add", ["r", "v"], ["y"]),
    )
    model.graph.sparse_initializer.append(_sparse("w"))
    return model


def _make_bare_output() -> onnx.ModelProto:
    model = _model(helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Sigmoid", ["r"], ["y"]))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def _make_bare_input() -> onnx.ModelProto:
    model = _make_bare_output()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    return model


def _make_untyped_output() -> onnx.ModelProto:
    model = _make_bare_output()
    model.graph.output[0].ClearField("type")
    return model


@pytest.mark.parametrize(
    "make",
    [
        _make_overloads,
        _make_overloads_in_bodies,
        _make_sparse_in_bodies,
        _make_sparse_at_a_boundary,
        _make_bare_output,
        _make_bare_input,
        _make_untyped_output,
    ],
)
def test_plain_onnxruntime_runs_the_partitioned_model(make: Any, tmp_path: Path) -> None:
    model = make()
    result = byoc.partition(
        model, _rules(tmp_path), strategy="all-supported", codegen="reference", output=tmp_path / "b"
    )
    assert result.plan.regions
    assert (result.verification is None) == (make is _make_bare_input)  # no sample without a shape
    original = onnxruntime.InferenceSession(model.SerializeToString())
    plain = onnxruntime.InferenceSession(tmp_path / "b/model.onnx")
    bundle = byoc.load(tmp_path / "b")
    for chosen in (True, False):
        given = {"x": X, "c": np.array(chosen)}
        inputs = {value.name: given[value.name] for value in model.graph.input}
        expected = original.run(None, inputs)
        for name, want, one in zip(bundle(inputs), expected, plain.run(None, inputs), strict=True):
            np.testing.assert_array_equal(one, want)
            np.testing.assert_array_equal(bundle(inputs)[name], want)


def test_functions_with_overloads_get_names_of_their_own(tmp_path: Path) -> None:
    plan = byoc.partition(_make_overloads(), _rules(tmp_path), strategy="all-supported").plan
    (region,) = (f for f in plan.proto.functions if f.domain == "byoc.dla")
    calls = [(node.op_type, node.overload) for node in region.node if node.domain == "custom"]
    assert calls == [("F_of_a", ""), ("F_b_", ""), ("F", "")]
    bodies = {(f.name, f.overload): f.node[0].op_type for f in plan.proto.functions}
    assert (bodies["F_of_a", ""], bodies["F_b_", ""], bodies["F", "b"]) == ("Mul", "Neg", "Neg")


@pytest.mark.parametrize("make", [_make_overloads, _make_overloads_that_call_overloads])
def test_a_function_stands_behind_those_that_it_calls(make: Any, tmp_path: Path) -> None:
    """onnx.reference knows no function that comes later."""
    plan = byoc.partition(make(), _rules(tmp_path), strategy="all-supported").plan
    known: set[tuple[str, str]] = set()
    for function in (f for f in plan.proto.functions if not f.overload):
        calls = {(node.domain, node.op_type) for node in function.node if node.domain}
        assert calls <= known, function.name
        known.add((function.domain, function.name))
    assert any(domain == "byoc.dla" for domain, _ in known)


DENSE = np.zeros((4, 4), np.float32)
DENSE.flat[[0, 5, 11]] = 1.0, 2.0, 3.0


def _make_sparse_output() -> onnx.ModelProto:
    model = _model(helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["r", "x"], ["y"]))
    model.graph.output.append(_value("w"))
    model.graph.sparse_initializer.append(_sparse("w"))
    return model


def _make_sparse_output_of_a_body() -> onnx.ModelProto:
    one = helper.make_graph([], "one", [], [_value("w")])
    one.sparse_initializer.append(_sparse("w"))
    nodes = [helper.make_node("Add", ["x", "x"], ["s"]), helper.make_node("Relu", ["s"], ["t"])]
    other = helper.make_graph(nodes, "other", [], [_value("t")])
    return _model(helper.make_node("If", ["c"], ["y"], then_branch=one, else_branch=other))


def _make_sparse_state_of_a_loop() -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        _value("v"),
    ]
    outputs = [helper.make_tensor_value_info("on", TensorProto.BOOL, []), _value("z")]
    nodes = [helper.make_node("Add", ["v", "x"], ["s"]), helper.make_node("Relu", ["s"], ["z"])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    model = _model(helper.make_node("Loop", ["n", "", "w"], ["y"], body=body))
    model.graph.initializer.append(helper.make_tensor("n", TensorProto.INT64, [], [3]))
    model.graph.sparse_initializer.append(_sparse("w"))
    return model


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_make_sparse_output, {"y": np.maximum(X, 0) + X, "w": DENSE}),
        (_make_sparse_output_of_a_body, {"y": DENSE}),
        (
            _make_sparse_state_of_a_loop,
            {"y": np.maximum(np.maximum(np.maximum(DENSE + X, 0) + X, 0) + X, 0)},
        ),
    ],
)
def test_a_sparse_initializer_is_read_where_the_host_keeps_values(
    make: Any, expected: dict[str, Any], tmp_path: Path
) -> None:
    model = make()
    result = byoc.partition(model, VANILLA, strategy="all-supported", output=tmp_path / "b")
    assert result.plan.regions
    assert result.verification is not None
    assert result.verification.passed
    given = {"x": X, "c": np.array(True)}
    found = byoc.load(tmp_path / "b")({value.name: given[value.name] for value in model.graph.input})
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
