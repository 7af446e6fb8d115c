"""What is left of our DequantizeLinear and QuantizeLinear once regions are cut."""

from dataclasses import dataclass

import numpy as np
import pytest
from helpers.strategies import Alternating, Random
from onnx import ModelProto
from onnx.helper import make_node
from quantizing import (
    built,
    call,
    dtypes,
    host,
    inside,
    quantize,
    ranges,
    samples,
    target,
    tidied,
    weights,
)
from test_quantize_model import network

from byoc.model import Model
from byoc.placement import Placement, Problem
from byoc.placement.strategies import AllSupported, HostOnly
from byoc.planning import Plan
from byoc.rules import Target
from byoc.verification import run_plain


@dataclass(frozen=True)
class On:
    """On the accelerator are the units with these positions among those that it takes."""

    chosen: tuple[int, ...]
    name: str = "on"

    def solve(self, problem: Problem) -> Placement:
        supported = np.flatnonzero(np.isfinite(problem.seconds[:, 1]))
        labels = np.zeros(problem.units, np.int64)
        labels[[row for i, row in enumerate(supported) if i in self.chosen]] = 1
        return Placement.from_labels(problem, labels)


def same(plan: Plan, model: Model, reference: ModelProto) -> None:
    """Assert that a partitioned model gives what another gives, to the bit."""
    for inputs in samples(model, 2):
        expected = run_plain(reference, model, inputs)
        actual = run_plain(plan.proto, model, inputs)
        assert list(actual) == list(expected)
        for name, value in expected.items():
            assert actual[name].dtype == value.dtype
            np.testing.assert_array_equal(actual[name], value, err_msg=name)


def device(**scheme: str) -> Target:
    return target(convert="device", **scheme)


def test_on_the_host_alone_it_is_the_float_model() -> None:
    """BatchNormalization apart, nodes, names, weights and numbers are those that came in."""
    model = network()
    found = quantize(model, [target()], ranges(model))
    plan = tidied(found.model, target(), HostOnly())
    same(plan, found.floats, found.floats.proto)
    before, after = found.floats.proto.graph, plan.proto.graph
    bare = [(n.op_type, n.name, list(n.input), list(n.output)) for n in after.node]
    assert bare == [(n.op_type, n.name, list(n.input), list(n.output)) for n in before.node]
    assert [t.name for t in after.initializer] == [t.name for t in before.initializer]


def test_all_on_the_device_leaves_the_float_weights_behind() -> None:
    model = network()
    found = quantize(model, [target()], ranges(model))
    plan = tidied(found.model, target(), AllSupported())
    assert host(plan.proto) == ["QuantizeLinear", "t_0", "DequantizeLinear"]
    assert not any(t.name in ("w0", "b0", "w5") for t in plan.proto.graph.initializer)
    assert {t.data_type for t in plan.proto.graph.initializer if t.name.startswith("w1_q")} == {3}
    same(plan, found.model, found.model.proto)
    onto = tidied(quantize(model, [device()], ranges(model)).model, device(), AllSupported())
    assert host(onto.proto) == ["t_0"]
    assert call(onto.proto).input[0] == "x"
    assert list(call(onto.proto).output) == ["y"]
    operators = inside(onto.proto)
    assert (operators[0], operators[-1]) == ("QuantizeLinear", "DequantizeLinear")
    same(onto, found.model, found.model.proto)


@pytest.mark.parametrize("to", [target(), device()], ids=["host", "device"])
@pytest.mark.parametrize("strategy", [Alternating(), Random(1), Random(2), Random(3)])
def test_any_placement_is_near(to: Target, strategy: Random) -> None:
    model = network()
    found = quantize(model, [to], ranges(model))
    plan = tidied(found.model, to, strategy)
    inputs = samples(model)[0]
    expected = run_plain(model.proto, model, inputs)["y"]
    actual = run_plain(plan.proto, found.model, inputs)["y"]
    np.testing.assert_allclose(actual, expected, atol=np.abs(expected).max() * 0.06)
    made = [n for n in plan.proto.graph.node if n.op_type == "QuantizeLinear"]
    readers = {name for n in plan.proto.graph.node if n.op_type.startswith("t_") for name in n.input}
    assert all(n.output[0] in readers for n in made)
    assert to.rules.quantization.convert != "device" or not made


def test_what_is_taken_is_what_was_quantized() -> None:
    model = network()
    found = quantize(model, [target()], ranges(model))
    plan = tidied(found.model, target(), AllSupported())
    taken = {unit.name for region in plan.regions for unit in region.units}
    assert taken == set(found.units)
    assert all(unit.kind == "qdq" for region in plan.regions for unit in region.units)


def test_a_residual_of_two_scales() -> None:
    nodes = [
        make_node("Conv", ["x", "w"], ["c"], "conv"),
        make_node("Mul", ["x", "big"], ["m"], "mul"),
        make_node("Add", ["c", "m"], ["y"], "add"),
    ]
    tensors = {"w": weights(1, 2, 2, 1, 1), "big": np.float32([[[[100]]]])}
    model = built(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]}, tensors)
    to = target()
    found = quantize(model, [to], ranges(model))
    plan = tidied(found.model, to, AllSupported())
    same(plan, found.model, found.model.proto)
    one = target(same_scale=["Add"])
    joined = quantize(model, [one], ranges(model))
    assert "add" in joined.units
    same(tidied(joined.model, one, AllSupported()), joined.model, joined.model.proto)


