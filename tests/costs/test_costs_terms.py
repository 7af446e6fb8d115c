"""The terms of a roofline by hand: memories of their own, rates of results, arrays, tiles, kinds."""

import pytest
from helpers.support import prepared

from byoc.costs import Roofline, Task, Work, build_tasks
from byoc.costs._roofline import (
    ConstantMemory,
    Multiples,
    OperatorFigures,
    ProductLoops,
    Tile,
    read_loops,
)
from byoc.model import TensorType

BASE = Roofline(kind="roofline", name="toy", peak={"float32": 100.0}, bandwidth=10.0)
IMAGE = TensorType("float32", (1, 8, 5, 7))
CONV = Task(
    "Conv",
    Work(operations=2 * 35 * 12 * 8 * 9, bytes=1000.0, constants=600.0),
    inputs=(IMAGE, TensorType("float32", (12, 8, 3, 3))),
    outputs=(TensorType("float32", (1, 12, 5, 7)),),
    attributes={"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]},
)


def with_figures(**figures: OperatorFigures) -> Roofline:
    """Return the toy with a peak that takes no time, and figures of operators."""
    return BASE.model_copy(update={"operators": figures, "peak": {"float32": 1e30}})


def test_constants_in_a_memory_of_their_own_are_read_beside_the_rest() -> None:
    small = Task("Gemm", Work(0.0, 1000.0, constants=600.0))
    assert BASE.estimate(small).seconds == 100.0
    flash = {"constants": ConstantMemory(bandwidth=5.0, packed=0.5)}
    assert BASE.model_copy(update=flash).estimate(small).seconds == 60.0  # 600 * 0.5 / 5
    fast = {"constants": ConstantMemory(bandwidth=50.0)}
    assert BASE.model_copy(update=fast).estimate(small).seconds == 40.0  # the other 400 bytes


def test_results_are_written_at_a_rate_and_bytes_may_not_move() -> None:
    model = with_figures(Conv=OperatorFigures(elements=2.0, traffic=0.0))
    assert model.estimate(CONV).seconds == 12 * 35 / 2
    assert with_figures(Conv=OperatorFigures(traffic=0.5)).estimate(CONV).seconds == 50.0


def test_conversions_around_an_operator_move_what_it_moves() -> None:
    ops = ["DequantizeLinear", "Concat", "QuantizeLinear"]
    parts = tuple(Task(op, Work(0.0 if op == "Concat" else 8.0, 0.0)) for op in ops)
    group = Task("QDQ/Concat", Work(16.0, 1000.0), parts=parts)
    assert with_figures().estimate(group).seconds == 100.0
    assert with_figures(Concat=OperatorFigures(traffic=0.5)).estimate(group).seconds == 50.0
    twice = with_figures(QuantizeLinear=OperatorFigures(traffic=2.0))
    assert twice.estimate(group).seconds == 100.0
    alone = Task("QuantizeLinear", Work(16.0, 1000.0))
    assert twice.estimate(alone).seconds == 200.0


def test_an_array_computes_whole_multiples_and_of_several_the_best_is_taken() -> None:
    loops = read_loops(CONV)
    assert loops == ProductLoops(1, 5, 7, 12, 8, (3, 3))
    deep = Multiples(rows=2, columns=2, outputs=8, inputs=32)
    part = Multiples(rows=2, columns=2, outputs=8, inputs=8, taps=4)
    assert deep.waste(loops) == pytest.approx(6 / 5 * 8 / 7 * 16 / 12 * 32 / 8)
    assert part.waste(loops) == pytest.approx(6 / 5 * 8 / 7 * 16 / 12 * 12 / 9)
    figures = OperatorFigures(multiples=(deep, part), efficiency=0.5)
    model = BASE.model_copy(update={"operators": {"Conv": figures}})
    seconds = CONV.work.operations * part.waste(loops) / (0.5 * 100)
    assert model.estimate(CONV).seconds == pytest.approx(seconds)


def test_a_tile_reads_its_window_of_the_input_and_its_weights() -> None:
    """A result of 4 x 4 x 16 by tiles of 64: 2 x 4 x 8 reads the input and the weights twice."""
    loops = ProductLoops(1, 4, 4, 16, 2)
    assert loops.count_traffic(64, 4, 1) == (2 * 16 * 2, 32)
    assert loops.count_traffic(64, 4, 8) == (16 * 8, 3 * 32)  # 2 x 2 x 16, as channels are read by 8
    wide = ProductLoops(1, 4, 4, 16, 2, taps=(3, 3))
    assert wide.count_traffic(10**6, 1, 1) == (6 * 6 * 2, 0)
    each = ProductLoops(1, 4, 4, 16, 1, taps=(3, 3), separate=True)
    assert each.count_traffic(10**6, 1, 1) == (6 * 6 * 16, 0)
    assert wide.count_traffic(1, 4, 1) == (0.0, 0.0)  # no tile is that small: as if there were none

    model = with_figures().model_copy(update={"tile": Tile(results=4 * 7 * 4, outputs=4)})
    loops = ProductLoops(1, 5, 7, 12, 8, (3, 3))
    read, again = loops.count_traffic(4 * 7 * 4, 4, 1)
    assert read > loops.read_once
    moved = 1000 + 4 * (read - loops.read_once + again)
    assert model.estimate(CONV).seconds == pytest.approx(moved / 10)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "loops"),
    [
        ("MatMul", ((2, 5, 8), (8, 3), (2, 5, 3)), {}, ProductLoops(1, 1, 10, 3, 8)),
        ("Gemm", ((8, 5), (8, 3), (5, 3)), {"transA": 1}, ProductLoops(1, 1, 5, 3, 8)),
        (
            "Conv",
            ((1, 6, 9), (4, 3, 3), (1, 4, 7)),
            {"group": 2},
            ProductLoops(1, 1, 7, 2, 3, (1, 3), groups=2),
        ),
        (
            "Conv",
            ((1, 6, 9, 9), (6, 1, 3, 3), (1, 6, 4, 4)),
            {"group": 6, "strides": [2, 2]},
            ProductLoops(1, 4, 4, 6, 1, (3, 3), (2, 2), separate=True),
        ),
        (
            "MaxPool",
            ((1, 6, 9, 9), None, (1, 6, 4, 4)),
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            ProductLoops(1, 4, 4, 6, 1, (2, 2), (2, 2), separate=True),
        ),
        ("Relu", ((1, 6), None, (1, 6)), {}, None),
    ],
)  # fmt: skip
def test_loops_of_operators(
    op: str, shapes: tuple[tuple[int, ...] | None, ...], attributes: dict[str, object], loops: object
) -> None:
    kinds = [None if shape is None else TensorType("int8", shape) for shape in shapes]
    inputs = tuple(kind for kind in kinds[:2] if kind is not None)
    assert read_loops(Task(op, Work(1, 1), "int8", inputs, (kinds[2],), attributes)) == loops


