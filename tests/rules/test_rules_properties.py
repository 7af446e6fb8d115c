"""Rules against a second implementation of some constraints; random rule files must not crash."""

from typing import Any

import onnx
from helpers.support import examples, prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from byoc.model import GraphIndex, prepare_model
from byoc.rules import Annotator, OpRule, RuleFile, Target, annotate_graph, lint_rule_file
from byoc.support import validate_content

DIMS = st.one_of(st.integers(1, 6), st.sampled_from(["N", "M"]))
HEAD = {"target": "t", "cost_model": "dla", "dtype": "float32"}


def model(shape: tuple[int | str, ...], alpha: float) -> GraphIndex:
    """Return the index of a LeakyRelu over an input of some shape."""
    kind = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=alpha)
    graph = helper.make_graph([node], "g", kind[:1], kind[1:])
    opset = [helper.make_opsetid("", 17)]
    return prepare_model(helper.make_model(graph, opset_imports=opset, ir_version=8), "test").index


@st.composite
def bounds(draw: st.DrawFn) -> dict[str, int]:
    low, high = sorted((draw(st.integers(0, 7)), draw(st.integers(0, 7))))
    keys = draw(st.sets(st.sampled_from(["min", "max"])))
    return {key: value for key, value in (("min", low), ("max", high)) if key in keys}


@st.composite
def tensor_rules(draw: st.DrawFn) -> dict[str, Any]:
    dim = st.one_of(
        st.integers(1, 6),
        st.lists(st.integers(1, 6), min_size=1, max_size=3),
        bounds(),
        st.builds(lambda n: {"multiple_of": n}, st.integers(1, 4)),
    )
    axes = st.one_of(st.integers(-4, 3), st.just("each"))
    optional = {
        "rank": st.lists(st.integers(0, 4), min_size=1, max_size=3),
        "dims": st.dictionaries(axes, dim, max_size=3),
        "elements": bounds(),
        "static": st.booleans(),
        "scalar": st.booleans(),
        "constant": st.booleans(),
        "dtype": st.sampled_from([["float32"], ["float16", "float32"], ["float16"], "any"]),
    }
    return draw(st.fixed_dictionaries({}, optional=optional))


def brute(rule: dict[str, Any], shape: tuple[int | str, ...]) -> bool:
    """Return whether a float32 input of a shape meets a rule: the documentation, once more."""
    sizes = [d for d in shape if isinstance(d, int)]
    fixed = len(sizes) == len(shape)
    count = 1
    for size in sizes:
        count *= size
    holds = ["rank" not in rule or len(shape) in rule["rank"]]
    holds.append("dtype" not in rule or "float32" in rule["dtype"] or rule["dtype"] == "any")
    holds.append("constant" not in rule or rule["constant"] is False)
    holds.append("static" not in rule or rule["static"] == fixed)
    if rule.get("elements"):
        holds.append(fixed and meets(rule["elements"], count))
    if "scalar" in rule:
        one = all(size == 1 for size in sizes)
        holds.append((fixed and one) if rule["scalar"] else not one)
    for axis, wanted in rule.get("dims", {}).items():
        if axis == "each":
            holds.extend(meets(wanted, extent) for extent in shape)
        elif -len(shape) <= axis < len(shape):
            holds.append(meets(wanted, shape[axis]))
        else:
            holds.append(False)
    return all(holds)


def meets(wanted: Any, extent: int | str) -> bool:
    if wanted == {}:
        return True
    if isinstance(extent, str):
        return False
    if isinstance(wanted, int):
        return extent == wanted
    if isinstance(wanted, list):
        return extent in wanted
    return (
        wanted.get("min", 0) <= extent <= wanted.get("max", 10**9)
        and extent % wanted.get("multiple_of", 1) == 0
    )


@settings(max_examples=examples(300), deadline=None)
@given(tensor_rules(), st.lists(DIMS, max_size=4).map(tuple))
def test_constraints_on_a_tensor(rule: dict[str, Any], shape: tuple[int | str, ...]) -> None:
    content = {**HEAD, "ops": [{"op": "LeakyRelu", "tensors": {"X": rule}}]}
    target = Target("test", RuleFile.model_validate(content))
    (mark,) = annotate_graph(model(shape, 0.5), target)
    assert bool(mark.verdict) == brute(rule, shape)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(tensor_rules(), bounds(), bounds()), min_size=2, max_size=4),
    st.lists(DIMS, max_size=3).map(tuple),
    st.integers(0, 7),
)
def test_precedence_and_hidden_rules(
    parts: list[tuple[Any, Any, Any]], shape: tuple[int | str, ...], alpha: int
) -> None:
    """The first rule that accepts holds; one that is said to be hidden never does."""
    ops = [
        {"op": "LeakyRelu", "tensors": {"X": tensor}, "attributes": {"alpha": attribute}, "opset": opset}
        for tensor, attribute, opset in parts
    ]
    content = {**HEAD, "ops": ops}
    rules = RuleFile.model_validate(content)
    annotator = Annotator(Target("test", rules), model(shape, float(alpha)))
    attempts = annotator.list_attempts(0)
    accepting = sorted(attempt.rule for attempt in attempts if not attempt.objections)
    mark = annotator.annotate_node(0)
    assert mark.rule == (accepting[0] if accepting else "")
    counts = [len(attempt.objections) for attempt in attempts]
    assert counts == sorted(counts)
    if not accepting:
        first, *others = (objection.text for objection in attempts[0].objections)
        assert list(mark.verdict.reasons) == [f"LeakyRelu: {first}", *dict.fromkeys(others)]
    for line in lint_rule_file(content):
        if "never asked" in line:
            assert mark.rule != line.partition(":")[0]


