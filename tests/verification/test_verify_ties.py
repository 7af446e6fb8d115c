"""Rows that a selection orders: ties may be broken in any way, every other difference is an error."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.support import Ran, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreting import bundle_of, interpreter, only
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from byoc.model import prepare_model
from byoc.verification import (
    DEFAULT_THRESHOLDS,
    NoiseGauge,
    OutputError,
    Thresholds,
    bisect_region,
    read_thresholds,
    run_plain,
    verify_against,
)

Array = NDArray[Any]
Values = Mapping[str, Any]

# 24 candidates in six groups of four; within a group scores differ by 1e-6, between groups by 0.1.
GROUPS, EACH = 6, 4
COUNT = GROUPS * EACH
SCORES = np.array([0.1 + 0.1 * (i // EACH) + 2.5e-7 * (i % EACH) for i in range(COUNT)], np.float32)
PLACES = np.random.default_rng(3).permutation(COUNT)
X: dict[str, Array] = {
    "s": np.log(SCORES / (1 - SCORES)).astype(np.float32)[PLACES],
    "b": np.random.default_rng(4).uniform(0, 50, (COUNT, 4)).astype(np.float32),
}
LABELS = ", ".join(str(i % 5) for i in range(COUNT))

TOP = f"""
g (float[{COUNT}] s, float[{COUNT}, 4] b) => (float[k, 4] boxes, int64[k] labels, float[k] scores)
<int64[1] k = {{18}}, int64[{COUNT}] l = {{{LABELS}}}> {{
    p = Sigmoid(s)
    scores, i = TopK <axis = -1> (p, k)
    d = Add(b, b)
    boxes = Gather(d, i)
    labels = Gather(l, i)
}}"""
# Boxes 0 to 3, 4 to 7, ... of TALL lie on each other.
NMS = f"""
g (float[{COUNT}] s, float[{COUNT}, 4] b) => (float[k, 4] boxes, float[k] scores, int64[k] labels)
<int64[1] most = {{100}}, float[1] overlap = {{0.5}}, float[1] least = {{0.05}}, int64[1] a0 = {{0}},
 int64[2] a01 = {{0, 1}}, int64 two = {{2}}, int64[1] a1 = {{1}}, int64[{COUNT}] l = {{{LABELS}}}> {{
    p = Sigmoid(s)
    ps = Unsqueeze(p, a01)
    d = Add(b, b)
    ds = Unsqueeze(d, a0)
    kept = NonMaxSuppression(ds, ps, most, overlap, least)
    column = Gather <axis = 1> (kept, two)
    boxes = Gather(d, column)
    scores = Gather(p, column)
    labels = Gather(l, column)
}}"""


def stack_boxes() -> Array:
    """Return boxes of which those of a group of scores overlap by more than half, and no others do."""
    boxes = np.empty((COUNT, 4), np.float32)
    for place, candidate in enumerate(PLACES):
        corner = 20 * (candidate // EACH)
        shift = 0.3 * (candidate % EACH)
        boxes[place] = corner + shift, corner, corner + 10 + shift, corner + 10
    return boxes


def compare(
    model: ModelProto,
    expected: Values,
    actual: Values,
    inputs: Values = X,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> tuple[OutputError, ...]:
    return NoiseGauge(model, None, inputs, expected).compare(actual, thresholds)


def run(model: ModelProto, inputs: Values = X) -> dict[str, Array]:
    return run_plain(model, prepare_model(model, "model"), inputs)


def reorder(values: Values, order: Any) -> dict[str, Array]:
    return {name: value[np.asarray(order)] for name, value in values.items()}


def passes(errors: tuple[OutputError, ...]) -> bool:
    return all(error.within for error in errors)


def tie_break_of(errors: tuple[OutputError, ...]) -> Any:
    (found,) = {error.tie_break for error in errors}
    assert found is not None
    return found


def swap(one: int, other: int, count: int) -> list[int]:
    order = [*range(count)]
    order[one], order[other] = other, one
    return order


def test_tied_rows_may_change_places_and_it_is_said() -> None:
    model = parse(TOP)
    expected = run(model)
    actual = reorder(expected, swap(4, 6, 18))
    assert not np.allclose(actual["boxes"], expected["boxes"], atol=1)
    errors = compare(model, expected, actual)
    assert passes(errors)
    assert [error.absolute for error in errors] == [0.0, 0.0, 0.0]
    found = tie_break_of(errors)
    assert (found.rows, found.moved, found.replaced) == (18, 2, 0)
    assert found.outputs == ("boxes", "labels", "scores")
    distance = float(np.ptp(expected["scores"][[4, 6]]))
    assert distance <= found.gap < distance + 5e-7
    assert str(found) == f"of 18 rows 2 in another order, tied within {found.gap:.1e}"


def test_what_is_the_same_has_no_ties() -> None:
    model = parse(TOP)
    expected = run(model)
    assert {error.tie_break for error in compare(model, expected, expected)} == {None}


def shift_box(values: dict[str, Array]) -> None:
    values["boxes"][5] += 1


def change_label(values: dict[str, Array]) -> None:
    values["labels"][5] = (values["labels"][5] + 1) % 5


def swap_far(values: dict[str, Array]) -> None:
    values.update(reorder(values, swap(3, 4, 18)))


def swap_boxes_alone(values: dict[str, Array]) -> None:
    values["boxes"] = values["boxes"][swap(0, 1, 18)]


def drop_first(values: dict[str, Array]) -> None:
    """Leave a clear detection out, and let the best one behind the cut move in."""
    expected = run(parse(TOP.replace("{18}", "{19}")))
    values.update({name: value[1:] for name, value in expected.items()})


def drop_last(values: dict[str, Array]) -> None:
    values.update({name: value[:-1] for name, value in values.items()})


def double(values: dict[str, Array]) -> None:
    values.update({name: np.repeat(value, 2, axis=0) for name, value in values.items()})


def repeat_one(values: dict[str, Array]) -> None:
    order = [*range(18)]
    order[5] = 4
    values.update(reorder(values, order))


def reverse(values: dict[str, Array]) -> None:
    values.update(reorder(values, range(17, -1, -1)))


FAULTS = [
    *(shift_box, change_label, swap_far, swap_boxes_alone, drop_first, drop_last, double, repeat_one),
    reverse,
]


@pytest.mark.parametrize("spoil", FAULTS)
@pytest.mark.parametrize("tied", [False, True], ids=["alone", "beside ties"])
def test_every_fault_is_refused(spoil: Any, tied: bool) -> None:
    model = parse(TOP)
    expected = run(model)
    actual = {name: value.copy() for name, value in expected.items()}
    spoil(actual)
    if tied:
        actual = reorder(actual, swap(8, 10, len(actual["scores"])))
    errors = compare(model, expected, actual)
    assert not passes(errors)
    assert {error.tie_break for error in errors} == {None}


def test_at_the_cut_a_tied_candidate_may_take_the_place_of_another() -> None:
    """18 of 24 are kept: of the fifth group 2 of 4, and any two would do."""
    model = parse(TOP)
    expected, more = run(model), run(parse(TOP.replace("{18}", "{20}")))
    actual = reorder(more, [*range(16), 19, 17])
    errors = compare(model, expected, actual)
    assert passes(errors)
    found = tie_break_of(errors)
    assert (found.moved, found.replaced) == (0, 1)
    assert str(found).startswith("of 18 rows 1 replaced by others, tied within")
    wider = run(parse(TOP.replace("{18}", "{24}")))
    assert not passes(compare(model, expected, reorder(wider, [*range(17), 22])))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_order_within_ties_passes_and_none_across_them(data: st.DataObject) -> None:
    model = parse(TOP)
    full = run(parse(TOP.replace("{18}", "{24}")))
    groups = [data.draw(st.permutations(range(i, i + EACH))) for i in range(0, COUNT, EACH)]
    order = [place for group in groups for place in group]
    expected = run(model)
    assert passes(compare(model, expected, reorder(full, order[:18])))
    first = data.draw(st.integers(0, 17))
    second = data.draw(st.integers(0, COUNT - 1).filter(lambda i: i // EACH != first // EACH))
    order[first], order[second] = order[second], order[first]
    assert not passes(compare(model, expected, reorder(full, order[:18])))


def test_suppression_keeps_either_of_two_that_are_tied() -> None:
    model, inputs = parse(NMS), {**X, "b": stack_boxes()}
    expected = run(model, inputs)
    assert len(expected["scores"]) == GROUPS
    sigmoid = (1 / (1 + np.exp(-X["s"]))).astype(np.float32)
    kept = [int(np.flatnonzero(np.all(inputs["b"] * 2 == box, axis=1))[0]) for box in expected["boxes"]]
    other = [place for place in range(COUNT) if PLACES[place] // EACH == PLACES[kept[2]] // EACH]
    other.remove(kept[2])
    chosen = [*kept[:2], other[0], *kept[3:]]

    def make(places: list[int]) -> dict[str, Array]:
        labels = np.arange(COUNT) % 5
        return {"boxes": inputs["b"][places] * 2, "scores": sigmoid[places], "labels": labels[places]}

    errors = compare(model, expected, make(chosen), inputs)
    assert passes(errors)
    found = tie_break_of(errors)
    assert (found.rows, found.moved, found.replaced) == (GROUPS, 0, 1)
    both = [*kept[:3], other[0], *kept[3:]]
    assert not passes(compare(model, expected, make(both), inputs)), "one suppresses the other"
    assert not passes(compare(model, expected, make(kept[:2] + kept[3:]), inputs)), "one is missing"
    assert not passes(compare(model, expected, make(swap_places(kept)), inputs)), "clearly different"


def swap_places(places: list[int]) -> list[int]:
    return [places[1], places[0], *places[2:]]


BODY = f"""
g (float[{COUNT}] s, float[{COUNT}, 4] b) => (float[k, 4] boxes, float[k] scores)
<int64[1] first = {{0}}, int64[1] last = {{8}}, bool yes = {{1}}> {{
    p = Sigmoid(s)
    d = Add(b, b)
    all = If (yes) <
        then_branch = t () => (int64[k] kept) <int64[1] most = {{100}}, float[1] overlap = {{0.5}},
            float[1] least = {{0.05}}, int64[1] a0 = {{0}}, int64[2] a01 = {{0, 1}},
            int64 two = {{2}}> {{
            ps = Unsqueeze(p, a01)
            ds = Unsqueeze(d, a0)
            rows = NonMaxSuppression(ds, ps, most, overlap, least)
            kept = Gather <axis = 1> (rows, two) }},
        else_branch = e () => (int64[z] none) {{ none = Constant <value_ints = [0]> () }}>
    some = Slice(all, first, last)
    boxes = Gather(d, some)
    scores = Gather(p, some)
}}"""


def test_a_selection_in_a_body_is_found() -> None:
    model = parse(BODY)
    corners = np.arange(COUNT, dtype=np.float32)[:, None] * 10
    inputs = {**X, "b": np.concatenate([corners, corners, corners + 5, corners + 5], axis=1)}
    expected = run(model, inputs)
    assert len(expected["scores"]) == 8
    order = [2, 0, 1, *range(3, 8)]
    errors = compare(model, expected, reorder(expected, order), inputs)
    assert passes(errors)
    found = tie_break_of(errors)
    assert (found.rows, found.moved) == (8, 3)
    assert found.selection.startswith("NonMaxSuppression in If ")
    spoilt = reorder(expected, order)
    spoilt["boxes"][1] += 30
    assert not passes(compare(model, expected, spoilt, inputs))


TRIPLES = """
g (float[1, 2, 6] s, float[1, 6, 4] b) => (int64[k, 3] kept, float[k] scores)
<int64[1] most = {4}, float[1] overlap = {0.5}, float[1] least = {0.01}> {
    p = Sigmoid(s)
    kept = NonMaxSuppression(b, p, most, overlap, least)
    scores = GatherND(p, kept)
}"""


def test_classes_are_ordered_each_by_itself() -> None:
    """Of each class 4 are kept; the places are those of the second class, behind the first."""
    values = np.float32([[[5, 4, 3, 2, 1, 0], [1, 1 + 2e-7, 3, 3.0000005, 0, -1]]])
    corners = np.arange(6, dtype=np.float32)[:, None] * 10
    inputs = {
        "s": values,
        "b": np.concatenate([corners, corners, corners + 5, corners + 5], axis=1)[None],
    }
    model = parse(TRIPLES)
    expected = run(model, inputs)
    assert expected["kept"][:, 1].tolist() == [0] * 4 + [1] * 4
    errors = compare(model, expected, reorder(expected, [0, 1, 2, 3, 5, 4, 6, 7]), inputs)
    assert passes(errors)
    assert tie_break_of(errors).moved == 2
    for order in ([1, 0, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 6, 5, 7], [4, 5, 6, 7, 0, 1, 2, 3]):
        assert not passes(compare(model, expected, reorder(expected, order), inputs))


def test_of_several_lists_each_is_ordered_by_itself() -> None:
    model = parse("""
        g (float[2, 5] s, float[2, 5] v) => (float[2, 3] top, int64[2, 3] i, float[2, 3] w)
        <int64[1] k = {3}> { p = Exp(s) top, i = TopK(p, k) w = GatherElements <axis = 1> (v, i) }""")
    scores = np.float32([[1, 0, 1 + 2e-7, -3, -4], [2, 1, 0.5, 0.50000006, 0]])
    inputs = {"s": scores, "v": np.arange(10, dtype=np.float32).reshape(2, 5)}
    expected = run(model, inputs)
    assert expected["i"].tolist() == [[2, 0, 1], [0, 1, 3]]
    indices = np.array([[0, 2, 1], [0, 1, 2]])

    def make(chosen: Array) -> dict[str, Array]:
        found = {"i": chosen, "top": np.take_along_axis(np.exp(scores), chosen, 1)}
        return {**found, "w": np.take_along_axis(inputs["v"], chosen, 1)}

    errors = compare(model, expected, make(indices), inputs)
    assert passes(errors)
    assert (tie_break_of(errors).rows, tie_break_of(errors).moved) == (6, 2)
    assert tie_break_of(errors).replaced == 1
    assert not passes(compare(model, expected, make(indices[::-1]), inputs))


def test_the_least_come_first_where_the_selection_asks_for_these() -> None:
    model = parse(TOP.replace("<axis = -1>", "<axis = -1, largest = 0>"))
    expected = run(model)
    assert np.all(np.diff(expected["scores"]) >= 0)
    assert passes(compare(model, expected, reorder(expected, swap(4, 6, 18))))
    assert not passes(compare(model, expected, reorder(expected, swap(3, 4, 18))))


def test_keys_that_are_given_have_no_noise() -> None:
    """Both sides read the same keys, of which ONNX says that the first of two equal ones comes first."""
    model = parse("""
        g (float[4] s) => (float[3] top, int64[3] i) <int64[1] k = {3}> { top, i = TopK(s, k) }""")
    inputs = {"s": np.float32([1, 2, 2, 0])}
    expected = run(model, inputs)
    assert expected["i"].tolist() == [1, 2, 0]
    assert not passes(compare(model, expected, reorder(expected, [1, 0, 2]), inputs))


def test_keys_are_tied_within_what_the_user_allows() -> None:
    model = parse(TOP)
    expected = run(model)
    actual = reorder(expected, swap(4, 7, 18))
    assert np.ptp(expected["scores"][4:8]) > 5e-7
    assert passes(compare(model, expected, actual, thresholds=read_thresholds({"float32": "1e-5"})))
    for limit in ("1e-6", "0"):
        thresholds = read_thresholds({"float32": limit})
        assert not passes(compare(model, expected, actual, thresholds=thresholds))


def test_ties_that_the_optimizations_break_are_no_noise() -> None:
    """Otherwise a box could be anywhere, up to 6e-2 of the range, where onnxruntime swaps two."""
    model = parse(TOP)
    expected = run(model)
    actual = {name: value.copy() for name, value in expected.items()}
    actual["boxes"][5] += 1
    gauge = NoiseGauge(model, None, X, expected)
    gauge.__dict__["_optimized"] = reorder(expected, swap(4, 6, 18))
    boxes, *others = gauge.compare(actual, DEFAULT_THRESHOLDS)
    assert passes(tuple(others))
    assert not boxes.within
    assert boxes.noise is not None
    assert boxes.noise < 1e-3


ALL = "target: npu\ncost_model: dla\ndtype: any\nregions: connected\nops: [{op: '*'}]\n"
ONLY_SIGMOID = "target: npu\ncost_model: dla\ndtype: any\nops: [{op: Sigmoid}]\n"


def blur(keys: Array) -> Array:
    """Return keys with a noise of 1e-6, as another implementation has it."""
    return (keys + 1e-6 * np.cos(7 * np.arange(keys.size))).astype(np.float32)


@pytest.mark.parametrize("rules", [ONLY_SIGMOID, ALL], ids=["on the host", "in the region"])
def test_partition_and_verify_accept_ties_and_say_so(
    rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byoc: Callable[..., Ran]
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(only("p", blur)))
    (tmp_path / "npu.yaml").write_text(rules)
    onnx.save(parse(TOP), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **X)
    given = ("--inputs", tmp_path / "x.npz")
    made = ("--rules", tmp_path / "npu.yaml", "--codegen", "wrong", "--strategy", "all-supported")
    ran = byoc("partition", tmp_path / "m.onnx", *made, *given, "-o", tmp_path / "b")
    assert ran.code == 0
    said = r"verified, largest error .* of the output's range; of 18 rows of boxes, labels, scores "
    assert re.search(said + r".*\d+ in another order.*, tied within \d.\de-0[67]", ran.out)
    assert byoc("inspect", tmp_path / "b").code == 0
    checked = byoc("verify", tmp_path / "b", "--against", tmp_path / "m.onnx", *given, "--bisect")
    assert checked.code == 0
    assert re.search(r"of 18 rows \d+ in another order", checked.out)
    assert "There is no region to narrow: each is within its tolerance" in checked.out
    against = ("--against", tmp_path / "m.onnx", *given, "--format", "json")
    document = json.loads(byoc("verify", tmp_path / "b", *against).out)
    (found,) = document["tie_breaks"]
    assert found["rows"] == 18
    assert found["moved"] > 1
    assert found["gap"] < 1e-5
    assert len({json.dumps(output["tie_break"]) for output in document["outputs"]}) == 1
    assert document["passed"]


def test_the_operation_at_fault_is_found_behind_ties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores are blurred, which is right, and a box is off, which is not."""

    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> list[Any]:
        if node.output[0] == "boxes":
            made[0] = made[0].copy()
            made[0][3] += 5
        return [blur(made[0])] if node.output[0] == "p" else made

    vendors.install(monkeypatch, wrong=interpreter(spoil))
    bundle = bundle_of(parse(TOP), tmp_path, rules=ALL)
    assert not verify_against(bundle.folder, inputs=X, regions=True).passed
    fault = bisect_region(bundle, bundle.manifest.regions[0].name, X)
    assert fault.operation == "boxes"
    assert not fault.is_joint


