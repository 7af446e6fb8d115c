"""Precision on the command line: its errors, what is told of it, and what `byoc verify` says later."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.calibrating import inputs, network, wide_inputs, wide_network
from helpers.cutting import files
from helpers.support import VANILLA, Ran, parse

Cli = Callable[..., Ran]
DLA = ("m.onnx", "--rules", VANILLA, "--strategy", "all-supported")
INT8 = (*DLA, "--quantize", "int8")
WIDE = ("wide.onnx", "--rules", VANILLA, "--quantize", "int8", "--data", "data")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with m.onnx in it and samples for it in `data`."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "m.onnx")
    (tmp_path / "data").mkdir()
    for number, sample in enumerate(inputs(6)):
        np.savez(tmp_path / f"data/{number}.npz", **sample)
    return tmp_path


def _refused(here: Path, byoc: Cli, *arguments: str) -> str:
    """Return the one sentence that a bad `byoc partition -o out` ends with; nothing was written."""
    before = files(here)
    ran = byoc("partition", *arguments, "-o", "out")
    assert (ran.code, ran.out) == (1, "")
    assert (ran.err.startswith("byoc: "), ran.err.count("\n")) == (True, 1)
    assert files(here) == before
    return ran.err.removeprefix("byoc: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            INT8,
            "quantize int8: dla needs the ranges of tensors "
            "(--calibration FILE, or --data FOLDER to measure them)",
        ),
        ((*INT8, "--calibration", "no.yaml"), "no.yaml: no such file"),
        (
            (*DLA, "--quantize", "uint8", "--data", "data"),
            f"{VANILLA}: quantization.activations.dtype: uint8 is not supported; supported: int8",
        ),
        (
            ("m.onnx", "--rules", "nnpa", "--quantize", "int8", "--data", "data"),
            "nnpa: no rule has `quantized: true`, so nothing can be quantized: leave --quantize int8 "
            "out, or name rules for integers, such as dla or ethos-u55",
        ),
        (
            (*INT8, "--data", "data", "--accuracy-budget", "high"),
            "accuracy budget: 'high' is neither like 30dB nor like top1=0.99",
        ),
        (
            (*DLA, "--data", "data", "--accuracy-budget", "30dB"),
            "accuracy budget 30dB: nothing is quantized (--quantize)",
        ),
        (
            (*DLA, "--quantize", "int4-weights", "--accuracy-budget", "30dB"),
            "accuracy budget 30dB: int4-weights computes in no integers",
        ),
    ],
)
def test_errors(arguments: tuple[str, ...], sentence: str, here: Path, byoc: Cli) -> None:
    assert _refused(here, byoc, *arguments) == sentence


def test_a_folder_that_is_not_there_is_named(here: Path, byoc: Cli) -> None:
    assert _refused(here, byoc, *INT8, "--data", "nowhere").startswith("nowhere: ")


def test_the_ranges_of_another_model(here: Path, byoc: Cli) -> None:
    lines = "".join(f"  r{i}: {{low: 0, high: 1}}\n" for i in range(20))
    Path("other.yaml").write_text(f"tensors:\n{lines}")
    assert _refused(here, byoc, *INT8, "--calibration", "other.yaml") == (
        "other.yaml: tensors: the model has none of them; are they those of another model?"
    )


def test_a_type_that_is_none(here: Path, byoc: Cli) -> None:
    ran = byoc("partition", *DLA, "--quantize", "int4")
    assert ran.code == 2
    assert ": 'int4' is not one of 'int8', 'uint8', 'int16', 'uint16', 'float16', 'bfloat16'" in ran.err


def test_calibrate_partition_verify(here: Path, byoc: Cli) -> None:
    assert byoc("calibrate", "m.onnx", "--data", "data", "-o", "c.yaml").code == 0
    ran = byoc("partition", *INT8, "--calibration", "c.yaml", "-o", "q.byoc")
    assert ran.code == 0
    told = re.search(
        r"; verified, largest error 0 of the output's range; "
        r"([0-9.]+) dB signal-to-noise against m\.onnx\n",
        ran.out,
    )
    assert told is not None
    assert 20 < float(told[1]) < 60
    assert "Linear" not in ran.out  # conversions of byoc's own are nobody's nodes on the host
    assert "warning" not in ran.out
    own = byoc("verify", "q.byoc")
    assert (own.code, " dB signal-to-noise" in own.out) == (0, False)  # a file is not looked for
    against = byoc("verify", "q.byoc", "--against", "m.onnx")
    assert against.code == 0
    assert (
        f"\ny: {told[1]} dB signal-to-noise against m.onnx; "
        "the largest element is the same in 100 % of the rows" in against.out
    )
    onnx.save(parse("other (float[4] z) => (float[4] y) { y = Relu(z) }"), "o.onnx")
    other = byoc("verify", "q.byoc", "--against", "o.onnx")
    assert (other.code, other.out) == (1, "")
    assert "byoc: o.onnx: it has no input 'x', which the bundle has" in other.err
    crossing = [line.split() for line in against.out.splitlines() if " int8 " in line]
    assert crossing
    assert {tuple(line[-3:-1]) for line in crossing} == {("1", "unit")}  # of the last place


def test_a_zoo_model_says_what_is_left(here: Path, byoc: Cli) -> None:
    byoc("calibrate", "zoo:squeezenet", "--data", "random", "--samples", "2", "-o", "c.yaml")
    arguments = ("--rules", VANILLA, "--quantize", "int8", "--calibration", "c.yaml", "--no-verify")
    assert byoc("partition", "zoo:squeezenet", *arguments, "-o", "s.byoc").code == 0
    ran = byoc("verify", "s.byoc")
    assert ran.code == 0
    assert re.search(
        r"\nsoftmaxout_1: [23][0-9]\.[0-9] dB signal-to-noise against zoo:squeezenet; ", ran.out
    )
    document = json.loads(byoc("verify", "s.byoc", "--format", "json").out)
    assert document["accuracy"]["original"] == "zoo:squeezenet"
    assert 20 < document["accuracy"]["outputs"][0]["signal_to_noise"] < 40


def test_made_up_data_is_warned_of(here: Path, byoc: Cli) -> None:
    ran = byoc("partition", *INT8, "--data", "random")
    warned = "warning: the scales are concluded from random data, and mean nothing for real inputs\n"
    assert warned in ran.out
    assert "note: warning" not in ran.out


def test_inspect_tells_the_accuracy_that_is_left(here: Path, byoc: Cli) -> None:
    assert byoc("partition", *INT8, "--data", "random", "-o", "m.byoc").code == 0
    document = json.loads(byoc("inspect", "m.byoc", "--format", "json").out)
    accuracy = document["variants"][0]["report"]["verification"]["accuracy"]
    ratios = {
        each["name"]: "equal" if each["exact"] else f"{each['signal_to_noise']:.1f} dB"
        for each in accuracy["outputs"]
    }
    told = byoc("inspect", "m.byoc", "--verbose").out
    table = told[told.index("Errors of the outputs") :].splitlines()
    for name, ratio in ratios.items():
        assert any(" ".join(row.split()).startswith(f"{name} float32 {ratio} ") for row in table)
    (line,) = re.findall(r"^accuracy: +(.*)$", byoc("inspect", "m.byoc").out, re.MULTILINE)
    level, words = line.split(", ", 1)
    assert level in ("good", "fair", "POOR")
    assert any(
        words.startswith(f"{ratio} against the float model in {n}") for n, ratio in ratios.items()
    )
    assert line.endswith("; scales are from random data")


def test_data_that_is_not_used_is_told(here: Path, byoc: Cli) -> None:
    ran = byoc("partition", *DLA, "--data", "data")
    assert ran.code == 0
    assert (
        "note: --data is not used: all targets compute in floating point (--quantize int8)\n" in ran.out
    )


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in, with wide.onnx, which is cheapest in integers, and samples in `data`."""
    monkeypatch.chdir(tmp_path)
    onnx.save(wide_network(), "wide.onnx")
    (tmp_path / "data").mkdir()
    for number, sample in enumerate(wide_inputs(4)):
        np.savez(tmp_path / f"data/{number}.npz", **sample)


