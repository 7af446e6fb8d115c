"""Models of one operator on values that reach: what a device must compute by definition.

Rows of inputs that leave what a target promises of values (its arithmetic contract) are left out: what
remains has to be right.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from exact_values import (
    EXACT,
    FLOATS,
    SUMMED,
    TYPED_BY,
    Sample,
    build_model,
    compute,
    describe,
    is_defined,
    name_inputs,
    plain_attributes,
)
from value_samples import SAMPLERS

from byoc.rules import Arithmetic

FORMS = (
    "variables",
    "all variables",
    "later constant",
    "first constant",
    "folded",
    "empty",
    "empty constant",
)
"""Which inputs of an operator are stored in the model; of `folded` another operator reads the result."""
_CONSTANTS = Arithmetic(nan="any", infinities="any", denormals="flushed", halves="any")
_ROUNDED = 8  # a sum of floats is at least such a part of what is added up, else it is mostly rounding
_HALF = 0.5

Resolve = Callable[[Iterable[tuple[str, str]]], Arithmetic]


@dataclass(frozen=True, eq=False)
class ValueCase:
    """A model around one operator, its inputs, and what it must compute."""

    name: str
    op: str
    dtype: str
    form: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    expected: dict[str, Any]


def value_cases(
    op: str, dtype: str, resolve: Resolve = lambda _: Arithmetic(), forms: Sequence[str] = FORMS
) -> Iterator[ValueCase]:
    """Yield the models of an operator on a dtype, with the values for which a contract says one result.

    `resolve` gives what is promised of an operator on several dtypes, as `ArithmeticContract.loosest`.
    """
    if not is_defined(op, dtype):
        return
    for number, sample in enumerate(SAMPLERS[op](dtype)):
        dtypes = {np.asarray(each).dtype.name for each in (*sample.inputs, *compute(op, sample))}
        promises = resolve([(op, each) for each in sorted(dtypes)])
        kept = _keep_definite(op, sample, promises)
        finite = kept and _keep_definite(op, kept, _CONSTANTS) if dtype in FLOATS else kept
        for form in forms:
            chosen = finite if form == "folded" else kept
            made = None if chosen is None else _build_case(op, dtype, form, chosen)
            if made is not None:
                yield replace(made, name=f"{op} {dtype} {number} {sample.note} {form}")


def _keep_definite(op: str, sample: Sample, promises: Arithmetic) -> Sample | None:
    """Return the rows of a sample for which the promises say one result; None where no row is left."""
    inputs = [np.asarray(each) for each in sample.inputs]
    rows = sample.rows
    if not rows:
        kind = inputs[TYPED_BY.get(op, 0)].dtype
        typed = [_make_definite(each, promises) if each.dtype == kind else each for each in inputs]
        return replace(sample, inputs=typed)
    if not all(_is_definite(inputs[place][None], promises).all() for place in sample.alike):
        return None
    inside = np.logical_and.reduce([_is_definite(inputs[place], promises) for place in rows])
    first = inputs[rows[0]]
    if op in EXACT and all(each.dtype.kind in "iu" for each in inputs):
        inside &= _stays_inside(op, sample, promises)
    elif op in SUMMED and first.dtype.name in FLOATS:
        inside &= _is_conditioned(op, sample)
    if promises.halves == "any" and op in ("QuantizeLinear", "QLinearConv", "QLinearMatMul"):
        with np.errstate(invalid="ignore"):  # infinities have no fraction
            fractions = np.mod(_find_steps(op, inputs), 1)
        inside &= (fractions != _HALF).reshape(len(first), -1).all(1)
    if promises.equal_keys == "any":
        inside &= [len(np.unique(row)) == len(row) for row in first.reshape(len(first), -1)]
    kept = sample.take(inside)
    made = compute(op, kept)
    if inside.any() and all(each.ndim and len(each) == inside.sum() for each in made):
        fine = np.logical_and.reduce([_is_definite(each, promises) for each in made])
        return kept.take(fine) if fine.any() else None
    return kept if inside.any() else None


def _find_steps(op: str, inputs: Sequence[Any]) -> Any:
    """Return what an operator rounds to whole numbers, before it adds the zero point."""
    if op == "QuantizeLinear":
        return inputs[0].astype(np.float64) / inputs[1].astype(np.float64)
    a, b, za, zb = (inputs[place].astype(np.int64) for place in (0, 3, 2, 5))
    scales = [inputs[place].astype(np.float64) for place in (1, 4, 6)]
    return EXACT["ConvInteger"](a, b, za, zb) * scales[0] * scales[1] / scales[2]


def _make_definite(values: Any, promises: Arithmetic) -> Any:
    """Return a tensor with 1 for each value that the promises do not cover."""
    definite = _is_definite(values.reshape(-1, 1), promises).reshape(values.shape)
    return np.where(definite, values, values.dtype.type(1))


def _is_definite(rows: Any, promises: Arithmetic) -> Any:
    """Return for each row of a tensor whether the promises cover its values."""
    flat = rows.reshape(len(rows), -1)
    fine = np.ones(flat.shape, bool)
    if rows.dtype.kind in "iu":
        if promises.exact_below is not None:
            fine &= (abs(flat.astype(object)) <= promises.exact_below).astype(bool)
    elif rows.dtype.name in FLOATS:
        wide = flat.astype(np.float64)
        least = {"float16": 2.0**-14, "float64": 2.0**-1022}.get(rows.dtype.name, 2.0**-126)
        fine &= ~np.isnan(wide) | (promises.nan == "kept")
        fine &= ~np.isinf(wide) | (promises.infinities == "kept")
        fine &= (wide == 0) | ~(abs(wide) < least) | (promises.denormals == "kept")
    return fine.all(1)


def _stays_inside(op: str, sample: Sample, promises: Arithmetic) -> Any:
    """Return for each row of whole numbers whether results and sums on the way stay exact."""
    given = [np.asarray(each).astype(object) for each in sample.inputs]
    found = [EXACT[op](*given, **plain_attributes(sample))]
    if op in SUMMED:
        found.append(SUMMED[op](*given, **plain_attributes(sample)))
    values = np.concatenate([np.asarray(each, object).reshape(len(each), -1) for each in found], 1)
    inside = np.ones(values.shape, bool)
    if promises.exact_below is not None:
        inside &= (abs(values) <= promises.exact_below).astype(bool)
    if promises.overflow != "wraps":
        kind = compute(op, sample)[0].dtype
        ends = np.iinfo(kind if kind.kind in "iu" else np.int64)
        inside &= ((values >= int(ends.min)) & (values <= int(ends.max))).astype(bool)
    return inside.all(1)


def _is_conditioned(op: str, sample: Sample) -> Any:
    """Return for each row whether a sum of floats hangs on neither its order nor an overflow."""
    arrays = [np.asarray(each) for each in sample.inputs]
    most = {"float16": 6e4, "float64": 1e300}.get(arrays[0].dtype.name, 1e38)
    wide = [each.astype(np.float64) if each.dtype.name in FLOATS else each for each in arrays]
    finite = [np.where(np.isfinite(each), each, 0).astype(each.dtype) for each in wide]
    with np.errstate(all="ignore"):
        way = np.asarray(SUMMED[op](*finite, **plain_attributes(sample)))
        exact = EXACT.get("ReduceSum" if op == "ReduceLogSum" else op)
        made = way if exact is None else np.asarray(exact(*wide, **plain_attributes(sample)))
        fine = (way < most) & (~np.isfinite(made) | (abs(made) >= way / _ROUNDED))
    return fine.reshape(len(fine), -1).all(1)


def _build_case(op: str, dtype: str, form: str, sample: Sample) -> ValueCase | None:
    """Return the model of a form; None where the operator has none, or another one is the same."""
    free = [place for place in range(len(sample.inputs)) if place not in sample.constant]
    if form == "empty":
        if not sample.rows or op in ("ArgMax", "ArgMin"):
            return None
        sample = sample.take(slice(0))
    elif form == "empty constant":
        if sample.alike or len(free) == 1 or any(np.ndim(each) != 1 for each in sample.inputs):
            return None
        first, *others = sample.inputs
        sample = replace(sample, inputs=[first[:0], *(each[:1] for each in others)])
    variable = {
        "all variables": list(range(len(sample.inputs))),
        "later constant": free[:1],
        "first constant": free[1:],
        "empty constant": free[1:],
        "folded": [],
    }.get(form, free)
    if (variable == free and form not in ("variables", "empty")) or not (variable or form == "folded"):
        return None
    expected = {f"y{place}": each for place, each in enumerate(compute(op, sample))}
    if form == "folded" and (any(each.ndim == 0 for each in expected.values()) or op == "Gemm"):
        return None  # byoc folds by onnx.reference, whose Gemm multiplies whole numbers in floats
    model = build_model(op, sample, variable, expected if form == "folded" else {})
    inputs = {name_inputs(sample)[place]: np.asarray(sample.inputs[place]) for place in variable}
    if form == "folded":  # a Concat reads each result, and a tensor that is the same
        inputs |= {f"z{name}": each for name, each in expected.items()}
        expected = {f"w{name}": np.concatenate((each, each)) for name, each in expected.items()}
    del model.graph.output[:]
    model.graph.output.extend(describe(name, each) for name, each in expected.items())
    return ValueCase("", op, dtype, form, model, inputs, expected)
