"""Nodes get a form that targets take, where they are placed, and keep their own on the host."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.failing import rules
from helpers.support import parse
from onnx import numpy_helper

import byoc
from byoc.errors import InputError
from byoc.passes import find_forms
from byoc.quantization import Precision

CONVOLUTIONS = "{op: [Conv, MaxPool], tensors: {X: {rank: 4}}}"


def network(text: str, channels: int = 16) -> onnx.ModelProto:
    """Return a model of 1-D operators, in which `w` is a weight of windows of 3, `v` one of 1."""
    model = parse(text)
    for name, size in (("w", 3), ("v", 1)):
        values = np.random.default_rng(size).normal(size=(channels, channels, size)) / (channels * size)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return model


CHAIN = """m (float[1, 16, 64] x) => (float[1, 16, 32] y) {
    a = Conv <pads = [1, 1]> (x, w)
    b = Relu(a)
    c = Conv <pads = [1, 1]> (b, w)
    d = Add(c, x)
    e = Conv(d, v)
    y = MaxPool <kernel_shape = [2], strides = [2]> (e)
}"""


def operators(model: onnx.ModelProto) -> Counter[str]:
    nodes = [*model.graph.node, *(node for each in model.functions for node in each.node)]
    return Counter(node.op_type for node in nodes if not node.op_type.startswith("dla_"))


def test_a_chain_of_1d_operators_is_one_region_with_one_pair_of_views(tmp_path: Path) -> None:
    result = byoc.partition(network(CHAIN), "dla", output=tmp_path / "b", strategy="all-supported")
    assert [region.nodes for region in result.report.regions] == [8]
    assert result.verification is not None
    assert result.verification.worst.relative < 1e-5
    found = operators(result.model)
    assert (found["Unsqueeze"], found["Squeeze"]) == (1, 1)
    (effect,) = (each for each in result.plan.passes if each.name == "planar-form")
    assert (effect.nodes_before["Conv"], effect.nodes_after["Conv"]) == (3, 3)


@pytest.mark.parametrize("options", [{"strategy": "host-only"}, {"no_passes": ["planar-form"]}])
def test_on_the_host_operators_stay_as_they_are(options: dict[str, object]) -> None:
    model = network(CHAIN)
    result = byoc.partition(model, "dla", **options)
    wanted = [(node.op_type, list(node.input), list(node.output)) for node in model.graph.node]
    found = [(node.op_type, list(node.input), list(node.output)) for node in result.model.graph.node]
    assert found == wanted
    assert not any(each.name == "planar-form" for each in result.plan.passes)


def test_a_target_that_takes_1d_operators_gets_them(tmp_path: Path) -> None:
    file = rules(tmp_path, "npu", "{op: [Conv, MaxPool], tensors: {X: {rank: [3, 4]}}}", "Relu", "Add")
    result = byoc.partition(network(CHAIN), file, strategy="all-supported")
    assert [region.nodes for region in result.report.regions] == [6]
    assert "Unsqueeze" not in operators(result.model)


def test_an_operator_between_that_is_not_taken_stays_as_it_is(tmp_path: Path) -> None:
    file = rules(tmp_path, "npu", CONVOLUTIONS, "Relu", "Add")
    model = network(CHAIN.replace("Relu", "Cos"))
    result = byoc.partition(model, file, output=tmp_path / "b", strategy="all-supported")
    assert len(result.report.regions) == 2
    (cos,) = (node for node in result.model.graph.node if node.op_type == "Cos")
    assert (list(cos.input), list(cos.output)) == (["a"], ["b"])
    assert not any(entry.key == "byoc.form" for entry in cos.metadata_props)


def test_one_that_is_refused_in_two_dimensions_as_well_stays() -> None:
    model = network(
        CHAIN.replace("e = Conv(d, v)", "e = Conv <strides = [9], pads = [300, 300]> (d, v)")
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    result = byoc.partition(model, "dla", strategy="all-supported")
    forms = {key for graph in result.plan.root.walk() for key in find_forms(graph.index).values()}
    assert {"a", "b", "c", "d"} <= forms
    assert "e" not in forms


def test_what_is_quantized_later_is_offered_in_the_form() -> None:
    model = network(CHAIN)
    ranges = byoc.calibrate(model, "random")
    for precision in (Precision("int8", data="random"), Precision("int8", calibration=ranges)):
        result = byoc.partition(model, "dla", precision=precision, strategy="all-supported")
        assert [region.nodes for region in result.report.regions] == [8]
        (region,) = result.report.regions
        assert {tensor.dtype for tensor in (*region.inputs, *region.outputs)} == {"int8"}


def test_explain_sees_the_form() -> None:
    assert not byoc.explain(network(CHAIN), "dla").refusals


def test_a_form_that_there_is_not() -> None:
    with pytest.raises(InputError, match=r"planar-from: .* \(did you mean planar-form\?\)"):
        byoc.partition(network(CHAIN), "dla", no_passes=["planar-from"])


VOLUMES = """m (float[1, 16, 4, 28, 28] x) => (float[1, 16] y) {
    a = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w)
    b = Relu(a)
    c = Conv <pads = [1, 1, 1, 1, 1, 1]> (b, w)
    d = Add(c, x)
    e = Conv <strides = [2, 2, 2]> (d, v)
    f = MaxPool <kernel_shape = [2, 2, 2], strides = [2, 2, 2]> (e)
    g = GlobalAveragePool(f)
    y = Flatten(g)
}"""


def video(group: int = 1) -> onnx.ModelProto:
    """Return a model of 3-D operators, whose convolutions are in groups."""
    model = parse(VOLUMES.replace("<pads", f"<group = {group}, pads"))
    for name, size, inner in (("w", 3, 16 // group), ("v", 1, 16)):
        values = np.random.default_rng(size).normal(size=(16, inner, size, size, size)) / (16 * size)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return model


def test_3d_operators_are_one_region_of_frames(tmp_path: Path) -> None:
    result = byoc.partition(video(), "dla", output=tmp_path / "b", strategy="all-supported")
    assert len(result.report.regions) == 1
    assert result.verification is not None
    assert result.verification.worst.relative < 1e-5
    found = operators(result.model)
    assert found["Conv"] == 3
    assert not {"Slice", "Pad"} & found.keys()  # dla has Split alone


def test_forms_that_move_data_are_taken_where_they_pay() -> None:
    """Moving frames costs more than a cheap network saves; then it stays as it is."""
    for model, pays in ((video(16), False), (video(), True)):
        plain = byoc.partition(model, "dla", no_passes=["frame-form", "flat-form"])
        result = byoc.partition(model, "dla")
        cost, before = (each.plan.root.whole_cost.total for each in (result, plain))
        used = {each.name for each in result.plan.passes} & {"frame-form", "flat-form"}
        assert (bool(used), cost < before) == (pays, pays)
        assert cost <= before


def test_rule_files_leave_forms_of_volumes_out(tmp_path: Path) -> None:
    more = "unwanted_forms: [frame-form, flat-form]"
    for text, used in (("", True), (more, False)):
        file = tmp_path / f"npu{len(text)}.yaml"
        path = rules(
            tmp_path, "npu", "{op: [Conv, MaxPool], tensors: {X: {rank: 4}}}", "Reshape", "Slice"
        )
        file.write_text(f"{Path(path).read_text()}\n{text}\n")
        result = byoc.partition(video(), file, strategy="all-supported")
        assert bool({each.name for each in result.plan.passes} & {"frame-form"}) == used


def test_quantized_3d_convolutions_are_verified(tmp_path: Path) -> None:
    ranges = byoc.calibrate(video(), "random")
    given = Precision("int8", data="random"), Precision("int8", calibration=ranges)
    for i, precision in enumerate(given):
        result = byoc.partition(
            video(), "dla", output=tmp_path / f"b{i}", precision=precision, strategy="all-supported"
        )
        (region,) = result.report.regions
        assert {tensor.dtype for tensor in region.inputs} == {"int8"}
        assert result.verification is not None
        assert result.verification.worst.relative < 0.1


def test_conversions_of_ours_are_told_as_such_and_no_rule_is_asked_for(tmp_path: Path) -> None:
    """The views around a chain stay on the host, for want of a rule, and nobody is to write one."""
    path = rules(tmp_path, "t", CONVOLUTIONS, "{op: [Relu, Add]}")
    result = byoc.partition(network(CHAIN), path, strategy="all-supported")
    report = result.report.to_json()
    (form,) = (row for row in report["host_reasons"] if row["causes"][0]["kind"] == "conversion")
    assert (form["nodes"], {*form["operators"]}) == (2, {"Unsqueeze", "Squeeze"})
    assert (form["remedy"], form["actions"]) == ("", [])
    assert "planar-form" in form["reason"]
    assert form["share"] is not None  # views cost nothing on the host, and are priced all the same
    told = {name for row in report["what_if"] for name in row["operator"].split(", ")}
    assert not told & {"Squeeze", "Unsqueeze"}
    views = [each for each in byoc.explain(network(CHAIN), path).refusals if "queeze" in each.op]
    assert views
    assert not any(view.attempts for view in views)