@pytest.mark.usefixtures("wide")
def test_a_budget_is_told_unit_by_unit(byoc: Cli) -> None:
    plain = byoc("partition", *WIDE, "--accuracy-budget", "1dB")
    all_of_it = re.search(
        r"\nAccuracy budget 1dB: ([0-9.]+) dB kept on 4 samples of data, \1 dB with all quantized\n",
        plain.out,
    )
    assert all_of_it is not None
    least = round(float(all_of_it[1])) + 1
    ran = byoc("partition", *WIDE, "--accuracy-budget", f"{least}dB")
    head = re.search(
        rf"\nAccuracy budget {least}dB: (?:(\S+) dB|all) kept on 4 samples of data, "
        rf"{all_of_it[1]} dB with all",
        ran.out,
    )
    assert head is not None
    assert head[1] is None or float(head[1]) >= least
    units = re.findall(r"\n  in (?:floating point|int16) on (\w+): (\w+), alone ([0-9.]+) dB", ran.out)
    assert units
    assert {device for device, _, _ in units} <= {"dla", "host"}
    assert "\nPlans by what they keep, with 6 units in each precision; * is taken:\n" in ran.out
    step = r"\n  \* +[0-9.]+ dB +[0-9.]+ µs +[0-9.]+ [µn]s(?: +[0-9]){2,3}  to (float|int16): \w+"
    assert re.search(step, ran.out), ran.out
    shares = byoc("partition", *WIDE, "--accuracy-budget", "top1=1")
    assert "\nAccuracy budget top1=1: 100.0 % of classes kept on 4 samples of data, " in shares.out