def choose(
    text: str, keys: Array, opset: int = 17
) -> tuple[ModelProto, dict[str, Array], dict[str, Array]]:
    """Return a model that reads keys `x`, its inputs and its outputs."""
    model = parse(text, opset=opset)
    return model, {"x": keys}, run(model, {"x": keys})


ANY_ORDER = replace(DEFAULT_THRESHOLDS, any_equal_keys=True)
# Two lists of four keys of which two are equal, and so is a third one of the second list.
EQUAL = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.float32)
TOP_OF_INPUTS = """g ({dtype}[2,4] x) => ({dtype}[2,2] y, int64[2,2] i) <int64[1] k = {{2}}> {{
    y, i = TopK <axis = 1, sorted = {order}> (x, k)
}}"""


@pytest.mark.parametrize("dtype", ["float", "int64", "float16", "int32"])
def test_equal_keys_that_both_sides_read_may_change_places_where_the_target_says_so(dtype: str) -> None:
    numbers = EQUAL.astype({"float": "float32"}.get(dtype, dtype))
    model, inputs, expected = choose(TOP_OF_INPUTS.format(dtype=dtype, order=1), numbers)
    assert expected["i"].tolist() == [[0, 2], [1, 2]]
    for wanted in ([[2, 0], [1, 2]], [[0, 2], [3, 1]], [[2, 0], [2, 3]]):
        actual = {"y": expected["y"], "i": np.array(wanted)}
        assert not passes(compare(model, expected, actual, inputs)), "ONNX has the first one"
        errors = compare(model, expected, actual, inputs, ANY_ORDER)
        assert passes(errors)
        assert str(tie_break_of(errors)).endswith("with equal keys")
    for wrong in (
        [[0, 1], [1, 2]],
        [[0, 0], [1, 2]],
        [[0, 2], [0, 1]],
        [[0, 2], [1, 4]],
        [[0, 2], [-1, 2]],
    ):
        actual = {"y": expected["y"], "i": np.array(wrong)}
        assert not passes(compare(model, expected, actual, inputs, ANY_ORDER))


