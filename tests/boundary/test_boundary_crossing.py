"""What crosses in place of a tensor: bytes, and the steps on the way, by hand and for random layouts."""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.support import parse, prepared
from hypothesis import given
from hypothesis import strategies as st

from byoc.boundary.convert import (
    AskedTranspose,
    BoundaryFormat,
    Conversion,
    TensorTransfer,
    TransposeOffer,
    convert_boundary,
    find_own_quantization,
    make_transfer_lookup,
)
from byoc.model import QUANTIZE, GraphIndex, TensorType, mark_inserted, parse_layout, prepare_model

NHWC, BLOCKED = parse_layout("NHWC"), parse_layout("NCHW4c")
IMAGE = """
g (float[1,2,3,3] x, int64[4] n) => (float[1,2] y) {
  a = MaxPool <kernel_shape = [2, 2]> (x)
  b = GlobalAveragePool (a)
  y = Flatten (b)
}
"""
QDQ = """
g (float[1,2,2,2] x) => (float[1,2,2,2] y) <float s = {0.5}, int8 z = {0}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  p = MaxPool <kernel_shape = [1, 1]> (d)
  pq = QuantizeLinear (p, s, z)
  y = DequantizeLinear (pq, s, z)
}
"""


def quantized(text: str = QDQ) -> GraphIndex:
    """Return the index of a model whose QuantizeLinear and DequantizeLinear nodes are byoc's."""
    proto = parse(text)
    for node in proto.graph.node:
        if "Linear" in node.op_type:
            mark_inserted(node, QUANTIZE)
    return prepare_model(proto, "test").index


def test_nothing_is_converted_that_is_wanted_as_it_is() -> None:
    index = prepared(IMAGE).index
    for wants in (
        BoundaryFormat(),
        BoundaryFormat(parse_layout("NCHW")),
        BoundaryFormat(convert="device"),
    ):
        of = make_transfer_lookup(index, wants)
        assert [of(name) for name in ("x", "a", "b", "y", "n", "not there")] == [None] * 6


def test_an_image_is_transposed_either_way_and_nothing_else() -> None:
    of = make_transfer_lookup(prepared(IMAGE).index, BoundaryFormat(NHWC))
    plain, packed = TensorType("float32", (1, 2, 3, 3)), TensorType("float32", (1, 3, 3, 2))
    assert of("x") == TensorTransfer(
        bytes=72,
        converted_bytes=72,
        entering=(Conversion("Transpose", "host", plain, packed, None, (("perm", (0, 2, 3, 1)),)),),
        leaving=(Conversion("Transpose", "host", packed, plain, None, (("perm", (0, 3, 1, 2)),)),),
    )
    assert of("y") is None
    assert of("n") is None


def test_blocks_pad_and_their_reshapes_are_free() -> None:
    found = make_transfer_lookup(prepared(IMAGE).index, BoundaryFormat(BLOCKED))("x")
    assert found is not None
    assert (found.bytes, found.converted_bytes) == (4 * 4 * 9, 4 * 4 * 9)  # 2 channels in a block of 4
    assert [each.op for each in found.entering] == ["Pad", "Transpose"]
    assert [each.op for each in found.leaving] == ["Transpose", "Slice"]


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_the_host_casts_before_it_transposes(compute: str) -> None:
    of = make_transfer_lookup(prepared(IMAGE).index, BoundaryFormat(NHWC, compute=compute))
    image, flat = of("x"), of("y")
    assert image is not None
    assert flat is not None
    assert (image.bytes, image.converted_bytes) == (36, 36)
    assert [each.op for each in image.entering] == ["Cast", "Transpose"]
    assert [each.op for each in image.leaving] == ["Transpose", "Cast"]
    half = TensorType(compute, (1, 2))
    assert [each.after for each in flat.entering] == [half]
    assert [each.before for each in flat.leaving] == [half]
    assert (flat.bytes, flat.converted_bytes) == (4, 4)
    assert of("n") is None


