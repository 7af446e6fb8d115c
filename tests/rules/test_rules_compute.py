"""Targets for which the float32 tensors of a model are float16: what rules then see and say."""

from dataclasses import replace

import pytest
from helpers.ruling import filled, rules, target

from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.rules import Target, annotate_graph, require_dtype

CONV = """
g (float[1,4,9,9] x) => (float[1,4,7,5] y) <float[4,4,3,5] w> { y = Conv(x, w) }
"""
RESIZE = """
g (float[1,1,3,3] x) => (float[1,1,6,6] y) <float[4] s> { y = Resize(x, , s) }
"""


def said(text: str, there: Target, dtype: str = "float16", **options: int) -> str:
    """Return what is said first of the last node where float32 is taken for a type."""
    index = prepare_model(filled(text, **options), "test").index
    verdict = annotate_graph(index, replace(there, compute_dtype=dtype or None))[-1].verdict
    return "yes" if verdict else verdict.reasons[0]


def test_float32_is_taken_for_the_type_that_regions_compute_in() -> None:
    assert said(CONV, rules("[{op: Conv}]", "float16")) == "yes"
    assert said(CONV, rules("[{op: Conv}]", "any")) == "yes"
    assert said(CONV, rules("[{op: Conv}]", "float32")) == "Conv: X is float16; supported: float32"


def test_one_rule_may_list_what_the_file_does_not() -> None:
    there = rules("[{op: Conv, dtype: [float32, float16]}, {op: Relu}]", "float32")
    assert said(CONV, there) == "yes"
    relu = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
    assert said(relu, there) == "Relu: X is float16; supported: float32"


def test_without_it_float32_stays_float32() -> None:
    assert said(CONV, rules("[{op: Conv}]", "float16"), "") == "Conv: X is float32; supported: float16"


def test_what_an_operator_has_in_float32_alone_is_not_float16() -> None:
    there = rules("[{op: Resize, tensors: {scales: {dtype: float32}}}]", "float16")
    assert said(RESIZE, there) == "yes"
    assert said(RESIZE, rules("[{op: Resize}]", "float16")) == "yes"


def test_an_operator_that_cannot_compute_in_it_is_refused() -> None:
    there = rules("[{op: Conv}]", "bfloat16")
    assert said(CONV, there, "bfloat16") == "Conv: X cannot be bfloat16 in operator set 17"
    assert said(CONV, there, "bfloat16", ir=10, opset=22) == "yes"


def test_bytes_are_those_of_the_type() -> None:
    assert said(CONV, rules("[{op: Conv, tensors: {X: {bytes: {max: 648}}}}]", "float16")) == "yes"
    there = rules("[{op: Conv, tensors: {X: {bytes: {max: 647}}}}]", "float16")
    assert said(CONV, there) == "Conv: the size of X in bytes is 648, at most 647 is supported"


@pytest.mark.parametrize(("condition", "says"), [("float16", "yes"), ("float32", "Conv: ")])
def test_conditions_see_it_too(condition: str, says: str) -> None:
    there = rules(f"""[{{op: Conv, where: "X.dtype == '{condition}' && X.bytes == 648"}}]""", "float16")
    assert said(CONV, there).startswith(says)


def test_an_operator_of_another_domain_is_what_its_rule_says() -> None:
    model = filled("g (float[2] x) => (float[2] y) { y = acme.Odd (x) }")
    model.opset_import.add(domain="acme", version=1)
    index = prepare_model(model, "test").index
    there = replace(rules("[{op: acme.Odd}]", "float16"), compute_dtype="float16")
    assert str(annotate_graph(index, there)[-1].verdict) == "yes"


def test_a_target_without_rules_for_the_type_is_refused() -> None:
    there = target("ops: [{op: Conv}, {op: Relu, dtype: int8}]")
    with pytest.raises(
        InputError, match=r"^test: dtype: no rule is for float16; there are float32, int8$"
    ):
        require_dtype(there, "float16")
    require_dtype(there, "float32")
    require_dtype(rules("[{op: Conv, dtype: float16}]"), "float16")
    require_dtype(rules("[{op: Conv}]", "any"), "bfloat16")