def test_a_budget_says_when_nothing_is_quantized_where_it_counts(here: Path, byoc: Cli) -> None:
    floats = byoc("partition", *INT8, "--data", "data", "--accuracy-budget", "300dB")
    assert "\nAccuracy budget 300dB: all kept on 6 samples of data, " in floats.out
    assert "\n  nothing is quantized: what is on dla computes in floating point\n" in floats.out
    alone = ("m.onnx", "--rules", VANILLA, "--quantize", "int8", "--data", "data")  # the host is cheaper
    host = byoc("partition", *alone, "--accuracy-budget", "90dB", "-o", "h.byoc")
    assert (
        " all kept on 6 samples of data, all with all quantized\n"
        "  nothing is quantized: what is on the host computes in floating point\n" in host.out
    )
    against = byoc("verify", "h.byoc", "--against", "m.onnx")
    ratio = re.search(r"\ny: ([0-9.]+) dB signal-to-noise against m.onnx", against.out)
    assert ratio is not None
    assert float(ratio[1]) > 120  # floats that onnxruntime adds in another order where it optimizes


@pytest.mark.usefixtures("wide")
def test_a_budget_that_all_in_integers_keep(byoc: Cli) -> None:
    some = byoc("partition", *WIDE, "--accuracy-budget", "1dB", "-o", "s.byoc")
    assert " dB signal-to-noise against wide.onnx on the verification's sample\n" in some.out
    assert "nothing" not in some.out


def test_the_document(here: Path, byoc: Cli) -> None:
    ran = byoc("partition", *INT8, "--data", "data", "--format", "json", "-o", "q.byoc")
    document = json.loads(ran.out)
    assert document["precision"] == {
        "dtype": "int8",
        "source": "data",
        "method": "minmax",
        "samples": 6,
        "random": False,
        "units": 5,
        "on_accelerators": 5,
        "budget": None,
        "reached": None,
        "all_quantized": None,
        "measured": 0,
        "measured_on": "",
        "in_float": [],
        "trade": [],
        "trade_gap": 0.0,
        "wide": [],
        "weights": [],
    }
    assert document["nodes"] == {"total": 7, "offloaded": 5, "host": 2, "constant": 0}
    (output,) = document["verification"]["accuracy"]["outputs"]
    assert document["verification"]["accuracy"]["original"] == "m.onnx"
    assert (output["name"], output["exact"], output["same_class"]) == ("y", False, 1.0)
    asked = json.loads(Path("q.byoc/manifest.json").read_text())["asked"]["precision"]
    assert asked == {
        "quantize": "int8",
        "calibration": None,
        "data": "data",
        "method": "measured",
        "accuracy_budget": None,
    }
    assert json.loads(byoc("partition", *DLA, "--format", "json").out)["precision"] is None