WORDS = st.sampled_from(
    [
        *("Conv", "Relu", "*", "acme.Op", "X", "W", "B", "Y", "pads", "group", "float32", "any", "int8"),
        *(
            "attr.group == 1",
            "X.shape[0] < 3",
            "X.nosuch",
            "1 +",
            "^a",
            "(",
            "y = Relu(x)",
            "W[1]",
            "W[9]",
        ),
        *("1MiB", "connected", "must", "none", "scalar", "silu", "y = Conv|Relu(x)?", ""),
    ]
)
PLAIN = st.one_of(WORDS, st.integers(-3, 9), st.booleans(), st.floats(allow_nan=False), st.none())


def things(model: Any, depth: int = 4) -> st.SearchStrategy[Any]:
    """Return what may stand where a type is expected: often of its keys, sometimes anything."""
    kinds = [PLAIN, st.lists(PLAIN, max_size=3)]
    if depth:
        keys = st.sampled_from(
            [
                *(
                    *OpRule.model_fields,
                    *RuleFile.model_fields,
                    "min",
                    "max",
                    "one_of",
                    "each",
                    "equals",
                ),
                *(
                    "rank",
                    "dims",
                    "X",
                    "W",
                    "Y",
                    "group",
                    "pads",
                    "kernel_shape",
                    "expr",
                    "names",
                    "after",
                ),
                *("activations", "weights", "name", "pattern", "library", "broadcast", "value", "batch"),
            ]
        )
        inner = things(model, depth - 1)
        kinds += [st.dictionaries(keys, inner, max_size=5), st.lists(inner, max_size=3)]
    return st.one_of(kinds)


@st.composite
def rule_files(draw: st.DrawFn) -> dict[str, Any]:
    """Return a rule file that is nearly right in most places."""
    op = st.fixed_dictionaries(
        {"op": st.sampled_from(["Conv", "Relu", "*", ["Conv", "Relu"], "acme.Op"])},
        optional={
            "tensors": st.dictionaries(
                st.sampled_from("XWBY"), st.one_of(tensor_rules(), things(None, 2)), max_size=2
            ),
            "attributes": st.dictionaries(
                st.sampled_from(["pads", "group", "auto_pad", "axes", "value"]),
                st.fixed_dictionaries(
                    {},
                    optional={
                        "min": PLAIN,
                        "one_of": st.lists(PLAIN, max_size=2),
                        "each": bounds(),
                        "length": st.integers(0, 4),
                    },
                ),
                max_size=2,
            ),
            "where": st.lists(WORDS, max_size=2),
            "opset": bounds(),
            "quantized": st.booleans(),
            "level": st.sampled_from(["may", "must"]),
        },
    )
    optional = {key: things(None, 3) for key in RuleFile.model_fields if key not in ("extends", "ops")}
    rest = draw(st.fixed_dictionaries({}, optional=optional)) if draw(st.integers(0, 3)) == 3 else {}
    return {**HEAD, **rest, "ops": draw(st.lists(op, min_size=1, max_size=3))}


TWO = prepared("""
g (float[1,4,N,9] x) => (float y) <float[4,4,1,1] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> {
  c = Conv (x, w)
  r = Relu (c)
  y = ReduceMax <keepdims = 0> (r)
}
""").index


@settings(max_examples=examples(150), deadline=None)
@given(rule_files())
def test_random_rule_files_never_crash(content: dict[str, Any]) -> None:
    """Each is refused with sentences, or applies to a model."""
    rules, problems = validate_content(content, RuleFile)
    problems += lint_rule_file(content)
    assert all(problem and "\n" not in problem for problem in problems)
    if rules is None or problems:
        assert problems
        return
    for mark in annotate_graph(TWO, Target("test", rules)):
        assert bool(mark.verdict) == bool(mark.rule)
        assert all(reason.strip() for reason in mark.verdict.reasons)


def test_the_model_of_the_properties_is_right() -> None:
    assert [node.op_type for node in TWO.nodes] == ["Conv", "Relu", "ReduceMax"]
    assert isinstance(TWO.proto, onnx.ModelProto)
