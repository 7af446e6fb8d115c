"""Bundles with nodes in parts: verified, planned again when refused, whole where they fail."""

from pathlib import Path
from typing import Any

import pytest
from helpers.cutting import ramp, same_as_original
from helpers.failing import on_devices, rules
from helpers.faulty import faulty  # noqa: F401 - a fixture
from helpers.support import parse

from byoc.errors import InputError
from byoc.pipeline import Result, Verify, partition
from byoc.planning import find_parts

BLOCK = """
block (float[1, 4] x) => (float[1, 4] y) {
    a = Add(x, x)
    [act] b = Gelu(a)
    [last] y = Add(b, x)
}
"""
TAKEN = ("Add", "Mul", "Div", "Sqrt", "Erf")


@pytest.fixture
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return rules(tmp_path_factory.mktemp("rules"), "npu", *TAKEN)


def emit(rule_file: str, output: Path, **options: Any) -> Result:
    """Write a bundle of the block, and assert that it computes what the block does."""
    model = parse(BLOCK, opset=20)
    result = partition(model, rule_file, output=output, strategy="all-supported", **options)
    assert result.verification is not None
    assert result.verification.passed
    same_as_original(model, output, {"x": ramp(1, 4)})
    return result


def test_a_bundle_with_parts_is_verified(rule_file: str, tmp_path: Path) -> None:
    result = emit(rule_file, tmp_path / "b")
    assert {*on_devices(result).values()} == {"npu"}
    assert [*find_parts(result.plan.root)] == ["act"]
    assert len(result.report.regions) == 1


@pytest.mark.usefixtures("faulty")
def test_a_part_that_is_refused_goes_back(rule_file: str, tmp_path: Path) -> None:
    """The whole is asked about again: here what is left of it does not pay, and it stays whole."""
    options = {"fault": "names", "op": "Erf"}
    result = emit(rule_file, tmp_path / "b", codegen="faulty", codegen_options=options)

    (refusal,) = result.report.refusals
    assert refusal.nodes == ("act/Erf",)
    on = on_devices(result)
    assert on["a"] == on["y"] == "npu"
    assert set(find_parts(result.plan.root)) <= {"act"}


@pytest.mark.usefixtures("faulty")
def test_what_the_codegen_refuses_whole_is_tried_in_parts(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    file = rules(folder, "npu", *TAKEN, "Gelu")
    options = {"fault": "names", "op": "Gelu"}
    result = emit(file, tmp_path / "b", codegen="faulty", codegen_options=options)

    (refusal,) = result.report.refusals
    assert refusal.nodes == ("act",)
    assert [*find_parts(result.plan.root)] == ["act"]
    assert {*on_devices(result).values()} == {"npu"}


def test_nodes_stay_whole_where_a_bundle_with_parts_fails(
    rule_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = Verify.run

    def fail(self: Verify, state: Any) -> Any:
        if state.findings.whole is not None:
            raise InputError("verification failed: y is off")
        return verify(self, state)

    monkeypatch.setattr(Verify, "run", fail)
    result = emit(rule_file, tmp_path / "b")

    assert on_devices(result) == {"a": "npu", "b": "host", "y": "npu"}
    assert (
        "nodes stay whole, since the bundle with some in parts failed: verification failed: y is off"
        in [str(note) for note in result.plan.root.notes]
    )
    with pytest.raises(InputError, match="y is off"):
        emit(rule_file, tmp_path / "c", strict=True)
