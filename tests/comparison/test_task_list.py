"""The list of tasks: exactly what cost models are asked for, and the way back as a table."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.support import VANILLA, Ran, parse

import byoc as library
from byoc.comparison import TASK_KEYS, TaskRow

TEXT = """g (float[1,8,9,9] x, bool c) => (float[1,8,9,9] y) <float[8,8,3,3] w = {}> {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Relu (a)
    d = Conv <pads = [1, 1, 1, 1]> (b, w)
    e = Relu (d)
    f = Sigmoid (e)
    g = Sigmoid (f)
    y = Identity (g)
}"""


def _model() -> Any:
    weights = ", ".join(["0.01"] * (8 * 8 * 9))
    return parse(TEXT.replace("{}", "{" + weights + "}"))


def _list(**options: Any) -> list[TaskRow]:
    return list(library.list_tasks(_model(), rules="dla", **options))


def _price(row: TaskRow) -> float:
    return 1e-6 + row.task.work.operations * 1e-12 + row.task.work.bytes * 1e-10


def _write_table(path: Path, name: str, rows: list[TaskRow]) -> str:
    entries = [
        {
            "op": row.task.op,
            "types": row.task.types,
            "attributes": dict(row.task.attributes),
            "seconds": _price(row),
        }
        for row in rows
        if row.device == name
    ]
    table: dict[str, Any] = {"kind": "table", "name": name, "entries": entries}
    if name != "host":
        table["link"] = {"bandwidth": 1e12}
    path.write_text(json.dumps(table), encoding="utf-8")
    return str(path)


def test_equal_units_are_one_task_and_composites_are_whole() -> None:
    found = {(row.device, row.task.op): (row.count, row.runs) for row in _list()}
    assert found[("dla", "conv_relu")] == (2, 2.0)
    assert found[("host", "Conv")] == found[("host", "Relu")] == found[("host", "Sigmoid")] == (2, 2.0)
    assert not [row for row in _list() if row.task.op == "Identity"]


def test_prices_of_another_tool_come_back_as_a_table(tmp_path: Path) -> None:
    rows = _list()
    host = _write_table(tmp_path / "host.yaml", "host", rows)
    device = _write_table(tmp_path / "dla.yaml", "dla", rows)
    options: dict[str, Any] = {"cost_model": device, "host_cost_model": host, "unknown_costs": "refuse"}
    alone = library.partition(_model(), "dla", strategy="host-only", **options)
    assert alone.plan.root.cost.total == pytest.approx(
        sum(row.count * _price(row) for row in rows if row.device == "host"), rel=1e-12
    )
    whole = library.partition(_model(), "dla", strategy="all-supported", **options)
    (region,) = whole.plan.regions
    (unit,) = (row for row in rows if row.task.op == "conv_relu")
    on_device = sum(row.count * _price(row) for row in rows if row.device == "dla")
    assert unit.count == 2
    assert region.seconds == pytest.approx(on_device, rel=1e-12)


def test_what_no_rule_takes_is_the_hosts_alone() -> None:
    rows = library.list_tasks(_model(), rules=VANILLA)
    devices = {row.device for row in rows if row.task.op == "Sigmoid"}
    assert devices == {"host"}


def test_the_cost_model_need_not_be_there_yet(tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text("target: mine\ndtype: float32\ncost_model: priced\nops: [{op: Conv}]\n")
    rows = library.list_tasks(_model(), rules=rules)
    assert {row.task.op for row in rows if row.device == "mine"} == {"Conv"}


def test_bodies_count_with_their_trips() -> None:
    text = """g (float[4] x) => (float[4] y) <int64 n = {5}, bool c = {1}> {
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[4] s) => (bool k2, float[4] t) {
            k2 = Identity (k)
            r = Relu (s)
            t = Relu (r)
        }>
    }"""
    rows = library.list_tasks(parse(text), rules="dla")
    on_host = {row.task.op: (row.count, row.runs) for row in rows if row.device == "host"}
    assert on_host["Relu"] == (2, 10.0)


def test_json_and_csv_have_the_same_rows(tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_model().SerializeToString())
    rows = json.loads(byoc("tasks", path, "--rules", "dla", "--format", "json").out)
    assert [tuple(row) for row in rows] == [TASK_KEYS] * len(rows)
    assert rows == [row.to_json() for row in _list()]
    text = byoc("tasks", path, "--rules", "dla", "--format", "csv").out
    read = [
        {
            **cell,
            **{key: json.loads(cell[key]) for key in ("attributes", "nodes")},
            **{key: float(cell[key]) for key in ("operations", "bytes", "count", "runs")},
        }
        for cell in csv.DictReader(io.StringIO(text))
    ]
    assert read == rows
