"""What holds for a model as a whole, whose graphs are placed one by one: bounds and limits."""

from pathlib import Path

import pytest
from accelerators import Files, everywhere, notes
from helpers.support import parse

from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.planning import save_placement

# A body that an accelerator with dear launches would better leave alone, run 100 times.
LOOP = """g (float[64] x) => (float[64] y) {
    n = Constant <value_int = 100> ()
    go = Constant <value_int = 1> ()
    yes = Cast <to = 9> (go)
    [again] y = Loop (n, yes, x) <
        body = b (int64 i, bool c, float[64] s) => (bool d, float[64] t) {
            d = Identity(c)
            u = Neg(s)
            t = Abs(u)
        }
    >
}"""
BRANCHES = """g (float[64] x, bool c) => (float[64] y) {
    a = Neg(x)
    [choice] b = If (c) <
        then_branch = t () => (float[64] u) { u = Neg(a) },
        else_branch = e () => (float[64] v) { v = Neg(a) }
    >
    y = Neg(b)
}"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_no_bound_is_above_what_another_strategy_finds(files: Files) -> None:
    dear = files.costs("dear", peak="1.0e+30", launch="1.0e-3")
    rules = files.rules("one", "Neg", "Abs", costs=dear)
    host = files.costs("host", peak="1.0e+9", more="overhead: 1.0e-6\n")
    found = {
        strategy: partition(
            parse(LOOP), rules, strategy=strategy, host_cost_model=host, trips={"again": 100}
        ).report.predicted
        for strategy in ("host-only", "min-cut", "exact", "launch-aware", "all-supported")
    }
    best = min(each.optimized for each in found.values())
    assert found["all-supported"].optimized > 10 * best
    for each in found.values():
        assert each.bound is None or each.bound <= best * (1 + 1e-9)
    assert found["exact"].optimized == pytest.approx(best)
    assert found["exact"].bound == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("strategy", ["all-supported", "launch-aware", "exact"])
def test_a_limit_of_regions_is_for_all_graphs_together(strategy: str, files: Files) -> None:
    rules = files.rules("one", "Neg", more="limits: {regions: 2}\n")
    free = files.rules("two", "Neg")
    slow = files.costs("host", peak="1.0e+3", more="overhead: 1.0\n")
    before = partition(parse(BRANCHES), free, strategy=strategy, host_cost_model=slow)
    after = partition(parse(BRANCHES), rules, strategy=strategy, host_cost_model=slow)
    assert len(before.report.regions) == 4
    assert [region.graph for region in after.report.regions] == ["", ""]
    assert any("4 regions of at most 2" in note for note in notes(after))


def test_a_given_placement_and_overlapping_composites(files: Files, tmp_path: Path) -> None:
    """A composite that a pinned node is part of is no alternative any more."""
    more = """overlaps: placement
composites:
- {name: first, pattern: "a = Exp(x)\\nb = Add(a, z)"}
- {name: second, pattern: "b = Add(x, z)\\ny = Relu(b)"}
"""
    net = "g (float[64] x, float[64] z) => (float[64] y) { a = Exp(x)\n b = Add(a, z)\n y = Relu(b) }"
    rules = files.rules("one", "Exp", "Add", "Relu", more=more)
    slow = files.costs("host", peak="1.0e+3", more="overhead: 1.0\n")
    path = tmp_path / "where.yaml"
    for pinned in ("a", "b", "y"):
        path.write_text(f"format: 1\nnodes: {{{pinned}: host}}\n", "utf-8")
        result = partition(parse(net), rules, placement=path, host_cost_model=slow)
        assert {name for name, where in everywhere(result).items() if where == "host"} == {pinned}
    result = partition(parse(net), rules, host_cost_model=slow)
    save_placement(result.plan, path)
    again = partition(parse(net), rules, placement=path, host_cost_model=slow)
    ours, theirs = again.report.predicted, result.report.predicted
    # Where nothing is left to choose, the bound is nearer.
    assert ours.model_copy(update={"bound": theirs.bound}) == theirs
    assert theirs.bound <= ours.bound <= ours.optimized


@pytest.mark.parametrize("limit", ["max_nodes: 1", "memory: 16"])
def test_what_must_be_on_an_accelerator_and_is_too_large_is_named(limit: str, files: Files) -> None:
    more = f"""limits: {{{limit}}}
composites:
- {{name: both, pattern: "a = Mul(x, w)\\ny = Neg(a)"}}
"""
    rules = files.rules("one", "{op: Mul, level: must}", "Neg", more=more)
    net = """g (float[64] x) => (float[64] y) <float[64] w = {WEIGHTS}> {
        a = Mul(x, w)
        [end] y = Neg(a)
    }"""
    model = parse(net.replace("WEIGHTS", ", ".join(["1.0"] * 64)))
    with pytest.raises(InputError) as caught:
        partition(model, rules)
    assert str(caught.value) == (
        "unit 'end' has to be on an accelerator (level: must) and is above the limits of one"
    )


def test_a_limit_beyond_all_numbers_is_no_limit(files: Files) -> None:
    rules = files.rules(
        "one", "Neg", more="limits: {regions: 999999999999999999, max_nodes: 9223372036854775807}\n"
    )
    slow = files.costs("host", peak="1.0e+3", more="overhead: 1.0\n")
    result = partition(parse(BRANCHES), rules, host_cost_model=slow)
    assert len(result.report.regions) == 4