def test_a_device_that_casts_gets_floats_in_its_layout() -> None:
    of = make_transfer_lookup(prepared(IMAGE).index, BoundaryFormat(NHWC, "device", "float16"))
    image, flat = of("x"), of("y")
    assert image is not None
    assert flat is not None
    assert [(each.op, each.by) for each in image.entering] == [("Transpose", "host"), ("Cast", "device")]
    assert [(each.op, each.by) for each in image.leaving] == [("Cast", "device"), ("Transpose", "host")]
    assert (image.bytes, image.converted_bytes) == (72, 72)
    assert (flat.bytes, flat.converted_bytes) == (8, 0)
    assert [each.by for each in (*flat.entering, *flat.leaving)] == ["device", "device"]


def test_what_byoc_quantizes_crosses_as_int8() -> None:
    index = quantized()
    assert find_own_quantization(index) == {0, 1, 3, 4}
    of = make_transfer_lookup(index, BoundaryFormat())
    outer, inner = TensorType("float32", (1, 2, 2, 2)), TensorType("int8", (1, 2, 2, 2))
    assert of("q") == TensorTransfer(
        bytes=8,
        converted_bytes=8,
        entering=(Conversion("QuantizeLinear", "host", outer, inner, 0),),
        leaving=(Conversion("DequantizeLinear", "host", inner, outer, 1),),
    )
    assert [of(name) for name in ("x", "d", "p", "y")] == [None] * 4


def test_an_int8_image_is_transposed_as_int8() -> None:
    found = make_transfer_lookup(quantized(), BoundaryFormat(NHWC))("pq")
    assert found is not None
    assert [each.op for each in found.entering] == ["QuantizeLinear", "Transpose"]
    assert [each.op for each in found.leaving] == ["Transpose", "DequantizeLinear"]
    assert found.entering[1].before == TensorType("int8", (1, 2, 2, 2))
    assert found.bytes == 8


def test_a_device_that_quantizes_gets_the_float() -> None:
    found = make_transfer_lookup(quantized(), BoundaryFormat(NHWC, "device"))("pq")
    assert found is not None
    assert [(each.op, each.by) for each in found.entering] == [
        ("Transpose", "host"),
        ("QuantizeLinear", "device"),
    ]
    assert [(each.op, each.by) for each in found.leaving] == [
        ("DequantizeLinear", "device"),
        ("Transpose", "host"),
    ]
    assert (found.bytes, found.converted_bytes) == (32, 32)
    plain = make_transfer_lookup(quantized(), BoundaryFormat(None, "device"))("pq")
    assert plain is not None
    assert (plain.bytes, plain.converted_bytes) == (32, 0)


def test_the_users_own_quantization_is_an_operator_like_any_other() -> None:
    index = prepared(QDQ).index
    assert find_own_quantization(index) == frozenset()
    assert [make_transfer_lookup(index, BoundaryFormat())(name) for name in ("q", "pq")] == [None, None]


def test_a_shape_that_is_not_known() -> None:
    text = "g (float[N,2,H,3] x) => (float[N,2,H,3] y) { y = MaxPool <kernel_shape = [1, 1]> (x) }"
    index = prepared(text).index
    found = make_transfer_lookup(index, BoundaryFormat(NHWC))("x")
    assert found is not None
    assert found.bytes == 24  # N and H count as 1
    assert (
        make_transfer_lookup(index, BoundaryFormat(BLOCKED))("x") is None
    )  # H would have to be known, so it stays plain
    index = quantized("""
        g (float[4] x, int64[K] n) => (float[1] y) <float s = {0.5}, int8 z = {0}, int64[1] one = {1}> {
          r = Reshape (x, n)
          q = QuantizeLinear (r, s, z)
          d = DequantizeLinear (q, s, z)
          y = Reshape (d, one)
        }""")
    found = make_transfer_lookup(index, BoundaryFormat(), fallback=99)("q")
    assert found is not None
    assert found.bytes == 99


