"""The report as data: its keys, its numbers, and nothing that JSON cannot say."""

import json
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import pytest
from cutting import CHAIN, HOST_ONLY, cut
from support import parse

from byoc import partition
from byoc.report.document import verification_document
from byoc.verify.compare import OutputError, Verification

KEYS = [
    "model",
    "targets",
    "strategy",
    "nodes",
    "compute",
    "predicted",
    "regions",
    "host_reasons",
    "what_if",
    "notes",
    "verification",
    "not_verified",
    "bundle",
]


def _numbers(document: Any) -> list[float]:
    if isinstance(document, dict):
        return [n for value in document.values() for n in _numbers(value)]
    if isinstance(document, list):
        return [n for value in document for n in _numbers(value)]
    return [document] if isinstance(document, float) else []


@pytest.mark.parametrize("strategy", ["min-cut", "all-supported", "host-only", "exhaustive"])
@pytest.mark.parametrize("text", [CHAIN, HOST_ONLY, "g (float[2] x) => (float[2] x) { }"])
def test_keys_and_finite_numbers(text: str, strategy: str) -> None:
    report = partition(parse(text), "dla", strategy=strategy).report
    assert list(report) == KEYS
    assert all(map(isfinite, _numbers(report)))
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_numbers_of_a_small_model(tmp_path: Path) -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y, float[2] k) <float[2] k = {1, 2}> {
        c = Relu(k)
        a = Relu(x)
        b = Sigmoid(a)
        y = Relu(b)
    }"""
    report = cut(parse(text), tmp_path / "b", dims={"N": 3}).report
    assert (report["model"], report["targets"], report["strategy"]) == ("g", ["dla"], "all-supported")
    assert report["nodes"] == {"total": 3, "offloaded": 2, "host": 1, "constant": 1}
    # One operation for each of 12 elements: Relu, Relu on the accelerator; Sigmoid on the host.
    assert report["compute"]["offloaded"] == pytest.approx(24 / report["compute"]["operations"])
    assert [region["name"] for region in report["regions"]] == ["dla_0", "dla_1"]
    first = report["regions"][0]
    assert (first["device"], first["nodes"], first["composites"]) == ("dla", 1, {})
    assert first["inputs"] == [{"name": "x", "dtype": "float32", "shape": [3, 4], "bytes": 48}]
    assert first["outputs"] == [{"name": "a", "dtype": "float32", "shape": [3, 4], "bytes": 48}]
    assert report["host_reasons"] == [
        {"reason": "Sigmoid is not among the operators of dla", "nodes": 1}
    ]
    assert report["verification"]["passed"] is True
    assert report["not_verified"] is None
    assert report["bundle"] == str(tmp_path / "b")


def test_the_predicted_parts_sum_to_the_whole() -> None:
    predicted = cut(parse(CHAIN)).report["predicted"]
    parts = predicted["execution"] + predicted["transfer"] + predicted["launch"]
    assert predicted["seconds"] == pytest.approx(parts)
    # dla.yaml: two launches of 50 µs, four transfers of 5 µs and 16 bytes at 2 GB/s
    assert predicted["launch"] == pytest.approx(100e-6)
    assert predicted["transfer"] == pytest.approx(4 * (5e-6 + 16 / 2e9))


def test_an_open_dimension_has_no_bytes() -> None:
    report = cut(parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")).report
    assert report["regions"][0]["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["N", 4], "bytes": None}
    ]


def test_the_host_reasons_are_sorted_by_nodes_then_text() -> None:
    text = """g (float[1, 4] x) => (float[1, 4] y) {
        a = Sigmoid(x) b = Tanh(a) c = Sigmoid(b) d = Exp(c) y = Sub(d, d)
    }"""
    reasons = cut(parse(text)).report["host_reasons"]
    assert [(item["reason"].split()[0], item["nodes"]) for item in reasons] == [
        ("Sigmoid", 2),
        ("Exp", 1),
        ("Sub", 1),
        ("Tanh", 1),
    ]


def test_what_is_cheaper_on_the_host_says_so() -> None:
    report = partition(parse(CHAIN), "dla").report
    reasons = {item["reason"]: item["nodes"] for item in report["host_reasons"]}
    assert reasons == {
        "Sigmoid is not among the operators of dla": 1,
        "supported, but the host is cheaper once moving the data is counted": 2,
    }


def test_notes_say_what_is_not_exact() -> None:
    notes = cut(parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")).report["notes"]
    assert "the placement is predicted to be slower than the host alone" in notes
    assert "the cost of 1 unit is an estimate: an operator or a shape is not known exactly" in notes


@pytest.mark.parametrize(
    ("errors", "largest", "passed"),
    [
        ([], 0.0, True),
        ([0.0], 0.0, True),
        ([1e-6, 5e-5], 5e-5, True),
        ([1e-6, 0.5], 0.5, False),
        ([1e-6, inf], None, False),
        ([nan], None, False),
    ],
)
def test_an_error_that_is_not_finite_is_null(
    errors: list[float], largest: float | None, passed: bool
) -> None:
    outputs = tuple(OutputError(f"o{i}", "float32", e, e, 1e-4) for i, e in enumerate(errors))
    made = verification_document(Verification("m", outputs))
    assert (made["against"], made["largest_relative_error"], made["passed"]) == ("m", largest, passed)
    assert [o["relative"] for o in made["outputs"]] == [e if isfinite(e) else None for e in errors]
    assert all(
        list(o) == ["name", "dtype", "absolute", "relative", "tolerance", "problem", "within"]
        for o in made["outputs"]
    )
    json.dumps(made, allow_nan=False)
