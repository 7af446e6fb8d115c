"""The line that a report begins with."""

import pytest
from report_fields import REPORT, summarize, verified


def test_the_summary_is_one_line() -> None:
    assert summarize() == (
        "m.onnx: 3 of 5 nodes (99.9 % of the compute) on npu in 1 region, 2 on the host; "
        "predicted 2 ms, host alone 10 ms; not verified: nobody asked"
    )


def test_one_node_and_no_regions_are_counted_right() -> None:
    nodes = {"total": 1, "offloaded": 0, "host": 1, "constant": 0}
    text = summarize(nodes=nodes, regions=[])
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
    assert told in summarize(predicted=REPORT["predicted"] | more)


@pytest.mark.parametrize(
    ("measure", "told"),
    [
        ("load", "predicted 2 ms, in a pipeline a run every 500 µs, host alone 10 ms"),
        ("makespan", "predicted 2 ms, 500 µs with host and accelerators at work at once, host alone"),
    ],
)
def test_the_summary_tells_what_was_minimised_where_it_is_no_sum(measure: str, told: str) -> None:
    more = {"measure": measure, "optimized": 5e-4}
    assert told in summarize(predicted=REPORT["predicted"] | more)


def test_only_devices_that_have_regions_are_in_the_summary() -> None:
    assert ") on npu in 1 region, " in summarize(targets=["dsp", "npu"])
    none = summarize(targets=["dsp", "npu"], regions=[])
    assert ") on dsp and npu in 0 regions, " in none


def test_the_verification_is_told_with_its_number() -> None:
    found = verified(1.23e-6, None)
    assert summarize(verification=found, not_verified=None).endswith(
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
    found = verified(0.69, None) | {"outputs": [output | {"fidelity": fidelity, "within": True}]}
    assert summarize(verification=found, not_verified=None).endswith(
        f"verified, largest error 6.9e-01 of the output's range, {told}"
    )


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
    found = verified(0.0, {"original": "m", "outputs": outputs})
    assert told in summarize(verification=found, not_verified=None)