def test_kinds_of_operators() -> None:
    kernel, square = TensorType("float32", (8, 8, 5, 5)), TensorType("float32", (8, 8))
    strided = Task("Conv", Work(1, 1), inputs=(None, kernel), attributes={"strides": [4, 4]})
    assert strided.families == ("Conv/strided", "Conv")
    computed = Task("MatMul", Work(1, 1), inputs=(square, square))
    assert computed.families == ("MatMul/computed", "MatMul")


_QDQ = """
    g (int8[1,8,4,4] x) => (int8[1,8,4,4] z)
    <float s = {0.1}, int8 o = {1}, float[8,1,1] c = {1,2,3,4,5,6,7,8}> {
      d = DequantizeLinear (x, s, o)
      a = Add (d, c)
      y = QuantizeLinear (a, s, o)
      e = DequantizeLinear (y, s, o)
      r = Sigmoid (e)
      z = QuantizeLinear (r, s, o)
    }"""


def test_a_group_is_fused_where_it_alone_reads_what_another_makes() -> None:
    works = build_tasks(prepared(_QDQ).index)
    first, second = (works.make_composite_task("QDQ/x", nodes) for nodes in ((0, 1, 2), (3, 4, 5)))
    assert (first.fused, second.fused) == (False, True)
    assert second.families == ("QDQ/x/fused", "QDQ/x")
    assert first.work.constants == 32 + 5  # c, a scale and a zero point
    assert first.parts[1].families == ("Add",)
    doubled = _QDQ.replace("Add (d, c)", "Add (d, d)")
    assert "Add/computed" in build_tasks(prepared(doubled).index)[1].families
