"""What codegens are asked before placing: heeded, in other processes, and kept for the next run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.cutting import files, ramp, same_as_original
from helpers.noting_vendor import Vendor
from helpers.support import VANILLA, parse

import byoc
from byoc.errors import InputError

# Relu and Add are taken by the rules; Sigmoid is the host's.
MODEL = """
asked (float[1, 4] x) => (float[1, 4] y) {
  [first] a = Relu(x)
  [second] b = Add(a, a)
  [third] c = Relu(b)
  [fourth] d = Sigmoid(c)
  [fifth] y = Relu(d)
}
"""

ASKED = """
    def check(self, model):
        from byoc.codegen import YES, refuse
        with open(os.environ["COMPILED"], "a") as file:
            file.write("check:" + ",".join(node.op_type for node in model.graph.node) + "\\n")
        bad = os.environ.get("UNFIT", "").split()
        ops = [node.op_type for node in model.graph.node]
        return [refuse(op + " is too hard") if op in bad else YES for op in ops]

    def cost(self, region):
        (node,) = region.nodes
        with open(os.environ["COMPILED"], "a") as file:
            file.write("cost:" + node.op_type + "\\n")
        if node.op_type in os.environ.get("UNPRICED", "").split():
            raise CompileError("no device here")
        return float(os.environ.get("SECONDS", "0.5"))
"""


@pytest.fixture
def asked(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> Vendor:
    """The installed codegen `noting`, which can be asked, in worker processes too."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(vendor.site), os.environ.get("PYTHONPATH", "")])
    )
    vendor.write(more=ASKED)
    return vendor


def plan(
    vendor: Vendor, model: str | onnx.ModelProto = MODEL, **options: Any
) -> tuple[byoc.Result, list[str]]:
    """Plan a model on the noting codegen; return what it was asked, too."""
    vendor.forget()
    vendor.log.write_text("")
    options = {"strategy": "all-supported", "codegen": "noting", "what_if": False, **options}
    proto = parse(model) if isinstance(model, str) else model
    result = byoc.partition(proto, VANILLA, **options)
    return result, vendor.log.read_text().split()


def placed_nodes(result: byoc.Result) -> list[str]:
    return [region.index.nodes[i].name for region in result.plan.regions for i in region.nodes]


def host_reasons(result: byoc.Result) -> dict[str, str]:
    root = result.plan.root
    return {root.index.nodes[unit.nodes[0]].name: str(why) for unit, why in root.host_units}


