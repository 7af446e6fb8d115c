"""What a rule file demands: `level: must` and `limits`, kept by the strategies that can."""

from collections import Counter

import pytest
from accelerators import Files, everywhere, notes
from helpers.cutting import planned
from helpers.strategies import Alternating
from helpers.support import parse, prepared

from byoc.errors import InputError
from byoc.pipeline import Result, partition
from byoc.rules import load_rules

MUST = "{op: Neg, level: must}"
# Relu and Neg go to the accelerator, Tanh stays: regions of 3, 1 and 2 nodes.
CHAIN = """
chain (float[1000] x) => (float[1000] y) {
  a = Relu(x)
  b = Relu(a)
  c = Relu(b)
  d = Tanh(c)
  e = Neg(d)
  f = Tanh(e)
  g = Relu(f)
  y = Relu(g)
}
"""
WEIGHTS = """
weights (float[4] x) => (float[4] y, float[4] z) <
  float[4] v = {1, 2, 3, 4}, float[4] w = {5, 6, 7, 8}
> {
  a = Add(x, v)
  y = Tanh(a)
  b = Mul(x, w)
  z = Tanh(b)
}
"""
GOOD = pytest.mark.parametrize("strategy", ["launch-aware", "exact"])


def sizes(result: Result) -> list[int]:
    """Return the nodes of each region."""
    return sorted(len(region.nodes) for region in result.plan.regions)


def limited(files: Files, limits: str, *ops: str, costs: str = "") -> str:
    return files.rules("one", *(ops or ("Relu", "Neg")), costs=costs, more=f"limits: {{{limits}}}\n")


@GOOD
def test_without_limits_there_are_three_regions(strategy: str, files: Files) -> None:
    assert sizes(partition(parse(CHAIN), files.rules("one", "Relu", "Neg"), strategy=strategy)) == [
        *(1, 2, 3),
    ]


@GOOD
def test_what_must_run_there_does(strategy: str, files: Files) -> None:
    far = files.costs("far", peak="1.0", launch="10.0")
    rules = files.rules("one", "Relu", MUST, costs=far)
    result = partition(parse(CHAIN), rules, strategy=strategy)
    assert [name for name, where in everywhere(result).items() if where == "one"] == ["e"]
    assert "the placement is predicted to be slower than the host alone" in notes(result)


@GOOD
def test_what_must_and_is_refused_stays_with_its_reason(strategy: str, files: Files) -> None:
    rules = files.rules("one", "Relu", "{op: Neg, level: must, dtype: [int8]}")
    result = partition(parse(CHAIN), rules, strategy=strategy)
    assert everywhere(result)["e"] == "host"
    reasons = [row.reason for row in result.report.host_reasons]
    assert any("int8" in reason for reason in reasons)


@GOOD
def test_what_must_in_a_composite_takes_it_along(strategy: str, files: Files) -> None:
    far = files.costs("far", peak="1.0", launch="10.0")
    more = "composites:\n- {name: pair, pattern: 'a = Neg(x)\n\n    y = Tanh(a)'}\n"
    rules = files.rules("one", MUST, "{op: Tanh, standalone: false}", costs=far, more=more)
    where = everywhere(partition(parse(CHAIN), rules, strategy=strategy))
    assert {name for name in where if where[name] == "one"} == {"e", "f"}


@GOOD
@pytest.mark.parametrize(("most", "expected"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3])])
def test_so_many_regions(strategy: str, most: int, expected: list[int], files: Files) -> None:
    result = partition(parse(CHAIN), limited(files, f"regions: {most}"), strategy=strategy)
    assert sizes(result) == expected


@GOOD
@pytest.mark.parametrize(("least", "expected"), [(2, [2, 3]), (3, [3]), (4, [])])
def test_so_many_nodes_at_least(strategy: str, least: int, expected: list[int], files: Files) -> None:
    result = partition(parse(CHAIN), limited(files, f"min_nodes: {least}"), strategy=strategy)
    assert sizes(result) == expected
    reasons = {row.reason for row in result.report.host_reasons}
    assert all(reason for reason in reasons)


