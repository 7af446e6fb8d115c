"""The report as text."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from byoc.bundle import Report
from byoc.reporting import SCREEN, WHOLE, ReportSize, print_report
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


def _print_text(size: ReportSize = SCREEN, /, **change: Any) -> list[str]:
    stream = StringIO()
    print_report(Report.read(REPORT | change), Console(file=stream, width=200, emoji=False), size)
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


@pytest.mark.parametrize(
    ("noise", "told"),
    [
        (0.7, "within the noise of a signal-to-noise ratio of 20 dB"),
        (0.06, "as near to the float model as onnxruntime with the same integers (16.8 dB)"),
    ],
)
def test_a_large_error_is_told_with_what_allows_it(noise: float, told: str) -> None:
    fidelity = {"signal_to_noise": 16.0, "reference": 16.8, "spread": 0.0, "least": 15.8}
    output = {"name": "y", "dtype": "float32", "absolute": 0.69, "relative": 0.69, "tolerance": 1e-4}
    output |= {"problem": "", "measure": "relative", "signal_to_noise": 24.2, "cosine": 0.99}
    output |= {"differing": 0.1, "noise": noise, "noise_source": "a signal-to-noise ratio of 20 dB"}
    found = _verified(0.69, None) | {"outputs": [output | {"fidelity": fidelity, "within": True}]}
    assert _summarize(verification=found, not_verified=None).endswith(
        f"verified, largest error 6.9e-01 of the output's range, {told}"
    )


def test_a_region_is_a_row_and_unknown_sizes_are_said() -> None:
    lines = _print_text()
    assert lines[1].split() == ["region", "device", "nodes", "inputs", "outputs", "predicted"]
    assert " ".join(lines[3].split()) == "npu_0 npu 3 2 (2 KiB + unknown) 1 (10 B) 2 ms"


def test_no_regions_are_no_table() -> None:
    assert len(_print_text(regions=[])) == 1


REASONS: list[dict[str, Any]] = [
    {"reason": f"{name} is wrong", "nodes": i + 1, "share": 0.4 / 2**i}
    for i, name in enumerate("abcdefgh")
]


def test_reasons_have_their_shares_and_the_rest_is_counted() -> None:
    lines = _print_text(host_reasons=REASONS)
    assert lines[-8:] == [
        "On the host, and why, by share of the work:",
        "   40.0 %     1  a is wrong",
        "   20.0 %     2  b is wrong",
        "   10.0 %     3  c is wrong",
        "    5.0 %     4  d is wrong",
        "    2.5 %     5  e is wrong",
        "    1.2 %     6  f is wrong",
        "    0.9 %    15  for 2 other reasons (--verbose)",
    ]
    assert _print_text(host_reasons=REASONS[:6])[-1] == "    1.2 %     6  f is wrong"
    last = _print_text(host_reasons=REASONS[:7])[-1]
    assert last == "    0.6 %     7  for 1 other reason (--verbose)"
    assert _print_text(WHOLE, host_reasons=REASONS)[-1] == "    0.3 %     8  h is wrong"


def test_a_reason_names_its_operators_the_costliest_node_and_the_remedy() -> None:
    reason = {
        "reason": "supported, but the host is cheaper",
        "nodes": 9,
        "share": 0.25,
        "largest": "wide",
        "operators": ["Conv", "Add", "Mul", "Div", "Sub"],
        "remedy": "buy a link",
    }
    told = "supported, but the host is cheaper; the costliest is 'wide'"
    line = f"   25.0 %     9  Conv, Add, Mul and 2 more: {told}"
    remedy = "                 buy a link"
    assert _print_text(host_reasons=[reason])[-2:] == [line, remedy]
    named = reason | {"reason": "Conv: wide", "share": 0.2, "remedy": "make it narrow"}
    assert _print_text(host_reasons=[reason, named])[-2:] == [remedy, "   20.0 %     9  Conv: wide"]
    assert _print_text(WHOLE, host_reasons=[reason, named])[-1].strip() == "make it narrow"


def test_reasons_that_differ_in_names_and_numbers_are_one_line() -> None:
    reasons = [{"reason": f"Conv: group of 'c{i}' is {i}", "nodes": 2, "share": 0.1} for i in (3, 4, 5)]
    alone = {"reason": "Gather is not there", "nodes": 7, "share": 0.2}
    lines = _print_text(host_reasons=[alone, *reasons])[-2:]
    assert lines == [
        "   30.0 %     6  Conv: group of 'c3' is 3 (and 2 like it)",
        "   20.0 %     7  Gather is not there",
    ]
    assert len(_print_text(WHOLE, host_reasons=reasons)) == len(_print_text()) + 4


def test_a_bundle_of_before_has_no_shares() -> None:
    reasons = [{"reason": "Gather is not there", "nodes": 7}]
    assert _print_text(host_reasons=reasons)[-1] == "              7  Gather is not there"


def test_nothing_offloaded_comes_first_with_its_culprit() -> None:
    nodes = {"total": 5, "offloaded": 0, "host": 5, "constant": 1}
    lines = _print_text(nodes=nodes, regions=[], host_reasons=REASONS)
    assert lines[0] == "Nothing was offloaded: for 40.0 % of the work the reason is: a is wrong"
    assert lines[1].startswith("m.onnx: 0 of 5 nodes")
    assert _print_text(nodes=nodes, regions=[])[0] == "Nothing was offloaded"


@pytest.mark.parametrize("missing", [True, False])
def test_a_bundle_that_is_not_verified_says_so_first(missing: bool) -> None:
    lines = _print_text(bundle="out", verification_missing=missing)
    assert lines[0] == "Not verified: nobody asked"
    assert lines[1].startswith("m.onnx: ")


def test_slower_than_the_host_comes_first_and_once() -> None:
    slower = "the placement is predicted to be slower than the host alone"
    lines = _print_text(notes=["other", slower])
    assert lines[0] == "The placement is predicted to be slower than the host alone"
    assert lines[-1] == "note: other"


def test_equal_regions_are_one_row() -> None:
    region = REPORT["regions"][0]
    equal = [region | {"name": f"npu_{i}"} for i in range(4)]
    other = region | {"name": "npu_4", "seconds": 0.003}
    rows = [line.split() for line in _print_text(regions=[*equal, other])[1:]]
    assert rows[0] == ["region", "device", "nodes", "inputs", "outputs", "predicted", "together"]
    assert rows[2][:5] == ["npu_0", "x", "4", "npu", "3"]
    assert (rows[2][-4:], rows[3][-4:]) == (["2", "ms", "8", "ms"], ["3", "ms", "3", "ms"])
    assert len(rows) == 4
    whole = _print_text(WHOLE, regions=[*equal, other])
    assert [line.split()[0] for line in whole[3:]] == [f"npu_{i}" for i in range(5)]


@pytest.mark.parametrize(
    "change",
    [
        *({"device": "dsp"}, {"graph": "Loop_0/body"}, {"nodes": 4}, {"trips": 2.0}),
        *({"composites": {"conv_relu": 1}}, {"seconds": 0.0021}),
        *({"inputs": []}, {"outputs": [TENSOR | {"bytes": 11}]}),
    ],
)
def test_regions_that_differ_are_rows_of_their_own(change: dict[str, Any]) -> None:
    regions = [REPORT["regions"][0], REPORT["regions"][0] | change]
    assert len(_print_text(regions=regions)) == len(_print_text()) + 1


def test_of_many_kinds_those_that_take_longest_are_shown_in_their_order() -> None:
    kinds = [REPORT["regions"][0] | {"name": f"npu_{i}", "seconds": 0.001 * (i + 1)} for i in range(12)]
    lines = _print_text(regions=kinds)
    assert [line.split()[0] for line in lines[3:-1]] == [f"npu_{i}" for i in range(3, 12)]
    assert lines[-1] == "  and 3 other regions, 6 ms (--verbose)"


def test_long_lines_are_cut_unless_all_is_wanted() -> None:
    long = "x" * 500
    assert len(_print_text(notes=[long])[-1]) == SCREEN.characters
    assert _print_text(WHOLE, notes=[long])[-1] == f"note: {long}"


def test_warnings_come_before_notes() -> None:
    notes = [f"n{i}" for i in range(5)] + ["warning: hot"]
    lines = _print_text(notes=notes)[-5:]
    assert lines == [
        *("warning: hot", "note: n0", "note: n1", "note: n2", "  and 2 other notes (--verbose)")
    ]


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
    assert lines[1].startswith("[red]a:car:b.onnx: 3 of 5")
    assert lines[-3:] == [
        "              1  kernel_shape[0] is 9 :smile:",
        "note: [/]",
        "Written to [bold]out",
    ]


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


def _precision(budget: str | None, **more: Any) -> dict[str, Any]:
    method = {"dtype": "int8", "source": "photos", "method": "", "samples": 1, "random": False}
    kept = {"reached": 31.0, "all_quantized": 20.04, "in_float": [], "units": 3, "on_accelerators": 2}
    seen = {"budget": budget, "measured": 1, "measured_on": "photos", "weights": []}
    return {**seen, **method, **kept, **more}


def test_a_warning_is_no_note() -> None:
    assert _print_text(notes=["warning: hot", "a word"])[-2:] == ["warning: hot", "note: a word"]


def test_the_errors_of_weights_the_worst_first() -> None:
    ratios = [20.26, None, 18.04]
    weights = [
        {"name": f"w{number}", "shape": [4, 2], "operator": "MatMulNBits", "decibels": ratio}
        for number, ratio in enumerate(ratios)
    ]
    lines = _print_text(precision=_precision(None, weights=weights))
    start = lines.index("Weights of 4 bits in 3 products, by the ratio of the weights to their errors:")
    assert lines[start + 1 : start + 4] == [
        "  18.0 dB: 'w2', MatMulNBits",
        "  20.3 dB: 'w0', MatMulNBits",
        "  inf dB: 'w1', MatMulNBits",
    ]


def _list_trade(decibels: list[float | None], taken: int) -> list[dict[str, Any]]:
    """Return plans of rising milliseconds, each with one more unit in floating point, and one less."""
    return [
        {
            "reached": reached,
            "cost": 1e-3 * (number + 1),
            "seconds": 1e-3 * (number + 1),
            "in_float": number,
            "wide": int(number == 2),
            "to_float": ["v"] * (number == 1) + [f"u{number}"] * (number > 0),
            "to_wide": ["w"] * (number == 2),
            "to_narrow": ["v"] * (number == 2) + ["w"] * (number == 3),
            "taken": number == taken,
        }
        for number, reached in enumerate(decibels)
    ]


def test_what_each_further_decibel_costs() -> None:
    trade = _list_trade([20.0, 22.0, 26.0, None], taken=1)
    units = [{"unit": "u1", "device": "npu", "alone": 20.0}]
    lines = _print_text(precision=_precision("21dB", in_float=units, trade=trade, trade_gap=0.0123))
    start = lines.index("Plans by what they keep, with 4 units in each precision; * is taken:")
    assert lines[start + 1 : start + 7] == [
        "       kept  predicted  a further dB  int8  int16  float",
        "    20.0 dB       1 ms                   4      0      0",
        "  * 22.0 dB       2 ms        500 µs     3      0      1  to float: v, u1",
        "    26.0 dB       3 ms        250 µs     1      1      2  "
        "to float: u2; to int16: w; to int8: v",
        "        all       4 ms                   1      0      3  to float: u3; to int8: w",
        "  each is within 1.2 % of the least predicted, if noises of units alone add up",
    ]
    shares = _list_trade([0.9, 0.95], taken=0)
    lines = _print_text(precision=_precision("top1=0.9", trade=shares))
    assert "    95.0 %       2 ms       200 µs     2      1  to float: v, u1" in lines
    alone = _print_text(precision=_precision("21dB", trade=trade[:1]))
    assert not any("Plans by what" in line for line in alone)


def test_of_many_plans_those_far_apart_are_shown() -> None:
    decibels = [20.0, 20.1, 21.0, 23.0, 23.05, 26.0, 29.0, 29.04, 32.0, 40.0]
    trade = _list_trade([*decibels], taken=7)
    lines = _print_text(precision=_precision("29dB", trade=trade))
    start = lines.index("Plans by what they keep, with 3 units in each precision; * is taken:")
    shown = [line.split(" dB")[0].split()[-1] for line in lines[start + 2 : start + 10]]
    assert shown == ["20.0", "21.0", "23.0", "26.0", "29.0", "29.0", "32.0", "40.0"]
    assert lines[start + 10] == "  and 2 other plans (--verbose)"


def test_all_units_of_a_plan_are_named_where_everything_is_printed() -> None:
    trade = _list_trade([20.0, 22.0], taken=1)
    trade[1]["to_float"] = [f"u{number}" for number in range(5)]
    step = "  * 22.0 dB       2 ms        500 µs     2      1  to float: "
    precision = _precision("21dB", trade=trade)
    assert f"{step}u0, u1, u2 and 2 more" in _print_text(precision=precision)
    assert f"{step}u0, u1, u2, u3, u4" in _print_text(WHOLE, precision=precision)


def test_an_accuracy_budget_and_what_it_took() -> None:
    units = [{"unit": f"u{i}", "device": "npu", "alone": 20.0 + i} for i in range(12)]
    lines = _print_text(precision=_precision("30dB", in_float=units))
    start = lines.index(
        "Accuracy budget 30dB: 31.0 dB kept on 1 sample of photos, 20.0 dB with all quantized"
    )
    assert lines[start + 1] == "  in floating point on npu: u0, alone 20.0 dB"
    assert lines[start + 4] == "  in floating point on npu: u3, alone 23.0 dB"
    assert lines[start + 5] == "  and 8 other units (--verbose)"
    shares = _print_text(precision=_precision("top1=0.9", reached=0.95, all_quantized=0.5))
    told = "95.0 % of classes kept on 1 sample of photos, 50.0 % of classes with all quantized"
    assert f"Accuracy budget top1=0.9: {told}" in shares
    everything = _print_text(precision=_precision("90dB", reached=None))
    assert (
        "Accuracy budget 90dB: all kept on 1 sample of photos, 20.0 dB with all quantized" in everything
    )
    assert not any("budget" in line for line in _print_text(precision=_precision("") | {"budget": None}))


def test_a_plan_that_is_taken_for_its_integers_has_no_price_of_a_decibel() -> None:
    """It costs hardly more than the one before it and keeps less."""
    lines = _print_text(precision=_precision("20dB", trade=_list_trade([21.0, 20.0, None], taken=1)))
    start = next(number for number, line in enumerate(lines) if "a further dB" in line)
    assert lines[start + 1 : start + 3] == [
        "    21.0 dB       1 ms                   3      0      0",
        "  * 20.0 dB       2 ms                   2      0      1  to float: v, u1",
    ]
