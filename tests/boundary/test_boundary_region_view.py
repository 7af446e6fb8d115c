"""Contracts as a region's own model gives them: inputs, outputs and constants, in numbers."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import TypeProto, helper, numpy_helper

from byoc.boundary.contracts import TensorContract, read_region_contracts
from byoc.model import CAST, LAYOUT, QUANTIZE, WEIGHT_KEY, mark_inserted, parse_layout, set_metadata


def region(text: str, **purposes: str) -> onnx.ModelProto:
    """A region in which nodes are byoc's: `a=LAYOUT` is that which makes `a`."""
    model = parse(text, ir=10, opset=21)
    for node in model.graph.node:
        if node.output[0] in purposes:
            mark_inserted(node, purposes[node.output[0]])
    return model


def kinds(**shapes: tuple[int, ...]) -> Mapping[str, TypeProto]:
    return {
        n: helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items()
    }


NHWC = "Transpose <perm = [0, 2, 3, 1]>"
NCHW = "Transpose <perm = [0, 3, 1, 2]>"
SCALES = "<float s = {0.5}, int8 z = {3}, float[3] k = {1, 2, 4}, int8[3] l = {0, 0, 0}>"


@pytest.mark.parametrize(
    ("text", "purposes", "text_of", "names", "converts"),
    [
        (
            "(float[1,3,4,5] x) => (float[1,3,4,5] y) { y = Relu(x) }",
            {},
            "float32[1, 3, 4, 5]",
            "xx",
            {},
        ),
        (
            f"(float[1,4,5,3] x) => (float[1,3,4,5] y) {{ a = {NCHW} (x) y = Relu(a) }}",
            {"a": LAYOUT},
            *("float32[1, 4, 5, 3] in NHWC", "xa", {"layout": "host"}),
        ),
        (  # the user's own
            f"(float[1,4,5,3] x) => (float[1,3,4,5] y) {{ a = {NCHW} (x) y = Relu(a) }}",
            {},
            *("float32[1, 4, 5, 3]", "xx", {}),
        ),
        (  # another node reads the form that came in
            f"(float[1,4,5,3] x) => (float[1,3,4,5] y, float[1,4,5,3] z)"
            f" {{ a = {NCHW} (x) y = Relu(a) z = Relu(x) }}",
            {"a": LAYOUT},
            *("float32[1, 4, 5, 3]", "xx", {}),
        ),
        (
            "(float[1,3,4,5] x) => (float16[1,3,4,5] y) { a = Cast <to = 10> (x) y = Relu(a) }",
            {"a": CAST},
            *("float32[1, 3, 4, 5]", "xa", {"cast": "device"}),
        ),
        (
            f"(float[1,4,5,3] x) => (float16[1,3,4,5] y)"
            f" {{ a = {NCHW} (x) b = Cast <to = 10> (a) y = Relu(b) }}",
            {"a": LAYOUT, "b": CAST},
            *("float32[1, 4, 5, 3] in NHWC", "xb", {"layout": "host", "cast": "device"}),
        ),
        (
            f"(int8[1,3,4,5] x) => (float[1,3,4,5] y) {SCALES} {{ y = DequantizeLinear(x, s, z) }}",
            {},
            *("int8[1, 3, 4, 5] scale 0.5 zero point 3", "xx", {"quantize": "model"}),
        ),
        (
            f"(int8[1,4,5,3] x) => (float[1,3,4,5] y) {SCALES}"
            f" {{ a = {NCHW} (x) y = DequantizeLinear <axis = 1> (a, k, l) }}",
            {"a": LAYOUT, "y": QUANTIZE},
            "int8[1, 4, 5, 3] in NHWC scale 1, 2, 4 zero point 0, 0, 0 axis 1",
            *("xa", {"layout": "host", "quantize": "host"}),
        ),
        (
            f"(float[1,3,4,5] x) => (int8[1,3,4,5] y) {SCALES} {{ y = QuantizeLinear(x, s, z) }}",
            {"y": QUANTIZE},
            *("float32[1, 3, 4, 5]", "xx", {"quantize": "device"}),
        ),
        (  # the user's own is no conversion
            f"(float[1,3,4,5] x) => (int8[1,3,4,5] y) {SCALES} {{ y = QuantizeLinear(x, s, z) }}",
            {},
            *("float32[1, 3, 4, 5]", "xx", {}),
        ),
        (  # x is a scale here, not what is quantized
            "(float x) => (float[2] y) <int8[2] w = {1, 2}> { y = DequantizeLinear(w, x) }",
            {},
            *("float32[]", "xx", {}),
        ),
    ],
)
def test_an_input_is_what_the_first_operator_reads(
    text: str, purposes: Mapping[str, str], text_of: str, names: str, converts: Mapping[str, str]
) -> None:
    (found,) = read_region_contracts(region(f"g {text}", **purposes), {}).inputs
    assert (str(found), found.name, found.tensor, found.converts) == (text_of, "x", names[1], converts)
    assert found.inner == found.tensor


