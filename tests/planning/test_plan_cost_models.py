"""Cost models that know nothing end the run; names of figures that are of nothing are noted."""

import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx.parser
import pytest
from helpers.installing import add_entry_points

import byoc
from byoc.costs import Price, Task, Unknown
from byoc.errors import InputError
from byoc.support import ANNOTATIONS, COSTS, find_files

NET = "zoo:squeezenet"


@dataclass(frozen=True)
class Blind:
    """Knows nothing but the operators that it is told."""

    name: str = "blind"
    knows: str = ""

    def execution(self, task: Task) -> Price | Unknown:
        """Return a second for what it knows."""
        return Price(1e-6) if task.op in self.knows.split("+") else Unknown("hw.yaml has no memory")

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return nothing."""
        return Price(0.0)

    def launching(self) -> Price:
        """Return nothing."""
        return Price(0.0)


class Guessing(Blind):
    """Knows nothing, and guesses."""

    def estimate(self, task: Task) -> Price:
        """Return a microsecond."""
        return Price(1e-6)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("models_that_know_nothing")
    models = {"blind": Blind, "guessing": Guessing}
    for name, value in models.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    add_entry_points(
        monkeypatch, [EntryPoint(name, f"{module.__name__}:{name}", COSTS) for name in models]
    )


@pytest.mark.parametrize("policy", ["estimate", "host"])
def test_a_plug_in_that_knows_nothing_ends_the_run(policy: str) -> None:
    with pytest.raises(InputError) as caught:
        byoc.partition(NET, "dla", cost_model="blind", unknown_costs=policy)
    assert str(caught.value) == (
        "cost model blind: knows the cost of none of the 38 units that it was asked about: "
        "hw.yaml has no memory"
    )
    with pytest.raises(InputError, match="cost model blind: knows the cost of none"):
        byoc.partition(NET, "dla", host_cost_model="blind", unknown_costs=policy)


def test_comparing_says_so_in_each_row() -> None:
    rows = byoc.compare(NET, "dla", cost_model="blind", strategies=("host-only",), jobs=1)
    assert "cost model blind: knows the cost of none of the 38 units" in rows[0]["error"]


def test_one_that_knows_something_or_guesses_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cost_model": "blind", "cost_options": {"knows": "conv_relu"}}
    assert byoc.partition(NET, "dla", **options).plan.regions
    assert byoc.partition(NET, "dla", cost_model="guessing").plan.regions
    with pytest.raises(InputError, match="cost model blind: knows the cost of none"):
        byoc.partition(NET, "dla", cost_model="guessing", unknown_costs="host")
    file = tmp_path / "t.yaml"
    file.write_text(
        "{kind: table, name: t, link: {bandwidth: 1.0e+9}, "
        "entries: [{op: Relu, types: 'float32[1] -> float32[1]', seconds: 1.0}]}"
    )
    noted = byoc.partition(NET, "dla", cost_model=str(file))
    assert any("t knew none of the costs" in note.text for note in noted.report.notes)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["Conv", "Relu", "gelu", "conv_relu", "QDQ/Conv", "QDQ/Conv+Relu", "acme::Odd"], ""),
        (["Conv/depthwise", "Relu/fused", "QDQ/Conv/grouped"], ""),
        (["Conv/gruoped"], "Conv/gruoped"),
        (["Convv"], "Convv (did you mean Conv?)"),
        (["relu", "Conv"], "relu (did you mean Relu?)"),
        (["QDQ/Covn"], "QDQ/Covn"),
        (["Zzzzzz", "Con-v"], "Zzzzzz, Con-v (did you mean Conv?)"),
        ([f"Zzzz{n}" for n in range(7)], "Zzzz0, Zzzz1, Zzzz2, Zzzz3, Zzzz4 and 2 more"),
    ],
)
def test_figures_of_nothing_are_noted(tmp_path: Path, names: list[str], told: str) -> None:
    figures = ", ".join(f"'{name}': {{efficiency: 0.5}}" for name in names)
    file = tmp_path / "h.yaml"
    file.write_text(
        "{kind: roofline, name: h, peak: {default: 1.0e+11}, bandwidth: 2.0e+10, "
        f"operators: {{{figures}}}}}"
    )
    result = byoc.partition(NET, "dla", host_cost_model=str(file))
    found = [note.text for note in result.report.notes if "of no operator" in note.text]
    expected = (
        f"cost model h: its figures of {told} are of no operator and of no composite, and change nothing"
    )
    assert found == ([expected] if told else [])


@pytest.mark.parametrize("rules", sorted(find_files(ANNOTATIONS)[0]))
def test_shipped_cost_models_have_no_figures_of_nothing(rules: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 4] y) {y = Relu(x)}'
    )
    notes = [note.text for note in byoc.partition(model, rules).report.notes]
    assert not [text for text in notes if "of no operator" in text]


def test_lines_and_entries_of_nothing_are_noted(tmp_path: Path) -> None:
    (tmp_path / "lines.yaml").write_text(
        "{kind: linear, name: lines, operators: {Convv: {call: 1.0e-6}, Conv/grouped: {call: 1.0e-6}}, "
        "else: table.yaml}"
    )
    (tmp_path / "table.yaml").write_text(
        "{kind: table, name: table, "
        "entries: [{op: Rellu, types: 'float32[1] -> float32[1]', seconds: 1.0}]}"
    )
    result = byoc.partition(NET, "dla", host_cost_model=str(tmp_path / "lines.yaml"))
    notes = [note.text for note in result.report.notes]
    assert sum("its figures of Convv (did you mean Conv?) are of no" in note for note in notes) == 1
    assert sum("its figures of Rellu (did you mean Relu?) are of no" in note for note in notes) == 1
