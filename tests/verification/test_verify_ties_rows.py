"""Outputs of a selection whose rows lie along another axis: nothing is excused by ties there."""

from helpers.support import parse
from test_verify_ties import TOP, compare, passes, reorder, run


def test_rows_that_lie_along_another_axis_are_not_looked_for() -> None:
    """An output [18, k] of zeros: the other outputs would tell the rows, if its axis did not matter."""
    zeros = ", ".join(["0"] * 18)
    model = parse(
        TOP.replace("k] scores)", "k] scores, float[18, k] flags)")
        .replace("<int64[1] k", f"<float[18, 1] none = {{{zeros}}}, int64[1] k")
        .replace("labels = Gather(l, i)", "labels = Gather(l, i) flags = Mul(none, scores)")
    )
    expected = run(model)
    assert not expected["flags"].any()
    kept = expected["flags"]
    more = reorder(run(parse(TOP.replace("{18}", "{20}"))), [*range(16), 19, 17])
    errors = compare(model, expected, {**more, "flags": kept})
    assert not passes(errors)
    assert {error.tie_break for error in errors} == {None}
