"""The function bodies of operators: all of ONNX's, at each operator set, compute the same."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse, prepared
from onnx import defs
from onnx.reference import ReferenceEvaluator

from byoc.errors import InputError
from byoc.model import has_function_body, make_body_model, prepare_model

sys.path.insert(0, str(Path(__file__).parents[1] / "onnx_suite"))

from suite import Case, collect

# What its reference implementation runs wrong (a Loop that scans scalars), or compares no values of.
_NOT_COMPARED = {"Range", "SequenceMap"}
# Random, or with a body that is wrong.
_WITHOUT = {"Bernoulli", "AffineGrid"}


def list_defined() -> dict[str, list[int]]:
    """Return ONNX's operators that have a function body, with the versions that have one."""
    found: dict[str, list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        each: Any = schema
        if each.has_function or each.has_context_dependent_function:
            found.setdefault(schema.name, []).append(schema.since_version)
    return found


DEFINED = list_defined()


@cache
def cases_of(operator: str) -> list[Case]:
    """Return ONNX's own tests of one node of an operator."""
    return [
        case
        for case in collect(costly=False)
        if case.kind == "node" and [node.op_type for node in case.model.graph.node] == [operator]
    ]


def lower(case: Case, version: int) -> onnx.ModelProto | None:
    """Return the model of a test in another version of its operator set, None where it is none there."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    domain = model.graph.node[0].domain
    for entry in model.opset_import:
        if entry.domain == domain:
            entry.version = version
    try:
        index = prepare_model(model, "test").index
    except InputError:
        return None
    node = index.nodes[0]
    schema = index.get_schema(node)
    assert schema is not None
    formals = zip(node.input, schema.list_input_formals(len(node.input)), strict=True)
    fits = all(not each.dtypes or index.get_dtype(name) in each.dtypes for name, each in formals if name)
    return index.proto if fits else None


def assert_same(operator: str, version: int) -> int:
    """Assert that bodies of an operator compute what it does; return how many were compared."""
    compared = 0
    for case in cases_of(operator):
        model = lower(case, version)
        if model is None:
            continue
        body = make_body_model(prepare_model(model, "test").index, 0)
        assert body is not None, case.name
        assert operator not in {node.op_type for node in body.graph.node}
        prepare_model(body, "body")
        inputs = {value.name for value in body.graph.input}
        given, _ = case.data_sets[0]
        if operator in _NOT_COMPARED:
            continue
        with np.errstate(all="ignore"):  # ONNX's tests have infinities and not-a-numbers
            want = ReferenceEvaluator(model).run(None, dict(given))
            got = ReferenceEvaluator(body).run(None, {name: given[name] for name in inputs})
        for expected, found in zip(map(np.asarray, want), map(np.asarray, got), strict=True):
            assert found.dtype == expected.dtype, case.name
            coarse = expected.dtype.itemsize < 4
            np.testing.assert_allclose(
                found.astype(np.float64),
                expected.astype(np.float64),
                rtol=1e-2 if coarse else 1e-4,  # a few digits of float16; of float32 less those of exp
                atol=1e-3 if coarse else 1e-5,
                err_msg=case.name,
            )
            compared += 1
    return compared


@pytest.mark.parametrize("operator", sorted(DEFINED.keys() - _WITHOUT))
def test_a_body_computes_what_its_operator_does(operator: str) -> None:
    """At the newest operator set in which ONNX's tests can stand, and at the oldest with the body."""
    newest = {case.model.opset_import[0].version for case in cases_of(operator)}
    versions = {*newest, max(min(DEFINED[operator]), 13)}
    if cases_of(operator) and cases_of(operator)[0].model.graph.node[0].domain:
        versions = {1}

    compared = sum(assert_same(operator, version) for version in versions)

    assert compared or operator in _NOT_COMPARED


@pytest.mark.thorough
@pytest.mark.parametrize("version", range(9, 27))  # Where, which many bodies have, is of 9
@pytest.mark.parametrize("operator", sorted(DEFINED.keys() - _WITHOUT - {"FlexAttention"}))
def test_a_body_computes_the_same_in_every_operator_set(operator: str, version: int) -> None:
    if any(first <= version for first in DEFINED[operator]):
        assert_same(operator, version)


def test_what_is_random_has_no_body() -> None:
    index = prepared("g (float[4] x) => (float[4] y) { y = Bernoulli(x) }").index
    assert not has_function_body(index, index.nodes[0])


def test_a_body_that_means_other_operators_is_none() -> None:
    """Operator set 8 has no Where that the body of Elu needs."""
    index = prepared("g (float[4] x) => (float[4] y) { y = Elu(x) }", opset=8).index
    assert has_function_body(index, index.nodes[0])
    assert make_body_model(index, 0) is None


def test_attributes_and_absent_inputs_of_a_call() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17, "own" : 1]>
    g (float[4] x, bool c) => (float[4] y) { [here] y = own.scale <by = 3.0> (x, , c) }
    <opset_import: ["" : 17], domain: "own">
    scale <by: float, alpha: float = 0.5> (a, absent, go) => (b, unread) {
        f = Constant <value_float: float = @by> ()
        s = If <then_branch = t () => (r) { r = Elu <alpha: float = @alpha> (a) },
                else_branch = e () => (r) { r = Mul(a, f) }> (go)
        low = Constant <value_float = -100.0> ()
        b = Clip(s, low, absent)
        unread = Neg(b)
    }
    """
    model = onnx.parser.parse_model(text)
    body = make_body_model(prepare_model(model, "own").index, 0)

    assert body is not None
    assert "Neg" not in {node.op_type for node in body.graph.node}
    for go in (True, False):
        given = {"x": np.array([-2, -1, 0, 2], np.float32), "c": np.array(go)}
        want = np.where(given["x"] < 0, 0.5 * np.expm1(given["x"]), given["x"])
        (got,) = ReferenceEvaluator(body).run(None, given)
        np.testing.assert_allclose(got, want if go else 3 * given["x"], rtol=1e-6)


def test_a_function_that_gives_back_an_input() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[4] x) => (float[4] y, float[4] z) { y, z = own.both(x) }
    <opset_import: ["" : 17], domain: "own">
    both (a) => (a, b) { b = Neg(a) }
    """
    body = make_body_model(prepare_model(onnx.parser.parse_model(text), "own").index, 0)
    assert body is not None
    y, z = ReferenceEvaluator(body).run(None, {"x": np.ones(4, np.float32)})
    np.testing.assert_array_equal(y, -z)


def test_a_primitive_has_no_body() -> None:
    index = prepare_model(parse("g (float[4] x) => (float[4] y) { y = Neg(x) }"), "test").index
    assert not has_function_body(index, index.nodes[0])
    assert make_body_model(index, 0) is None
