"""Options of cost models and strategies: read, refused with a sentence, recorded in the manifest."""

import json
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from helpers.installing import add_entry_points
from helpers.strategies import Random
from helpers.support import VANILLA

import byoc
from byoc.costs import Price, Task, Work, load_cost_model
from byoc.errors import InputError
from byoc.support import COSTS, STRATEGIES


@dataclass(frozen=True)
class Clocked:
    """Seconds from operations and a clock."""

    name: str = "clocked"
    clock: float = field(default=1e9, metadata={"help": "cycles a second"})
    mode: Literal["fast", "slow"] = "fast"
    hw: Path | None = None
    table: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Read the hardware file, and refuse a clock that is none."""
        if self.clock <= 0:
            raise ValueError(f"clock is {self.clock:g}, and must be above 0")
        if self.hw is not None:
            text = self.hw.read_text(encoding="utf-8")
            if not text.startswith("macs:"):
                raise InputError(f"{self.hw}: macs: must be given")

    def execution(self, task: Task) -> Price:
        """Return the seconds at an operation a cycle."""
        return Price(task.work.operations / self.clock)

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return nothing: the memory is shared."""
        return Price(0.0)

    def launching(self) -> Price:
        """Return nothing."""
        return Price(0.0)


@dataclass(frozen=True)
class Needing(Clocked):
    """One that cannot be made without an option."""

    chip: str = field(kw_only=True)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("options_of_this_test")
    models = {"clocked": Clocked, "needing": Needing}
    for name, value in {**models, "random": Random}.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    add_entry_points(
        monkeypatch,
        [
            *(EntryPoint(name, f"{module.__name__}:{name}", COSTS) for name in models),
            EntryPoint("random", f"{module.__name__}:random", STRATEGIES),
        ],
    )


def predict(**options: Any) -> float:
    found = byoc.partition(
        "zoo:squeezenet", str(VANILLA), cost_model="clocked", what_if=False, **options
    )
    return found.report.predicted.host_only - found.report.predicted.seconds


def test_an_option_changes_what_is_predicted() -> None:
    task = load_cost_model("clocked", {"clock": "2e9"}).execution
    assert task(Task("Relu", Work(4e9, 0.0))).seconds == 2.0
    fast, slow = (predict(cost_options={"clock": clock}) for clock in ("1e13", "1e12"))
    assert fast > slow > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"clok": "1"}, "has no option 'clok' (did you mean clock?); it has: clock, mode, hw"),
        ({"clock": "quick"}, "takes as option 'clock' a number, not 'quick'"),
        ({"mode": "slw"}, "takes as option 'mode' one of fast, slow (did you mean slow?), not 'slw'"),
        ({"clock": "0"}, "refuses its options: clock is 0, and must be above 0"),
        ({"name": "x"}, "has no option 'name'; it has: clock, mode, hw"),
        ({"table": "x"}, "has no option 'table'"),
        ({"hw": "no such file"}, "refuses its options: FileNotFoundError"),
        (
            {"clok": "1", "mode": "x"},
            "has no option 'clok' (did you mean clock?); it has: clock, mode, hw; takes",
        ),
    ],
)
def test_an_option_that_is_wrong_is_a_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        load_cost_model("clocked", options)
    assert str(caught.value).startswith("cost model 'clocked' of an unknown distribution ")
    assert sentence in str(caught.value)


def test_a_wrong_hardware_file_ends_the_run(tmp_path: Path, byoc: Any) -> None:
    file = tmp_path / "hw.yaml"
    file.write_text("mcas: 4\n")
    asked = ("partition", "zoo:squeezenet", "--rules", VANILLA, "--cost-model", "clocked")
    ran = byoc(*asked, "--cost-option", f"hw={file}")
    assert (ran.code, ran.out) == (1, "")
    assert f"refuses its options: {file}: macs: must be given" in ran.err
    file.write_text("macs: 4\n")
    assert byoc(*asked, "--cost-option", f"hw={file}").code == 0


def test_an_option_that_must_be_given() -> None:
    with pytest.raises(InputError, match=r"cost model 'needing' of .* needs the option 'chip'$"):
        load_cost_model("needing")
    assert load_cost_model("needing", {"chip": "x"}).name == "clocked"


