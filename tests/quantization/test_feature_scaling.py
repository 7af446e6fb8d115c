"""Gains of normalizations move into the products behind them, in every form that exporters write."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper
from onnx.helper import make_node
from quantizing import quantize, quantize_on_data, ranges, save, snr, target, texts, values

from byoc.model import Model, get_metadata, prepare_model
from byoc.quantization._feature_labels import find_features
from byoc.quantization._feature_scaling import find_rescaled_sums, find_wide_sums, scale_features

TOKENS, WIDTH = 6, 16
GAIN = np.where(np.arange(WIDTH) == 3, 60.0, np.linspace(0.5, 1.5, WIDTH)).astype(np.float32)
"""The gain of one feature is far larger than the others', as in trained transformers."""


def draw(seed: int, *shape: int) -> NDArray[np.float32]:
    scale = 1 / np.sqrt(shape[0])
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def build(
    nodes: Sequence[NodeProto],
    stored: dict[str, NDArray[Any]],
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    given: Sequence[str] = (),
) -> Model:
    """Return a model of `[1, 6, 16]`; constants that are `given` are defaults of inputs."""
    stored = {"w": draw(1, WIDTH, 8), "gain": GAIN, "bias": draw(2, WIDTH), **stored}
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, TOKENS, WIDTH])]
        + [helper.make_tensor_value_info(name, 1, stored[name].shape) for name in given],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in stored.items() if name in used],
    )
    for each in graph.output:
        each.type.tensor_type.elem_type = 1
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return prepare_model(helper.make_model(graph, opset_imports=imports, ir_version=9), "m.onnx", None)


def make_samples(count: int = 4) -> list[dict[str, NDArray[np.float32]]]:
    return [{"x": 3 * draw(50 + seed, TOKENS, WIDTH)[np.newaxis]} for seed in range(count)]


def mean(name: str, read: str, opset: int, axis: int = -1) -> NodeProto:
    if opset < 18:
        return make_node("ReduceMean", [read], [name], axes=[axis], keepdims=1)
    return make_node("ReduceMean", [read, "axes"], [name], keepdims=1)


def layer_norm(opset: int, square: str = "Pow", root: str = "Div") -> list[NodeProto]:
    """Return LayerNormalization as torch's exporter and others write it before operator set 17."""
    power = ["d", "two"] if square == "Pow" else ["d", "d"]
    ends = {
        "Div": [make_node("Div", ["d", "r"], ["n"])],
        "Reciprocal": [make_node("Reciprocal", ["r"], ["i"]), make_node("Mul", ["d", "i"], ["n"])],
        "one by": [make_node("Div", ["one", "r"], ["i"]), make_node("Mul", ["d", "i"], ["n"])],
    }
    return [
        mean("m", "x", opset),
        make_node("Sub", ["x", "m"], ["d"]),
        make_node(square, power, ["p"]),
        mean("v", "p", opset),
        make_node("Add", ["v", "epsilon"], ["e"]),
        make_node("Sqrt", ["e"], ["r"]),
        *ends[root],
        make_node("Mul", ["n", "gain"], ["g"]),
        make_node("Add", ["g", "bias"], ["h"]),
    ]


def rms_norm(opset: int, swapped: bool) -> list[NodeProto]:
    gain = ["gain", "n"] if swapped else ["n", "gain"]
    return [
        make_node("Pow", ["x", "two"], ["p"]),
        mean("v", "p", opset),
        make_node("Add", ["v", "epsilon"], ["e"]),
        make_node("Sqrt", ["e"], ["r"]),
        make_node("Div", ["x", "r"], ["n"]),
        make_node("Mul", gain, ["h"]),
    ]


