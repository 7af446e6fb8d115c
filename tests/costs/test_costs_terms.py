"""Parts of costs by hand: terms of rooflines, lines of measurements, the table of operators, links."""

import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import LIGHT, prepared
from onnx import helper

from byoc import zoo
from byoc.costs import (
    CostTable,
    Linear,
    Measurement,
    Price,
    Roofline,
    Task,
    Unknown,
    Work,
    build_tasks,
    with_link,
)
from byoc.costs._measured_costs import STAND_IN_LINE, CostLine, fit_line, fit_linear_model
from byoc.costs._price_query import ask_link_occupancy
from byoc.costs._roofline import (
    ConstantMemory,
    Multiples,
    OperatorFigures,
    ProductLoops,
    Tile,
    read_loops,
)
from byoc.costs._work import BODY_OPERATORS, COUNTS, find_count
from byoc.costs._work_table import CONTRIB, STANDARD
from byoc.errors import InputError
from byoc.model import TensorType, walk_graphs
from byoc.placement import Occupancy
from byoc.zoo import load_structure

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


PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


STRUCTURES = sorted((Path(zoo.__file__).parent / "structures").glob("*.onnx.xz"))


# The operator stands for the gradient of a whole graph, which its attributes name.
NOT_COUNTED = {("ai.onnx.preview.training", "Gradient")}


def list_standard_operators() -> Iterator[onnx.NodeProto]:
    for schema in onnx.defs.get_all_schemas_with_history():
        if (schema.domain, schema.name) not in NOT_COUNTED and schema.name not in BODY_OPERATORS:
            yield helper.make_node(schema.name, [], [], domain=schema.domain)


def test_every_operator_of_the_installed_standard_is_counted() -> None:
    missing = {f"{n.domain}.{n.op_type}" for n in list_standard_operators() if find_count(n) is None}
    assert not missing
    assert len(STANDARD) > 60


def read_structure(path: Path) -> onnx.ModelProto:
    return onnx.load_from_string(lzma.decompress(path.read_bytes()))


@pytest.mark.parametrize("path", STRUCTURES, ids=lambda path: path.name.partition(".")[0])
def test_no_operator_of_an_exported_model_of_the_zoo_falls_to_a_default(path: Path) -> None:
    assert not list_uncounted(read_structure(path))


@pytest.mark.parametrize("name", LIGHT)
def test_no_operator_of_a_light_model_of_the_zoo_falls_to_a_default(name: str) -> None:
    assert not list_uncounted(load_structure(name))


def list_uncounted(model: onnx.ModelProto) -> set[str]:
    """Return the operators of a model, bodies included, that nothing counts."""
    nodes = [node for graph in walk_graphs(model.graph) for node in graph.node]
    assert nodes
    return {n.op_type for n in nodes if n.op_type not in BODY_OPERATORS and find_count(n) is None}


def test_an_operator_stands_once_in_the_table() -> None:
    names = [name for row in (*STANDARD, *CONTRIB) for name in row.operators]
    assert len(names) == len(set(names)) == len(COUNTS)


def test_operators_on_other_layouts_count_as_those_of_onnx() -> None:
    node = helper.make_node("Conv", [], [], domain="com.ms.internal.nhwc")
    assert find_count(node) is COUNTS["Conv"]
    assert find_count(helper.make_node("Conv", [], [], domain="acme")) is None


def format_table() -> str:
    rows = ["| operators | operations |", "|---|---|"]
    for title, table in (("", STANDARD), ("com.microsoft.", CONTRIB)):
        for row in table:
            names = ", ".join(name.removeprefix(title) for name in row.operators)
            rows.append(f"| {title and '`com.microsoft`: '}{names} | {row.text} |")
    return "\n".join(rows)


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = re.search(r"^\| operators \| operations \|\n(?:\|.*\n)+", page, re.MULTILINE)
    assert shown is not None
    if request.config.getoption("--regenerate"):
        PAGE.write_text(page.replace(shown[0], format_table() + "\n"), encoding="utf-8")
        return
    assert shown[0].rstrip() == format_table()


@dataclass(frozen=True)
class PlugIn:
    """A cost model that is not ours."""

    answer: object = "link"
    name: str = "mine"

    def execution(self, task: Task) -> Price | Unknown:
        return Price(1.0)

    def transfer(self, size: int, converted: int = 0) -> Price:
        return Price(float(size))

    def launching(self) -> Price:
        return Price(0.0)

    def occupies(self) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_plug_in_may_say_it_too() -> None:
    assert ask_link_occupancy(PlugIn()) is Occupancy.link  # type: ignore[arg-type]
    assert ask_link_occupancy(with_link(PlugIn(), 2.0)) is Occupancy.link  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"^cost model mine: occupies gave '7', not one of nothing, link"
    ):
        ask_link_occupancy(PlugIn(7))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^cost model mine: occupies failed with OSError: gone"):
        ask_link_occupancy(PlugIn(OSError("gone")))  # type: ignore[arg-type]
