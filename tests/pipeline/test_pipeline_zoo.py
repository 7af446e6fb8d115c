"""The nine light models, end to end, with both strategies: partition, bundle, run, verify."""

import json
import sys
from pathlib import Path

import onnx
import pytest
from helpers.support import VANILLA, sample_cases

import byoc
from byoc.samples import sample_inputs
from byoc.verification import compare_tensors, run_plain
from byoc.zoo import list_entries

STRATEGIES = ("min-cut", "all-supported")
SIMULATED = ("bvlc_alexnet", "inception_v1", "shufflenet", "squeezenet", "zfnet512")
"""What the simulator of `dla` runs in seconds; `tests/codegens_suite/run.py dla` runs all of them."""
LIGHT = [entry.name for entry in list_entries() if entry.source.startswith("onnx package, test data ")]
CASES = [(name, strategy) for name in LIGHT for strategy in STRATEGIES]


@pytest.mark.parametrize(
    ("name", "strategy"),
    sample_cases(CASES, ("squeezenet", "min-cut")),
)
def test_light_model_verifies(name: str, strategy: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.byoc"

    rules = "dla.yaml" if name in SIMULATED else VANILLA
    result = byoc.partition(f"zoo:{name}", rules, strategy=strategy, output=path, what_if=False)

    verification = result.verification
    assert verification is not None
    worst = max(output.relative for output in verification.outputs)
    figures = f"{len(result.plan.regions)} regions, largest relative error {worst:.1e}"
    sys.stdout.write(f"{name:14} {strategy:14} {figures}\n")
    assert worst < 1e-4
    assert result.plan.regions
    manifest = json.loads((path / "manifest.json").read_text())
    assert [entry["name"] for entry in manifest["variants"][0]["regions"]] == [
        region.name for region in result.plan.regions
    ]
    assert manifest["variants"][0]["report"]["verification"]["passed"] is True
    assert byoc.verify_against(path).passed


QUICK = ("squeezenet", "resnet50", "shufflenet", "densenet121", "inception_v1")
"""Networks with shuffled channels, residuals, constant chains, and many regions; quick to load."""


@pytest.mark.parametrize(
    ("name", "strategy"),
    sample_cases(
        [(name, strategy) for strategy in STRATEGIES for name in QUICK],
        *[("shufflenet", "all-supported"), ("resnet50", "min-cut")],
    ),
)
def test_partitioned_model_runs_in_plain_onnxruntime(name: str, strategy: str) -> None:
    result = byoc.partition(f"zoo:{name}", "dla", strategy=strategy, what_if=False)
    model = result.plan.model

    onnx.checker.check_model(result.model, full_check=True)
    inputs = sample_inputs(model.index)
    errors = compare_tensors(
        run_plain(model.proto, model, inputs), run_plain(result.model, model, inputs)
    )

    assert [error.absolute for error in errors] == [0.0]


def test_composites_stay_whole() -> None:
    result = byoc.partition("zoo:resnet50", "dla", strategy="all-supported")

    counts: dict[str, int] = {}
    for region in result.report.regions:
        for name, number in region.composites.items():
            counts[name] = counts.get(name, 0) + number
    # Each of 16 blocks ends in an addition; 4 blocks have a convolution on the way round, which stands
    # without a Relu; the rest of the 53 convolutions have one.
    assert counts == {"conv_bn_add_relu": 16, "conv_bn": 4, "conv_bn_relu": 33}
    regions = {region.name for region in result.plan.regions}
    assert {function.name for function in result.model.functions} - regions == {
        "conv_bn_add_relu_sum",
        "conv_bn",
        "conv_bn_relu",
    }