def whole(op: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> list[NodeProto]:
    return [make_node(op, inputs, ["h"], domain=domain, **attributes)]


PARAMETERS: dict[str, NDArray[Any]] = {
    "two": np.float32(2).reshape(()),
    "one": np.float32(1).reshape(()),
    "epsilon": np.float32(1e-5).reshape(()),
    "axes": np.asarray([-1], np.int64),
    "row": draw(3, WIDTH).reshape(1, 1, WIDTH),
    "b8": draw(4, 8),
}
FORMS: dict[str, Callable[[int], list[NodeProto]]] = {
    **{
        f"decomposed, {square}, {root}": lambda opset, square=square, root=root: layer_norm(  # type: ignore[misc]
            opset, square, root
        )
        for square in ("Pow", "Mul")
        for root in ("Div", "Reciprocal", "one by")
    },
    "RMS": lambda opset: rms_norm(opset, False),
    "RMS, gain first": lambda opset: rms_norm(opset, True),
    "LayerNormalization": lambda opset: whole("LayerNormalization", ["x", "gain", "bias"], axis=-1),
    "LayerNormalization, axis 2": lambda opset: whole("LayerNormalization", ["x", "gain"], axis=2),
    "Simplified": lambda opset: whole("SimplifiedLayerNormalization", ["x", "gain"], axis=-1),
    "Skip": lambda opset: whole(
        "SkipLayerNormalization", ["x", "x", "gain", "bias"], "com.microsoft", epsilon=1e-5
    ),
    "SkipSimplified": lambda opset: whole(
        "SkipSimplifiedLayerNormalization", ["x", "x", "gain"], "com.microsoft", epsilon=1e-5
    ),
}
READERS: dict[str, list[NodeProto]] = {
    "MatMul": [make_node("MatMul", ["h", "w"], ["y"])],
    "three products": [
        make_node("MatMul", ["h", "w"], ["q"]),
        make_node("MatMul", ["h", "w"], ["k"]),  # the same weights
        make_node("Add", ["q", "k"], ["y"]),
    ],
    "Reshape and Gemm": [
        make_node("Reshape", ["h", "rows"], ["f"]),
        make_node("Gemm", ["f", "wt", "b8"], ["y"], transB=1),
    ],
    "through sums and views": [
        make_node("Add", ["h", "row"], ["s"]),
        make_node("Relu", ["s"], ["a"]),
        make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        make_node("Transpose", ["t"], ["u"], perm=[0, 2, 1]),
        make_node("MatMul", ["u", "w"], ["y"]),
    ],
}
STORED = PARAMETERS | {"rows": np.asarray([TOKENS, WIDTH], np.int64), "wt": draw(1, WIDTH, 8).T.copy()}


def check_same(model: Model, other: Model, names: Sequence[str] = ("y",)) -> None:
    for sample in make_samples(2):
        expected, actual = values(model, sample), values(other, sample)
        for name in names:
            assert np.abs(expected[name] - actual[name]).max() <= 2e-6 * np.abs(expected[name]).max()


OPSETS = {form: (17, 21) if "Layer" in form else (13, 18) for form in FORMS}


@pytest.mark.parametrize(
    ("form", "opset"), [(form, each) for form, both in OPSETS.items() for each in both]
)
def test_gains_move_into_every_reader(form: str, opset: int) -> None:
    for readers in READERS.values():
        model = build([*FORMS[form](opset), *readers], STORED, opset=opset)
        found = scale_features(model, make_samples())
        assert found is not model
        check_same(model, found)
        reach = [
            np.abs(values(each, make_samples(1)[0])["h"]).max(axis=(0, 1)) for each in (model, found)
        ]
        assert reach[1].max() / np.median(reach[1]) < 0.7 * reach[0].max() / np.median(reach[0])


def test_rms_normalization_of_operator_set_23() -> None:
    model = build(
        [*whole("RMSNormalization", ["x", "gain"], axis=-1), *READERS["MatMul"]], STORED, opset=23
    )
    features = find_features(model.index)
    assert features.is_free("h")
    assert {each.number for each in features.absorbers} == {0, 1}


REFUSED: dict[str, tuple[list[NodeProto], tuple[str, ...], tuple[str, ...]]] = {
    "an output": (READERS["MatMul"], ("y", "h"), ()),
    "read by an Exp as well": (
        [*READERS["MatMul"], make_node("Exp", ["h"], ["z"])],
        ("y", "z"),
        (),
    ),
    "a gain that callers may give": (READERS["MatMul"], ("y",), ("gain",)),
    "weights that callers may give": (READERS["MatMul"], ("y",), ("w",)),
    "behind a Gelu": (
        [make_node("Erf", ["h"], ["a"]), make_node("MatMul", ["a", "w"], ["y"])],
        ("y",),
        (),
    ),
    "summed over another axis": (
        [make_node("Transpose", ["h"], ["t"], perm=[0, 2, 1]), make_node("MatMul", ["t", "v"], ["y"])],
        ("y",),
        (),
    ),
    "multiplied with itself": (
        [make_node("Mul", ["h", "h"], ["s"]), make_node("MatMul", ["s", "w"], ["y"])],
        ("y",),
        (),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_features_as_they_are_gets_them(case: str) -> None:
    readers, outputs, given = REFUSED[case]
    nodes = [*FORMS["LayerNormalization"](17), *readers]
    model = build(nodes, STORED | {"v": draw(7, TOKENS, 8)}, outputs, given=given)
    assert not find_features(model.index).is_free("h")
    assert scale_features(model, make_samples()) is model


def test_a_gain_that_two_normalizations_share_is_copied() -> None:
    nodes = [
        make_node("LayerNormalization", ["x", "gain"], ["h"], axis=-1),
        make_node("MatMul", ["h", "w"], ["y"]),
        make_node("LayerNormalization", ["x", "gain"], ["z"], axis=-1),
    ]
    model = build(nodes, STORED, ("y", "z"))
    found = scale_features(model, make_samples())
    assert found is not model
    check_same(model, found, ("y", "z"))


def make_attention(heads: int = 4) -> Model:
    """Return an attention whose values have one feature far larger than the others."""
    part = WIDTH // heads
    wide = draw(11, WIDTH, WIDTH) * np.where(np.arange(WIDTH) == 5, 30.0, 1.0).astype(np.float32)

    def split(name: str) -> list[NodeProto]:
        return [
            make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            make_node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
            make_node("Transpose", [f"{name}1"], [f"{name}2"], perm=[0, 2, 1, 3]),
        ]

    nodes = [
        *(node for name in "qkv" for node in split(name)),
        make_node("Transpose", ["k2"], ["k3"], perm=[0, 1, 3, 2]),
        make_node("MatMul", ["q2", "k3"], ["scores"]),
        make_node("Softmax", ["scores"], ["p"], axis=-1),
        make_node("MatMul", ["p", "v2"], ["c"]),
        make_node("Transpose", ["c"], ["c1"], perm=[0, 2, 1, 3]),
        make_node("Reshape", ["c1", "flat"], ["c2"]),
        make_node("MatMul", ["c2", "wo"], ["y"]),
    ]
    stored = {
        "wq": draw(9, WIDTH, WIDTH),
        "wk": draw(10, WIDTH, WIDTH),
        "wv": wide,
        "wo": draw(12, WIDTH, 8),
        "heads": np.asarray([1, TOKENS, heads, part], np.int64),
        "flat": np.asarray([1, TOKENS, WIDTH], np.int64),
    }
    return build(nodes, stored)


def test_features_of_values_go_through_an_attention() -> None:
    model = make_attention()
    features = find_features(model.index)
    assert features.is_free("v0")
    assert not features.is_free("q0")
    assert not features.is_free("k0")
    found = scale_features(model, make_samples())
    check_same(model, found)
    reach = np.abs(values(found, make_samples(1)[0])["v0"]).max(axis=(0, 1))
    assert reach.max() < 10 * np.median(reach)


def make_block(more: Sequence[NodeProto] = (), outputs: Sequence[str] = ("y",)) -> Model:
    """Return a sum with one feature far larger than the others, which a normalization reads."""
    down = draw(21, 8, WIDTH) * np.where(np.arange(WIDTH) == 5, 200.0, 1.0).astype(np.float32)
    nodes = [
        make_node("LayerNormalization", ["x", "ones"], ["h"], axis=-1),
        make_node("MatMul", ["h", "w"], ["u"]),
        make_node("Relu", ["u"], ["a"]),
        make_node("MatMul", ["a", "down"], ["d"]),
        make_node("Add", ["d", "h"], ["s"]),
        make_node("LayerNormalization", ["s", "ones"], ["z"], axis=-1),
        make_node("MatMul", ["z", "w"], ["y"]),
        *more,
    ]
    stored = {"down": down, "ones": np.ones(WIDTH, np.float32), "true": np.asarray([True])}
    return build(nodes, STORED | stored, outputs)


def make_body(name: str) -> onnx.GraphProto:
    node = make_node("Neg", ["s"], [name])
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, 1, None)])


