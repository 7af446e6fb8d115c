"""Units before an output in finer types: how many, and which in floating point or in 16 bits."""

import numpy as np
from onnx.helper import make_node
from quantizing import built, weights

from byoc.model import Model
from byoc.quantization._coarse_outputs import measure_size_accuracy
from byoc.quantization._output_refinement import FinerUnits, OutputRefinement, RefinedOutput

SHAPE = [1, 8, 6, 6]
UNITS = {f"c{number}": [f"c{number}"] for number in range(4)}


def chain() -> Model:
    """Return four convolutions one after another, the last of which makes the output."""
    nodes = [make_node("Conv", [f"t{n}", f"w{n}"], [f"t{n + 1}"], f"c{n}") for n in range(4)]
    stored = {f"w{n}": weights(n, 8, 8, 1, 1) for n in range(4)}
    return built(nodes, {"t0": SHAPE}, {"t4": SHAPE}, stored)


def search(
    decibels: dict[tuple[int, int], float],
    has_wide: bool = True,
    seconds: tuple[float, float] = (0.01, 0.002),
) -> tuple[FinerUnits, int]:
    """Return the units that are found, and how many were tried.

    `decibels` are by the number of units in floating point and in 16 bits, 0 for all others; `seconds`
    is what each of these takes more.
    """
    tried = []

    def measure(finer: FinerUnits) -> RefinedOutput:
        tried.append(finer)
        counts = len(finer.in_float), len(finer.wide)
        time = 1 + sum(count * each for count, each in zip(counts, seconds, strict=True))
        return RefinedOutput(decibels.get(counts, 0.0), time)

    found = OutputRefinement(chain().index, UNITS, "t4", measure, 0.03, has_wide).find()
    return found, len(tried)


def test_the_last_unit_is_in_floats_where_its_weights_are_too_coarse() -> None:
    """As in a heat map: 16 bits before it help once it is in floats, and are cheaper than floats."""
    heat = {(0, 1): 5.3, (1, 0): 6.7, (0, 2): 8.9, (1, 1): 17.7, (2, 0): 17.8, (1, 2): 17.9, (2, 1): 18}
    found, tried = search(heat)
    assert (found.in_float, found.wide) == (("c3",), ("c2",))
    assert tried < 9


def test_a_detour_by_16_bits_is_found_again() -> None:
    """Where they are the better first step, the last unit may still go to floats."""
    found, _ = search({(0, 1): 6.0, (1, 0): 1.0, (0, 2): 9.0, (1, 1): 20.0})
    assert (found.in_float, found.wide) == (("c3",), ("c2",))


def test_only_16_bits_are_taken_where_these_are_enough() -> None:
    found, _ = search({(0, 1): 20.0, (1, 0): 20.2, (0, 2): 20.9})
    assert (found.in_float, found.wide) == ((), ("c3",))


def test_without_16_bits_all_are_in_floats() -> None:
    found, tried = search({(1, 0): 5.0, (2, 0): 9.0, (3, 0): 9.9}, has_wide=False)
    assert (found.in_float, found.wide) == (("c3", "c2"), ())
    assert tried == 4


def test_nothing_is_finer_where_it_takes_too_long() -> None:
    assert search({(1, 0): 9.0}, seconds=(0.3, 0.3))[0] == FinerUnits()
    assert search({(1, 0): 11.0}, seconds=(0.3, 0.3))[0].in_float == ("c3",)


def test_what_is_done_is_said() -> None:
    assert FinerUnits(("a",), ("b", "c")).describe("y") == (
        "units before 'y': 1 left in floating point, 2 computed in 16 bits"
    )


def test_errors_count_by_the_size_of_values() -> None:
    sizes = np.concatenate([np.geomspace(1, 1e4, 500), -np.geomspace(1, 1e4, 500)])
    near = float(np.quantile(np.abs(sizes), 0.1))
    of_share = measure_size_accuracy("y", [{"y": sizes}], [{"y": sizes * 2}])
    of_step = measure_size_accuracy("y", [{"y": sizes}], [{"y": sizes + 100 * near}])
    assert of_step < 5 < of_share < 30
    assert measure_size_accuracy("y", [{"y": sizes}], [{"y": sizes}]) == 30
    assert measure_size_accuracy("y", [{"y": 0 * sizes}], [{"y": 0 * sizes}]) == 30
