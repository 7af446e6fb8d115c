"""Faults that realistic values do not show, under contracts that excuse others; right machines pass."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import vendors
from helpers.failing import rules
from helpers.support import parse

import byoc
from byoc.codegen import Artifact, Executor, Region
from byoc.verification import Verification, make_reference_executor, verify_against

Fault = Callable[[list[Any]], Any]
INT = np.iinfo(np.int32)
ONE = "(float[3, 5] x) => (float[3, 5] y) { y = %s(x) }"
TWO = "(%s[4, 6] x, %s[4, 6] z) => (%s[4, 6] y) { y = %s(x, z) }"
TOPK = """(float[4, 9] x) => (float[4, 2] v, int64[4, 2] i) <int64[1] k = {2}> { v, i = TopK(x, k) }"""


def two(dtype: str, op: str, made: str = "") -> str:
    return TWO % (dtype, dtype, made or dtype, op)


def naive_sigmoid(read: list[Any]) -> Any:
    with np.errstate(all="ignore"):
        raised = np.exp(read[0])
        return raised / (1 + raised)


def naive_softmax(read: list[Any]) -> Any:
    with np.errstate(all="ignore"):
        raised = np.exp(read[0])
        return raised / raised.sum(-1, keepdims=True)


def saturate_by_one(read: list[Any]) -> Any:
    one, other = (each.astype(np.int64) for each in read)
    small = np.minimum(abs(one), abs(other)) < 2
    total = one + other
    kept = np.where(small, np.clip(total, INT.min, INT.max), total)
    return kept.astype(np.int32, casting="unsafe")


def flush(value: Any) -> Any:
    return np.where(abs(value) < np.finfo(np.float32).tiny, 0, value)


def lose_all_beside_nan(read: list[Any]) -> Any:
    made = read[0] + read[1]
    return np.where(np.isnan(made), made, 0) if np.isnan(made).any() else made


# The model, its operator, what it computes, and a clause that excuses something else.
FAULTS: dict[str, tuple[str, str, Fault, str]] = {
    "NaN of 0": (ONE % "Relu", "Relu", lambda r: np.where(r[0] == 0, np.nan, np.maximum(r[0], 0)), ""),
    "infinity above 10": (
        ONE % "Relu", "Relu", lambda r: np.where(r[0] > 10, np.inf, np.maximum(r[0], 0)), "",
    ),
    "NaN beyond 89": (ONE % "Sigmoid", "Sigmoid", naive_sigmoid, ""),
    "NaN beyond 89 in a sum": (ONE % "Softmax", "Softmax", naive_softmax, ""),
    "an end": (
        two("int8", "Max"), "Max",
        lambda r: np.where(np.maximum(*r) == 127, 126, np.maximum(*r)).astype(np.int8),
        "{overflow: saturates}",
    ),
    "an end below a bound": (
        two("int8", "Max"), "Max",
        lambda r: np.where(np.maximum(*r) == 127, 126, np.maximum(*r)).astype(np.int8),
        "{exact_below: 16777216}",
    ),
    "negative sums": (
        two("int32", "Add"), "Add", lambda r: np.maximum(r[0] + r[1], 0), "{exact_below: 16777216}",
    ),
    "one beyond the end": (two("int32", "Add"), "Add", saturate_by_one, ""),
    "denormals beside 0": (
        two("float", "Greater", "bool"), "Greater", lambda r: flush(r[0]) > flush(r[1]), "",
    ),
    "what is beside NaN": (two("float", "Add"), "Add", lose_all_beside_nan, "{op: Add, nan: any}"),
    "large keys": (TOPK, "TopK", lambda r: None, "{op: TopK, equal_keys: any}"),
}  # fmt: skip


def select(read: list[Any], wrong: bool) -> list[Any]:
    """Select the two largest, of equal ones the last, with wrong positions where they are large."""
    keys = read[0]
    order = np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :2]
    order = keys.shape[1] - 1 - order
    found = np.take_along_axis(keys, order, 1)
    return [found, np.where(wrong & (found > 1e4), 0, order)]


def make_codegen(op: str, compute: Fault, wrong: bool) -> type:
    """Return a codegen class for regions of one node, which computes them as ONNX says or by a fault."""

    class Odd:
        name = "odd"

        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            return Artifact({"made.txt": b""})

        def load(self, region: Region, artifact: Artifact) -> Executor:
            plain = make_reference_executor(region)
            names = [each.name for each in region.outputs]

            def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
                read = [np.asarray(inputs[each.name]) for each in region.inputs]
                if op == "TopK":
                    return dict(zip(names, select(read, wrong), strict=True))
                made = plain(inputs)
                if not wrong:
                    return made
                with np.errstate(all="ignore"):
                    return {names[0]: np.asarray(compute(read)).astype(made[names[0]].dtype)}

            return run

    return Odd


def verify(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: bool) -> Verification:
    text, op, compute, clause = FAULTS[case]
    vendors.install(monkeypatch, odd=make_codegen(op, compute, wrong))
    given = rules(folder, "npu", op, more=f"arithmetic: [{clause}]\n")
    byoc.partition(
        parse(f"g {text}", opset=20),
        given,
        output=folder / "b",
        strategy="all-supported",
        codegen="odd",
        values="assumed",
        verify=False,
    )
    return verify_against(folder / "b", regions=True)


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_found_whatever_a_clause_excuses(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not verify(case, tmp_path, monkeypatch, wrong=True).passed


@pytest.mark.parametrize("case", FAULTS)
def test_a_right_machine_passes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verify(case, tmp_path, monkeypatch, wrong=False)

    assert found.passed
    assert [note for note in found.notes if "special" not in note] == []


def test_a_whole_model_is_excused_as_its_regions_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a node on the host the outputs are run on special values as well."""

    def add_in_float32(read: list[Any]) -> Any:
        one, other = (each.astype(np.float32) for each in read)
        return (one + other).astype(np.int64).astype(np.int32)

    vendors.install(monkeypatch, odd=make_codegen("Add", add_in_float32, wrong=True))
    text = "(int32[4, 6] x, int32[4, 6] z) => (int32[4, 6] y) { a = Add(x, z) y = Abs(a) }"
    byoc.partition(
        parse(f"g {text}", opset=20),
        rules(tmp_path, "npu", "Add", more="arithmetic: [{exact_below: 16777216}]\n"),
        output=tmp_path / "b",
        strategy="all-supported",
        codegen="odd",
        values="assumed",
        verify=False,
    )

    found = verify_against(tmp_path / "b", regions=True)

    assert found.passed
    assert any("exact_below" in note for note in found.notes)
