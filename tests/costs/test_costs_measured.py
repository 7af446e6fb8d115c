"""Tables and lines: exact look-up, fits that find what was planted, what they say of the unknown."""

from math import isnan

import numpy as np
import pytest

from byoc.costs import CostTable, Linear, Measurement, Price, Task, Unknown, Work
from byoc.costs._measured_costs import STAND_IN_LINE, CostLine, fit_line, fit_linear_model
from byoc.model import TensorType

SMALL, LARGE = TensorType("float32", (4,)), TensorType("float32", (8, 2))
RELU = Task("Relu", Work(4, 32), inputs=(SMALL,), outputs=(SMALL,))
SCALED = Task("Elu", Work(4, 32), inputs=(SMALL,), outputs=(SMALL,), attributes={"alpha": 0.1})
ENTRIES = (
    Measurement(op="Relu", types="float32[4]->float32[4]", seconds=3.0, operations=4, bytes=32),
    Measurement(
        op="Elu",
        types=SCALED.types,
        attributes={"alpha": 0.1},
        seconds=5.0,
        joules=7.0,
        operations=4,
        bytes=32,
    ),
)
TABLE = CostTable(kind="table", name="t", entries=ENTRIES)


def entry(
    op: str, operations: float, size: float, seconds: float, joules: float | None = None
) -> Measurement:
    types = f"float32[{int(operations)}, {int(size)}] ->"
    return Measurement(
        op=op, types=types, seconds=seconds, operations=operations, bytes=size, joules=joules
    )


def planted(
    op: str, operation: float, byte: float, call: float, *, energy: float | None = None
) -> list[Measurement]:
    generator = np.random.default_rng(3)
    rows = []
    for operations, size in generator.integers(10**3, 10**7, (12, 2)).tolist():
        seconds = operation * operations + byte * size + call
        rows.append(entry(op, operations, size, seconds, energy and energy * size))
    return rows


def test_what_was_measured_is_found_and_nothing_else() -> None:
    assert TABLE.execution(RELU).seconds == 3.0  # type: ignore[union-attr]
    assert TABLE.execution(SCALED) == Price(5.0, 7.0)
    other = Task("Relu", Work(16, 128), inputs=(LARGE,), outputs=(LARGE,))
    assert TABLE.execution(other) == Unknown("t has no costs of Relu on float32[8, 2] -> float32[8, 2]")
    assert not TABLE.execution(Task("Elu", Work(4, 32), inputs=(SMALL,), outputs=(SMALL,)))


def test_what_operators_take_together_scales_every_answer() -> None:
    table = TABLE.model_copy(update={"together": 0.5})
    assert table.execution(RELU).seconds == 1.5  # type: ignore[union-attr]
    assert table.entries[0].seconds == 3.0
    line = Linear(kind="linear", name="l", operators={"Relu": CostLine(call=3.0)}, together=0.5)
    assert line.execution(RELU).seconds == 1.5  # type: ignore[union-attr]


def test_a_fit_finds_what_was_planted() -> None:
    line = fit_line(planted("Conv", 2e-9, 3e-10, 4e-6, energy=5e-9))
    assert (line.operation, line.byte, line.call) == pytest.approx((2e-9, 3e-10, 4e-6), rel=1e-6)
    assert line.r2 == pytest.approx(1.0)
    assert line.samples == 12
    assert line.joules is not None
    assert line.joules.byte == pytest.approx(5e-9, rel=1e-6)


def test_a_line_for_each_operator_and_one_through_all() -> None:
    entries = planted("Conv", 2e-9, 0.0, 4e-6) + planted("Relu", 0.0, 3e-10, 1e-6)
    grouped = [
        e.model_copy(update={"attributes": {"group": 4}}) for e in planted("Conv", 9e-9, 0.0, 0.0)
    ]
    model = fit_linear_model(
        CostTable(kind="table", name="t", entries=tuple(entries + grouped), launch=3.0)
    )
    assert list(model.operators) == ["Conv", "Conv/grouped", "Relu"]
    assert model.launch == 3.0
    assert model.operators["Conv"].operation == pytest.approx(2e-9, rel=0.02)
    assert model.operators["Conv/grouped"].operation == pytest.approx(9e-9, rel=0.02)
    assert model.operators["Relu"].byte == pytest.approx(3e-10, rel=0.02)
    work = Work(1e6, 1e5)
    grouped_task = Task("Conv", work, attributes={"group": 4})
    assert model.execution(grouped_task).seconds == pytest.approx(9e-3, rel=0.02)  # type: ignore[union-attr]
    assert model.execution(Task("Conv", work)).seconds == pytest.approx(2.004e-3, rel=0.02)  # type: ignore[union-attr]


