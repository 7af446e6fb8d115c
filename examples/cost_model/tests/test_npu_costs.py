"""Seconds of both cost models, worked out by hand."""

import pytest
from onnx.parser import parse_model

import byoc
from byoc.costs import Task, build_tasks, load_cost_model


def make_convolution(channels: int) -> Task:
    """Return a 1x1 convolution of 64 channels to some others, on 100 x 100 pixels."""
    model = parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        f"net (float[1, 64, 100, 100] x, float[{channels}, 64, 1, 1] w)"
        f" => (float[1, {channels}, 100, 100] y) {{ y = Conv(x, w) }}"
    )
    return build_tasks(byoc.load_model(model).index)[0]


def test_the_roofline_of_the_data_sheet() -> None:
    sheet = load_cost_model("npu-sheet")
    operations = 2 * 100 * 100 * 64 * 256
    moved = 4 * (64 * 100 * 100 + 256 * 64 + 256 * 100 * 100)
    assert operations / 1e12 < moved / 12e9
    assert sheet.execution(make_convolution(256)).seconds == pytest.approx(2e-6 + moved / 12e9)


def test_lanes_without_a_channel_are_paid_for() -> None:
    sheet, npu = load_cost_model("npu-sheet"), load_cost_model("npu")
    for channels, paid in ((32, 32), (33, 48), (8, 16)):
        task = make_convolution(channels)
        assert npu.execution(task).seconds == pytest.approx(
            sheet.execution(task).seconds * paid / channels
        )


def test_transfers_are_whole_bursts() -> None:
    npu = load_cost_model("npu")
    assert npu.transfer(1).seconds == npu.transfer(4096).seconds == 3e-6 + 4096 / 6e9
    assert npu.transfer(4097).seconds == 3e-6 + 8192 / 6e9
    assert npu.launching().seconds == 30e-6


def test_both_are_found_by_name() -> None:
    seconds = [
        byoc.partition("zoo:squeezenet", "dla", cost_model=name).report.predicted.seconds
        for name in ("npu-sheet", "npu")
    ]
    assert seconds[0] < seconds[1]  # 1000 classes are no multiple of 16
