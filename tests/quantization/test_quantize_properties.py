"""Random networks: what must hold of every quantized model, wherever its units are placed."""

import numpy as np
from helpers.strategies import Random
from helpers.support import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto
from onnx.helper import make_node
from quantizing import built, form, groups, quantize, ranges, samples, stored, target, tidied, values

from byoc.model import Model, get_purpose
from byoc.placement.strategies import HostOnly
from byoc.quantization import Range
from byoc.rules import Target
from byoc.verification import run_plain

CHANNELS, SIZE = 4, 4
IMAGE = [1, CHANNELS, SIZE, SIZE]


@st.composite
def networks(draw: st.DrawFn) -> Model:
    """Draw a network of images of one size, and perhaps a Gemm behind it; two outputs."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes: list[NodeProto] = []
    tensors = {}
    images = ["x", "z"]

    def constant(*shape: int) -> str:
        name = f"w{len(tensors)}"
        spread = generator.uniform(0.01, 2, shape[:1] + (1,) * (len(shape) - 1))
        tensors[name] = (generator.standard_normal(shape) * spread).astype(np.float32)
        return name

    kinds = st.sampled_from(
        [
            *(
                "conv",
                "conv",
                "bias",
                "depthwise",
                "relu",
                "add",
                "concat",
                "pool",
                "mul",
                "sigmoid",
                "bn",
            ),
        ]
    )
    for step, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=8))):
        made, one = f"t{step}", draw(st.sampled_from(images))
        other = draw(st.sampled_from(images))
        pads = {"pads": [1, 1, 1, 1]}
        match kind:
            case "conv":
                read, op, more = [one, constant(CHANNELS, CHANNELS, 3, 3)], "Conv", pads
            case "bias":
                read = [one, constant(CHANNELS, CHANNELS, 1, 1), constant(CHANNELS)]
                op, more = "Conv", {}
            case "depthwise":
                read, op = [one, constant(CHANNELS, 1, 3, 3)], "Conv"
                more = {**pads, "group": CHANNELS}
            case "add" | "mul":
                read, op, more = [one, other], kind.capitalize(), {}
            case "concat":
                nodes.append(make_node("Concat", [one, other], [f"k{step}"], f"concat{step}", axis=1))
                read, op, more = [f"k{step}", constant(CHANNELS, 2 * CHANNELS, 1, 1)], "Conv", {}
            case "pool":
                read, op = [one], "MaxPool"
                more = {**pads, "kernel_shape": [3, 3]}
            case "bn":
                scale, shift, mean = (constant(CHANNELS) for _ in range(3))
                var = constant(CHANNELS)
                tensors[var] = np.abs(tensors[var]) + np.float32(0.1)
                read, op, more = [one, scale, shift, mean, var], "BatchNormalization", {}
            case _:
                read, op, more = [one], kind.capitalize(), {}
        nodes.append(make_node(op, read, [made], f"n{step}" if draw(st.booleans()) else "", **more))
        images.append(made)
    outputs = {images[-1]: IMAGE}
    second = draw(st.sampled_from(images[2:]))
    outputs[second] = IMAGE
    if draw(st.booleans()):
        nodes.append(make_node("Flatten", [images[-1]], ["flat"]))
        weight, bias = constant(5, CHANNELS * SIZE * SIZE), constant(5)
        nodes.append(make_node("Gemm", ["flat", weight, bias], ["y"], "gemm", transB=1))
        outputs["y"] = [1, 5]
    return built(nodes, {"x": IMAGE, "z": IMAGE}, outputs, tensors)


@st.composite
def targets(draw: st.DrawFn) -> Target:
    """Draw a scheme."""
    return target(
        activations={"dtype": draw(st.sampled_from(["int8", "uint8"])), "symmetric": False},
        weights={"dtype": "int8", "symmetric": True, "per_channel": draw(st.booleans())},
        scales=draw(st.sampled_from(["any", "power_of_two"])),
        convert=draw(st.sampled_from(["host", "device"])),
        same_scale=draw(st.sampled_from([None, ["Add"]])),
    )


SETTINGS = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@SETTINGS
@given(model=networks(), to=targets())
def test_what_holds_of_scales(model: Model, to: Target) -> None:
    known = ranges(model)
    found = quantize(model, [to], known)
    index = found.model.index
    assert groups(found.model, to) == {name: set(nodes) for name, nodes in found.units.items()}
    scheme = to.rules.quantization
    taken = {name for nodes in found.units.values() for name in nodes}
    for node in index.nodes:
        if get_purpose(node):
            scale = stored(found.model, node.input[1])
            assert (scale > 0).all()
            assert scheme.scales != "power_of_two" or (np.frexp(scale)[0] == 0.5).all()
        alike = node.op_type == "Concat" or (node.op_type == "Add" and scheme.same_scale)
        if alike and node.name in taken:
            borders = [name for name in (*node.input, *node.output) if _is_border(found.model, name)]
            assert len({form(found.model, _user(name)) for name in borders}) <= 1
        if node.op_type in ("Conv", "Gemm") and len(node.input) > 2 and node.input[2].endswith("_dq"):
            x, w, b = (index.nodes[index.producers[name]] for name in node.input)
            product = stored(found.model, x.input[1]) * stored(found.model, w.input[1])
            np.testing.assert_array_equal(stored(found.model, b.input[1]), product)


def _is_border(model: Model, name: str) -> bool:
    index = model.index
    number = index.producers.get(name)
    if number is not None and get_purpose(index.nodes[number]):
        return not index.is_constant(name)
    return any(get_purpose(index.nodes[user]) for user in index.consumers.get(name, ()))


def _user(name: str) -> str:
    for suffix in ("_float", "_dq"):
        name = name.removesuffix(suffix)
    return name


@SETTINGS
@given(model=networks(), to=targets())
def test_each_tensor_is_off_by_no_more_than_a_step(model: Model, to: Target) -> None:
    """What a QuantizeLinear reads comes out of the DequantizeLinear within half a step of its range."""
    known = ranges(model)
    found = quantize(model, [to], known)
    inputs = samples(model, 1)[0]
    after = values(found.model, inputs)
    for node in found.model.index.nodes:
        if node.op_type != "QuantizeLinear":
            continue
        (reader, *_) = found.model.index.consumers[node.output[0]]
        scale, point = (stored(found.model, name) for name in node.input[1:])
        limits = np.iinfo(point.dtype)
        low, high = (float(scale) * (limit - float(point)) for limit in (limits.min, limits.max))
        entry = known.tensors[_user(node.input[0])]
        assert isinstance(entry, Range)
        assert low - scale * 0.5001 <= entry.low <= entry.high <= high + scale * 0.5001
        back = after[found.model.index.nodes[reader].output[0]]
        clipped = after[node.input[0]].clip(low, high)
        assert np.abs(back - clipped).max() <= scale * 0.501


@settings(SETTINGS, max_examples=examples(15))  # each runs several models
@given(model=networks(), to=targets(), seed=st.integers(0, 99))
def test_wherever_units_are(model: Model, to: Target, seed: int) -> None:
    found = quantize(model, [to], ranges(model))
    inputs = samples(model, 1)[0]
    floats = run_plain(found.floats.proto, found.floats, inputs)
    host = tidied(found.model, to, HostOnly())
    assert not [n for n in host.proto.graph.node if get_purpose(n)]
    for name, value in run_plain(host.proto, model, inputs).items():
        np.testing.assert_array_equal(value, floats[name])
    plan = tidied(found.model, to, Random(seed))
    actual = run_plain(plan.proto, model, inputs)
    for name, value in run_plain(model.proto, model, inputs).items():
        assert actual[name].dtype == np.float32
        assert actual[name].shape == value.shape
    taken = {unit.name for region in plan.regions for unit in region.units}
    assert taken <= set(found.units)
