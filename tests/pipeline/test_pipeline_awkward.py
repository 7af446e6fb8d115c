"""Models that are awkward to cut: types that ONNX does not know, weights in nodes, stale shapes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, parse, region_names
from onnx import TensorProto, helper, numpy_helper

import byoc


def weight_in_node() -> onnx.ModelProto:
    """Return a model whose 4 KiB weight is in a Constant node that regions and the host read."""
    weight = numpy_helper.from_array(np.arange(1024, dtype=np.float32).reshape(1, 1024) / 1024)
    nodes = [
        helper.make_node("Constant", [], ["w"], "weight", value=weight),
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["s", "w"], ["m"]),
        helper.make_node("Sub", ["m", "w"], ["y"]),
    ]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1024]) for name in "xy"]
    graph = helper.make_graph(nodes, "weights", value[:1], value[1:])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def test_a_weight_in_a_node_is_stored_once(tmp_path: Path) -> None:
    result = byoc.partition(weight_in_node(), VANILLA, strategy="all-supported", output=tmp_path / "b")

    assert len(result.plan.regions) == 2
    assert result.verification is not None
    assert result.verification.passed
    assert (tmp_path / "b" / "weights.bin").stat().st_size == 4096
    for name in ("model", *region_names(tmp_path / "b")):
        assert (tmp_path / "b" / f"{name}.onnx").stat().st_size < 2048
    # The model as planned keeps the node, and every region takes its result as a constant.
    assert [node.name for node in result.model.graph.node if node.op_type == "Constant"] == ["weight"]
    assert all(region.interface.constants == ("w",) for region in result.plan.regions)


GELU = """g (float[1, 4] x) => (float[1, 4] y) {
    a = Relu(x)
    u = com.microsoft.Gelu(a)
    b = Relu(x)
    c = Add(b, u)
    d = Neg(c)
    y = Add(d, u)
}"""


def test_dtypes_behind_an_operator_of_onnxruntime_follow(tmp_path: Path) -> None:
    model = parse(GELU)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    result = byoc.partition(model, VANILLA, strategy="all-supported", output=tmp_path / "b")

    assert result.verification is not None
    assert result.verification.passed
    reasons = [item.reason for item in result.report.host_reasons]
    assert reasons == [
        "Neg is not among the operators of dla",
        "com.microsoft.Gelu is not among the operators of dla",
    ]


def test_a_type_that_the_file_states_is_taken(tmp_path: Path) -> None:
    model = parse(GELU)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.value_info.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, [1, 4]))

    result = byoc.partition(model, VANILLA, strategy="all-supported", output=tmp_path / "b")

    assert result.verification is not None
    assert result.verification.passed
    assert [len(region.nodes) for region in result.plan.regions] == [2, 1, 1]


@pytest.mark.parametrize("where", ["value_info", "output"])
def test_a_stale_shape_is_said_and_not_believed(where: str, tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Relu(x)\n b = Neg(a)\n y = Relu(b) }")
    stale = helper.make_tensor_value_info(
        "a" if where == "value_info" else "y", TensorProto.FLOAT, [1, 9]
    )
    if where == "value_info":
        model.graph.value_info.append(stale)
    else:
        model.graph.output[0].CopyFrom(stale)

    result = byoc.partition(model, VANILLA, strategy="all-supported", output=tmp_path / "b")

    assert result.verification is not None
    assert result.verification.passed
    says = f"the model says that '{stale.name}' is float32[1, 9], but it is float32[1, 4]"
    assert says in map(str, result.report.notes)


def test_sparse_initializers_stay_on_the_host(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Relu(x)\n y = Add(a, w) }")
    values = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 3], np.int64), "w_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1, 4]))

    result = byoc.partition(model, VANILLA, strategy="all-supported", output=tmp_path / "b")

    assert result.verification is not None
    assert result.verification.passed
    assert [unit.name for unit, _ in result.plan.host_units] == ["y"]


def test_a_plan_needs_no_codegen(tmp_path: Path) -> None:
    text = VANILLA.read_text(encoding="utf-8")
    rules = tmp_path / "soon.yaml"
    rules.write_text(text.replace("codegen: reference", "codegen: not_written_yet"), encoding="utf-8")

    assert byoc.partition("zoo:squeezenet", rules, what_if=False).plan.regions
    with pytest.raises(byoc.InputError, match=r"^not_written_yet: no such codegen"):
        byoc.partition("zoo:squeezenet", rules, output=tmp_path / "b", what_if=False)
    with pytest.raises(byoc.InputError, match=r"^acmee: no such codegen"):
        byoc.partition("zoo:squeezenet", rules, codegen="acmee")


def test_a_map_behind_a_region_has_the_tolerance_of_its_floats(tmp_path: Path) -> None:
    model = parse(
        """g (float[2,3] x) => (float[2,3] p, seq(map(int64, float)) z) {
            a = Relu(x)
            p = Softmax(a)
            z = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2, 3]> (p)
        }"""
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    result = byoc.partition(model, "dla", strategy="all-supported", output=tmp_path / "b")
    assert result.verification is not None
    assert [(e.name, e.dtype, e.within) for e in result.verification.outputs] == [
        ("p", "float32", True),
        ("z", "float32", True),
    ]
    assert result.verification.outputs[1].absolute > 0, "its Softmax is not onnxruntime's"