def test_keys_of_inputs_that_differ_at_all_do_not_change_places() -> None:
    close = np.array([[3, 1, np.nextafter(np.float32(3), np.float32(0)), 2]] * 2, np.float32)
    model, inputs, expected = choose(TOP_OF_INPUTS.format(dtype="float", order=1), close)
    actual = {"y": expected["y"], "i": expected["i"][:, ::-1].copy()}
    assert not passes(compare(model, expected, actual, inputs, ANY_ORDER))


def test_a_selection_that_is_not_sorted_may_come_in_any_order() -> None:
    model, inputs, expected = choose(TOP_OF_INPUTS.format(dtype="float", order=0), EQUAL)
    actual = {name: value[:, ::-1].copy() for name, value in expected.items()}
    assert passes(compare(model, expected, actual, inputs))
    actual["i"][0] = [1, 0]
    assert not passes(compare(model, expected, actual, inputs))


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("axis", "keep"), [(0, 1), (1, 0), (-1, 1)])
def test_the_best_of_tied_keys_may_be_another(operator: str, axis: int, keep: int) -> None:
    """Of keys that differ by rounding either is the best, wherever the list lies and its index goes."""
    shape = (3, 4, 5)
    generator = np.random.default_rng(1)
    keys = generator.permuted(np.arange(60, dtype=np.float32).reshape(shape), axis=axis) / 60
    best = np.expand_dims(np.argmax(keys, axis) if operator == "ArgMax" else np.argmin(keys, axis), axis)
    count = shape[axis]
    other = (best + 1) % count
    step = np.float32(-1e-7 if operator == "ArgMax" else 1e-7)
    np.put_along_axis(keys, other, np.take_along_axis(keys, best, axis) + step, axis)
    logits = np.log(keys + 1).astype(np.float32)
    model, inputs, expected = choose(
        f"""g (float[3,4,5] x) => (int32[] i, float[] z) {{
            s = Sigmoid(x)
            a = {operator} <axis = {axis}, keepdims = {keep}> (s)
            i = Cast <to = 6> (a)
            f = Cast <to = 1> (a)
            z = Sin(f)
        }}""",
        logits,
    )
    given = other if keep else np.squeeze(other, axis)
    assert not np.array_equal(expected["i"], given)
    errors = compare(
        model, expected, {"i": given.astype(np.int32), "z": np.sin(given.astype(np.float32))}, inputs
    )
    assert passes(errors)
    found = tie_break_of(errors)
    assert (found.replaced, found.rows) == (np.sum(expected["i"] != given), given.size)
    assert not passes(compare(model, expected, {**expected, "i": given.astype(np.int32)}, inputs)), (
        "z is off"
    )
    far = ((given + 1) % count).astype(np.int32)
    assert not passes(compare(model, expected, {"i": far, "z": np.sin(far.astype(np.float32))}, inputs))


def test_indices_of_a_pool_may_be_those_of_an_equal_key_of_its_plane() -> None:
    keys = np.array([[[[1, 5], [5, 2]], [[5, 0], [0, 0]]]], np.float32)
    text = """g (float[1,2,2,2] x) => (float[1,2,1,1] y, int64[1,2,1,1] i) {
        y, i = MaxPool <kernel_shape = [2, 2]> (x)
    }"""
    model, inputs, expected = choose(text, keys)
    assert expected["i"].ravel().tolist() == [1, 4]
    for places, right in (([2, 4], True), ([4, 4], False), ([0, 4], False), ([1, 5], False)):
        actual = {"y": expected["y"], "i": np.array(places).reshape(1, 2, 1, 1)}
        assert passes(compare(model, expected, actual, inputs, ANY_ORDER)) == right
        assert not passes(compare(model, expected, actual, inputs))