@given(
    shape=st.tuples(*[st.integers(1, 9)] * 4),
    word=st.sampled_from(["NHWC", "CHWN", "NCHW4c", "NHWC8c", "NCHW2c3w", "NHCW16c"]),
    compute=st.sampled_from([None, "float16"]),
)
def test_the_steps_lead_from_the_tensor_to_what_crosses_and_back(
    shape: tuple[int, int, int, int], word: str, compute: str | None
) -> None:
    layout = parse_layout(word)
    dims = ",".join(map(str, shape))
    text = f"g (float[{dims}] x) => (float[{dims}] y) {{ y = MaxPool <kernel_shape = [1, 1]> (x) }}"
    found = make_transfer_lookup(prepared(text).index, BoundaryFormat(layout, "host", compute))("x")
    assert found is not None
    for outer in (found.entering[0].before, found.leaving[-1].after):
        assert outer is not None  # perhaps reshaped: that moves nothing, and is no step
        assert (outer.dtype, outer.elements) == ("float32", prod(shape))
    last, first = found.entering[-1].after, found.leaving[0].before
    assert last is not None
    assert last.dtype == (compute or "float32")
    assert last.bytes == found.bytes == found.converted_bytes
    assert first is not None
    assert prod(n for n in first.shape or () if isinstance(n, int)) == last.elements
    # As the layout itself packs an array of such numbers.
    array = np.zeros(shape, np.float16 if compute else np.float32)
    assert layout.pack_array(array).nbytes == found.bytes


INTO, BACK = (0, 2, 3, 1), (0, 3, 1, 2)


def offered(
    index: GraphIndex, name: str, taken: Collection[tuple[int, ...]] = (INTO, BACK), **form: Any
) -> tuple[TransposeOffer | None, list[AskedTranspose]]:
    """Return what a target that takes some Transposes is offered for a tensor, and what it is asked."""
    asked: list[AskedTranspose] = []

    def takes(one: AskedTranspose) -> bool:
        asked.append(one)
        return one.order in taken

    wants = BoundaryFormat(**{"activations": NHWC, "takes_transpose": takes, **form})
    found = make_transfer_lookup(index, wants)(name)
    return (found.offer if found is not None else None), asked


@pytest.mark.parametrize("taken", [(), (INTO,), (BACK,), (INTO, BACK)])
def test_a_target_is_offered_the_transposes_that_it_takes(taken: Collection[tuple[int, ...]]) -> None:
    outer, inner = (1, 2, 3, 3), (1, 3, 3, 2)
    plain, packed = TensorType("float32", outer), TensorType("float32", inner)
    found, asked = offered(prepared(IMAGE).index, "x", taken)
    assert asked == [AskedTranspose(plain, INTO), AskedTranspose(packed, BACK)]
    into = Conversion("Transpose", "device", plain, packed, None, (("perm", INTO),))
    back = Conversion("Transpose", "device", packed, plain, None, (("perm", BACK),))
    expected = TransposeOffer(
        into if INTO in taken else None, back if BACK in taken else None, (), (), 0
    )
    assert found == (expected if taken else None)


@pytest.mark.parametrize("taken", [(INTO,), (BACK,), (INTO, BACK)])
def test_what_the_host_still_quantizes_is_left_beside_an_offer(
    taken: Collection[tuple[int, ...]],
) -> None:
    found, asked = offered(quantized(), "pq", taken)
    assert [(one.kind.shape, one.kind.dtype, one.quantization) for one in asked] == [
        ((1, 2, 2, 2), "int8", (0.5, 0)),
        ((1, 2, 2, 2), "int8", (0.5, 0)),
    ]
    assert found is not None
    assert [found.entering is not None, found.leaving is not None] == [INTO in taken, BACK in taken]
    assert [(each.op, each.by) for each in found.other_entering] == [("QuantizeLinear", "host")]
    assert [(each.op, each.by) for each in found.other_leaving] == [("DequantizeLinear", "host")]
    assert found.other_bytes == 8  # eight bytes of int8; nothing where the host does no more
    assert offered(quantized(), "pq", convert="device") == (None, [])


