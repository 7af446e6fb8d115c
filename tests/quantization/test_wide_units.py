"""Units in 16 bits beside others in 8: types, conversions between them, scales, and numbers."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantizing import groups, network, node, quantize, ranges, samples, snr, target, tidied, values

from byoc.model import Model, get_metadata
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.placement.strategies import HostOnly
from byoc.quantization import QuantizedModel, Range, WideUnits
from byoc.rules import load_rules
from byoc.verification import run_plain

UNITS = ["relu0", "relu1", "conv2", "relu2", "conv3", "conv4", "concat", "pool", "flatten", "gemm"]
U55 = load_rules("ethos-u55")
KNOWN = ranges(network())


def mixed(wide: set[str], rules: Any = None) -> QuantizedModel:
    """Return the network with some units in 16 bits and all others in 8."""
    units = WideUnits(frozenset(wide), KNOWN)
    return quantize(network(), [rules or U55], KNOWN, "int8", (), units)


def types(found: QuantizedModel, tensor: str) -> list[str]:
    """Return the types that a tensor of the float model is quantized to."""
    index = found.model.index
    return [
        index.get_dtype(each.output[0]) or ""
        for each in index.nodes
        if each.op_type == "QuantizeLinear" and get_metadata(each, "byoc.tensor") == tensor
    ]


def scale(found: QuantizedModel, tensor: str, dtype: str) -> float:
    """Return the scale of a tensor's quantization to a type."""
    index = found.model.index
    return next(
        float(onnx.numpy_helper.to_array(index.initializers[each.input[1]]))
        for each in index.nodes
        if each.op_type == "QuantizeLinear"
        and get_metadata(each, "byoc.tensor") == tensor
        and index.get_dtype(each.output[0]) == dtype
    )


def run(model: Model) -> list[np.ndarray[Any, Any]]:
    """Return what a model makes of each sample."""
    with without_optimizations():
        session = open_session(model.proto, model.folder)
    return [run_session(session, each)["y"] for each in samples(model)]


def test_the_rule_that_takes_the_type_says_what_zero_points_are() -> None:
    """ethos-u55 takes int8 with any zero point, and int16 with 0 alone."""
    model = network()
    narrow = quantize(model, [U55], KNOWN, "int8")
    wide = quantize(model, [U55], KNOWN, "int16")
    assert [*wide.units] == [*narrow.units] == UNITS
    assert groups(wide.model, U55).keys() == groups(narrow.model, U55).keys()
    for found, point in (narrow, -128), (wide, 0):
        maker = node(found.model, "r0_q")
        assert onnx.numpy_helper.to_array(found.model.index.initializers[maker.input[2]]) == point


def test_a_tensor_is_converted_for_readers_of_the_other_type_alone() -> None:
    """`r0` is read by a unit in 16 bits and one in 8, `c4` in 16 bits by a Concat in 8."""
    found = mixed({"relu1", "conv4"})
    onnx.checker.check_model(found.model.proto, full_check=True)
    assert found.model.index.opsets[""] == 21
    assert [*found.units] == UNITS
    assert found.notes == ()
    made = {name: types(found, name) for name in ("x", "r0", "r1", "c2", "r2", "c3", "c4", "k")}
    assert made == {
        "x": ["int8"],
        "r0": ["int8", "int16"],
        "r1": ["int16", "int8"],
        "c2": ["int8"],
        "r2": ["int8", "int16"],
        "c3": ["int8"],
        "c4": ["int16", "int8"],
        "k": ["int8"],
    }
    conversions = {"r0_int16", "r1_int8", "r2_int16", "c4_int8"}
    assert groups(found.model, U55).keys() == {*UNITS, *conversions}


def test_what_enters_the_network_is_quantized_for_each_type_from_floats() -> None:
    found = mixed({"relu0"})
    assert types(found, "x") == ["int16"]
    assert not any(each.op_type == "Identity" for each in found.model.index.nodes[:4])


def test_what_a_concat_joins_has_its_scale_in_its_type_alone() -> None:
    found = mixed({"concat"})
    narrow = {scale(found, name, "int8") for name in ("c3", "c4")}
    assert len(narrow) == 2
    known = KNOWN.tensors["k"]
    assert isinstance(known, Range)
    wide = [scale(found, name, "int16") for name in ("c3", "c4", "k")]
    assert wide == pytest.approx([max(-known.low, known.high) / 32767] * 3)


