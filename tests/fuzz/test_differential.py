"""Random models with bodies, functions and odd types compute in regions what they compute whole."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "onnx_suite"))

from differential import ONNXRUNTIME, REFERENCE, _compare_outputs, compare, make_case
from support import sample_cases

GRAPHS = range(500)
ORDINARY = range(0, 500, 25)


@pytest.mark.parametrize("number", sample_cases(GRAPHS, *ORDINARY))
def test_regions_compute_the_same_bits(number: int) -> None:
    found = compare(11, number)
    assert not found.wrong
    assert found.judge in (ONNXRUNTIME, REFERENCE)


def test_a_graph_is_the_same_each_time() -> None:
    first, second = make_case(3, 4), make_case(3, 4)
    assert first.model == second.model
    assert first.model != make_case(3, 5).model


def test_a_wrong_bit_is_seen() -> None:
    case = make_case(1, 0)
    value = {"y": np.array([1.0, 2.0], np.float32)}
    assert not _compare_outputs(case.model, value, {"y": value["y"].copy()})
    assert _compare_outputs(case.model, value, {"y": np.nextafter(value["y"], np.float32(9))})
    assert _compare_outputs(case.model, value, {"z": value["y"]})