USERS = """
g (float[1,2,2,2] x, float t) => (float[1,2,2,2] y, float[1,2,2,2] w, float[1,2,2,2] v)
<float s = {0.5}, uint8 z = {7}, float[2] ss = {0.5, 0.25}, int8[2] zz = {0, 0}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  y = MaxPool <kernel_shape = [1, 1]> (d)
  c = QuantizeLinear <axis = 1> (x, ss, zz)
  cd = DequantizeLinear <axis = 1> (c, ss, zz)
  w = MaxPool <kernel_shape = [1, 1]> (cd)
  o = QuantizeLinear (x, t)
  od = DequantizeLinear (o, t)
  v = MaxPool <kernel_shape = [1, 1]> (od)
}
"""


@pytest.mark.parametrize(
    ("name", "asks", "quantization"),
    [
        ("x", True, None),
        ("q", True, (0.5, 7)),  # by the node that makes it
        ("d", True, None),
        ("c", False, None),  # a scale for each channel: which one moves with the axes
        ("cd", True, None),
        ("o", False, None),  # a scale that is not known
    ],
)
def test_a_target_is_asked_with_the_scale_of_the_users_quantization(
    name: str, asks: bool, quantization: tuple[float, int] | None
) -> None:
    found, asked = offered(prepared(USERS).index, name)
    assert [one.quantization for one in asked] == [quantization] * (2 if asks else 0)
    assert (found is not None) == asks
    assert found is None or found.other_bytes == 0


def test_a_scale_is_found_at_the_reader_of_an_input_and_a_zero_point_left_out_is_0() -> None:
    text = """
g (uint8[1,2,2,2] q) => (float[1,2,2,2] y, float[1,2,2,2] r) <float s = {0.125}> {
  d = DequantizeLinear (q, s)
  y = MaxPool <kernel_shape = [1, 1]> (d)
  r = Relu (d)
}"""
    _, asked = offered(prepared(text).index, "q")
    assert [one.quantization for one in asked] == [(0.125, 0)] * 2


@pytest.mark.parametrize(
    ("form", "dims", "asks"),
    [
        ({}, "1,2,4,4", True),
        ({}, "1,2,H,4", False),  # a target is asked about known extents alone
        ({"compute": "float16"}, "1,2,4,4", False),
        ({"activations": BLOCKED}, "1,2,4,4", False),
        ({"takes_transpose": None}, "1,2,4,4", False),
    ],
)
def test_a_target_is_not_asked_where_the_host_has_to_convert(
    form: Mapping[str, Any], dims: str, asks: bool
) -> None:
    text = f"g (float[{dims}] x) => (float[{dims}] y) {{ y = MaxPool <kernel_shape = [1, 1]> (x) }}"
    found, asked = offered(prepared(text).index, "x", **form)
    assert len(asked) == (2 if asks else 0)
    assert (found is not None) == asks


def test_an_image_is_not_offered_in_a_body_that_captures_it() -> None:
    text = """
g (float[1,2,4,4] x, bool c) => (float[1,2,4,4] y) {
  y = If (c) <then_branch = t () => (float[1,2,4,4] p) { p = MaxPool <kernel_shape = [1, 1]> (x) },
              else_branch = e () => (float[1,2,4,4] r) { r = MaxPool <kernel_shape = [1, 1]> (x) }>
}"""
    index = prepared(text).index
    assert offered(index, "x")[0] is not None
    inside = [body.index for bodies in index.bodies.values() for body in bodies]
    assert [offered(body, "x") for body in inside] == [(None, [])] * 2
    found = make_transfer_lookup(inside[0], BoundaryFormat(NHWC))("x")
    assert found is not None  # the host converts it
    assert found.bytes == 128


def test_what_byoc_quantized_for_nothing_vanishes_with_what_is_stored_for_it() -> None:
    text = """
g (float[1,2,2,2] x) => (float[1,2,2,2] y)
<float s = {0.5}, int8 z = {0}, float[1] kept = {2}, float[1] unread = {2}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  y = Mul (d, kept)
}"""
    proto = parse(text)
    for node in proto.graph.node[:2]:
        mark_inserted(node, QUANTIZE)
    found = convert_boundary(proto, []).proto.graph
    assert [(node.op_type, list(node.input)) for node in found.node] == [("Mul", ["x", "kept"])]
    assert {tensor.name for tensor in found.initializer} == {
        "kept",
        "unread",
    }  # what is the user's stays