def test_a_bias_has_int32_and_the_scale_of_what_is_read_in_16_bits() -> None:
    found = mixed({"relu1"})
    index = found.model.index
    stored = index.initializers
    bias = node(found.model, next(name for name in node(found.model, "c1").input if name[0] == "b"))
    weights = node(found.model, node(found.model, "c1").input[1])
    assert index.get_dtype(bias.input[0]) == "int32"
    steps = onnx.numpy_helper.to_array(stored[weights.input[1]]) * np.float32(
        scale(found, "r0", "int16")
    )
    np.testing.assert_allclose(onnx.numpy_helper.to_array(stored[bias.input[1]]), steps, rtol=1e-6)


def test_more_units_in_16_bits_keep_more() -> None:
    expected = [run_plain(network().proto, network(), each)["y"] for each in samples(network())]
    kept = []
    for wide in (set(), {"relu0", "relu1", "conv2", "relu2"}, {*UNITS}):
        actual = run(mixed(wide).model)
        kept.append(min(map(snr, expected, actual)))
    assert kept[0] + 1 < kept[1]
    assert kept[1] + 1 < kept[2]


@given(st.sets(st.sampled_from(UNITS)))
def test_any_units_may_be_in_16_bits(wide: set[str]) -> None:
    """What a unit reads and makes has its type, and nothing is converted without need."""
    found = mixed(wide)
    index = found.model.index
    assert [*found.units] == UNITS
    onnx.checker.check_model(found.model.proto, full_check=True)
    for unit, nodes in found.units.items():
        dtype = "int16" if unit in wide else "int8"
        inner = {n for n, each in enumerate(index.nodes) if each.name in nodes}
        for number in inner:
            for name in index.reads[number]:
                maker = index.producers.get(name, -1)
                if maker not in inner and maker not in index.constant_nodes:
                    assert index.get_dtype(index.nodes[maker].input[0]) == dtype
            for name in index.nodes[number].output:
                readers = [n for n in index.consumers[name] if n not in inner]
                kinds = {index.get_dtype(index.nodes[n].output[0]) for n in readers}
                assert kinds <= {dtype}
    for each in index.nodes:
        if each.op_type == "Identity":
            (reader,) = index.consumers[each.output[0]]
            before = index.get_dtype(node(found.model, each.input[0]).input[0])
            assert before != index.get_dtype(index.nodes[reader].output[0])


def test_with_everything_on_the_host_it_is_the_float_model_again() -> None:
    """Conversions vanish with the pairs around them."""
    to = target()
    plan = tidied(mixed({"relu1", "conv4", "gemm"}, to).model, to, HostOnly())
    kinds = {each.op_type for each in plan.proto.graph.node}
    assert kinds.isdisjoint({"Identity", "QuantizeLinear", "DequantizeLinear"})
    for each in samples(network()):
        expected = run_plain(network().proto, network(), each)["y"]
        actual = run_plain(plan.proto, plan.model, each)["y"]
        np.testing.assert_array_equal(actual, expected)


def test_a_unit_in_8_bits_may_make_a_tensor_in_16() -> None:
    """`r0`: what makes it reads 8 bits, and what reads it makes 8."""
    rules = load_rules("dla")
    plain = quantize(network(), [rules], KNOWN, "int8")
    units = WideUnits(frozenset(), KNOWN, frozenset({"r0"}))
    found = quantize(network(), [rules], KNOWN, "int8", (), units)
    onnx.checker.check_model(found.model.proto, full_check=True)
    assert found.units == plain.units
    assert [types(found, name) for name in ("x", "r0", "r1")] == [["int8"], ["int16"], ["int8"]]
    assert scale(found, "r0", "int16") == scale(
        quantize(network(), [rules], KNOWN, "int16"), "r0", "int16"
    )
    again = quantize(network(), [rules], KNOWN, "int8", (), units, found)
    assert again.model.proto == found.model.proto
    exact = [values(network(), each)["y"] for each in samples(network())]
    assert snr(np.stack(exact), np.stack(run(found.model))) > 20
