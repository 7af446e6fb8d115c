"""The table of operations has every operator of ONNX and the zoo, and docs/operations.md shows it."""

import lzma
import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from helpers.support import LIGHT
from onnx import helper

from byoc import zoo
from byoc.costs._work import BODY_OPERATORS, COUNTS, find_count
from byoc.costs._work_table import CONTRIB, STANDARD
from byoc.model import walk_graphs
from byoc.zoo import load_structure

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
