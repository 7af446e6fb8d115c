"""Functions in the output stage of a convolution: nothing is rounded between its sum and the result."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byoc.codegens.dla.compiler.layers import ConvLayer, MoveLayer
from dla_regions import agrees, bytes_of, floats, model, network, region
from hypothesis import given
from hypothesis import strategies as st
from test_dla_channel_scales import Encoding, qdq

from byoc.codegen import find_codegen, parse_codegen_options

C = 6
IMAGE = (2, C, 7, 5)
FUNCTIONS = {
    "LeakyRelu": "y = LeakyRelu<alpha=0.1>(c)",
    "HardSwish": "y = HardSwish(c)",
    "HardSigmoid": "y = HardSigmoid<alpha=0.3>(c)",
    "Sigmoid": "y = Sigmoid(c)",
    "Tanh": "y = Tanh(c)",
    "Gelu": "y = Gelu(c)",
    "Gelu of tanh": 'y = Gelu<approximate="tanh">(c)',
    "Elu": "y = Elu<alpha=0.7>(c)",
    "Swish": "h = Sigmoid(c) y = Mul(c, h)",
    "Swish, the other way around": "h = Sigmoid(c) y = Mul(h, c)",
    "HardSwish in parts": "h = HardSigmoid<alpha=0.1666667>(c) y = Mul(c, h)",
}


def case(function: str, x: Encoding, y: Encoding, residual: bool, groups: int) -> Any:
    """Return the model of a convolution with a function between DequantizeLinear and QuantizeLinear."""
    convolution = f"Conv<group={groups}, pads=[1,1,1,1]>(d, e)"
    lines = f"c = {convolution}"
    if residual:
        lines = f"k = DequantizeLinear(x, p, q) b = {convolution} c = Add(k, b)"
    scales = np.random.default_rng(2).uniform(0.002, 0.02, C).astype(np.float32)
    return qdq(
        f"e = DequantizeLinear<axis=0>(w, ws) {lines} {function.replace('y =', 'r =')}",
        (IMAGE, IMAGE), x, y, ws=scales, w=bytes_of(C, C // groups, 3, 3, seed=4),
        p=np.float32(0.02), q=np.array(5, x.dtype),
    )  # fmt: skip


def the_convolution(proto: Any, folder: Path) -> ConvLayer:
    """Return the only layer that computes; others reorder images at the boundary."""
    (layer,) = [each for each in network(proto, folder).layers if not isinstance(each, MoveLayer)]
    assert isinstance(layer, ConvLayer)
    return layer


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_is_part_of_a_convolution(function: str, tmp_path: Path) -> None:
    line = f"c = Conv<pads=[1,1,1,1]>(x, w, b) {FUNCTIONS[function]}"
    text = f"g (float[2,6,7,5] x) => (float[2,6,7,5] y) {{ {line} }}"
    proto = model(text, {"w": floats(C, C, 3, 3), "b": floats(C)}, opset=20)

    assert the_convolution(proto, tmp_path).function is not None
    agrees(proto, {"x": floats(*IMAGE, seed=3)}, tmp_path)


encodings = st.builds(
    Encoding, st.sampled_from([0, C]), st.just("int8"), st.sampled_from([1.0, 60.0]), st.integers(0, 9)
)


@given(st.sampled_from(sorted(FUNCTIONS)), st.tuples(encodings, encodings), st.booleans(), st.booleans())
def test_in_integers_it_is_rounded_once(
    tmp_path_factory: pytest.TempPathFactory,
    function: str,
    pair: tuple[Encoding, Encoding],
    residual: bool,
    deep: bool,
) -> None:
    x, y = pair
    if not deep:
        x = Encoding(0, x.dtype, x.spread, x.seed)
    proto = case(FUNCTIONS[function], x, y, residual, C if deep else 1)
    folder = tmp_path_factory.mktemp("region")

    assert the_convolution(proto, folder).function is not None
    agrees(proto, {"x": bytes_of(*IMAGE)}, folder)


@pytest.mark.parametrize("extents", [(5, 4), (2, 5, 4)])
def test_a_product_has_a_function_in_either_form(extents: tuple[int, ...], tmp_path: Path) -> None:
    """Of one matrix it is a convolution; of one for each image no output stage is there."""
    text = "g (float[2,3,5] x) => (float[2,3,4] y) { p = MatMul(x, w) y = Sigmoid(p) }"
    proto = model(text, {"w": floats(*extents)})

    assert len(network(proto, tmp_path).layers) == len(extents) - 1
    agrees(proto, {"x": floats(2, 3, 5, seed=3)}, tmp_path)


def test_a_function_takes_no_time(tmp_path: Path) -> None:
    x, y = Encoding(0, "int8", 1.0, 1), Encoding(C, "int8", 9.0, 2)
    alone, fused = (
        case(lines, x, y, residual=False, groups=1) for lines in ("r = Relu(c)", FUNCTIONS["HardSwish"])
    )

    found: Any = find_codegen("dla")
    options = parse_codegen_options(found, {})
    cycles = {
        found.compile(region(proto, tmp_path), options).metadata["cycles"] for proto in (alone, fused)
    }
    assert len(cycles) == 1