OUTPUT_TOO = [
    make_node("Conv", ["x", "w"], ["t"], "conv"),
    make_node("Relu", ["t"], ["r"], "relu"),
    make_node("Add", ["r", "t"], ["y"], "add"),
]


@pytest.mark.parametrize("to", [target(), device()], ids=["host", "device"])
@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2), ()])
def test_an_output_of_the_graph_that_is_also_read(to: Target, chosen: tuple[int, ...]) -> None:
    model = built(
        OUTPUT_TOO,
        {"x": [1, 2, 4, 4]},
        {"t": [1, 2, 4, 4], "y": [1, 2, 4, 4]},
        {"w": weights(1, 2, 2, 1, 1)},
    )
    found = quantize(model, [to], ranges(model))
    assert set(found.units) == {"conv", "relu", "add"}
    plan = tidied(found.model, to, On(chosen))
    assert [v.name for v in plan.proto.graph.output] == ["t", "y"]
    for inputs in samples(model):
        expected = run_plain(model.proto, model, inputs)
        actual = run_plain(plan.proto, found.model, inputs)
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, atol=np.abs(value).max() * 0.04)
    if not chosen:
        same(plan, found.model, found.floats.proto)


def fork() -> Model:
    """Return a convolution that a Relu reads, which is taken, and a Sigmoid, which is not."""
    nodes = [
        make_node("Conv", ["x", "w"], ["c"], "conv"),
        make_node("Relu", ["c"], ["r"], "relu"),
        make_node("Sigmoid", ["c"], ["y"], "sigmoid"),
    ]
    size = [1, 2, 4, 4]
    return built(nodes, {"x": size}, {"r": size, "y": size}, {"w": weights(1, 2, 2, 1, 1)})


@pytest.mark.parametrize("to", [target(), device()], ids=["host", "device"])
def test_one_reader_inside_and_one_outside(to: Target) -> None:
    """ExecuTorch #19364: an int8 region, a float reader outside; both sides mean the same dtype."""
    model = fork()
    found = quantize(model, [to], ranges(model))
    plan = tidied(found.model, to, AllSupported())
    same(plan, found.model, found.model.proto)
    region = call(plan.proto)
    on_device = to.rules.quantization.convert == "device"
    expected = "tensor(float)" if on_device else "tensor(int8)"
    assert set(dtypes(plan.proto, region.output)) == {expected}
    assert host(plan.proto).count("DequantizeLinear") == (0 if on_device else 2)
    split = tidied(found.model, to, On((0,)))  # the Conv alone: Relu and Sigmoid share one conversion
    assert host(split.proto).count("DequantizeLinear") == (0 if on_device else 1)
    assert dtypes(split.proto, call(split.proto).output) == [expected]


@pytest.mark.parametrize("to", [target(), device()], ids=["host", "device"])
def test_a_host_tensor_that_a_region_and_the_host_read(to: Target) -> None:
    nodes = [
        make_node("Sigmoid", ["x"], ["s"], "sigmoid"),
        make_node("Relu", ["s"], ["r"], "relu"),
        make_node("Sigmoid", ["s"], ["y"], "other"),
        make_node("Conv", ["s", "w"], ["c"], "conv"),
    ]
    size = [1, 2, 4, 4]
    tensors = {"w": weights(1, 2, 2, 1, 1)}
    model = built(nodes, {"x": size}, {"r": size, "y": size, "c": size}, tensors)
    found = quantize(model, [to], ranges(model))
    plan = tidied(found.model, to, Alternating())
    on_device = to.rules.quantization.convert == "device"
    regions = [n for n in plan.proto.graph.node if n.op_type.startswith("t_")]
    assert len(regions) == 1
    assert host(plan.proto).count("QuantizeLinear") == (0 if on_device else 1)
    assert dtypes(plan.proto, regions[0].input[:1]) == ["tensor(float)" if on_device else "tensor(int8)"]
    inputs = samples(model)[0]
    floats = run_plain(model.proto, model, inputs)
    actual = run_plain(plan.proto, found.model, inputs)
    np.testing.assert_array_equal(actual["y"], floats["y"])  # the host reads the float itself


def test_two_regions_read_what_the_device_quantizes() -> None:
    nodes = [
        make_node("Sigmoid", ["x"], ["s"], "sigmoid"),
        make_node("Relu", ["s"], ["r"], "relu"),
        make_node("Sigmoid", ["r"], ["h"], "host"),
        make_node("Mul", ["h", "s"], ["y"], "mul"),
    ]
    size = [1, 2, 4, 4]
    model = built(nodes, {"x": size}, {"y": size}, {})
    to = device()
    found = quantize(model, [to], ranges(model))
    plan = tidied(found.model, to, AllSupported())
    assert host(plan.proto) == ["Sigmoid", "t_0", "Sigmoid", "t_1"]
    assert inside(plan.proto, "t_0")[0] == "QuantizeLinear"
    assert inside(plan.proto, "t_1").count("QuantizeLinear") == 3
    same(plan, found.model, found.model.proto)


