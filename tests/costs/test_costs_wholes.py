"""What operators take within wholes: families, fused operators, factors, and models not seen."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from counting import sum_seconds
from helpers.support import prepared

from byoc.costs import (
    CostTable,
    Linear,
    MeasuredWhole,
    Measurement,
    Task,
    Work,
    build_tasks,
    fit_wholes,
    mean_factor,
    predict_unseen,
    read_cost_file,
)
from byoc.model import TensorType

CHAIN = """g (float[1, 8, 4, 4] x, float[8, 8, 1, 1] w, float[8, 1, 3, 3] d, float[8, 2, 3, 3] k) =>
    (float[1, 8, 4, 4] y, float[1, 8, 4, 4] b) {
    a = Relu (x)
    b = Conv (a, w)
    c = Relu (b)
    e = Conv <group = 8, pads = [1, 1, 1, 1]> (c, d)
    f = Relu (e)
    h = Conv <group = 4, pads = [1, 1, 1, 1]> (f, k)
    y = Add (h, f)
}"""
COST_MODELS = Path(__file__).parents[2] / "cost_models"
LINES = {"Conv": (2e-9, 0.0, 1e-5), "Relu": (0.0, 3e-10, 2e-6)}
FACTORS = {"Conv": 0.7, "Relu/fused": 0.1, "Relu": 1.2}


def make_task(op: str, operations: float, size: float, fused: bool = False) -> Task:
    kind = TensorType("float32", (int(size / 4),))
    return Task(op, Work(operations, size), inputs=(kind,), outputs=(kind,), fused=fused)


def make_table() -> CostTable:
    entries = []
    for op, (operation, byte, call) in LINES.items():
        for power in range(3, 8):
            task = make_task(op, 50.0**power / 1e3, 4.0 * 9**power)
            seconds = operation * task.work.operations + byte * task.work.bytes + call
            entries.append(
                Measurement(
                    op=op,
                    types=task.types,
                    seconds=seconds,
                    operations=task.work.operations,
                    bytes=task.work.bytes,
                )
            )
    return CostTable(kind="table", name="host", entries=tuple(entries))


def make_wholes() -> list[MeasuredWhole]:
    rng = np.random.default_rng(3)
    wholes = []
    for number in range(12):
        tasks, seconds = [], 0.0
        for op, fused in (("Conv", False), ("Relu", True), ("Relu", False)):
            for power in rng.integers(3, 8, int(rng.integers(1, 9))).tolist():
                task = make_task(op, 50.0**power / 1e3, 4.0 * 9**power, fused)
                operation, byte, call = LINES[op]
                alone = operation * task.work.operations + byte * task.work.bytes + call
                seconds += FACTORS[task.families[0]] * alone
                tasks.append(task)
        wholes.append(MeasuredWhole(f"m{number}", tasks, seconds))
    return wholes


def test_families_go_from_the_narrowest_to_the_operator() -> None:
    tasks = build_tasks(prepared(CHAIN).index)
    assert [tasks[i].families for i in range(7)] == [
        ("Relu",),
        ("Conv/computed", "Conv/pointwise", "Conv"),  # its weights are an input
        ("Relu",),  # what it reads is an output, too
        ("Conv/computed", "Conv/depthwise", "Conv/grouped", "Conv"),
        ("Relu/fused", "Relu"),
        ("Conv/computed", "Conv/grouped", "Conv"),
        ("Add/fused", "Add/computed", "Add"),
    ]
    work = Work(1, 1, constants=1)
    weights = TensorType("float32", (64, 3, 7, 7))
    assert Task("Conv", work, inputs=(None, weights)).families == ("Conv/first", "Conv")
    assert Task("Conv", work).families == ("Conv",)
    weights = TensorType("float32", (64, 1, 5))
    depthwise = Task("Conv", work, inputs=(None, weights), attributes={"group": 64})
    assert depthwise.families == ("Conv/1d", "Conv/depthwise", "Conv/grouped", "Conv")
    weights = TensorType("float32", (8, 8, 3, 3, 3))
    up = Task("ConvTranspose", work, inputs=(None, weights))
    assert up.families == ("ConvTranspose/3d", "ConvTranspose")
    weights = TensorType("float32", (8, 8))
    assert Task("Gemm", work, inputs=(None, weights)).families == ("Gemm",)


def test_both_libraries_have_lines_of_the_same_kinds() -> None:
    """A kind with a line on one side alone is beside a round number, which may name either library."""
    files = ("onnxruntime-cpu.yaml", "openvino-cpu.yaml")
    kinds = [set(read_cost_file(COST_MODELS / name).operator_names) for name in files]
    assert kinds[0] == kinds[1]
    assert {"GRU", "LSTM", "RNN", "Conv/1d", "Conv/3d", "ConvTranspose", "Softplus"} <= kinds[0]


def predict_all(lines: Linear, wholes: Sequence[MeasuredWhole]) -> list[float]:
    return [sum_seconds(lines, whole.tasks) for whole in wholes]


def test_factors_are_found_where_wholes_tell_them() -> None:
    wholes = make_wholes()
    lines = fit_wholes(make_table(), wholes)
    assert predict_all(lines, wholes) == pytest.approx([whole.seconds for whole in wholes], rel=0.1)
    alone = fit_wholes(make_table(), wholes[:2])
    assert all(line.together == 1.0 for line in alone.operators.values())
    fitted = {name: line.together for name, line in lines.operators.items()}
    assert fitted["Conv"] == pytest.approx(0.7, abs=0.1)
    assert fitted["Relu/fused"] < fitted["Relu"]


def test_a_model_is_predicted_by_the_others_alone() -> None:
    wholes = make_wholes()
    found = predict_unseen(make_table(), wholes)
    assert [each.model for each in found] == [whole.model for whole in wholes]
    assert mean_factor(found) < 1.15
    odd = MeasuredWhole("odd", wholes[0].tasks, 100 * wholes[0].seconds)
    (changed,) = [each for each in predict_unseen(make_table(), [*wholes, odd]) if each.model == "odd"]
    assert changed.predicted == pytest.approx(wholes[0].seconds, rel=0.1)
    assert changed.measured == odd.seconds