@GOOD
@pytest.mark.parametrize(("most", "large"), [(1, 1), (2, 2)])
def test_so_many_nodes_at_most(strategy: str, most: int, large: int, files: Files) -> None:
    result = partition(parse(CHAIN), limited(files, f"max_nodes: {most}"), strategy=strategy)
    assert sizes(result)
    assert max(sizes(result)) == large


@GOOD
@pytest.mark.parametrize(("memory", "taken"), [("31", 0), ("32", 1), ("47", 1), ("48", 2), ("1KiB", 2)])
def test_so_many_bytes_of_constants(strategy: str, memory: str, taken: int, files: Files) -> None:
    """Each of the two has 16 bytes of weights, and a region of its own that writes over its input."""
    rules = limited(files, f"memory: {memory}", "Add", "Mul")
    where = Counter(everywhere(partition(parse(WEIGHTS), rules, strategy=strategy)).values())
    assert where["one"] == taken


@GOOD
def test_a_composite_that_is_too_large_stays(strategy: str, files: Files) -> None:
    more = (
        "limits: {max_nodes: 1}\ncomposites:\n- {name: pair, pattern: 'a = Neg(x)\n\n    y = Tanh(a)'}\n"
    )
    rules = files.rules("one", "Neg", "{op: Tanh, standalone: false}", more=more)
    assert set(everywhere(partition(parse(CHAIN), rules, strategy=strategy)).values()) == {"host"}


@GOOD
def test_demands_that_cannot_be_kept_together(strategy: str, files: Files) -> None:
    rules = limited(files, "min_nodes: 2", "Relu", MUST)
    with pytest.raises(InputError) as caught:
        partition(parse(CHAIN), rules, strategy=strategy)
    assert str(caught.value).startswith(f"strategy {strategy}: ")
    assert "\n" not in str(caught.value)


@GOOD
def test_limits_are_those_of_each_accelerator(strategy: str, files: Files) -> None:
    one = limited(files, "regions: 1", "Relu")
    result = partition(parse(CHAIN), [one, files.rules("two", "Neg")], strategy=strategy)
    assert Counter(region.target.name for region in result.plan.regions) == {"one": 1, "two": 1}
    assert sizes(result) == [1, 3]


def test_a_strategy_that_cannot_keep_them_says_so_in_a_sentence(files: Files) -> None:
    with pytest.raises(InputError) as caught:
        partition(parse(CHAIN), files.rules("one", "Relu", MUST), strategy="host-only")
    assert str(caught.value) == (
        "strategy host-only: it left unit 'e' on the host, and it must be on an accelerator "
        "(it was not told that some units must be on an accelerator)"
    )


@pytest.mark.parametrize(
    ("limits", "sentence", "untold"),
    [
        (
            "regions: 1",
            "device 1 has 3 regions, and 1 is the most",
            "how many regions a device may have",
        ),
        ("min_nodes: 2", "region 0 has 1 nodes, and 2 is the least", "how many nodes a region may have"),
    ],
)
def test_a_strategy_of_somebody_elses_is_held_to_them(
    limits: str, sentence: str, untold: str, files: Files
) -> None:
    """Their strategies need not say what they take into account; then they are told what they missed."""
    target = load_rules(limited(files, limits))
    with pytest.raises(InputError) as caught:
        planned(prepared(CHAIN), target, Alternating())
    assert str(caught.value) == (
        f"strategy alternating: {sentence} (it was not told that regions must be connected; "
        f"it was not told {untold})"
    )


def test_what_it_did_not_take_into_account_is_a_note(files: Files) -> None:
    target = load_rules(limited(files, "max_nodes: 1", costs=files.costs("slow", launch="1.0")))
    told = planned(prepared(CHAIN), target, Alternating()).root.notes
    assert "strategy alternating: launches played no part in the choice" in told
    assert "strategy alternating: it was not told how many nodes a region may have" in told


def test_a_cost_that_it_ignores_is_no_reason_for_a_broken_limit(files: Files) -> None:
    target = load_rules(limited(files, "min_nodes: 2", costs=files.costs("slow", launch="1.0")))
    with pytest.raises(InputError) as caught:
        planned(prepared(CHAIN), target, Alternating())
    assert "launches" not in str(caught.value)
