"""A sample of ONNX's own tests, cut in every way; `run.py` beside this file runs all of them."""

import re

import numpy as np
import pytest
from differing import differs
from helpers.support import sample_cases
from partitioned import WAYS, check
from suite import NEWEST_OPSET, Case, collect

from byoc.onnxrt import has_runtime

pytestmark = pytest.mark.skipif(not has_runtime(), reason="onnxruntime is not installed")

_EVERY = 12
# What models seldom hold: no tensors, no elements, no values, bodies, packed or foreign element types.
_AWKWARD = re.compile(
    r"test_(sequence|optional|identity_opt|identity_sequence|split_to_sequence|loop|if|scan"
    r"|string|regex|strnorm|tfidf|equal_string|cast_\w*(FLOAT8|BFLOAT16|INT4|INT2|FLOAT4|STRING)"
    r"|castlike_\w*(FLOAT8|BFLOAT16|INT4|INT2|FLOAT4|STRING)\w*_expanded|(de)?quantize|dynamicquantize"
    r"|qlinear|\w+_empty|\w+_zero_dim|\w+_scalar|mvn|training_dropout_zero|ai_onnx_ml|adam|momentum"
    r"|resize_upsample_sizes_nearest|sce_NCd1_mean|bitcast)"
)
_SOME = collect(costly=False)
_CASES = [
    case
    for number, case in enumerate(_SOME)
    if number % _EVERY == 0 or _AWKWARD.match(case.name) or case.kind == "simple"
]


@pytest.mark.parametrize("case", sample_cases(_CASES, every=8), ids=lambda case: case.name)
def test_cut_case_gives_what_the_suite_expects(case: Case) -> None:
    outcome = check(case)

    if outcome.unfit:
        pytest.skip(f"plain onnxruntime does not give it either: {outcome.unfit}")
    assert outcome.failures == {}
    assert outcome.whole == {}
    assert list(outcome.regions) == list(WAYS)


@pytest.mark.thorough
def test_cut_cases_that_take_long_to_make_give_what_the_suite_expects() -> None:
    outcomes = [check(case) for case in collect() if case not in _SOME]

    wrong = {outcome.case: outcome for outcome in outcomes if outcome.failures or outcome.whole}
    assert wrong == {}
    assert sum(not outcome.unfit for outcome in outcomes) > 40


@pytest.mark.parametrize("name", ["test_loop11", "test_lstm_defaults", "test_attention_4d_expanded"])
def test_regions_are_formed(name: str) -> None:
    case = next(case for case in _SOME if case.name == name)

    assert all(check(case).regions[way] for way in ("all-supported", "alternating"))


def test_cases_have_an_order_and_names_of_their_own() -> None:
    cases = collect(costly=False)

    assert [case.kind for case in cases] == sorted((case.kind for case in cases), key="node".__ne__)
    for kind in {case.kind for case in cases}:
        names = [case.name for case in cases if case.kind == kind]
        assert names == sorted(set(names))
    lowered = [case for case in cases if case.lowered]
    assert lowered
    assert {entry.version for case in lowered for entry in case.model.opset_import} == {NEWEST_OPSET}


def test_differences_are_seen() -> None:
    one, other = np.array([1.0, np.nan], np.float32), np.array([1.1, np.nan], np.float32)

    assert differs([one], [one], 1e-3, 1e-7) == ""
    assert differs(one, other, 1e-3, 1e-7) == "is off at 1 of 2 places"
    assert differs(one, one.astype(np.float64), 1e-3, 1e-7) == "is float64, not float32"
    assert differs(one, one[None], 1e-3, 1e-7) == "has shape [1, 2], not [2]"
    assert differs([one], [], 1e-3, 1e-7) == "has 0 elements, not 1"
    assert differs(None, one, 1e-3, 1e-7) == "is ndarray, not NoneType"
    assert differs(np.array(["a"]), np.array(["b"], object), 1e-3, 1e-7) == "is other text"
