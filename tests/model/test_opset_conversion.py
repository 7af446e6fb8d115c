"""Models in other operator sets compute the same, or the node at fault is named."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import parse, sample_cases

from byoc.model import ConversionError, convert_ir_version, convert_opset, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.samples import model_samples
from byoc.zoo import load, sample_inputs

MODELS = sorted((Path(__file__).parents[1] / "library" / "models").glob("*.onnx"))
VERSIONS = (9, 11, 12, 13, 15, 17, 18, 19, 21, 23)
CASES = [(path.stem, version) for path in MODELS for version in VERSIONS]


@pytest.mark.parametrize(("name", "version"), sample_cases(CASES, every=23))
def test_what_is_converted_computes_the_same(name: str, version: int) -> None:
    model = onnx.load(next(path for path in MODELS if path.stem == name))
    inputs = model_samples(prepare_model(model, name))
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    converted = deepcopy(model)
    try:
        convert_opset(converted, version)
    except ConversionError as error:
        assert len(error.nodes) == 1
        assert version < next(e.version for e in model.opset_import if not e.domain)
        return
    onnx.checker.check_model(converted, full_check=True)
    assert next(e.version for e in converted.opset_import if not e.domain) == version
    with without_optimizations():
        expected = run_session(open_session(model), inputs)
        found = run_session(open_session(converted), inputs)
    for output, value in expected.items():
        np.testing.assert_allclose(
            found[output], value, rtol=1e-5, atol=1e-5 * np.abs(value).max(initial=0)
        )


def test_most_models_can_be_of_the_operator_sets_that_tools_read() -> None:
    """Tool chains read 13 to 19 or so; of operators that came later some are left."""
    left = 0
    for path in MODELS[::3]:
        for version in (13, 17, 19):
            model = onnx.load(path)
            if model.functions:
                model = onnx.inliner.inline_local_functions(model)
            try:
                convert_opset(model, version)
            except ConversionError:
                left += 1
    assert left < len(MODELS[::3]) * 3 / 4


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_classic_networks_become_quantizable(name: str) -> None:
    model = load(name)
    converted = deepcopy(model)
    convert_opset(converted, 21)
    inputs = sample_inputs(name)
    with without_optimizations():
        expected = run_session(open_session(model), inputs)
        found = run_session(open_session(converted), inputs)
    for output, value in expected.items():
        np.testing.assert_allclose(found[output], value, rtol=1e-5, atol=1e-7)


TEXT = """g (float[2, 3] x) => (float[2, 3] y) <int64[2] s = {3, 2}> {
  [a] u = Reshape<allowzero = 1>(x, s) [b] t = Transpose<perm = [1, 0]>(u) [c] y = HardSwish(t) }"""


def test_a_node_that_no_operator_is_for_is_named() -> None:
    model = parse(TEXT)
    with pytest.raises(
        ConversionError, match=r"^HardSwish 'c' cannot be converted to operator set 13: "
    ) as caught:
        convert_opset(model, 13)
    assert caught.value.nodes == ("c",)


def test_attributes_that_say_nothing_go() -> None:
    model = parse(TEXT.replace("HardSwish", "Relu"))
    convert_opset(model, 11)
    assert not model.graph.node[0].attribute
    model = parse(TEXT.replace("HardSwish", "Relu").replace("{3, 2}", "{3, 0}"))
    with pytest.raises(ConversionError, match="it has no attribute allowzero"):
        convert_opset(model, 11)


def test_dtypes_that_the_version_lacks_are_refused() -> None:
    text = "g (bfloat16[2] x) => (bfloat16[2] y) { [r] y = Relu(x) }"
    with pytest.raises(
        ConversionError, match=r"^Relu 'r' cannot be converted to operator set 12: X is bfloat16$"
    ):
        convert_opset(parse(text), 12)


def test_bodies_are_converted() -> None:
    model = parse(
        """g (bool c, float[4] x) => (float[4] y) {
      y = If(c) <then_branch = t () => (float[4] a) { a = Dropout<ratio = 0.5>(x) },
      else_branch = e () => (float[4] b) { b = Clip<min = 0.0>(x) }> }""",
        opset=10,
    )
    expected = [model.graph.node[0].attribute[i].g.node[0].op_type for i in (0, 1)]
    before = deepcopy(model)
    convert_opset(model, 17)
    onnx.checker.check_model(model, full_check=True)
    bodies = [attribute.g for attribute in model.graph.node[0].attribute]
    assert {node.op_type for body in bodies for node in body.node} >= {*expected}
    for choice in (True, False):
        inputs = {"c": np.array(choice), "x": np.array([-1, 2, -3, 4], np.float32)}
        found = run_session(open_session(model), inputs)["y"]
        np.testing.assert_array_equal(found, run_session(open_session(before), inputs)["y"])


@pytest.mark.parametrize(
    ("version", "reason"),
    [(6, "its operator sets need IR version 8 to "), (999, "its operator sets need IR version 8 to ")],
)
def test_ir_versions_that_cannot_be(version: int, reason: str) -> None:
    with pytest.raises(ConversionError, match=reason):
        convert_ir_version(parse(TEXT), version)


def test_an_ir_version_without_bare_initializers() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }", opset=8)
    convert_ir_version(model, 3)
    assert [value.name for value in model.graph.input] == ["x", "w"]
    onnx.checker.check_model(model, full_check=True)


def test_operator_sets_that_nobody_knows() -> None:
    with pytest.raises(ConversionError, match=r"knows operator sets up to \d+, not 999$"):
        convert_opset(parse(TEXT), 999)
