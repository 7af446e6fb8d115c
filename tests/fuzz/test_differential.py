"""Random models with bodies, functions and odd types compute in regions what they compute whole."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "onnx_suite"))

from differential import (
    DIFFERENT,
    EQUAL,
    NO_KERNEL,
    NOT_JUDGED,
    ROUNDED,
    Comparison,
    _read_log,
    _run_or_raise,
    _summarize,
    compare,
    find_difference,
    main,
    make_case,
)
from helpers.support import sample_cases
from helpers.warm_processes import WarmProcesses
from onnx import TensorProto, helper
from partitioned import WAYS, planned, run_bundle
from rounded_crossings import run_rounded
from suite import Case

from byoc.planning import Plan

GRAPHS = range(500)
ORDINARY = range(0, 500, 25)


@pytest.mark.parametrize("number", sample_cases(GRAPHS, *ORDINARY))
def test_regions_compute_the_same_bits(number: int) -> None:
    found = compare(11, number)
    assert found.outcome in (EQUAL, ROUNDED, NO_KERNEL), found.why


def test_a_graph_is_the_same_each_time() -> None:
    first, second = make_case(3, 4), make_case(3, 4)
    assert first.model == second.model
    assert first.model != make_case(3, 5).model


def test_a_wrong_bit_is_seen() -> None:
    value = {"y": np.array([1.0, 2.0], np.float32)}
    assert not find_difference(value, {"y": value["y"].copy()})
    assert find_difference(value, {"y": np.nextafter(value["y"], np.float32(9))})
    assert find_difference(value, {"y": value["y"].astype(np.float64)})
    assert find_difference(value, {"z": value["y"]})
    assert not find_difference({"y": [value["y"]]}, {"y": [value["y"].copy()]})
    assert find_difference({"y": [value["y"]]}, {"y": [value["y"], value["y"]]})
    text = np.array(["a", "b"], object)
    assert not find_difference({"y": text}, {"y": np.array(["a", "".join("b")], object)})
    assert find_difference({"y": text}, {"y": np.array(["a", "c"], object)})


def _make_half_case() -> Case:
    """Return a model that squares twice in float16: onnxruntime rounds once, what is cut each time."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], "cast", to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["h", "h"], ["s"], "square"),
        helper.make_node("Mul", ["s", "s"], ["t"], "again"),
        helper.make_node("Cast", ["t"], ["f"], "back", to=TensorProto.FLOAT),
        helper.make_node("Neg", ["f"], ["y"], "negated"),
    ]
    ends = [[value(name, TensorProto.FLOAT, [64])] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "half", *ends)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    inputs = {"x": np.linspace(0.1, 1.7, 64, dtype=np.float32)}
    return Case("half", "mixed", model, ((inputs, {}),), 0.0, 0.0, False)


def test_what_crosses_in_float16_is_rounded_in_the_original_too() -> None:
    case = _make_half_case()
    ((inputs, _),) = case.data_sets
    plan = planned(case, WAYS["alternating"])
    (given,) = run_bundle(plan, [inputs])
    plain = _run_or_raise(case.model, inputs)
    rounded, crossings = run_rounded(case.model, plan, inputs, _run_or_raise)
    assert crossings == 4
    assert find_difference(plain, given)
    assert not find_difference(rounded, given)
    halves = inputs["x"].astype(np.float16)
    np.testing.assert_array_equal(given["y"], -(halves * halves * (halves * halves)).astype(np.float32))


def test_only_what_crosses_is_rounded() -> None:
    case = _make_half_case()
    ((inputs, _),) = case.data_sets
    plan = planned(case, WAYS["all-supported"])
    rounded, crossings = run_rounded(case.model, plan, inputs, _run_or_raise)
    assert crossings == 0
    assert not find_difference(_run_or_raise(case.model, inputs), rounded)


def test_every_judge_and_every_odd_type_has_graphs() -> None:
    names = {"bfloat16", "float8e4m3fn", "float8e8m0", "float4e2m1", "int4", "uint4", "int2", "uint2"}
    names |= {"string", "complex64", "complex128"}
    models = [make_case(0, number).model for number in range(600)]
    kinds = {a.i for m in models for n in m.graph.node for a in n.attribute if n.op_type == "Cast"}
    kinds |= {tensor.data_type for m in models for tensor in m.graph.initializer}
    numbers = dict(TensorProto.DataType.items())
    assert {name for name in names if numbers[name.upper()] not in kinds} == set()


def test_a_broken_off_run_goes_on_behind_the_last_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_processes: WarmProcesses
) -> None:
    log = tmp_path / "log"
    command = [str(Path(__file__).with_name("differential.py")), "--log", str(log)]
    with monkeypatch.context() as patch:
        patch.setattr("differential.look_up_once", lambda: None)  # which lasts as long as the process
        patch.setattr(sys, "argv", [*command, "--graphs", "2"])
        assert main() == 0
    lines = log.read_text().splitlines()
    log.write_text(lines[0] + "\n" + lines[1][:40] + "\n")
    again = [sys.executable, *command, "--graphs", "3"]
    done = warm_processes.run(again, check=True)
    assert "3 graphs of seed 0" in done.stdout
    assert sorted(_read_log(log, 0)) == [0, 1, 2]
    assert not _read_log(log, 1)


def test_the_summary_says_why_graphs_were_not_judged() -> None:
    found = [
        Comparison(0, "random", EQUAL, 2, ["float"], ["Add"]),
        Comparison(1, "random", NO_KERNEL, 1, ["int2"], ["Add", "Mul"]),
        Comparison(2, "random", NOT_JUDGED, 1, ["float"], [], "no evaluator"),
        Comparison(3, "random", DIFFERENT, 1, ["float"], [], "other bits"),
    ]
    lines = list(_summarize(5, found))
    assert lines[0] == "4 graphs of seed 5: 2 operators, 5 regions"
    assert f"       1 {NOT_JUDGED}" in lines
    assert "  not judged: 1 of no evaluator" in lines
    assert "       1 with int2, 1 of them in onnx.reference" in lines
    assert "       1 with float, 0 of them in onnx.reference" in lines


def test_a_difference_in_a_graph_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_wrongly(plan: Plan, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        (found,) = run_bundle(plan, inputs)
        return [{name: [value] for name, value in found.items()}]

    monkeypatch.setattr("differential.run_bundle", run_wrongly)
    found = next(each for each in (compare(0, i) for i in range(9)) if each.outcome != NO_KERNEL)
    assert found.outcome == DIFFERENT
    assert "has other bits" in found.why
