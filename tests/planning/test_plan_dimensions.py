"""Open dimensions: plausible sizes to plan with, ranges, and what is said of them."""

import io

import pytest
from accelerators import Files
from helpers.support import parse
from rich.console import Console

from byoc.errors import InputError
from byoc.pipeline import Result, partition
from byoc.reporting import print_report

IMAGES = "images (float[N, 3, h, w] x) => (float[N, 3, h, w] y) { a = Relu (x) y = Neg (a) }"
ROWS = "rows (float[N, 1000] x) => (float[N, 1000] y) { a = Relu (x) y = Neg (a) }"


def print_text(result: Result) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_report(result.report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_open_dimensions_count_as_plausible_sizes(files: Files) -> None:
    result = partition(parse(IMAGES), files.rules("near", "Relu", "Neg"))
    sizes = {dim.name: dim.size for dim in result.report.open_dimensions}
    assert sizes == {"N": 1, "h": 224, "w": 224}
    assert result.report.compute.operations == 2 * 3 * 224 * 224
    first, second, *_ = print_text(result).splitlines()
    assert first.startswith("images: ")
    assert second == (
        "Open dimensions, counted as N = 1, h = 224, w = 224; "
        "to fix them: --dim N=1 --dim h=224 --dim w=224"
    )
    document = result.report.to_json()
    assert document["open_dimensions"][1] == {"name": "h", "size": 224, "least": None, "largest": None}


def test_calculated_extents_count_as_work(files: Files) -> None:
    rules = files.rules("near", "Relu", "Neg")
    text = """chunks (float[b, seq, 8] x, float[b, few, 8] z) => (float[b, seq, 8] y, float[b, few, 8] w)
        { y = Relu (x) w = Neg (z) }"""
    result = partition(parse(text), rules, dims={"few": "seq // 256"})
    assert {dim.name: dim.size for dim in result.report.open_dimensions} == {"b": 1, "seq": 256}
    assert result.report.compute.operations == 256 * 8 + 8
    result = partition(parse(text), rules, dims={"few": "b - seq", "seq": "3..5"})
    assert {dim.name: dim.size for dim in result.report.open_dimensions} == {"b": 5, "seq": 4}
    assert result.report.compute.operations == 5 * 4 * 8 + 5 * 8
    result = partition(parse(text), rules, dims={"few": "seq // 32", "seq": "3..5"})
    assert result.report.compute.operations == 4 * 8  # no size that was given is moved


def test_fixed_dimensions_are_not_spoken_of(files: Files) -> None:
    rules = files.rules("near", "Relu", "Neg")
    result = partition(parse(IMAGES), rules, shapes={"x": (2, 3, 10, 10)})
    assert result.report.open_dimensions == ()
    assert result.report.compute.operations == 2 * 2 * 3 * 100
    assert "open_dimensions" not in result.report.to_json()


def test_a_range_is_planned_for_its_middle_and_predicted_at_its_ends(files: Files) -> None:
    costs = files.costs("costly", peak="1.0e+15", launch="1.0e-6")
    rules = files.rules("near", "Relu", "Neg", costs=costs)
    result = partition(parse(ROWS), rules, dims={"N": "0..2000"}, strategy="all-supported")
    low, middle, high = result.report.predicted_at
    assert [point.sizes["N"] for point in (low, middle, high)] == [0, 1000, 2000]
    assert middle.seconds == result.report.predicted.seconds
    assert high.host_only == pytest.approx(2 * middle.host_only, rel=0.1)
    assert low.seconds < middle.seconds < high.seconds
    for at, dims in ((low, {"N": 0}), (high, {"N": 2000})):
        fixed = partition(parse(ROWS), rules, dims=dims, strategy="all-supported").report.predicted
        assert at.seconds == pytest.approx(fixed.seconds, rel=1e-9)
        assert at.host_only == pytest.approx(fixed.host_only, rel=1e-9)
    assert "At N = 2000: predicted" in print_text(result)


def test_what_is_in_bodies_is_predicted_at_the_ends_of_a_range_as_well(files: Files) -> None:
    text = """g (float[N, 64] x, int64 n) => (float[N, 64] y) {
        keep = Constant <value_int = 1> ()
        go = Cast <to = 9> (keep)
        y = Loop (n, go, x) <body = inner (int64 i, bool c, float[N, 64] v) => (bool d, float[N, 64] w) {
            d = Identity(c)
            a = Relu(v)
            b = Tanh(a)
            w = Neg(b)
        }>
    }"""
    rules = files.rules("near", "Relu", "Neg", costs=files.costs("costly", launch="1.0e-6"))
    result = partition(parse(text), rules, dims={"N": "0..2000"}, strategy="all-supported")
    low, middle, high = result.report.predicted_at
    assert low.seconds < middle.seconds < high.seconds
    for at, size in ((low, 0), (middle, 1000), (high, 2000)):
        fixed = partition(
            parse(text), rules, dims={"N": size}, strategy="all-supported"
        ).report.predicted
        assert at.seconds == pytest.approx(fixed.seconds, rel=1e-9)
        assert at.host_only == pytest.approx(fixed.host_only, rel=1e-9)


def test_contradictions_are_one_sentence(files: Files) -> None:
    rules = files.rules("near", "Relu", "Neg")
    with pytest.raises(InputError) as caught:
        partition(parse(ROWS), rules, dims={"N": 3}, shapes={"x": (4, 1000)})
    assert str(caught.value) == (
        "rows: dimension N=3: dimension N would be 3, but it is 4 by shape x=4,1000"
    )


@pytest.mark.parametrize(
    ("constraint", "span", "reason"),
    [
        ("{max: 2048}", "1..2048", "yes"),
        ("{max: 2047}", "1..2048", "Relu: dimension 0 of X is 2048, at most 2047 is supported"),
        ("{min: 1}", "0..9", "Relu: dimension 0 of X is 0, at least 1 is supported"),
        ("{multiple_of: 2}", "0..8", "Relu: dimension 0 of X is N, which is not fixed (--dim N=SIZE)"),
        ("8", "8..8", "yes"),
    ],
)
def test_rules_hold_for_the_whole_range(files: Files, constraint: str, span: str, reason: str) -> None:
    rules = files.rules("near", f"{{op: Relu, tensors: {{X: {{dims: {{0: {constraint}}}}}}}}}")
    plan = partition(parse(ROWS), rules, dims={"N": span}, strategy="all-supported").plan
    assert str(plan.units[0].verdicts[0]) == reason


@pytest.mark.parametrize(("limit", "composite"), [(9, "relu_neg"), (8, None)])
def test_conditions_of_composites_hold_for_the_whole_range(
    files: Files, limit: int, composite: str | None
) -> None:
    pattern = "|\n      a = Relu(x)\n      y = Neg(a)"
    text = f"composites:\n  - name: relu_neg\n    pattern: {pattern}\n    where: x.shape[0] <= {limit}\n"
    rules = files.rules("near", "Relu", "Neg", more=text)
    plan = partition(parse(ROWS), rules, dims={"N": "1..9"}, strategy="all-supported").plan
    assert plan.regions[0].units[0].composite == composite
