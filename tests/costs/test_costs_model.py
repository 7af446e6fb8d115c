"""Cost models: the roofline by hand, and what is said of a wrong file."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.costs.load import load_cost_model
from byoc.costs.model import Link, Roofline
from byoc.costs.work import Work
from byoc.errors import InputError

MODEL = Roofline(
    kind="roofline",
    name="toy",
    peak={"float32": 100.0, "int8": 400.0, "default": 50.0},
    bandwidth=10.0,
    overhead=0.5,
    launch=3.0,
    link=Link(bandwidth=4.0, latency=0.25),
)


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
        (Work(0, 0), "float32", 0.0),  # a view
    ],
)
def test_roofline_by_hand(work: Work, dtype: str, seconds: float) -> None:
    assert MODEL.execution(work, dtype) == seconds


def test_without_a_default_the_slowest_stands_for_the_others() -> None:
    model = MODEL.model_copy(update={"peak": {"float32": 100.0, "int8": 400.0}})
    assert model.execution(Work(1000, 0), "float16") == 10.5


def test_transfer_and_launch_by_hand() -> None:
    assert MODEL.transfer(0) == 0.25
    assert MODEL.transfer(8) == 2.25
    assert MODEL.launch == 3.0
    assert MODEL.model_copy(update={"link": None}).transfer(10**9) == 0.0


@settings(derandomize=True, deadline=None, database=None)
@given(*[st.floats(0, 1e12)] * 3, st.sampled_from(["float32", "int8", "bool"]))
def test_more_work_never_takes_less_time(
    operations: float, size: float, more: float, dtype: str
) -> None:
    base = MODEL.execution(Work(operations, size), dtype)
    assert MODEL.execution(Work(operations + more, size), dtype) >= base
    assert MODEL.execution(Work(operations, size + more), dtype) >= base


def test_built_in_models() -> None:
    host, device = load_cost_model("host"), load_cost_model("dla.yaml")
    assert (host.name, host.link, host.launch) == ("host", None, 0.0)
    assert (device.name, device.link) == ("dla", Link(bandwidth=2e9, latency=5e-6))
    assert device.execution(Work(1e9, 0), "float32") == 1e-6 + 1e9 / 0.5e12
    assert device.transfer(2_000_000) == pytest.approx(1.005e-3)


GOOD = "kind: roofline\nname: a\npeak: {float32: 1e9}\nbandwidth: 1e9\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("kind: roofline\n", ["name: must be given", "peak: must be given", "bandwidth: must be given"]),
        (
            GOOD.replace("roofline", "tables") + "overhed: 1\n",
            [
                "kind: input should be 'roofline'",
                "overhed: no such key (did you mean overhead?); known: kind, name, description, peak, "
                "bandwidth, overhead, launch, link",
            ],
        ),
        (
            GOOD.replace("bandwidth: 1e9", "bandwidth: 0") + "overhead: -1\nlaunch: .nan\n",
            [
                "bandwidth: input should be greater than 0",
                "overhead: must be at least 0",
                "launch: must be at least 0",
            ],
        ),
        (GOOD.replace("{float32: 1e9}", "{}"), ["peak: must not be empty"]),
        (
            GOOD.replace("float32: 1e9", "float32: fast, int8: -1"),
            ["peak.float32: expected a number", "peak.int8: input should be greater than 0"],
        ),
        (
            GOOD.replace("float32: 1e9", "flaot32: 1, int8: 2"),
            ["peak: no such data type 'flaot32' (did you mean float32?)"],
        ),
        (
            GOOD.replace("float32: 1e9", "defalt: 1"),
            ["peak: no such data type 'defalt' (did you mean default?)"],
        ),
        (
            GOOD + "link: {bandwith: 1, latency: -1}\n",
            [
                "link.bandwidth: must be given",
                "link.latency: must be at least 0",
                "link.bandwith: no such key (did you mean bandwidth?); known: bandwidth, latency",
            ],
        ),
        (GOOD + "link: fast\n", ["link: expected a mapping of keys"]),
        ("[]\n", ["expected a mapping of keys at the top"]),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = tmp_path / "cost.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_cost_model(str(path))
    assert str(caught.value).splitlines() == [f"{path}: {line}" for line in lines]


def test_a_right_file(tmp_path: Path) -> None:
    path = tmp_path / "cost.yaml"
    path.write_text(GOOD)
    assert load_cost_model(str(path)).peak == {"float32": 1e9}


def test_neither_a_file_nor_a_name() -> None:
    with pytest.raises(InputError) as caught:
        load_cost_model("hots")
    assert str(caught.value) == (
        "hots: no such file and no installed cost model (did you mean host?); installed: "
        "dla, ethos-u55, host, nnpa, openvino-cpu, tensorrt-dla"
    )
