"""Answers of a plan: which questions are tried, in which order they are told, and where it ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf, isnan
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from byoc.costs import CostModel, Policy
from byoc.errors import InputError
from byoc.planning import (
    BreakEven,
    LoweredPrecision,
    Plan,
    RefusedRegion,
    SavedPlacement,
    TradePoint,
    WhatIf,
    estimate_gains,
    find_break_evens,
)
from byoc.planning import _break_evens as break_evens
from byoc.planning import _what_ifs as what_ifs
from byoc.planning._plan_settings import require_knowledge
from byoc.planning._saved_placement import SavedPlacementFile

ROOT: Any = SimpleNamespace(placement=SimpleNamespace(cost=SimpleNamespace(total=1.0)))


class Questions:
    """Questions about one graph; each answer takes as many steps as a round."""

    def __init__(self, gains: Sequence[float], bounds: Sequence[float], size: int = 10) -> None:
        self.sensitivity = SimpleNamespace(round_steps=size, steps=0)
        self.asked: list[int] = []
        graph = SimpleNamespace(sensitivity=self.sensitivity)

        def make(number: int, gain: float) -> Any:
            def answer() -> WhatIf:
                self.asked.append(number)
                self.sensitivity.steps += size
                return WhatIf("t", f"op{number:02}", "why", 1, gain, 1)

            return SimpleNamespace(
                parts=[SimpleNamespace(graph=graph)] * 2, bound=bounds[number], answer=answer
            )

        self.all = [make(number, gain) for number, gain in enumerate(gains)]


def ask(monkeypatch: pytest.MonkeyPatch, questions: Questions) -> tuple[list[int], int]:
    """Return the numbers of the questions that are told, and how many were not tried."""
    monkeypatch.setattr(what_ifs, "_list_questions", lambda root: questions.all)
    told, left = estimate_gains(ROOT)
    return [int(each.operator.removeprefix("op")) for each in told], left


def test_all_gains_are_told_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = [1.0, 3.0, 3.0, 9.0, 2.0, 8.0, 7.0, 6.0, 5.0, 4.0, 0.5, 10.0]
    questions = Questions(gains, [inf] * 12)
    assert ask(monkeypatch, questions) == ([11, 3, 5, 6, 7, 8, 9, 1, 2, 4, 0, 10], 0)
    assert questions.asked == list(range(12))


@pytest.mark.parametrize(("gain", "told"), [(0.0, []), (-1.0, []), (1e-9, []), (2e-9, [0])])
def test_a_gain_is_more_than_what_sums_are_rounded_by(
    gain: float, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(monkeypatch, Questions([gain], [inf])) == (told, 0)


def test_at_most_24_questions_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, left in ((24, 0), (25, 1), (40, 16)):
        questions = Questions([5.0] * count, [inf] * count)
        assert ask(monkeypatch, questions) == (list(range(min(count, 24))), left)
        assert len(questions.asked) == min(count, 24)


@pytest.mark.parametrize(
    ("most", "least", "tried"), [(0, 0, 1), (9, 0, 1), (20, 0, 2), (19, 0, 1), (0, 3, 3), (10, 3, 4)]
)
def test_steps_are_limited_but_one_question_is_tried(
    most: int, least: int, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that would go beyond the limit is not begun."""
    monkeypatch.setattr(what_ifs, "_MAX_STEPS", most)
    monkeypatch.setattr(what_ifs, "_LEAST_CUTS", least)
    questions = Questions([3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [inf] * 6)
    told, left = ask(monkeypatch, questions)
    assert (len(questions.asked), left) == (tried, 6 - tried)
    assert told == [*range(tried)][::-1]


@dataclass(frozen=True)
class Group:
    """A group of units by its first one's number, with its seconds on the host and its answer."""

    row: int
    seconds: float
    found: BreakEven | None


def even(number: int, **other: Any) -> BreakEven:
    values = {"target": "t", "unit": f"u{number}", "operators": (f"Op{number}",), "nodes": 1}
    return BreakEven(**{**values, "loss": 1.0, "link": 2.0, "faster": 3.0, **other})


def tell(
    monkeypatch: pytest.MonkeyPatch, groups: Sequence[Group], units: int = 1
) -> tuple[list[BreakEven], list[int]]:
    """Return the break-evens of some groups, and the numbers of those that were tried."""
    tried: list[int] = []
    graph = SimpleNamespace(units=[None] * units)

    class Supported:
        def __init__(self, plan: Any, number: int, device: object) -> None:
            self.plan, self.number = plan, number
            assert device == f"device {number}"

        def find_groups(self) -> Iterator[tuple[Any, float]]:
            for group in groups if self.number == 1 else ():
                yield group, group.seconds

        def find_break_even(self, group: Group) -> BreakEven | None:
            tried.append(group.row)
            return group.found

    monkeypatch.setattr(break_evens, "_SupportedUnits", Supported)
    root = SimpleNamespace(cost=SimpleNamespace(total=1000.0), walk=lambda: [graph])
    devices = cast("Any", ["device 1", "device 2"])
    return find_break_evens(cast("Any", root), devices), tried


def test_groups_that_take_longest_are_tried_first_and_small_ones_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = [Group(number, seconds, even(number)) for number, seconds in enumerate((5, 9, 1, 7, 1.1))]
    told, tried = tell(monkeypatch, groups)
    assert tried == [1, 3, 0, 4]  # a thousandth of the cost is too little
    assert [each.unit for each in told] == ["u1", "u3", "u0", "u4"]


def test_twelve_groups_are_tried_and_five_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [Group(number, 50 - number, even(number)) for number in range(14)]
    told, tried = tell(monkeypatch, groups)
    assert tried == list(range(12))
    assert [each.unit for each in told] == ["u0", "u1", "u2", "u3", "u4"]
    nothing = [replace(group, found=None) for group in groups[:3]]
    assert [each.unit for each in tell(monkeypatch, [*nothing, *groups[3:]])[0]] == [
        f"u{number}" for number in range(3, 8)
    ]


@pytest.mark.parametrize(("units", "tried"), [(12_000, 2), (6_000, 3), (6_001, 2), (4_000, 4), (1, 6)])
def test_two_groups_are_tried_however_large_their_graphs_are(
    units: int, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [Group(number, 50 - number, None) for number in range(6)]
    assert tell(monkeypatch, groups, units)[1] == list(range(tried))


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        ({}, True),
        ({"unit": "elsewhere", "loss": 9.0}, True),
        ({"link": 2.001}, True),  # in three digits
        ({"link": 2.02}, False),
        ({"link": None}, False),
        ({"faster": None}, False),
        ({"faster": 3.001}, True),
        ({"faster": 1.0}, False),
        ({"operators": ("Add",)}, False),
        ({"nodes": 2}, False),
        ({"target": "other"}, False),
    ],
)
def test_groups_that_are_alike_are_told_once(
    other: dict[str, Any], alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = even(1)
    groups = [Group(0, 9, first), Group(1, 8, replace(first, **other)), Group(2, 7, first)]
    told, _ = tell(monkeypatch, groups)
    expected = [replace(first, groups=3)] if alike else [replace(first, groups=2), groups[1].found]
    assert told == expected


def test_a_link_of_none_and_one_of_nothing_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("link", "faster"):
        groups = [Group(0, 9, even(1, **{key: None})), Group(1, 8, even(1, **{key: 0.0}))]
        assert [each.groups for each in tell(monkeypatch, groups)[0]] == [2]


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([(1, {"a": 1})], ""),
        ([(2, {"a": 2})], "none of the 2 units that it was asked about: a"),
        ([(2, {"a": 1})], ""),
        ([(1, {"a": 1}), (1, {"a": 1})], "none of the 2 units that it was asked about: a"),
        ([(3, {"a": 1, "b": 2})], "none of the 3 units that it was asked about: b, and 1 more reasons"),
        (
            [(3, {"a": 1, "b": 2}), (4, {"c": 4})],
            "none of the 7 units that it was asked about: c, and 2 more reasons",
        ),
        ([(0, {})], ""),
    ],
)
@pytest.mark.parametrize("of_host", [True, False])
def test_a_cost_model_that_knows_nothing_says_why(
    answers: list[tuple[int, dict[str, int]]], sentence: str, of_host: bool
) -> None:
    knowing = SimpleNamespace(asked=9, unknown={})
    graphs = []
    for asked, unknown in answers:
        own = SimpleNamespace(asked=asked, unknown=unknown)
        each = [own, knowing] if of_host else [knowing, own]
        graphs.append(SimpleNamespace(graph_problem=SimpleNamespace(answers=each)))
    root: Any = SimpleNamespace(walk=lambda: graphs)
    models = [cast("CostModel", SimpleNamespace(name=name)) for name in ("h", "d")]
    settings: Any = SimpleNamespace(host=models[0], costs=(models[1],), unknown_costs=Policy.estimate)
    if not sentence:
        require_knowledge(root, settings)
        return
    with pytest.raises(InputError) as caught:
        require_knowledge(root, settings)
    assert str(caught.value) == f"cost model {'h' if of_host else 'd'}: knows the cost of {sentence}"


