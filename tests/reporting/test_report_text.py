"""The report as text."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from byoc.bundle import Report
from byoc.reporting import print_report
from byoc.reporting._report_text import summarize_report

TENSOR = {"name": "x", "dtype": None, "shape": None, "bytes": None}
REPORT: dict[str, Any] = {
    "model": "m.onnx",
    "targets": ["npu"],
    "strategy": "min-cut",
    "nodes": {"total": 5, "offloaded": 3, "host": 2, "constant": 1},
    "compute": {"operations": 100.0, "offloaded": 0.9999},
    "predicted": {
        "seconds": 0.002,
        "execution": 0.001,
        "transfer": 0.0005,
        "launch": 0.0005,
        "host_only": 0.01,
        "bound": None,
        "objective": "latency",
        "optimized": 0.002,
        "joules": None,
        "host_only_joules": None,
    },
    "regions": [
        {
            "name": "npu_0",
            "device": "npu",
            "nodes": 3,
            "trips": 1.0,
            "graph": "",
            "composites": {},
            "inputs": [TENSOR | {"bytes": 2048}, TENSOR],
            "outputs": [TENSOR | {"bytes": 10}],
            "seconds": 0.002,
            "borders": [],
        }
    ],
    "refusals": [],
    "host_reasons": [],
    "what_if": [],
    "precision": None,
    "notes": [],
    "verification": None,
    "not_verified": "nobody asked",
    "bundle": None,
}


def _print_text(**change: Any) -> list[str]:
    stream = StringIO()
    print_report(Report.read(REPORT | change), Console(file=stream, width=200, emoji=False))
    return [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]


def _summarize(**change: Any) -> str:
    return summarize_report(Report.read(REPORT | change))


def _verified(error: float, accuracy: Any) -> dict[str, Any]:
    found = {"against": "m", "passed": True, "outputs": []}
    return found | {"largest_relative_error": error, "accuracy": accuracy}


def test_the_summary_is_one_line() -> None:
    assert _summarize() == (
        "m.onnx: 3 of 5 nodes (99.9 % of the compute) on npu in 1 region, 2 on the host; "
        "predicted 2 ms, host alone 10 ms; not verified: nobody asked"
    )


def test_one_node_and_no_regions_are_counted_right() -> None:
    nodes = {"total": 1, "offloaded": 0, "host": 1, "constant": 0}
    text = _summarize(nodes=nodes, regions=[])
    assert "0 of 1 node (" in text
    assert "in 0 regions, 1 on the host" in text


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        ("latency", "predicted 2 ms, host alone 10 ms; not"),
        ("energy", "predicted 4.10 mJ, host alone 19 mJ; 2 ms; not"),
        ("latency=1,energy=0.5", "predicted 2 ms, host alone 10 ms; 4.10 mJ; not"),
    ],
)
def test_the_summary_tells_what_was_the_objective(objective: str, told: str) -> None:
    more = {"objective": objective, "joules": 0.0041, "host_only_joules": 0.019}
    assert told in _summarize(predicted=REPORT["predicted"] | more)


@pytest.mark.parametrize(
    ("measure", "told"),
    [
        ("load", "predicted 2 ms, in a pipeline a run every 500 µs, host alone 10 ms"),
        ("makespan", "predicted 2 ms, 500 µs with host and accelerators at work at once, host alone"),
    ],
)
def test_the_summary_tells_what_was_minimised_where_it_is_no_sum(measure: str, told: str) -> None:
    more = {"measure": measure, "optimized": 5e-4}
    assert told in _summarize(predicted=REPORT["predicted"] | more)


def test_what_is_saved_of_a_weighted_sum_has_no_unit() -> None:
    item: dict[str, Any] = {
        "target": "npu",
        "operator": "Conv",
        "reason": "Conv: too wide",
        "nodes": 1,
        "gain": 0.001,
    }
    item["offloaded"] = 4
    weighted = REPORT["predicted"] | {"objective": "latency=1,energy=1", "joules": 1.0}
    lines = _print_text(what_if=[item], predicted=weighted)
    assert lines[-1].split() == ["-0.001", "Conv:", "too", "wide"]


def test_only_devices_that_have_regions_are_in_the_summary() -> None:
    assert ") on npu in 1 region, " in _summarize(targets=["dsp", "npu"])
    none = _summarize(targets=["dsp", "npu"], regions=[])
    assert ") on dsp and npu in 0 regions, " in none


def test_the_verification_is_told_with_its_number() -> None:
    found = _verified(1.23e-6, None)
    assert _summarize(verification=found, not_verified=None).endswith(
        "; verified, largest error 1.2e-06 of the output's range"
    )


def test_a_region_is_a_row_and_unknown_sizes_are_said() -> None:
    lines = _print_text()
    assert lines[1].split() == ["region", "device", "nodes", "inputs", "outputs", "predicted"]
    assert " ".join(lines[3].split()) == "npu_0 npu 3 2 (2 KiB + unknown) 1 (10 B) 2 ms"


def test_no_regions_are_no_table() -> None:
    assert len(_print_text(regions=[])) == 1


def test_the_commonest_reasons_are_told_and_the_rest_counted() -> None:
    reasons = [{"reason": f"reason {i}", "nodes": 10 - i} for i in range(6)]
    lines = _print_text(host_reasons=reasons)
    assert lines[-5:] == [
        "On the host, and why:",
        "     10  reason 0",
        "      9  reason 1",
        "      8  reason 2",
        "     18  for 3 other reasons (--reasons)",
    ]
    assert _print_text(host_reasons=reasons[:3])[-1] == "      8  reason 2"
    assert _print_text(host_reasons=reasons[:4])[-1] == "      7  for 1 other reason (--reasons)"


def test_what_more_support_would_save() -> None:
    item: dict[str, Any] = {
        "target": "npu",
        "operator": "Conv",
        "reason": "Conv: too wide",
        "nodes": 2,
        "gain": 0.001,
    }
    item["offloaded"] = 5
    lines = _print_text(what_if=[item])
    assert lines[-2] == "If it were supported:"
    assert lines[-1].split() == ["-1", "ms", "Conv", "(2", "nodes):", "too", "wide"]
    joules = REPORT["predicted"] | {"objective": "energy"}
    joules |= {"joules": 0.0041, "host_only_joules": 0.019}
    lines = _print_text(what_if=[item], predicted=joules, targets=["npu", "dsp"])
    assert lines[-1].split() == ["-1", "mJ", "Conv", "(2", "nodes)", "on", "npu:", "too", "wide"]

    assert (
        _print_text(what_if=[item | {"gain": 1e-6}]) == _print_text()
    )  # under a thousandth of the whole


def test_notes_and_the_place_come_last() -> None:
    lines = _print_text(notes=["first", "second"], bundle="out")
    assert lines[-3:] == ["note: first", "note: second", "Written to out"]


def test_names_are_not_markup() -> None:
    lines = _print_text(
        model="[red]a:car:b.onnx",
        bundle="[bold]out",
        notes=["[/]"],
        host_reasons=[{"reason": "kernel_shape[0] is 9 :smile:", "nodes": 1}],
    )
    assert lines[0].startswith("[red]a:car:b.onnx: 3 of 5")
    assert lines[-3:] == ["      1  kernel_shape[0] is 9 :smile:", "note: [/]", "Written to [bold]out"]


@pytest.mark.parametrize(
    ("ratios", "told"),
    [
        ([(40.25, False), (31.5, False)], "; 31.5 dB signal-to-noise against m"),
        ([(40.0, False), (None, True)], "40.0"),
    ],
)
def test_what_lower_precision_left_is_that_of_the_worst_output(
    ratios: list[tuple[float | None, bool]], told: str
) -> None:
    outputs = [
        {"name": "y", "signal_to_noise": ratio, "same_class": None, "exact": exact}
        for ratio, exact in ratios
    ]
    found = _verified(0.0, {"original": "m", "outputs": outputs})
    assert told in _summarize(verification=found, not_verified=None)


def _precision(budget: str, **more: Any) -> dict[str, Any]:
    method = {"dtype": "int8", "source": "photos", "method": "", "samples": 1, "random": False}
    kept = {"reached": 31.0, "all_quantized": 20.04, "in_float": [], "units": 3, "on_accelerators": 2}
    return {"budget": budget, "measured": 1, "measured_on": "photos", **method, **kept, **more}


def test_a_warning_is_no_note() -> None:
    assert _print_text(notes=["warning: hot", "a word"])[-2:] == ["warning: hot", "note: a word"]


def test_an_accuracy_budget_and_what_it_took() -> None:
    units = [{"unit": f"u{i}", "device": "npu", "alone": 20.0 + i} for i in range(12)]
    lines = _print_text(precision=_precision("30dB", in_float=units))
    start = lines.index(
        "Accuracy budget 30dB: 31.0 dB kept on 1 sample of photos, 20.0 dB with all quantized"
    )
    assert lines[start + 1] == "  in floating point on npu: u0, alone 20.0 dB"
    assert lines[start + 10] == "  in floating point on npu: u9, alone 29.0 dB"
    assert lines[start + 11] == "  and 2 more units"
    shares = _print_text(precision=_precision("top1=0.9", reached=0.95, all_quantized=0.5))
    told = "95.0 % of classes kept on 1 sample of photos, 50.0 % of classes with all quantized"
    assert f"Accuracy budget top1=0.9: {told}" in shares
    everything = _print_text(precision=_precision("90dB", reached=None))
    assert (
        "Accuracy budget 90dB: all kept on 1 sample of photos, 20.0 dB with all quantized" in everything
    )
    assert not any("budget" in line for line in _print_text(precision=_precision("") | {"budget": None}))
