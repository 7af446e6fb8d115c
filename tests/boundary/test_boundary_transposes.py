"""Transposes on the host: as few bytes as can be, and the numbers that there were before."""

import numpy as np
import onnx
import pytest
from byoc.runtime.onnxrt import open_session, run_session, unoptimized
from hypothesis import HealthCheck, assume, given, settings
from transposed_graphs import (
    KINDS,
    SHAPE,
    arranged,
    host_graphs,
    inverse_pairs,
    least,
    transposed_elements,
    transposes,
)

_SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)


def _inputs(seed=0):
    draw = np.random.default_rng(seed)
    return {name: draw.integers(-8, 8, SHAPE).astype(np.float32) for name in ("x0", "x1")}


def _outputs(model):
    with unoptimized():
        return run_session(open_session(model), _inputs())


def _same(model, changed):
    onnx.checker.check_model(changed, full_check=True)
    expected, given_out = _outputs(model), _outputs(changed)
    for name, value in expected.items():
        np.testing.assert_array_equal(given_out[name], value, err_msg=name)


@_SLOW
@given(host_graphs((*KINDS, "user")))
def test_the_numbers_are_the_same_and_no_inverse_pair_is_left(model):
    changed = arranged(model)
    _same(model, changed)
    assert not inverse_pairs(changed)
    assert transposed_elements(changed) <= transposed_elements(arranged(model, remove=False))


@_SLOW
@given(host_graphs(most=8))
def test_no_choice_of_forms_transposes_fewer_bytes(model):
    before = arranged(model, remove=False)
    assume(sum(n.domain == "" and n.op_type != "Transpose" for n in before.graph.node) <= 10)
    assert transposed_elements(arranged(model)) == least(before)
