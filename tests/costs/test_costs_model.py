"""The roofline by hand, energy, links, and the built-in models."""

from dataclasses import astuple
from math import isnan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.costs import (
    HostLink,
    Price,
    Roofline,
    Task,
    Unknown,
    Work,
    load_cost_model,
    load_device_costs,
    load_host_costs,
)
from byoc.errors import InputError

MODEL = Roofline(
    kind="roofline",
    name="toy",
    peak={"float32": 100.0, "int8": 400.0, "default": 50.0},
    bandwidth=10.0,
    overhead=0.5,
    launch=3.0,
    link=HostLink(bandwidth=4.0, latency=0.25, conversion=8.0),
)


def change(**given: Any) -> Roofline:
    """Return the toy with other values, as a file would give them."""
    return Roofline.model_validate(MODEL.model_dump(exclude_unset=True) | given)


@pytest.mark.parametrize(
    ("work", "dtype", "seconds"),
    [
        (Work(1000, 20), "float32", 0.5 + 10),  # bound by arithmetic
        (Work(1000, 20), "int8", 0.5 + 2.5),
        (Work(1000, 20), "float64", 0.5 + 20),  # by default
        (Work(100, 20), "float32", 0.5 + 2),  # bound by memory
        (Work(200, 20), "float32", 0.5 + 2),  # at the ridge: 10 operations a byte
        (Work(0, 20), "float32", 0.5 + 2),
        (Work(100, 0), "float32", 0.5 + 1),
        (Work(0, 0), "float32", 0.0),
    ],
)
def test_roofline_by_hand(work: Work, dtype: str, seconds: float) -> None:
    found = MODEL.execution(Task("Add", work, dtype))
    assert isinstance(found, Price)
    assert found.seconds == seconds
    assert isnan(found.joules)


def test_without_a_default_the_slowest_stands_for_the_others() -> None:
    model = MODEL.model_copy(update={"peak": {"float32": 100.0, "int8": 400.0}})
    assert model.seconds(Work(1000, 0), "float16") == 10.5


def test_an_operator_or_composite_of_its_own() -> None:
    """Half the peak and no overhead for conv_relu; its own overhead at full peak for Softmax."""
    special = {
        "conv_relu": {"efficiency": 0.5, "overhead": 0.0},
        "Softmax": {"overhead": 4.0},
    }
    model = change(operators=special)
    task = Task("conv_relu", Work(1000, 20))
    found = model.execution(task)
    assert astuple(found) == pytest.approx(astuple(model.make_price(task, 20.0)), nan_ok=True)
    assert model.estimate(Task("Softmax", Work(1000, 20))).seconds == 14.0
    assert model.estimate(Task("Conv", Work(1000, 20))).seconds == 10.5


def _make_composite(op: str) -> Task:
    """Return a composite of 900 operations of a Conv, 100 of a Relu."""
    parts = (Task("Conv", Work(900, 15)), Task("Relu", Work(100, 15)))
    return Task(op, Work(1000, 20), parts=parts)


@pytest.mark.parametrize(
    ("figures", "seconds"),
    [
        ({}, 0.5 + 10),
        ({"Gemm": {"efficiency": 0.1}}, 0.5 + 10),
        ({"Conv": {"efficiency": 0.01}}, 0.5 + 900 + 1),
        ({"Relu": {"efficiency": 0.5}}, 0.5 + 9 + 2),
        ({"Conv": {"overhead": 4.0}}, 4 + 10),
        ({"Conv": {"overhead": 4.0}, "Relu": {"overhead": 1.0}}, 4 + 10),
        ({"Conv": {"efficiency": 0.5, "overhead": 0.0}}, 18 + 1),
        ({"conv_relu": {}, "Conv": {"efficiency": 0.5}}, 0.5 + 10),
    ],
)
def test_figures_of_operators_hold_inside_composites(
    figures: dict[str, dict[str, float]], seconds: float
) -> None:
    """Unless the composite has figures of its own."""
    model = change(operators=figures)
    assert model.estimate(_make_composite("conv_relu")).seconds == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("sized", "why"),
    [(False, "a shape of Odd is not known"), (True, "how much it computes of Odd is not known")],
)
def test_what_was_not_counted_exactly_is_unknown_and_can_be_estimated(sized: bool, why: str) -> None:
    task = Task("Odd", Work(100, 20, estimated=True), sized=sized)
    found = MODEL.execution(task)
    assert found == Unknown(why)
    assert not found
    assert MODEL.estimate(task).seconds == 2.5


def test_transfer_and_launch_by_hand() -> None:
    assert MODEL.transfer(0).seconds == 0.25
    assert MODEL.transfer(8).seconds == 2.25
    assert MODEL.transfer(8, converted=8).seconds == 3.25
    assert MODEL.launching().seconds == 3.0
    assert MODEL.model_copy(update={"link": None}).transfer(10**9) == Price(0.0, 0.0)


def test_energy_by_hand() -> None:
    """2 J an operation, 3 J a byte, 5 W while it works; 7 J a byte moved, 11 J a launch."""
    energy = {"operation": 2.0, "byte": 3.0, "second": 5.0, "moved": 7.0, "launch": 11.0}
    model = change(energy=energy)
    assert model.execution(Task("Add", Work(1000, 20))) == Price(10.5, 2000 + 60 + 52.5)
    assert model.transfer(8) == Price(2.25, 56.0)
    assert model.launching() == Price(3.0, 11.0)


@settings(deadline=None)
@given(*[st.floats(0, 1e12)] * 3, st.sampled_from(["float32", "int8", "bool"]))
def test_more_work_never_takes_less_time(
    operations: float, size: float, more: float, dtype: str
) -> None:
    base = MODEL.seconds(Work(operations, size), dtype)
    assert MODEL.seconds(Work(operations + more, size), dtype) >= base
    assert MODEL.seconds(Work(operations, size + more), dtype) >= base


def test_built_in_models() -> None:
    host, device = load_host_costs("host"), load_device_costs("dla.yaml")
    assert (host.name, host.transfer(10**9).seconds, host.launching().seconds) == ("host", 0.0, 0.0)
    assert device.name == "dla"
    found = device.execution(Task("Conv", Work(1e9, 0)))
    assert isinstance(found, Price)
    assert found.seconds == 1e-6 + 1e9 / 0.5e12
    assert device.transfer(2_000_000).seconds == pytest.approx(1.005e-3)
    assert device.launching().seconds == 50e-6


def test_which_side_a_model_is_for() -> None:
    with pytest.raises(InputError, match=r"^dla: the host's cost model has neither link nor launch$"):
        load_host_costs("dla")
    with pytest.raises(InputError, match=r"^host: an accelerator's cost model needs a link"):
        load_device_costs("host")


def test_neither_a_file_nor_a_name() -> None:
    with pytest.raises(InputError) as caught:
        load_cost_model("hots")
    assert str(caught.value) == (
        "hots: no such file and no installed cost model (did you mean host?); installed: "
        "dla, ethos-u55, ethos-u55-128, ethos-u55-32, ethos-u55-64, ethos-u65, ethos-u65-512, "
        "ethos-u85, ethos-u85-1024, ethos-u85-128, ethos-u85-2048, ethos-u85-512, host, iree-cpu, nnpa, "
        "onnxruntime-cpu, onnxruntime-cpu-2-threads, openvino-cpu, openvino-cpu-2-threads, "
        "openvino-cpu-roofline, ort-ep, qnn-htp, rknn-rk3588, tensorrt-dla, tvm-cpu"
    )
