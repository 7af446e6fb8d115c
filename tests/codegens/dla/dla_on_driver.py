"""A simulator's program on the driver in C, and what both make compared."""

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from byoc.codegens.dla.machine import Operand, assemble
from byoc.codegens.dla.simulator import Simulator

from byoc.codegen import Artifact, TensorType
from byoc.codegen.drivers import DriverLibrary


def run_on_driver(
    driver: DriverLibrary,
    simulator: Simulator,
    inputs: Sequence[tuple[Operand, Any]],
    outputs: Sequence[Operand],
) -> list[Any]:
    """Run a simulator's program on the driver, with inputs and outputs in the given boxes."""
    boxes = [box for box, _ in inputs] + list(outputs)
    sockets = b"".join(struct.pack("<12I", 1, *vars(box).values()) for box in boxes)
    head = struct.pack("<4sIII", b"DLAI", 1, len(inputs), len(outputs))
    program = simulator._program
    files = {
        "program.bin": assemble(program),
        "weights.bin": simulator._weights.bytes.tobytes(),
        "interface.bin": head + sockets,
    }
    sides = (
        tuple(describe(f"x{number}", box) for number, (box, _) in enumerate(inputs)),
        tuple(describe(f"y{number}", box) for number, box in enumerate(outputs)),
    )
    region: Any = SimpleNamespace(name="region", inputs=sides[0], outputs=sides[1])
    opened = driver.open_region(region, Artifact(files, {}))
    given = {f"x{number}": np.ascontiguousarray(values) for number, (_, values) in enumerate(inputs)}
    return list(opened(given).values())


def describe(name: str, box: Operand) -> Any:
    """Describe a box as a boundary tensor."""
    kind = TensorType(box.dtype.name.lower(), (box.rows, box.cols, box.channels))
    return SimpleNamespace(name=name, type=kind)


def assert_same(mine: Any, other: Any) -> None:
    """Integers are equal; floats up to the order of sums and the last digit of functions."""
    if mine.dtype.kind != "f":
        np.testing.assert_array_equal(other, mine)
        return
    span = np.abs(mine[np.isfinite(mine)]).max(initial=0.0)
    np.testing.assert_allclose(other, mine, rtol=1e-5, atol=1e-6 + 1e-5 * span)