def defaults(kind: type) -> dict[str, Any]:
    """Return the fields of a class that have a plain default."""
    plain = (int, float, str, bool, tuple, type(None))
    return {each.name: each.default for each in fields(kind) if isinstance(each.default, plain)}


def test_what_is_not_said_of_a_plan_is_nothing() -> None:
    assert defaults(BreakEven) == {"groups": 1}
    assert defaults(TradePoint) == {"wide": ()}
    assert defaults(RefusedRegion) == {
        "nodes": (),
        "split": 0,
        "failed": False,
        "tried": "",
        "detail": "",
    }
    lowered = defaults(LoweredPrecision)
    numbers = {key: value for key, value in lowered.items() if isinstance(value, float) and isnan(value)}
    assert [*numbers] == ["reached", "all_quantized"]
    others = {key: value for key, value in lowered.items() if key not in numbers}
    assert not any(others.values())
    assert {type(others["random"]), type(others["samples"])} == {bool, int}
    assert not any(value for key, value in defaults(Plan).items() if key != "variant")


def test_a_plan_shows_its_model_and_its_accelerators() -> None:
    targets: Any = tuple(SimpleNamespace(name=name) for name in ("a", "b"))
    plan = cast("Plan", SimpleNamespace(model=SimpleNamespace(source="m.onnx"), targets=targets))
    assert Plan.__repr__(plan) == "Plan('m.onnx', targets=('a', 'b'))"
    assert cast("property", Plan.target).fget(plan) is targets[0]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("readers", "is_output", "enters", "crosses"),
    [
        ([1], False, True, True),
        ([2], False, True, False),
        ([1, 2], False, True, True),
        ([], True, True, False),
        ([1], False, False, False),
        ([1, 2], False, False, True),
        ([1], True, False, True),
        ([], False, False, False),
    ],
)
def test_what_crosses_a_boundary_has_a_reader_on_the_other_side(
    readers: list[int], is_output: bool, enters: bool, crosses: bool
) -> None:
    problem: Any = SimpleNamespace(
        consumer_start=np.array([0, 2, 2 + len(readers), 3 + len(readers)]),
        consumers=np.array([1, 2, *readers, 1]),
        is_output=np.array([True, is_output, True]),
    )
    assert break_evens._crosses(problem, 1, {0, 1}, enters) is crosses


