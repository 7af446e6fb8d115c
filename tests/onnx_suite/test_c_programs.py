"""ONNX's node tests as programs in C: none is wrong, and none does not compile."""

import shutil
from pathlib import Path

import pytest
from c_programs import BROKEN, RIGHT, WRONG, try_case
from suite import Case, collect

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

SAMPLE = (
    *("test_add_uint8", "test_bitshift_right_uint16", "test_lstm_with_peepholes", "test_tril_neg"),
    *("test_matmulinteger", "test_top_k_negative_axis", "test_qlinearconv", "test_if"),
    *("test_cast_FLOAT16_to_FLOAT4E2M1", "test_gru_bidirectional", "test_scan_sum", "test_swiglu"),
)


def take_nodes(names: tuple[str, ...] = ()) -> list[Case]:
    """Return the node cases with some names, or all."""
    cases = [case for case in collect(costly=not names) if case.kind == "node"]
    return [case for case in cases if not names or case.name in names]


def test_programs_of_single_operators_are_right(tmp_path: Path) -> None:
    cases = take_nodes(SAMPLE)
    assert len(cases) == len(SAMPLE)
    for case in cases:
        (tmp_path / case.name).mkdir()
        found = try_case(case, tmp_path / case.name)
        assert found.kind == RIGHT, f"{case.name}: {found.kind}: {found.reason}"


@pytest.mark.thorough
def test_no_program_of_a_single_operator_is_wrong(tmp_path: Path) -> None:
    found = []
    for case in take_nodes():
        (tmp_path / case.name).mkdir()
        found.append(try_case(case, tmp_path / case.name))
        shutil.rmtree(tmp_path / case.name)
    assert [each for each in found if each.kind in (WRONG, BROKEN)] == []