@pytest.mark.parametrize(
    "more",
    [
        [make_node("If", ["true"], ["o"], then_branch=make_body("a1"), else_branch=make_body("b1"))],
        [make_node("Neg", ["d"], ["o"])],
    ],
)
def test_sums_are_as_they_are_in_bodies_and_where_their_parts_are_read(more: list[NodeProto]) -> None:
    model = make_block(more, ("y", "o"))
    sums = find_rescaled_sums(model, make_samples())
    assert not sums.sums
    assert find_rescaled_sums(make_block((), ("y", "s")), make_samples()).sums == ()


def test_sums_are_rescaled_before_a_normalization() -> None:
    model, given = make_block(), make_samples(8)
    assert scale_features(model, given).index.producers.keys() == model.index.producers.keys()
    sums = find_rescaled_sums(model, given)
    assert sums.sums == [("s",)]
    assert sums.take(0) is model
    found = sums.take(1)
    check_same(model, found)
    (mul,) = (node for node in found.index.nodes if node.op_type == "Mul")
    assert mul.input[0] == "s"
    to = target()
    noise = []
    for one in (model, found):
        made = quantize(one, [to], ranges(one, given))
        assert mul.name not in made.units
        noise.append(snr(values(model, given[0])["y"], values(made.model, given[0])["y"]))
    assert noise[1] > noise[0] + 6