@pytest.mark.parametrize(
    ("units", "name"),
    [
        ([("pair", (0, 1))], "pair"),
        ([("", (0,))], "Add"),
        ([("", (0, 1))], "Neg"),  # the last node's
        ([("", (0,)), ("", (1,))], "Add and Neg"),
        ([("", (0,)), ("", (2,))], "Add"),  # once
        ([("pair", (0, 1)), ("", (2,))], "pair and Add"),
    ],
)
def test_a_refused_unit_is_called_after_what_it_is_on_the_device(
    units: list[tuple[str, tuple[int, ...]]], name: str
) -> None:
    parts = tuple(
        SimpleNamespace(composite=composite or None, nodes=nodes) for composite, nodes in units
    )
    other = (SimpleNamespace(composite="elsewhere", nodes=(0,)),)
    kinds = [SimpleNamespace(operator=operator) for operator in ("Add", "Neg", "Add")]
    plan: Any = SimpleNamespace(
        index=SimpleNamespace(node_kinds=kinds),
        units=[SimpleNamespace(on_device=(other, other)), SimpleNamespace(on_device=(other, parts))],
    )
    assert what_ifs._name_unit(plan, 1, 2) == name
    assert what_ifs._name_unit(plan, 1, 1) == "elsewhere"


@pytest.mark.parametrize(
    ("name", "led"),
    [
        ("a", "a"),
        ("Loop_0/body/a", "y/body/a"),
        ("Other/body/a", "Other/body/a"),
        ("Loop_0/body/If/then/a", "y/body/z/then/a"),
        ("Loop_0/other/If/then/a", "y/other/If/then/a"),
        ("Loop_0", "Loop_0"),  # the node itself is found by its output
        ("s/body/a", "s/body/body/a"),
        ("/a", "/a"),
    ],
)
def test_a_path_leads_by_outputs_through_renamed_nodes(name: str, led: str) -> None:
    outputs = {"Loop_0": "y", "Loop_0/body/If": "Loop_0/body/z", "s": "s/body"}
    file = SavedPlacementFile(format=1, nodes={"x": "host"}, outputs=outputs)
    assert SavedPlacement("p", file)._lead_by_outputs(name) == led