def test_what_the_compiler_refuses_is_not_placed(
    asked: Vendor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNFIT", "Add")
    result, log = plan(asked, ask="legality", output=tmp_path / "b", strict=True)
    assert [line for line in log if line.startswith("check")] == [
        "check:Relu,Add"
    ]  # one call, distinct nodes
    assert placed_nodes(result) == ["first", "third", "fifth"]
    assert host_reasons(result)["second"] == "codegen noting refuses it: Add is too hard"
    assert result.plan.refusals == ()  # no region was refused
    assert "codegen noting was asked about 4 units of dla, and refuses 1" in result.plan.root.notes
    same_as_original(parse(MODEL), tmp_path / "b", {"x": ramp(1, 4)})


def test_answers_are_kept_whatever_the_names(asked: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNFIT", "Add")
    first, log = plan(asked, ask="both")
    assert log == ["check:Relu,Add", "cost:Relu"]
    second, log = plan(
        asked, MODEL.replace("[second] b = Add(a, a)", "[other] b = Add(a, a)"), ask="both"
    )
    assert log == []
    assert placed_nodes(second) == placed_nodes(first)
    assert host_reasons(second)["other"] == "codegen noting refuses it: Add is too hard"
    _, log = plan(asked, ask="both", codegen_options={"speed": "4"})
    assert log == ["check:Relu,Add", "cost:Relu"]
    _, log = plan(asked, MODEL.replace("[1, 4]", "[1, 5]"), ask="legality")
    assert log == ["check:Relu,Add"]
    _, log = plan(asked, ask="legality", cache=False)
    assert log == ["check:Relu,Add"]


def test_options_reach_what_is_asked_for_legality(asked: Vendor) -> None:
    taken = "[YES if int(options.speed) == 5 else refuse('too slow') for _ in model.graph.node]"
    asked.write(
        more="    def check(self, model, options):\n"
        f"        from byoc.codegen import YES, refuse\n        return {taken}\n"
    )
    for speed, placed in (("4", []), ("5", ["first", "second", "third", "fifth"])):
        result, _ = plan(asked, ask="legality", codegen_options={"speed": speed})
        assert placed_nodes(result) == placed
    result, _ = plan(asked, ask="legality", codegen_options={"speed": "4"}, isolate=True)
    assert host_reasons(result)["first"] == "codegen noting refuses it: too slow"


def test_its_seconds_are_those_of_the_plan(asked: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNPRICED", "Add")
    without, log = plan(asked)
    assert log == []
    result, log = plan(asked, ask="costs")
    assert log == ["cost:Relu", "cost:Add"]
    problem, before = (each.plan.graph_problem.problem for each in (result, without))
    launch = problem.launch[0]
    assert problem.seconds[[0, 2, 4], 1] == pytest.approx(0.5 - launch)
    assert problem.seconds[1, 1] == before.seconds[1, 1]  # the cost model's
    assert "codegen noting gave the seconds of 1 kinds of units of dla" in result.plan.root.notes
    chosen, _ = plan(asked, ask="costs", strategy="launch-aware")
    assert placed_nodes(chosen) == []  # half a second is more than the host takes


def test_nothing_is_asked_of_a_codegen_that_cannot_be_asked(tmp_path: Path) -> None:
    result = byoc.partition(parse(MODEL), VANILLA, ask="both", what_if=False)
    assert result.plan.root.notes[-2:] == (
        "codegen reference cannot be asked which nodes it takes: it has no `check`",
        "codegen reference cannot be asked what units cost: it has no `estimate` and no `cost`",
    )


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("def check(self, model): os._exit(3)", "its process ended with exit code 3 in check"),
        ("def check(self, model): return []", "`check` did not give a Verdict for each node"),
        ("def check(self, model): raise CompileError('no licence')", "cannot be asked: no licence"),
    ],
)
def test_a_codegen_that_fails_when_asked_is_one_sentence(
    method: str, said: str, asked: Vendor, tmp_path: Path
) -> None:
    asked.write(more=f"    {method}")
    with pytest.raises(InputError) as raised:
        plan(asked, ask="legality", output=tmp_path / "b")
    assert str(raised.value).startswith("codegen noting ")
    assert said in str(raised.value)
    assert not (tmp_path / "b").exists()


def test_a_cost_that_fails_is_a_note(asked: Vendor) -> None:
    asked.write(more="    def cost(self, region): return -1")
    result, _ = plan(asked, ask="costs")
    assert any("failed to say what Relu" in note for note in result.plan.root.notes)
    assert placed_nodes(result) == ["first", "second", "third", "fifth"]


@pytest.mark.parametrize("given", ["float32(0.5)", "float64(0.5)", "int64(1)", "float16(2)"])
def test_a_cost_is_any_real_number(given: str, asked: Vendor) -> None:
    asked.write(more=f"    def cost(self, region):\n        import numpy\n        return numpy.{given}")
    result, _ = plan(asked, ask="costs", strategy="launch-aware")
    assert not any("failed to say" in note for note in result.plan.root.notes)
    # As slow as that, no node pays on the accelerator.
    assert placed_nodes(result) == []


def test_true_is_no_cost(asked: Vendor) -> None:
    asked.write(more="    def cost(self, region): return True")
    result, _ = plan(asked, ask="costs")
    assert any("cost gave True, not seconds above 0" in note for note in result.plan.root.notes)


@pytest.fixture
def loose_rules(tmp_path: Path) -> Callable[[str], Path]:
    """Write rules that take some operators for a codegen, whatever they are."""

    def write(codegen: str) -> Path:
        path = tmp_path / "loose.yaml"
        ops = "".join(f"  - op: {op}\n" for op in ("Relu", "Det", "MatMul"))
        text = "target: loose\ncost_model: dla\nregions: phase\ndtype: float32\n"
        path.write_text(f"{text}codegen: {codegen}\nops:\n{ops}")
        return path

    return write


def test_openvino_is_asked_and_heeded(loose_rules: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = parse(
        "g (float[1, 2, 2] x) => (float[1, 2, 2] y, float[1] d) {"
        " [relu] a = Relu(x) [det] d = Det(a) [mul] y = MatMul(a, a) }"
    )
    options: dict[str, Any] = {"strategy": "all-supported", "what_if": False, "strict": True}
    result = byoc.partition(
        model, loose_rules("openvino"), ask="legality", output=tmp_path / "b", **options
    )
    assert placed_nodes(result) == ["relu", "mul"]
    assert host_reasons(result)["det"].startswith(
        "codegen openvino refuses it: OpenVINO has no conversion"
    )
    assert result.verification is not None
    assert result.verification.passed
    with pytest.raises(InputError, match="OpenVINO has no conversion for Det"):
        byoc.partition(model, loose_rules("openvino"), output=tmp_path / "c", **options)
    assert files(tmp_path / "b")


def test_dla_prices_its_composites() -> None:
    model = parse(
        "g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)"
        " <float[4, 4, 1, 1] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}>"
        " { c = Conv(x, w) r = Relu(c) y = Sigmoid(r) }"
    )
    plain, priced = (
        byoc.partition(model, "dla", strategy="all-supported", what_if=False, ask=ask)
        for ask in (None, "both")
    )
    notes = priced.plan.root.notes
    assert "codegen dla was asked about 2 units of dla, and refuses 0" in notes
    assert "codegen dla gave the seconds of 2 kinds of units of dla" in notes
    assert [len(unit.nodes) for unit in priced.plan.units] == [2, 1]
    before, after = (each.plan.graph_problem.problem.seconds[0, 1] for each in (plain, priced))
    assert 0 < after != before


# Gelu may be placed in parts, and a rule for Sin is missing: a plan with one has Gelu in parts again.
IN_PARTS = """
asked (float[64, 64] x) => (float[64, 64] y) {
  a = Relu(x)  b = Gelu(a)  c = Add(b, b)  d = Sin(c)  e = Gelu(d)  y = Relu(e)
}
"""


def test_nothing_is_asked_for_gains(asked: Vendor, tmp_path: Path) -> None:
    """Plans with actions done are only thought of: they go by the answers that there are."""
    rules = tmp_path / "t.yaml"
    rules.write_text(
        "target: t\ncost_model: dla\ndtype: float32\nops: [{op: [Relu, Add, Mul, Div, Sqrt, Erf]}]\n"
    )
    logs = []
    for what_if in (False, True):
        asked.forget()
        asked.log.write_text("")
        options = {"codegen": "noting", "ask": "legality", "cache": False, "what_if": what_if}
        plan = byoc.partition(parse(IN_PARTS, opset=20), rules, **options).plan
        logs.append(asked.log.read_text())
    assert any(each.tried for each in plan.what_ifs) or plan.futile
    assert logs[0]
    assert logs[1] == logs[0]


TRIED = """
    def load(self, region, artifact):
        run = find_codegen("reference").load(region, artifact)
        ops = [node.op_type for node in region.nodes]
        with open(os.environ["COMPILED"], "a") as file:
            file.write("load:" + ",".join(ops) + "\\n")
        if os.environ.get("ELSEWHERE"):
            from byoc.codegen import NotHereError
            raise NotHereError("the board is not there")
        if not set(ops) & set(os.environ.get("WRONG", "").split()):
            return run
        return lambda inputs: {name: value + 1 for name, value in run(inputs).items()}
"""


@pytest.fixture
def tried(asked: Vendor, monkeypatch: pytest.MonkeyPatch) -> Vendor:
    """The codegen `noting`, which refuses Mul and computes Add and Tanh wrong."""
    monkeypatch.setenv("REFUSED", "Mul")
    monkeypatch.setenv("WRONG", "Add Tanh")
    asked.write(more=TRIED)
    return asked


def test_what_the_compiler_computes_otherwise_is_not_placed(tried: Vendor, tmp_path: Path) -> None:
    result, log = plan(tried, ask="numbers", output=tmp_path / "b", strict=True)
    assert placed_nodes(result) == ["first", "third", "fifth"]
    why = host_reasons(result)
    assert why["second"].startswith("codegen noting computes it otherwise: its output ")
    assert "Sigmoid is not among the operators of" in why["fourth"]
    assert [line for line in log if line.startswith("load:")][:2] == ["load:Relu", "load:Add"]
    note = (
        "codegen noting was tried on 4 units of dla, 2 kinds, each compiled and run alone: 1 are "
        "refused or computed otherwise"
    )
    assert note in result.plan.root.notes
    assert result.verification is not None
    assert result.verification.passed
    again, log = plan(tried, ask="numbers")
    assert log == []  # the answers are kept
    assert host_reasons(again) == why


UNRULED = """
asked (float[1, 4] x, bool c) => (float[1, 4] y, float[1, 4] z) {
  [first] a = Relu(x)
  [second] b = Sigmoid(a)
  [third] d = Mul(b, b)
  [fourth] e = Tanh(d)
  [fifth] y = Softsign(e)
  [chosen] z = If(c) <
    then_branch = yes () => (float[1, 4] u) { [inner] u = Softsign(x) },
    else_branch = no () => (float[1, 4] v) { v = Relu(x) }
  >
}
"""


def test_what_no_rule_takes_is_placed_where_the_compiler_computes_it_right(
    tried: Vendor, tmp_path: Path
) -> None:
    """It is not asked of bodies: none of their nodes is taken for it, nor the node that has them."""
    plain, _ = plan(tried, UNRULED)
    result, _ = plan(tried, UNRULED, ask="everything", output=tmp_path / "b", strict=True)
    taken = placed_nodes(plain)
    assert "second" not in taken
    assert {*placed_nodes(result)} == {*taken, "second", "fifth"} - {"third"}
    why = host_reasons(result)
    assert why["third"] == "codegen noting refuses it: this one is not taken"
    assert why["fourth"].startswith("codegen noting computes it otherwise: ")
    assert result.verification is not None
    assert result.verification.passed
    functions = (node for function in result.model.functions for node in function.node)
    rules = {
        each.value for node in functions for each in node.metadata_props if each.key == "byoc.rules"
    }
    assert "--ask everything" in rules


def test_numbers_are_asked_of_a_codegen_that_runs_here(
    tried: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELSEWHERE", "1")
    with pytest.raises(
        InputError, match=r"codegen noting cannot be tried here: .*the board is not there"
    ):
        plan(tried, ask="numbers")
    tried.write(more="    load = None")
    with pytest.raises(InputError, match="codegen noting cannot run what it compiles here"):
        plan(tried, ask="numbers")


SCALED = """
asked (int8[1, 2, 4, 4] x) => (int8[1, 2, 4, 4] y, int8[1, 2, 4, 4] z)
<float s = {0.5}, float t = {0.25}, int8 p = {3}, int8 q = {0}> {
  a = DequantizeLinear(x, s, p)  b = Relu(a)  y = QuantizeLinear(b, t, p)
  d = DequantizeLinear(x, s, q)  e = Relu(d)  z = QuantizeLinear(e, t, q)
}
"""


def test_units_of_other_scales_are_tried_by_themselves(tried: Vendor, tmp_path: Path) -> None:
    rules = tmp_path / "t.yaml"
    rules.write_text(
        "target: t\ncost_model: dla\ndtype: float32\nquantization: {activations: {dtype: int8}}\n"
        "ops: [{op: Relu, quantized: true}]\n"
    )
    options = {"strategy": "all-supported", "codegen": "noting", "cache": False, "what_if": False}
    result = byoc.partition(parse(SCALED), rules, ask="numbers", **options)
    assert any("tried on 2 units of t, 2 kinds" in note for note in result.plan.root.notes)
