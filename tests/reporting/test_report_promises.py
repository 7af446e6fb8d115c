"""What accelerators promise of values, in reports, pages, explanations and manifests alike."""

import base64
import gzip
import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from helpers.support import parse
from rich.console import Console

from byoc.bundle import Report, open_bundle
from byoc.pipeline import partition
from byoc.reporting import explain, make_explanation_document, print_explanation, print_report

RULES = """
target: npu
cost_model: dla
dtype: any
ops: [{op: [ArgMax, Abs, Equal, Relu, TopK]}]
arithmetic:
  - {op: [ArgMax, Relu, Exp], computes: float16}
  - {dtype: [int32, int64], exact_below: 16777216}
  - {nan: any, equal_keys: any}
  - {op: Abs, denormals: flushed, nan: kept}
"""
MODEL = """
g (int64[4] x, float[4, 8] f) => (bool[4] y, float[4, 8] r, int64[4] k, float[4, 8] h) {
  a = ArgMax <axis = 1, keepdims = 0> (f)
  k = Abs(a)
  y = Equal(x, k)
  g = Relu(f)
  r = Abs(g)
  h = Sigmoid(r)
}
"""
LINE = "npu computes in float16 (ArgMax, Relu), and does not keep NaN (ArgMax, Relu), "
LINE += "denormal floats (Abs), which of equal keys is first (ArgMax)"
CONDITION = "npu is right where 'x' stays from -16,777,216 to 16,777,216: Equal 'y'"


def cut(folder: Path, values: Any = "shown", **options: Any) -> Any:
    path = folder / "npu.yaml"
    path.write_text(RULES, encoding="utf-8")
    options = {"strategy": "all-supported", "verify": False, **options}
    return partition(parse(MODEL), path, values=values, **options)


def read_data(page: str) -> Any:
    """Return the data inside of a page."""
    found = re.search(r'id="data" type="application/octet-stream">([A-Za-z0-9+/=]*)</script>', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def read_lines(write: Callable[[Console], None]) -> list[str]:
    stream = StringIO()
    write(Console(file=stream, width=300, emoji=False))
    return stream.getvalue().splitlines()


def test_a_report_says_what_is_not_kept_for_operators_that_are_there(tmp_path: Path) -> None:
    report = cut(tmp_path).report
    assert LINE in read_lines(lambda console: print_report(report, console))
    assert Report.read(report.to_json()) == report
    promised = {(each.promise, each.value): each.operators for each in report.promises}
    assert promised["denormals", "flushed"] == ("Abs",)
    assert not any("TopK" in operators for operators in promised.values())
    assert report.conditions == ()
    (reason,) = [each for each in report.host_reasons if each.reason.startswith("Equal")]
    assert "'x' may be any int64" in reason.reason
    assert "--values assumed" in reason.remedy


def test_nothing_is_said_of_a_target_that_has_no_node(tmp_path: Path) -> None:
    report = cut(tmp_path, strategy="host-only").report
    assert report.promises == report.conditions == ()
    assert "promises" not in report.to_json()


def test_what_is_assumed_is_stated_everywhere(tmp_path: Path) -> None:
    result = cut(tmp_path, "assumed", output=tmp_path / "b")
    lines = read_lines(lambda console: print_report(result.report, console))
    assert CONDITION in lines
    assert LINE in lines
    manifest = open_bundle(tmp_path / "b").manifest
    assert manifest.asked["values"] == "assumed"
    assert manifest.variants[0].report.conditions == result.report.conditions
    assert read_data(result.make_page())["promises"] == [LINE, CONDITION]


def test_what_is_shown_is_not_recorded(tmp_path: Path) -> None:
    cut(tmp_path, output=tmp_path / "b")
    assert "values" not in open_bundle(tmp_path / "b").manifest.asked


def test_an_explanation_says_the_same(tmp_path: Path) -> None:
    cut(tmp_path)
    for values, refused in (("shown", 2), ("assumed", 1)):
        found = explain(parse(MODEL), rules=tmp_path / "npu.yaml", values=values)
        document = make_explanation_document(found)
        assert document.nodes.refused == refused
        lines = read_lines(lambda console, made=document: print_explanation(made, console))
        assert LINE in lines
        assert (CONDITION in lines) == (values == "assumed")


def test_an_explanation_tells_what_a_clause_costs(tmp_path: Path) -> None:
    cut(tmp_path)
    document = make_explanation_document(explain(parse(MODEL), rules=tmp_path / "npu.yaml"))
    gains = {row.place: row.operators for row in document.relax}
    assert gains["arithmetic[1].exact_below"] == {"Equal": 1}
