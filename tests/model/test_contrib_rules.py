"""Types of onnxruntime's own operators: each rule is compared with what onnxruntime computes."""

import numpy as np
import pytest
from contrib_cases import RUN
from contrib_documented import DOCUMENTED
from contrib_nodes import (
    CONTRIB,
    CONTRIB_RULES,
    Case,
    KnownNode,
    case,
    infer_by_schema,
    infer_contrib_types,
)
from onnx import helper

from byoc.model import TensorType, evaluate_dim

pytest.importorskip("onnxruntime")

# The extents that depend on data: by operator, output and axis.
OF_DATA = {("Unique", 0, 0), ("Unique", 2, 0), ("DynamicTimeWarping", 0, 1), ("Range", 0, 0)}


@pytest.mark.parametrize("tried", RUN, ids=str)
def test_a_rule_says_what_onnxruntime_computes(tried: Case) -> None:
    if not tried.is_defined:
        pytest.skip("this onnxruntime has no such operator")
    computed = tried.run()
    for symbolic in (False, True):
        types, sizes = tried.infer(symbolic=symbolic)
        assert len(types) == tried.outputs
        for position, value in computed.items():
            found = types[position]
            assert found is not None
            assert found.dtype == value.dtype.name
            assert found.shape is not None
            assert len(found.shape) == value.ndim
            for axis, (dim, extent) in enumerate(zip(found.shape, value.shape, strict=True)):
                if dim is None:
                    assert (tried.op, position, axis) in OF_DATA
                else:
                    assert evaluate_dim(dim, sizes) == extent


@pytest.mark.parametrize(("tried", "expected"), DOCUMENTED, ids=str)
def test_a_rule_says_what_onnxruntime_documents(tried: Case, expected: list[str]) -> None:
    if not tried.is_defined:
        pytest.skip("this onnxruntime has no such operator")
    types, _ = tried.infer(symbolic=False)
    assert list(map(str, types)) == expected


def test_every_rule_is_compared_with_onnxruntime() -> None:
    cases = (*RUN, *(each for each, _ in DOCUMENTED))
    tried = {f"{each.domain}.{each.op}".lstrip(".") for each in cases}
    assert CONTRIB_RULES.keys() == tried


def test_dtypes_follow_from_the_schema_alone() -> None:
    attention = case("LinearAttention", "h:1x2x8", "h:1x2x8", "h:1x2x8", "f:1x1x8x8", n=2)
    node, _ = attention.describe(symbolic=False)
    assert list(map(str, infer_by_schema(node))) == ["float16[...]", "float32[...]"]
    unknown = KnownNode(
        helper.make_node("Foo", ["x"], ["y", "z"], domain="com.acme"), 1, {}, (None,), (None,)
    )
    assert infer_by_schema(unknown) == [None, None]


def test_rules_do_without_defaults_of_attributes_and_without_types() -> None:
    for name, rule in CONTRIB_RULES.items():
        domain, _, op = name.rpartition(".")
        names = [f"i{i}" for i in range(12)]
        node = helper.make_node(op, names, ["o0"], domain=domain)
        for found in rule(KnownNode(node, 1, {}, (None,) * 12, (None,) * 12)):
            assert (
                found is None
                or found.shape is None
                or all(dim is None or isinstance(dim, int) for dim in found.shape)
            )


def test_symbolic_lengths_of_a_growing_cache() -> None:
    types = (
        TensorType("float16", ("batch", "seq", 32)),
        TensorType("float16", ("batch", "seq", 16)),
        TensorType("float16", ("batch", "seq", 16)),
        *[TensorType("float16", ("batch", 2, "past", 8))] * 2,
        TensorType("int32", ("batch",)),
        TensorType("int32", ()),
    )
    names = [f"i{i}" for i in range(7)]
    node = helper.make_node("GroupQueryAttention", names, ["y", "k", "v"], domain=CONTRIB)
    values = (*[None] * 6, np.array("past + seq", object))
    known = KnownNode(node, 1, {"num_heads": 4, "kv_num_heads": 2}, types, values)
    found = CONTRIB_RULES["com.microsoft.GroupQueryAttention"](known)
    assert str(found[0]) == "float16[batch, seq, 32]"
    assert str(found[1]) == "float16[batch, 2, past + seq, 8]"
    unsaid = KnownNode(node, 1, known.attributes, types, (None,) * 7)
    assert (
        str(CONTRIB_RULES["com.microsoft.GroupQueryAttention"](unsaid)[1]) == "float16[batch, 2, ?, 8]"
    )


def test_what_makes_no_sense_has_no_shape() -> None:
    for name in sorted(CONTRIB_RULES):
        domain, _, op = name.rpartition(".")
        node = helper.make_node(op, [f"i{i}" for i in range(9)], ["o0"], domain=domain)
        for shape in ((), (0,), (2, 0), (3, 4, 5, 6, 7)):
            types = (TensorType("uint8", shape),) * 9
            for odd in (0, -9, "text", [1], []):
                names = (
                    "axis",
                    "axes",
                    "dim",
                    "size",
                    "num_heads",
                    "gather_axis",
                    "bits",
                    "kernel_shape",
                )
                attributes = dict.fromkeys((*names, "strides", "qkv_hidden_sizes", "step"), odd)
                found = infer_contrib_types(KnownNode(node, 1, attributes, types, (None,) * 9))
                assert len(found) <= 1
