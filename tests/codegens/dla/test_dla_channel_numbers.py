"""Commands whose numbers differ by channel: as one command for each channel, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from byoc.codegens.dla.machine import (
    ABSENT,
    Add,
    Command,
    Conv,
    ConvFlags,
    DType,
    FunctionKind,
    Mul,
    Pair,
    Pool,
    PoolKind,
    Scale,
    Table,
    scaling_fields,
)
from byoc.codegens.dla.simulator import SimulationError
from dla_bench import make_machine, run_one
from dla_on_driver import run_on_driver
from dla_regions import bytes_of

from byoc.codegen.drivers import DriverLibrary
from byoc.errors import ByocError

C = 3
SHAPE = (4, 5, C)
KERNEL = {"kernel": Pair(2, 2)}
X, Z = bytes_of(*SHAPE), bytes_of(*SHAPE, seed=1)
NUMBERS = {
    "zero": np.array([-5, 0, 90]),
    "mantissa": np.array([1 << 30, 3 << 29, 2**31 - 1]),
    "shift": np.array([30, 32, 29]),
    "low": np.array([-128, -9, 0]),
    "high": np.array([127, 50, 30]),
}


def pool(kind: PoolKind) -> Callable[..., Command]:
    """Return what makes a pool of 2 x 2 pixels."""
    return lambda **boxes: Pool(0, kind, **KERNEL, **boxes)


CASES: dict[str, tuple[type[Command], Callable[..., Command], dict[str, Any], tuple[int, int, int]]] = {
    "ADD": (Add, lambda **boxes: Add(0, **boxes), {"a": X, "b": Z}, SHAPE),
    "MUL": (Mul, lambda **boxes: Mul(0, **boxes), {"a": X, "b": Z}, SHAPE),
    "SCALE": (Scale, lambda **boxes: Scale(0, **boxes), {"x": X}, SHAPE),
    "MAX": (Pool, pool(PoolKind.MAX), {"x": X}, (3, 4, C)),
    "AVERAGE": (Pool, pool(PoolKind.AVERAGE), {"x": X}, (3, 4, C)),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_by_channel_are_those_of_a_command_for_each(case: str) -> None:
    kind, make, arrays, shape = CASES[case]
    names = scaling_fields(kind)
    rows = {name: NUMBERS[name.rpartition("_")[2]] for name in names}
    table = np.concatenate([rows[name] for name in names]).astype(np.int32)

    mine = run_one(make, {**arrays, "channels": table}, shape, DType.INT8)

    for channel in range(C):
        one = {name: row[channel].item() for name, row in rows.items()}
        alone = {
            name: np.ascontiguousarray(a[:, :, channel : channel + 1]) for name, a in arrays.items()
        }
        expected = run_one(
            lambda one=one, **boxes: make(**boxes, **one), alone, (*shape[:2], 1), DType.INT8
        )
        np.testing.assert_array_equal(mine[:, :, channel : channel + 1], expected)


def test_tables_by_channel() -> None:
    tables = bytes_of(1, C, 256, seed=3)

    made = run_one(lambda **boxes: Table(0, **boxes), {"x": X, "table": tables}, SHAPE, DType.INT8)

    for channel in range(C):
        expected = tables[0, channel][X[:, :, channel].view(np.uint8)]
        np.testing.assert_array_equal(made[:, :, channel], expected)


def convolution(parameters: Any, **more: Any) -> tuple[Callable[..., Command], dict[str, Any]]:
    """Return what makes a pointwise convolution of three groups, and its operands."""
    rows = np.array(parameters, np.int32)
    arrays = {"x": X, "weights": np.arange(C * (C // more.get("groups", C)), dtype=np.int8)}
    fields = {"groups": C, "residual": ABSENT, **more}
    if isinstance(more.get("residual"), np.ndarray):
        arrays["residual"] = fields.pop("residual")
    return (
        lambda **boxes: Conv(
            0, ConvFlags.ONLY, accumulator=ABSENT, kernel=Pair(1, 1), **{**fields, **boxes}
        ),
        {**arrays, "parameters": rows},
    )


def rows(**changed: list[int]) -> list[list[int]]:
    """Return nine rows of parameters, some of them changed."""
    usual = {
        "bias": 0, "mantissa": 1 << 30, "shift": 34, "x_zero": 5, "y_zero": 1, "low": -128, "high": 127,
        "y_mantissa": 1 << 30, "y_shift": 30,
    }  # fmt: skip
    return [changed.get(name, [value] * C) for name, value in usual.items()]


SWISH = {"function": FunctionKind.SWISH, "alpha": 1.0}
WRONG: dict[str, tuple[Callable[..., Command], dict[str, Any], str]] = {
    "numbers by channel of floats": (CASES["SCALE"][1],
        {"x": X.astype(np.float32), "channels": np.zeros(18, np.int32)}, "floats have no numbers"),
    "a table of another size": (CASES["ADD"][1], {"a": X, "b": Z, "channels": np.zeros(9, np.int32)},
        "an operand is"),
    "a shift of 63": (CASES["SCALE"][1],
        {"x": X, "channels": np.repeat([0, 0, 1, 63, -9, 9], C).astype(np.int32)},
        "a shift is not in [0, 62]"),
    "a shift below 0": (*convolution(rows(shift=[34, -1, 34])), "a shift is not in [0, 62]"),
    "a shift of a real number": (*convolution(rows(y_shift=[30, 2001, 30]), **SWISH),
        "a shift is not in [-2000, 2000]"),
    "a function with three rows": (*convolution(rows()[:3], **SWISH), "has nine rows of parameters"),
    "a residual without a function": (*convolution(rows(), residual=X), "has no residual"),
    "a residual of another shape": (*convolution(rows(), residual=bytes_of(4, 5, 2), **SWISH),
        "a residual of integers is a box of activations like y"),
    "no zero point of bytes": (*convolution(rows(x_zero=[300, 300, 300])),
        "zero point is not one of its type"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_found_by_the_simulator_and_by_the_driver(
    wrong: str, dla_driver: DriverLibrary | None
) -> None:
    make, arrays, message = WRONG[wrong]
    dtype = DType.FLOAT32 if "floats" in wrong else DType.INT8
    machine, inputs, y = make_machine(make, arrays, SHAPE, dtype)

    with pytest.raises(SimulationError) as found:
        machine.run(inputs, [y])
    assert message in str(found.value)
    if dla_driver is not None:
        with pytest.raises(ByocError, match="command"):
            run_on_driver(dla_driver, machine, inputs, [y])


def test_zero_points_differ_in_depthwise_convolutions_alone() -> None:
    make, arrays = convolution(rows(x_zero=[5, 6, 7]), groups=1)
    machine, inputs, y = make_machine(make, arrays, SHAPE, DType.INT8)

    with pytest.raises(SimulationError, match="but share a group"):
        machine.run(inputs, [y])