def test_coefficients_are_never_negative() -> None:
    """The larger the faster: the best line that is none below zero is flat."""
    line = fit_line([entry("Odd", 10.0**k, 10.0**k, 10.0**-k) for k in range(1, 5)])
    assert min(line.operation, line.byte, line.call) == 0.0
    assert line.evaluate(Work(1e9, 1e9)) >= 0.0


def test_too_few_measurements_lean_on_the_line_through_all() -> None:
    """One measurement, ten times slower than the line says: so is all of it."""
    around = CostLine(operation=1e-9, byte=1e-10, call=1e-6)
    (only,) = [entry("Odd", 1e6, 1e6, 10 * around.evaluate(Work(1e6, 1e6)))]
    line = fit_line([only], around)
    assert line.evaluate(Work(1e6, 1e6)) == pytest.approx(only.seconds, rel=0.01)
    assert (line.operation, line.byte, line.call) == pytest.approx((1e-8, 1e-9, 1e-5), rel=0.01)
    assert line.r2 is None


def test_measurements_of_nothing_but_calls_say_nothing_of_the_rest() -> None:
    """Casts of a few bytes in 3 to 5 us: a megabyte is not priced by their noise."""
    around = CostLine(operation=1e-11, byte=2e-11, call=4e-6)
    small = [entry("Cast", 0, 8 * i, seconds) for i, seconds in enumerate((3e-6, 4e-6, 5e-6, 4e-6), 1)]
    line = fit_line(small, around)
    assert line.byte == pytest.approx(2e-11, rel=0.1)
    assert line.call == pytest.approx(4e-6, rel=0.1)


def test_what_a_table_guesses() -> None:
    """A composite is the sum of its parts; another operator is on the line through all entries."""
    model = CostTable(kind="table", name="t", entries=tuple(planted("Conv", 2e-9, 3e-10, 4e-6)))
    guess = model.estimate(Task("Odd", Work(1e6, 1e6)))
    assert guess.seconds == pytest.approx(2e-3 + 3e-4 + 4e-6, rel=1e-6)
    whole = Task("both", Work(8, 64), parts=(RELU, SCALED, Task("Identity", Work(0, 0), view=True)))
    assert TABLE.estimate(whole).seconds == 8.0
    bare = CostTable(kind="table", name="t", entries=(Measurement(op="A", types="->", seconds=1.0),))
    assert bare.estimate(RELU).seconds == STAND_IN_LINE.evaluate(RELU.work)


def test_what_a_line_says_of_the_unknown() -> None:
    model = Linear(
        kind="linear", name="l", operators={"Relu": CostLine(call=2.0)}, estimates=CostLine(call=9.0)
    )
    assert model.execution(Task("Tanh", Work(1, 1))) == Unknown("l has no costs of Tanh")
    assert model.execution(Task("Relu", Work(1, 1), sized=False)) == Unknown(
        "a shape of Relu is not known"
    )
    assert model.estimate(Task("Tanh", Work(1, 1))).seconds == 9.0
    assert model.estimate(Task("Relu", Work(1, 1), sized=False)).seconds == 2.0
    assert model.estimate(Task("both", Work(1, 1), parts=(RELU, RELU))).seconds == 4.0
    assert isnan(model.estimate(RELU).joules)
    plain = Linear(kind="linear", name="l", operators={"Relu": CostLine(call=2.0)})
    assert plain.estimate(SCALED).seconds == STAND_IN_LINE.evaluate(SCALED.work)


def test_a_composite_may_have_a_line_of_its_own() -> None:
    model = Linear(
        kind="linear", name="l", operators={"both": CostLine(call=1.0), "Relu": CostLine(call=2.0)}
    )
    assert model.execution(Task("both", Work(1, 1), parts=(RELU, RELU))).seconds == 1.0  # type: ignore[union-attr]