ENTRANCES = {
    "an input": ([], "x"),
    "a function": ([make_node("Sigmoid", ["x"], ["f"])], "f"),
    "a function and a constant for each feature": (
        [make_node("Sigmoid", ["x"], ["f"]), make_node("Add", ["f", "row"], ["e"])],
        "e",
    ),
    "a function and a constant for each token": (
        [make_node("Sigmoid", ["x"], ["f"]), make_node("Add", ["f", "table"], ["e"])],
        "e",
    ),
    "a product": ([make_node("MatMul", ["x", "square"], ["e"])], "e"),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_residual_sums_of_normalization_before_layers_are_rescaled_together(entrance: str) -> None:
    """What enters the sums takes the factors in, or a Mul divides it; each normalization has its own."""
    before, first = ENTRANCES[entrance]
    down = draw(21, 8, WIDTH) * np.where(np.arange(WIDTH) == 5, 200.0, 1.0).astype(np.float32)
    nodes, stream = [*before], first
    for n in range(3):
        nodes += [
            make_node("LayerNormalization", [stream, "ones"], [f"h{n}"], axis=-1),
            make_node("MatMul", [f"h{n}", "w"], [f"u{n}"]),
            make_node("Relu", [f"u{n}"], [f"a{n}"]),
            make_node("MatMul", [f"a{n}", f"down{n}"], [f"d{n}"]),
            make_node("Add", [f"d{n}", stream], [f"s{n}"]),
        ]
        stream = f"s{n}"
    nodes += [
        make_node("LayerNormalization", [stream, "ones"], ["z"], axis=-1),
        make_node("MatMul", ["z", "w"], ["y"]),
    ]
    stored = {f"down{n}": down for n in range(3)} | {"ones": np.ones(WIDTH, np.float32)}
    tables = {
        "row": draw(31, WIDTH),
        "table": draw(32, 1, TOKENS, WIDTH),
        "square": draw(33, WIDTH, WIDTH),
    }
    model, given = build(nodes, STORED | stored | tables), make_samples(8)
    sums = find_rescaled_sums(model, given)
    if entrance == "a product":  # the first normalization reads the features of what is no sum
        assert not sums.sums
        return
    (group,) = sums.sums
    assert {"s0", "s1", "s2"} <= {*group}
    found = sums.take(1)
    check_same(model, found)
    muls = [node.input[0] for node in found.index.nodes if node.op_type == "Mul"]
    assert sorted(muls) == sorted([*group, "x" if entrance == "an input" else "f"])
    noise = [
        snr(
            values(model, given[0])["y"],
            values(quantize(one, [target()], ranges(one, given)).model, given[0])["y"],
        )
        for one in (model, found)
    ]
    assert noise[1] > noise[0] + 3


def make_stream() -> Model:
    """Return two layers whose residual sums have one feature far larger than the others."""
    down = draw(21, 8, WIDTH) * np.where(np.arange(WIDTH) == 5, 200.0, 1.0).astype(np.float32)
    nodes, stream = [], "x"
    for n in range(2):
        nodes += [
            make_node("LayerNormalization", [stream, "ones"], [f"h{n}"], axis=-1),
            make_node("MatMul", [f"h{n}", "w"], [f"u{n}"]),
            make_node("Relu", [f"u{n}"], [f"a{n}"]),
            make_node("MatMul", [f"a{n}", "down"], [f"d{n}"]),
            make_node("Add", [f"d{n}", stream], [f"s{n}"], f"sum{n}"),
        ]
        stream = f"s{n}"
    nodes += [
        make_node("LayerNormalization", [stream, "ones"], ["z"], axis=-1),
        make_node("MatMul", ["z", "w"], ["y"]),
    ]
    return build(nodes, {"down": down, "ones": np.ones(WIDTH, np.float32)})


def test_sums_that_8_bits_are_too_coarse_for_are_found_with_the_products_that_they_read() -> None:
    model, given = make_stream(), make_samples(8)
    units = quantize(model, [target()], ranges(model, given)).units
    found = find_wide_sums(model, units, given)
    assert {each.unit: each.products for each in found} == {"sum0": ("d0",), "sum1": ("d1",)}
    assert found[0].noise >= found[1].noise > 1e-3
    assert find_wide_sums(model, {name: units[name] for name in units if name != "sum1"}, given) == [
        each for each in found if each.unit == "sum0"
    ]
    even = build(
        [
            make_node("Add", ["x", "bias"], ["s"], "sum"),
            make_node("LayerNormalization", ["s", "ones"], ["z"], axis=-1),
        ],
        {"ones": np.ones(WIDTH, np.float32)},
        ("z",),
    )
    assert not find_wide_sums(even, {"sum": ("sum",)}, given)


@pytest.mark.parametrize("price", [0.0, 0.04, 0.2])
def test_coarse_sums_are_in_16_bits_where_that_is_worth_its_time(price: float, tmp_path: Path) -> None:
    """Two sums may take 15 % together; a Mul behind a sum, to rescale it, takes too long here."""
    model, given = make_stream(), make_samples(16)

    def predict(made: Model) -> float:
        names = {node.output[0] for node in made.index.nodes if node.op_type == "QuantizeLinear"}
        wide = [name for name in names if made.index.get_dtype(name) == "int16"]
        muls = sum(node.op_type == "Mul" for node in made.index.nodes)
        return 1 + muls + price * sum(name.startswith("s") for name in wide)

    found = quantize_on_data(
        model, target(), save(given, tmp_path), quantize="int8", effort="quick", predict=predict
    )
    index = found.model.index
    wide = {
        get_metadata(each, "byoc.tensor")
        for each in index.nodes
        if each.op_type == "QuantizeLinear" and index.get_dtype(each.output[0]) == "int16"
    }
    notes = [text for text in texts(found) if "16 bits" in text]
    if price > 0.1:
        assert not wide
        assert not notes
    else:
        assert {"s0", "s1", "d0", "d1"} <= wide
        assert "h0" not in wide
        said = (
            f"2 sums before normalizations are in 16 bits, for {200 * price:.1f} % more predicted time"
        )
        assert notes == [said]


@pytest.mark.parametrize("effort", ["quick", "normal"])
def test_a_cost_model_may_count_nothing(effort: str, tmp_path: Path) -> None:
    model, given = make_stream(), make_samples(16)
    found = quantize_on_data(
        model, target(), save(given, tmp_path), quantize="int8", effort=effort, predict=lambda _: 0.0
    )
    assert any("sums" in text for text in texts(found))


def test_a_note_on_one_sum_is_in_the_singular(tmp_path: Path) -> None:
    ones = np.ones(WIDTH, np.float32)
    down = draw(21, 8, WIDTH) * np.where(np.arange(WIDTH) == 5, 200.0, 1.0).astype(np.float32)
    model = build(
        [
            make_node("LayerNormalization", ["x", "ones"], ["h"], axis=-1),
            make_node("MatMul", ["h", "w"], ["u"]),
            make_node("Relu", ["u"], ["a"]),
            make_node("MatMul", ["a", "down"], ["d"]),
            make_node("Add", ["d", "x"], ["s"], "sum"),
            make_node("LayerNormalization", ["s", "ones"], ["z"], axis=-1),
            make_node("MatMul", ["z", "w"], ["y"]),
        ],
        {"down": down, "ones": ones},
    )

    def predict(made: Model) -> float:
        return 1 + sum(node.op_type == "Mul" for node in made.index.nodes)

    found = quantize_on_data(
        model,
        target(),
        save(make_samples(16), tmp_path),
        quantize="int8",
        effort="quick",
        predict=predict,
    )
    said = [text for text in texts(found) if "16 bits" in text]
    assert said == ["1 sum before normalizations is in 16 bits, for 0.0 % more predicted time"]
