"""Cycles and joules of layers, against what the array and the memories of the hardware allow."""

from pathlib import Path

import pytest
from onnx.parser import parse_model

import byoc
from byoc.costs import Price, Task, build_tasks, load_cost_model
from byoc.errors import InputError

pytest.importorskip("zigzag", reason="ZigZag is not installed: pip install '.[zigzag]'")

MULTIPLIERS = 32 * 32
PICOJOULES = 0.04  # of a multiply-accumulate, in the hardware file
OPTIONS = {"effort": "4"}


def make_task(text: str) -> Task:
    """Return the task of the only node of a graph."""
    model = parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    return build_tasks(byoc.load_model(model).index)[0]


def make_convolution(group: int = 1) -> Task:
    """Return a 3x3 convolution of 32 channels on 16 x 16 pixels."""
    return make_task(
        f"net (float[1, 32, 18, 18] x, float[32, {32 // group}, 3, 3] w) => (float[1, 32, 16, 16] y)"
        f" {{ y = Conv<group = {group}>(x, w) }}"
    )


def test_a_convolution_fills_the_array_and_one_by_channel_does_not() -> None:
    model = load_cost_model("zigzag", OPTIONS)
    whole, by_channel = (model.execution(make_convolution(group)) for group in (1, 32))
    assert isinstance(whole, Price)
    assert isinstance(by_channel, Price)
    products = 32 * 32 * 9 * 16 * 16
    cycles = whole.seconds * 1e9
    assert products / MULTIPLIERS <= cycles < 3 * products / MULTIPLIERS
    assert whole.joules > products * PICOJOULES * 1e-12
    # A 32nd of the products, on one channel at a time: each takes many times as long.
    assert by_channel.seconds / (products / 32) > 5 * whole.seconds / products
    # The same clock at half the speed takes twice as long; ZigZag counts cycles.
    half = load_cost_model("zigzag", {**OPTIONS, "clock": "5e8"}).execution(make_convolution())
    assert half == Price(2 * whole.seconds, whole.joules)


def test_products_and_what_zigzag_does_not_know() -> None:
    model = load_cost_model("zigzag", OPTIONS)
    product = make_task(
        "net (float[64, 32] x, float[32, 32] w) => (float[64, 32] y) { y = MatMul(x, w) }"
    )
    price = model.execution(product)
    assert isinstance(price, Price)
    assert price.seconds * 1e9 >= 64 * 32 * 32 / MULTIPLIERS
    relu = make_task("net (float[1, 8] x) => (float[1, 8] y) { y = Relu(x) }")
    others = load_cost_model("dla")
    assert model.execution(relu) == others.execution(relu)
    assert model.launching() == others.launching()
    assert model.transfer(1000) == others.transfer(1000)


def test_a_wrong_hardware_file_ends_the_run(tmp_path: Path) -> None:
    file = tmp_path / "hw.yaml"
    for text in ("name: x\n", "memories: [1]\n"):
        file.write_text(text)
        with pytest.raises(InputError, match=r"cost model 'zigzag' of byoc-zigzag-costs .* refuses"):
            load_cost_model("zigzag", {"hw": str(file)})
    with pytest.raises(InputError, match=r"has no option 'hardware'; it has: hw, mapping, clock"):
        load_cost_model("zigzag", {"hardware": str(file)})


def test_a_network_is_placed_for_time_and_for_energy() -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "net (float[1, 32, 18, 18] x) => (float[1, 32, 16, 16] y) <int64[4] s = {32, 32, 3, 3}>"
        " { w = ConstantOfShape<value = float[1] {0.5}>(s) a = Conv(x, w) y = Relu(a) }"
    )
    for objective in ("latency", "energy"):
        found = byoc.partition(
            model, "dla", cost_model="zigzag", cost_options=OPTIONS, objective=objective
        ).report.predicted
        assert found.joules is not None