@pytest.mark.parametrize(
    ("text", "purposes", "text_of", "inner", "converts"),
    [
        ("(float[1,3,4,5] x) => (float[1,3,4,5] y) { y = Relu(x) }", {}, "float32[1, 3, 4, 5]", "y", {}),
        (
            f"(float[1,3,4,5] x) => (float[1,4,5,3] y) {{ a = Relu(x) y = {NHWC} (a) }}",
            {"y": LAYOUT},
            *("float32[1, 4, 5, 3] in NHWC", "a", {"layout": "host"}),
        ),
        (
            f"(float[1,3,4,5] x) => (float[1,4,5,3] y) {{ a = Relu(x) y = {NHWC} (a) }}",
            {},
            *("float32[1, 4, 5, 3]", "y", {}),
        ),
        (
            f"(float16[1,3,4,5] x) => (float[1,4,5,3] y)"
            f" {{ a = Relu(x) b = Cast <to = 1> (a) y = {NHWC} (b) }}",
            {"b": CAST, "y": LAYOUT},
            *("float32[1, 4, 5, 3] in NHWC", "a", {"layout": "host", "cast": "device"}),
        ),
        (
            f"(float[1,3,4,5] x) => (int8[1,4,5,3] y) {SCALES}"
            f" {{ a = QuantizeLinear <axis = 1> (x, k, l) y = {NHWC} (a) }}",
            {"a": QUANTIZE, "y": LAYOUT},
            "int8[1, 4, 5, 3] in NHWC scale 1, 2, 4 zero point 0, 0, 0 axis 1",
            *("a", {"layout": "host", "quantize": "host"}),
        ),
        (
            f"(float[1,3,4,5] x) => (int8[1,3,4,5] y) {SCALES} {{ y = QuantizeLinear(x, s, z) }}",
            {},
            *("int8[1, 3, 4, 5] scale 0.5 zero point 3", "y", {"quantize": "model"}),
        ),
        (
            f"(int8[1,3,4,5] x) => (float[1,3,4,5] y) {SCALES} {{ y = DequantizeLinear(x, s, z) }}",
            {"y": QUANTIZE},
            *("float32[1, 3, 4, 5]", "y", {"quantize": "device"}),
        ),
        (
            f"(int8[1,3,4,5] x) => (float[1,3,4,5] y) {SCALES} {{ y = DequantizeLinear(x, s, z) }}",
            {},
            *("float32[1, 3, 4, 5]", "y", {}),
        ),
    ],
)
def test_an_output_is_what_the_last_operator_makes(
    text: str, purposes: Mapping[str, str], text_of: str, inner: str, converts: Mapping[str, str]
) -> None:
    (found,) = read_region_contracts(region(f"g {text}", **purposes), {}).outputs
    assert (str(found), found.name, found.inner, found.converts) == (text_of, "y", inner, converts)
    assert found.tensor == found.inner


def test_types_of_the_users_model_complete_those_of_the_region() -> None:
    """And say what a tensor is there; what is not in that model has its own type."""
    model = region(
        f"g (float[N,H,W,C] x) => (float[P,3,4,5] y) {{ a = {NCHW} (x) y = Relu(a) }}", a=LAYOUT
    )
    found = read_region_contracts(model, kinds(a=(1, 3, 4, 5)))
    assert [str(each) for each in found.inputs] == ["float32[1, 4, 5, 3] in NHWC"]
    assert [str(each.logical) for each in found.inputs] == ["float32[1, 3, 4, 5]"]
    alone = read_region_contracts(model, {})
    assert [str(each) for each in alone.inputs] == ["float32[N, H, W, C] in NHWC"]
    assert [str(each.logical) for each in (*alone.inputs, *found.outputs)] == [
        "float32[N, H, W, C]",
        "float32[N, C, H, W]",
    ]