def test_options_of_one_target_and_of_the_host() -> None:
    rules = str(VANILLA)
    target = byoc.partition("zoo:squeezenet", rules, what_if=False).plan.targets[0].name
    both = {"clock": "1e13", f"{target}:clock": "1e12"}
    assert predict(cost_options=both) == predict(cost_options={"clock": "1e12"})
    host = byoc.partition(
        "zoo:squeezenet",
        rules,
        host_cost_model="clocked",
        cost_options={"host:clock": "1e15"},
    )
    assert host.report.predicted.host_only < 1e-5
    with pytest.raises(
        InputError, match=r"^cost option hots:clock: no such target \(did you mean host\?\)$"
    ):
        predict(cost_options={"hots:clock": "1"})


def test_a_file_has_no_options_but_hands_them_on(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^cost model dla has no option 'x': it is a file, which has none$"
    ):
        load_cost_model("dla", {"x": "1"})
    file = tmp_path / "t.yaml"
    file.write_text(
        "{kind: table, name: t, link: {bandwidth: 1.0e+9}, else: clocked, "
        "entries: [{op: Relu, types: 'float32[1] -> float32[1]', seconds: 1.0}]}"
    )
    model = load_cost_model(str(file), {"clock": "2e9"})
    assert model.execution(Task("Tanh", Work(4e9, 0.0))).seconds == 2.0


def test_the_seed_of_a_strategy_is_an_option() -> None:
    def place(seed: str) -> Any:
        options = {"seed": seed}
        found = byoc.partition(
            "zoo:squeezenet", str(VANILLA), strategy="random", strategy_options=options
        )
        return found.plan.root.placement.labels.tolist()

    assert place("3") == place("3") != place("4")
    with pytest.raises(InputError, match=r"strategy 'random' of .* needs the option 'seed'"):
        byoc.partition("zoo:squeezenet", str(VANILLA), strategy="random")


def test_compare_gives_an_option_to_one_strategy() -> None:
    options: dict[str, Any] = {"strategies": ("host-only", "random"), "jobs": 1}
    rows = byoc.compare("zoo:squeezenet", str(VANILLA), strategy_options={"random:seed": "3"}, **options)
    assert [row["error"] for row in rows] == [None, None]
    with pytest.raises(
        InputError, match=r"strategy 'host-only' of .* has no option 'seed'; it has: none"
    ):
        byoc.compare("zoo:squeezenet", str(VANILLA), strategy_options={"seed": "3"}, **options)
    with pytest.raises(InputError, match="strategy option rndom:seed: no such strategy"):
        byoc.compare("zoo:squeezenet", str(VANILLA), strategy_options={"rndom:seed": "3"}, **options)
    with pytest.raises(
        InputError,
        match="strategy option exact:time_limit: the strategy exact is not used, but host-only, random",
    ):
        byoc.compare(
            "zoo:squeezenet", str(VANILLA), strategy_options={"exact:time_limit": "3"}, **options
        )


def test_the_manifest_has_the_options_and_no_path(tmp_path: Path) -> None:
    file = tmp_path / "hw.yaml"
    file.write_text("macs: 4\n")
    byoc.partition(
        "zoo:squeezenet",
        str(VANILLA),
        output=tmp_path / "b",
        cost_model="clocked",
        cost_options={"hw": str(file), "clock": "1e13"},
        strategy_options={"rounds": "3"},
        verify=False,
    )
    asked = json.loads((tmp_path / "b" / "manifest.json").read_text())["asked"]
    assert asked["cost_options"] == {"hw": "hw.yaml", "clock": "1e13"}
    assert asked["strategy_options"] == {"rounds": "3"}


def test_lists_show_what_plug_ins_take(byoc: Any) -> None:
    rows = {row["name"]: row for row in json.loads(byoc("cost-models", "--format", "json").out)}
    assert [each["option"] for each in rows["clocked"]["options"]] == ["clock", "mode", "hw"]
    assert rows["clocked"]["options"][0] == {
        "option": "clock",
        "takes": "a number",
        "default": "1000000000.0",
        "help": "cycles a second",
        "at_load": False,
        "executes": False,
    }
    assert rows["dla"]["options"] == []
    assert "needs the option 'chip'" in rows["needing"]["problem"]
    assert "clock, mode, hw" in byoc("cost-models").out
    listed = {row["name"]: row for row in json.loads(byoc("strategies", "--format", "json").out)}
    assert [each["option"] for each in listed["exact"]["options"]] == ["time_limit"]
