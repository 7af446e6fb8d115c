"""Accuracy budgets with another objective than latency: the plan of the least joules is taken."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.calibrating import inputs, network
from helpers.support import VANILLA

import byoc
from byoc.quantization import KeptAccuracy, PlanTrial


@pytest.mark.parametrize("objective", ["latency", "energy"])
def test_the_plan_taken_is_the_cheapest_by_the_objective(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for number, sample in enumerate(inputs(4)):
        np.savez(tmp_path / f"data/{number}.npz", **sample)
    trials = []

    def record(accuracy: KeptAccuracy, cost: float) -> PlanTrial:
        trials.append(PlanTrial(accuracy, cost))
        return trials[-1]

    monkeypatch.setattr("byoc.pipeline._trial_stages.PlanTrial", record)
    budget = byoc.Budget("dB", 30)
    found = byoc.partition(
        tmp_path / "m.onnx",
        VANILLA,
        strategy="all-supported",
        objective=objective,
        what_if=False,
        precision=byoc.Precision("int8", data=str(tmp_path / "data"), budget=budget),
    ).report.predicted
    costs = [trial.cost for trial in trials if budget.is_met(trial.accuracy)]
    assert len(set(costs)) > 1
    assert min(costs) == pytest.approx(found.joules if objective == "energy" else found.seconds)