WEIGHTS = """g (float[1,3,4,4] x) => (float[1,2,4,4] y)
    <int8[2,3,1,1] w = {1, 2, 3, 4, 5, 6}, float[2] s = {0.5, 0.25}, int8[2] z = {0, 1},
     float[2] t = {0.5, 0.125}, float[2] b = {1, 2}, int8[2] u = {1, 2}> {
    d = DequantizeLinear <axis = 0> (w, s, z)
    y = Conv(x, d, b)
    MORE
}"""
SCALED = "int8[2, 3, 1, 1] scale 0.5, 0.25 zero point 0, 1 axis 0"


def constants(more: str = "", name: str = "", **options: object) -> Mapping[str, TensorContract]:
    """The constants of WEIGHTS with more nodes; `name` is the user's of the weight."""
    model = region(WEIGHTS.replace("MORE", more))
    if name:
        set_metadata(model.graph.node[0], WEIGHT_KEY, name)
    found = read_region_contracts(model, options.pop("types", {}), None, **options)  # type: ignore[arg-type]
    assert all(each.inner == each.name for each in found.constants)
    return {each.name: each for each in found.constants}


def test_a_quantized_weight_has_the_scales_of_what_dequantizes_it() -> None:
    found = constants()
    assert {name: str(each) for name, each in found.items()} == {
        "w": SCALED,
        "s": "float32[2]",
        "z": "int8[2]",
        "t": "float32[2]",
        "b": "float32[2]",
        "u": "int8[2]",
    }
    assert {each.tensor for each in found.values()} == set(found)
    assert all(each.logical == each.type for each in found.values())


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("e = DequantizeLinear <axis = 0> (w, s, z)", SCALED),
        ("e = Identity(w)", SCALED),
        ("e = DequantizeLinear <axis = 0> (w, t, z)", "int8[2, 3, 1, 1]"),
        ("e = DequantizeLinear <axis = 0> (w, s)", "int8[2, 3, 1, 1]"),
    ],
)
def test_scales_of_a_weight_are_those_that_all_agree_on(more: str, expected: str) -> None:
    assert str(constants(more)["w"]) == expected


def test_a_weight_that_byoc_quantized_is_the_users() -> None:
    found = constants(name="weight")["w"]
    assert (found.tensor, str(found), str(found.logical)) == ("weight", SCALED, "float32[2, 3, 1, 1]")
    half = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT16, (2, 3, 1, 1))
    found = constants(name="weight", types={"weight": half})["w"]
    assert (found.tensor, str(found), str(found.logical)) == ("weight", SCALED, "float16[2, 3, 1, 1]")


def test_weights_of_convolutions_are_in_the_layout_for_weights() -> None:
    found = constants(weights=parse_layout("OHWI"))
    assert str(found["w"]) == "int8[2, 1, 1, 3] in OHWI scale 0.5, 0.25 zero point 0, 1 axis 0"
    assert str(found["w"].logical) == "int8[2, 3, 1, 1]"
    assert {each.layout for name, each in found.items() if name != "w"} == {""}


def test_a_weight_may_have_its_scales_in_a_file(tmp_path: object) -> None:
    model = region(WEIGHTS.replace("MORE", ""))
    wide = numpy_helper.from_array(np.array([0.5, 0.25], np.float32), "s")
    for tensor in model.graph.initializer:
        if tensor.name == "s":
            (tmp_path / "weights.bin").write_bytes(wide.raw_data)  # type: ignore[operator]
            tensor.ClearField("float_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("length", "8")):
                tensor.external_data.add(key=key, value=value)
    found = {each.name: each for each in read_region_contracts(model, {}, tmp_path).constants}  # type: ignore[arg-type]
    assert str(found["w"]) == SCALED
