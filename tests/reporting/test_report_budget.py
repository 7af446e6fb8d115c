"""What a report says of accuracy budgets and of weights in 4 bits."""

from typing import Any

from report_fields import print_text

from byoc.reporting import WHOLE


def _precision(budget: str | None, **more: Any) -> dict[str, Any]:
    method = {"dtype": "int8", "source": "photos", "method": "", "samples": 1, "random": False}
    kept = {"reached": 31.0, "all_quantized": 20.04, "in_float": [], "units": 3, "on_accelerators": 2}
    seen = {"budget": budget, "measured": 1, "measured_on": "photos", "weights": []}
    return {**seen, **method, **kept, **more}


def test_the_errors_of_weights_the_worst_first() -> None:
    ratios = [20.26, None, 18.04]
    weights = [
        {"name": f"w{number}", "shape": [4, 2], "operator": "MatMulNBits", "decibels": ratio}
        for number, ratio in enumerate(ratios)
    ]
    lines = print_text(precision=_precision(None, weights=weights))
    start = lines.index(
        "Weights of 4 bits in 3 products, by the ratio of the weights, or of outputs on --data, "
        "to their errors:"
    )
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
    lines = print_text(precision=_precision("21dB", in_float=units, trade=trade, trade_gap=0.0123))
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
    lines = print_text(precision=_precision("top1=0.9", trade=shares))
    assert "    95.0 %       2 ms       200 µs     2      1  to float: v, u1" in lines
    alone = print_text(precision=_precision("21dB", trade=trade[:1]))
    assert not any("Plans by what" in line for line in alone)


def test_of_many_plans_those_far_apart_are_shown() -> None:
    decibels = [20.0, 20.1, 21.0, 23.0, 23.05, 26.0, 29.0, 29.04, 32.0, 40.0]
    trade = _list_trade([*decibels], taken=7)
    lines = print_text(precision=_precision("29dB", trade=trade))
    start = lines.index("Plans by what they keep, with 3 units in each precision; * is taken:")
    shown = [line.split(" dB")[0].split()[-1] for line in lines[start + 2 : start + 10]]
    assert shown == ["20.0", "21.0", "23.0", "26.0", "29.0", "29.0", "32.0", "40.0"]
    assert lines[start + 10] == "  and 2 other plans (--verbose)"


def test_all_units_of_a_plan_are_named_where_everything_is_printed() -> None:
    trade = _list_trade([20.0, 22.0], taken=1)
    trade[1]["to_float"] = [f"u{number}" for number in range(5)]
    step = "  * 22.0 dB       2 ms        500 µs     2      1  to float: "
    precision = _precision("21dB", trade=trade)
    assert f"{step}u0, u1, u2 and 2 more" in print_text(precision=precision)
    assert f"{step}u0, u1, u2, u3, u4" in print_text(WHOLE, precision=precision)


def test_an_accuracy_budget_and_what_it_took() -> None:
    units = [{"unit": f"u{i}", "device": "npu", "alone": 20.0 + i} for i in range(12)]
    lines = print_text(precision=_precision("30dB", in_float=units))
    start = lines.index(
        "Accuracy budget 30dB: 31.0 dB kept on 1 sample of photos, 20.0 dB with all quantized"
    )
    assert lines[start + 1] == "  in floating point on npu: u0, alone 20.0 dB"
    assert lines[start + 4] == "  in floating point on npu: u3, alone 23.0 dB"
    assert lines[start + 5] == "  and 8 other units (--verbose)"
    shares = print_text(precision=_precision("top1=0.9", reached=0.95, all_quantized=0.5))
    told = "95.0 % of classes kept on 1 sample of photos, 50.0 % of classes with all quantized"
    assert f"Accuracy budget top1=0.9: {told}" in shares
    everything = print_text(precision=_precision("90dB", reached=None))
    assert (
        "Accuracy budget 90dB: all kept on 1 sample of photos, 20.0 dB with all quantized" in everything
    )
    assert not any("budget" in line for line in print_text(precision=_precision("") | {"budget": None}))


def test_a_plan_that_is_taken_for_its_integers_has_no_price_of_a_decibel() -> None:
    """It costs hardly more than the one before it and keeps less."""
    lines = print_text(precision=_precision("20dB", trade=_list_trade([21.0, 20.0, None], taken=1)))
    start = next(number for number, line in enumerate(lines) if "a further dB" in line)
    assert lines[start + 1 : start + 3] == [
        "    21.0 dB       1 ms                   3      0      0",
        "  * 20.0 dB       2 ms                   2      0      1  to float: v, u1",
    ]