def test_a_constant_two_regions_away_from_its_reader() -> None:
    """ONNX Runtime #26325: a DequantizeLinear of a constant goes to who reads it, wherever it stood."""
    nodes = [
        make_node("Conv", ["x", "w"], ["a"], "first"),
        make_node("Sigmoid", ["a"], ["b"], "host1"),
        make_node("Relu", ["b"], ["c"], "second"),
        make_node("Sigmoid", ["c"], ["d"], "host2"),
        make_node("Conv", ["d", "w"], ["y"], "third"),
    ]
    size = [1, 2, 4, 4]
    model = built(nodes, {"x": size}, {"y": size}, {"w": weights(1, 2, 2, 1, 1)})
    found = quantize(model, [target()], ranges(model))
    assert [n.op_type for n in found.model.index.nodes].count("DequantizeLinear") == 7  # w's is one
    plan = tidied(found.model, target(), AllSupported())
    assert [("w_q" in call(plan.proto, f"t_{i}").input) for i in range(3)] == [True, False, True]
    assert not any(t.name == "w" for t in plan.proto.graph.initializer)
    same(plan, found.model, found.model.proto)
    half = tidied(found.model, target(), On((0, 1)))  # the third on the host: it reads the float weight
    assert [list(n.input) for n in half.proto.graph.node if n.op_type == "Conv"] == [["d", "w"]]
    stored = {t.name for t in half.proto.graph.initializer}
    assert {"w", "w_q"} <= stored


def test_a_skip_connection_whose_conversion_must_stay() -> None:
    """ExecuTorch (tosa): a region, a float operator, and a skip around it back into the accelerator.

    To leave out the pair on the skip would join both ends, and close a cycle through the host.
    """
    nodes = [
        make_node("Conv", ["x", "w"], ["c"], "conv"),
        make_node("Sigmoid", ["c"], ["s"], "sigmoid"),
        make_node("Add", ["c", "s"], ["y"], "add"),
    ]
    size = [1, 2, 4, 4]
    model = built(nodes, {"x": size}, {"y": size}, {"w": weights(1, 2, 2, 1, 1)})
    for to in (target(), device()):
        found = quantize(model, [to], ranges(model))
        plan = tidied(found.model, to, AllSupported())
        assert [n for n in host(plan.proto) if n.startswith("t_")] == ["t_0", "t_1"]
        skipped = set(call(plan.proto, "t_0").output) & set(call(plan.proto, "t_1").input)
        assert dtypes(plan.proto, skipped) == ["tensor(int8)"]
        same(plan, found.model, found.model.proto)


def test_a_body_that_reads_what_is_quantized() -> None:
    text = """
g (float[1,2,4,4] x, bool k) => (float[1,2,4,4] y) <float[2,2,1,1] w = {0.5, 1, -1, 0.25}> {
  [conv] c = Conv (x, w)
  [relu] r = Relu (c)
  [if] y = If <then_branch = th () => (float[1,2,4,4] p) { p = Neg (r) },
          else_branch = el () => (float[1,2,4,4] q) { q = Abs (c) }> (k)
}"""
    from helpers.support import prepared  # noqa: PLC0415

    model = prepared(text)
    inputs = {"x": samples(fork())[0]["x"], "k": np.array(True)}
    known = ranges(model, [inputs, {**inputs, "k": np.array(False)}])
    for to in (target(), device()):
        found = quantize(model, [to], known)
        assert set(found.units) == {"conv", "relu"}
        for strategy in (HostOnly(), AllSupported(), On((0,)), On((1,))):
            plan = tidied(found.model, to, strategy)
            for k in (True, False):
                given = {**inputs, "k": np.array(k)}
                expected = run_plain(model.proto, model, given)["y"]
                actual = run_plain(plan.proto, found.model, given)["y"]
                np.testing.assert_allclose(actual, expected, atol=0.04)
                if isinstance(strategy, HostOnly):
                    np.testing.assert_array_equal(actual, expected)


def test_weights_that_are_computed_come_back() -> None:
    nodes = [
        make_node("Transpose", ["w"], ["wt"], "t", perm=[1, 0]),
        make_node("MatMul", ["x", "wt"], ["y"], "product"),
    ]
    model = built(nodes, {"x": [2, 3]}, {"y": [2, 4]}, {"w": weights(1, 4, 3)})
    found = quantize(model, [target()], ranges(model))
    plan = tidied(found.model, target(), HostOnly())
    assert host(plan.proto) == ["Transpose", "MatMul"]
    same(plan, model, model.proto)
    away = tidied(found.model, target(), AllSupported())
    assert host(away.proto) == ["QuantizeLinear", "t_0", "DequantizeLinear"]
    assert not any(t.name == "w" for t in away.proto.graph.initializer)
