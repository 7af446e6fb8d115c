"""Every constraint on shapes, sizes and values accepts and refuses, with its exact sentence."""

import pytest
from helpers.ruling import rules, target, verdict
from helpers.support import parse, prepared

from byoc.model import Dimensions, prepare_model
from byoc.rules import Annotator, annotate_graph

CONV = """
g (float[1,4,9,9] x) => (float[1,4,7,5] y) <float[4,2,3,5] w, float[4] b> {
  y = Conv <group = 2> (x, w, b)
}
"""
ADD = "g (float[2,3,4,5] x, float{} z) => (float[2,3,4,5] y) {{ y = Add (x, z) }}"
OTHER = "B is broadcast otherwise than by one element, channel or last axis"
OPEN = "g (float[N,3] x, float[M,3] z) => (float[K,3] y) { y = Add (x, z) }"


STATE_IT = "is not known (state it as value_info of the model)"


def says(model: str, op: str, constraint: str) -> str:
    return verdict(model, f"[{{op: {op}, tensors: {{{constraint}}}}}]").removeprefix(f"{op}: ")


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("X: {dims: {0: 1}}", "yes"),
        ("X: {dims: {0: 2}}", "dimension 0 of X is 1; supported: 2"),
        ("X: {dims: {1: [1, 4]}}", "yes"),
        ("X: {dims: {1: [1, 3]}}", "dimension 1 of X is 4; supported: 1, 3"),
        ("X: {dims: {-1: {min: 9, max: 9}}}", "yes"),
        ("X: {dims: {-1: {min: 10}}}", "dimension -1 of X is 9, at least 10 is supported"),
        ("X: {dims: {2: {max: 8}}}", "dimension 2 of X is 9, at most 8 is supported"),
        ("Y: {dims: {1: {multiple_of: 2}}}", "yes"),
        ("Y: {dims: {1: {multiple_of: 8}}}", "dimension 1 of Y is 4, a multiple of 8 is supported"),
        ("W: {dims: {0: {equals: 'X[1]'}}}", "yes"),
        (
            "W: {dims: {1: {equals: 'X[1]'}}}",
            "dimension 1 of W is 2, and X[1] is 4; they must be equal",
        ),
        ("B: {dims: {0: {equals: 'W[-4]'}}}", "yes"),
        ("W: {dims: {0: {equals: 'B[1]'}}}", "B has no dimension 1: its rank is 1"),
        ("X: {dims: {each: {max: 9}}}", "yes"),
        ("X: {dims: {each: {max: 8}}}", "dimension 2 of X is 9, at most 8 is supported"),
        ("B: {dims: {1: 1}}", "B has no dimension 1: its rank is 1"),
        ("B: {dims: {-2: 1}}", "B has no dimension -2: its rank is 1"),
        ("X: {elements: {max: 324}}", "yes"),
        ("X: {elements: {max: 323}}", "the number of elements of X is 324, at most 323 is supported"),
        (
            "X: {elements: {multiple_of: 5}}",
            "the number of elements of X is 324, a multiple of 5 is supported",
        ),
        ("W: {bytes: {max: 480}}", "yes"),
        ("W: {bytes: {max: 0.25KiB}}", "the size of W in bytes is 480, at most 256 is supported"),
        ("W: {bytes: {min: 1kB}}", "the size of W in bytes is 480, at least 1000 is supported"),
        ("X: {scalar: false, static: true}", "yes"),
        ("X: {scalar: true}", "X must have exactly one element"),
        ("X: {static: false}", "every dimension of X is fixed"),
        ("B: {value: {min: 0, max: 0}}", "yes"),
        ("B: {value: {min: 1}}", "an element of B is 0.0, at least 1 is supported"),
        ("B: {value: {one_of: [1, 2]}}", "an element of B is 0.0; supported: 1, 2"),
        ("X: {value: {min: 1}}", "the value of X is not known"),
    ],
)
def test_a_convolution(constraint: str, expected: str) -> None:
    assert says(CONV, "Conv", constraint) == expected


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("A: {dims: {0: 1}}", "dimension 0 of A is not known (--dim N=SIZE)"),
        ("A: {dims: {0: {max: 4}, 1: 3}}", "dimension 0 of A is not known (--dim N=SIZE)"),
        ("A: {dims: {each: {max: 4}}}", "dimension 0 of A is not known (--dim N=SIZE)"),
        ("A: {dims: {0: {equals: 'A[0]'}}}", "yes"),
        (
            "A: {dims: {0: {equals: 'B[0]'}}}",
            "whether dimension 0 of A equals B[0] is not known (--dim M=SIZE --dim N=SIZE)",
        ),
        ("A: {elements: {max: 4}}", "the number of elements of A is not known (--dim N=SIZE)"),
        ("A: {bytes: {max: 4}}", "the size of A is not known (--dim N=SIZE)"),
        ("A: {static: true}", "dimension 0 of A is not fixed (--dim N=SIZE)"),
        ("A: {static: false}", "yes"),
        ("A: {scalar: false}", "yes"),
        ("A: {broadcast: none}", "how A broadcasts is not known"),
    ],
)
def test_symbolic_dimensions(constraint: str, expected: str) -> None:
    assert says(OPEN, "Add", constraint) == expected


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("min: 2, max: 9", "yes"),
        ("min: 3", "dimension 0 of A is 2, at least 3 is supported"),
        ("max: 8", "dimension 0 of A is 9, at most 8 is supported"),
        ("one_of: [2, 9]", "dimension 0 of A is N, which is not fixed (--dim N=SIZE)"),
        ("one_of: 2", "dimension 0 of A is N, which is not fixed (--dim N=SIZE)"),
        ("multiple_of: 1", "yes"),
        ("multiple_of: 3", "dimension 0 of A is N, which is not fixed (--dim N=SIZE)"),
    ],
)
def test_dimensions_of_a_range(constraint: str, expected: str) -> None:
    text = "g (float[N,3] x) => (float[N,3] y) { y = Add (x, x) }"
    model = prepare_model(parse(text), "test", given=Dimensions({"N": "2..9"}))
    ops = rules(f"[{{op: Add, tensors: {{A: {{dims: {{0: {{{constraint}}}}}}}}}}}]")
    (mark,) = annotate_graph(model.index, ops)
    assert str(mark.verdict).removeprefix("Add: ") == expected


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("X: {dims: {0: 1}}", "the rank of X is not known"),
        ("X: {dims: {each: {max: 1}}}", "the rank of X is not known"),
        ("X: {static: true}", "the rank of X is not known"),
        ("X: {static: false}", "yes"),
        ("X: {scalar: true}", "whether X has one element is not known"),
        ("Y: {dims: {0: {equals: 'X[0]'}}}", "the rank of X is not known"),
    ],
)
def test_unknown_ranks(constraint: str, expected: str) -> None:
    text = "g (float[4] x, int64[K] s) => (float[A] y) { a = Reshape (x, s)\n y = Relu (a) }"
    ops = rules(f"[{{op: Relu, tensors: {{{constraint}}}}}]")
    (attempt,) = Annotator(ops, prepared(text).index).list_attempts(1)
    told = [objection.text for objection in attempt.objections] or ["yes"]
    assert told == [expected]
    origin = f"the shape of 'a', which Reshape 'a' makes, {STATE_IT}"
    assert says(text, "Relu", constraint) == ("yes" if expected == "yes" else origin)


@pytest.mark.parametrize(
    ("shape", "kind", "told"),
    [
        ("[2,3,4,5]", "none", "B has the shape of the output"),
        ("[1]", "scalar", "B is one element broadcast"),
        ("[1,1,1]", "scalar", "B is one element broadcast"),
        ("[3,1,1]", "channel", "B is broadcast along all but axis 1"),
        ("[1,3,1,1]", "channel", "B is broadcast along all but axis 1"),
        ("[5]", "last", "B is broadcast along all but the last axis"),
        ("[1,1,5]", "last", "B is broadcast along all but the last axis"),
        ("[4,5]", "other", OTHER),
        ("[2,1,1,1]", "other", OTHER),
        ("[2,3,1,1]", "other", OTHER),
    ],
)
def test_broadcasts(shape: str, kind: str, told: str) -> None:
    model = ADD.format(shape)
    assert says(model, "Add", f"B: {{broadcast: {kind}}}") == "yes"
    others = [other for other in ("none", "scalar", "channel", "last", "other") if other != kind]
    listed = ", ".join(others)
    assert says(model, "Add", f"B: {{broadcast: [{listed}]}}") == f"{told}; supported: {listed}"


@pytest.mark.parametrize(
    ("shape", "result", "kind"),
    [
        ("[N,3]", "[N,3]", "none"),
        ("[N,3]", "[M,3]", None),
        ("[?,3]", "[?,3]", None),
        ("[1,3,1]", "[N,3,M]", "channel"),
        ("[3]", "[N,M,3]", "last"),
        ("", "[N,3]", "scalar"),
        ("[3,4]", "[N,3,4]", "other"),
    ],
)
def test_broadcasts_of_symbolic_shapes(shape: str, result: str, kind: str | None) -> None:
    text = f"g (float{result} x, float{shape} z) => (float{result} y) {{ y = Add (x, z) }}"
    for each in ("none", "scalar", "channel", "last", "other"):
        said = says(text, "Add", f"B: {{broadcast: {each}}}")
        assert (said == "yes") is (each == kind), (each, said)
        assert kind or said.startswith("how B broadcasts is not known")


@pytest.mark.parametrize(
    ("shape", "other", "result"), [("[2,3,4]", "[4]", "[2,3]"), ("[1,3,1]", "[1]", "[1,3]")]
)
def test_what_has_more_axes_than_the_result_is_broadcast_otherwise(
    shape: str, other: str, result: str
) -> None:
    text = f"g (float{shape} x, float{other} z) => (float{result} y) {{ y = MatMul (x, z) }}"
    assert says(text, "MatMul", "A: {broadcast: other}") == "yes"


def test_of_a_matrix_the_last_axis_is_the_channel() -> None:
    text = "g (float[2,3] x, float[3] z) => (float[2,3] y) { y = Add (x, z) }"
    for kind in ("channel", "last"):
        assert says(text, "Add", f"B: {{broadcast: {kind}}}") == "yes"
    assert says(text, "Add", "B: {broadcast: other}").startswith("B is broadcast along all but axis 1")


def test_values_of_computed_constants() -> None:
    text = """
        g (float[2] x) => (float[2] y) {
          k = Constant <value_float = 0.1> ()
          h = Add (k, k)
          y = Mul (x, h)
        }"""
    assert says(text, "Mul", "B: {value: {one_of: 0.2}}") == "yes"
    assert says(text, "Mul", "B: {value: {max: 0.1}}") == (
        "an element of B is 0.2, at most 0.1 is supported"
    )


def test_each_of_a_variadic_input_is_held_to_its_constraints() -> None:
    text = "g (float[2] x, float[3] z) => (float[5] y) { y = Concat <axis = 0> (x, z) }"
    assert says(text, "Concat", "inputs: {dims: {0: [2, 3]}}") == "yes"
    assert says(text, "Concat", "inputs: {dims: {0: 2}}") == "dimension 0 of inputs is 3; supported: 2"


def test_the_batch_is_that_of_the_models_inputs() -> None:
    text = "g (float[{0},4] x, float[9] z) => (float[{0},9] y) <float[4,9] w> {{ y = Gemm (x, w, z) }}"
    ops = target("limits: {batch: 3}\nops: [{op: Gemm}]")

    def said(batch: str) -> str:
        model = text.format(batch).replace("<float[4,9] w>", f"<float[4,9] w = {{{'0,' * 35}0}}>")
        return str(annotate_graph(prepared(model).index, ops)[0].verdict)

    assert said("3") == "yes"
    assert said("4") == "Gemm: the batch of the model's input 'x' is 4, at most 3 is supported"
    assert said("N") == "Gemm: the batch of the model's input 'x' is not known (--dim N=SIZE)"


def test_inputs_without_a_batch_do_not_hide_others() -> None:
    text = "g (float[4] z, float[3,4] x) => (float[3,4] y) { y = Add (x, z) }"
    ops = target("limits: {batch: 2}\nops: [{op: Add}]")
    (mark,) = annotate_graph(prepared(text).index, ops)
    assert str(mark.verdict) == "Add: the batch of the model's input 'x' is 3, at most 2 is supported"


def test_the_batch_counts_where_it_is_computed_from() -> None:
    text = """
        g (float[1,64,8] x, float[9,8] other, bool c) => (float[64,8] y, float[9,8] z, float[9,8] v) {
          flat = Squeeze (x)
          y = Relu (flat)
          z = Relu (other)
          v = If (c) <then_branch = a () => (float[9,8] p) { p = Neg (z) },
                      else_branch = b () => (float[9,8] q) { q = Neg (z) }>
        }"""
    ops = target("limits: {batch: 1}\nops: [{op: [Squeeze, Relu, Neg]}]")
    index = prepared(text).index
    told = "Relu: the batch of the model's input 'other' is 9, at most 1 is supported"
    squeeze, first, second, _ = annotate_graph(index, ops)
    assert (str(squeeze.verdict), str(first.verdict), str(second.verdict)) == ("yes", "yes", told)
    (body, _) = index.bodies[3]
    assert str(annotate_graph(body.index, ops)[0].verdict) == told.replace("Relu", "Neg")


def test_an_absent_tensor_meets_all_but_absent() -> None:
    text = "g (float[1,1,3,3] x) => (float[1,1,1,1] y) <float[1,1,3,3] w> { y = Conv (x, w) }"
    every = "dims: {0: 7}, elements: {min: 9}, bytes: {min: 9}, scalar: true, value: {min: 3}"
    assert says(text, "Conv", f"B: {{{every}}}") == "yes"
    assert says(text, "Conv", f"B: {{absent: false, {every}}}") == "B is absent"


def test_a_dimension_that_equals_one_of_an_absent_tensor() -> None:
    text = "g (float[1,1,3,3] x) => (float[1,1,1,1] y) <float[1,1,3,3] w> { y = Conv (x, w) }"
    assert says(text, "Conv", "W: {dims: {0: {equals: 'B[0]'}}}") == (
        "dimension 0 of W must be B[0], and B is absent"
    )


def test_sizes() -> None:
    text = "g (float[256] x) => (float[256] y) { y = Relu (x) }"
    for size in ("1024", "1KiB", "'1 KiB'", "0.001024MB", "1GiB"):
        assert verdict(text, f"[{{op: Relu, tensors: {{X: {{bytes: {{max: {size}}}}}}}}}]") == "yes"
    assert not annotate_graph(
        prepared(text).index, rules("[{op: Relu, tensors: {X: {bytes: {max: 1023}}}}]")
    )[0].verdict


RANKS = """
g (float[2,3] x, float[N,3] u, bool c) => (float[2,3] a, float[N,3] b, float z) {
  a = Relu(x)
  b = Relu(u)
  d = If <then_branch = t () => (float e) { e = ReduceSum <keepdims = 0> (x) },
          else_branch = f () => (float[2,3] h) { h = Neg(x) }> (c)
  k = Relu(d)
  z = ReduceSum <keepdims = 0> (k)
}
"""


@pytest.mark.parametrize(
    ("shapes", "refused"),
    [
        ("any", {}),
        ("ranked", {"k": f"the shape of 'd', which If 'd' makes, {STATE_IT}"}),
        (
            "static",
            {
                "b": "Relu: dimension 0 of X is not fixed (--dim N=SIZE)",
                "k": f"the shape of 'd', which If 'd' makes, {STATE_IT}",
            },
        ),
    ],
)
def test_a_file_asks_what_must_be_known_of_shapes(shapes: str, refused: dict[str, str]) -> None:
    index = prepared(RANKS).index
    marks = annotate_graph(index, target("ops: [{op: Relu}]", shapes=shapes))
    relus = {
        node.output[0]: mark
        for node, mark in zip(index.nodes, marks, strict=True)
        if node.op_type == "Relu"
    }
    assert {name: str(mark.verdict) for name, mark in relus.items() if not mark.verdict} == refused


def test_of_a_value_with_several_faults_the_first_is_named() -> None:
    text = "g (float[4] x) => (float[1, 1] y) <int64[2] s = {3, 5}> { y = Reshape(x, s) }"
    told = verdict(text, "- {op: Reshape, tensors: {shape: {dtype: any, value: {max: 2}}}}")
    assert ("3" in told, "5" in told) == (True, False), told


def test_a_limit_of_the_batch_refuses_what_has_more_rows() -> None:
    text = (
        "g (float[{rows}, 3, 4, 4] x, float[2, 3, 1, 1] w) => (float[{rows}, 2, 4, 4] y) "
        "{{ y = Conv(x, w) }}"
    )
    taken = target("ops: [{op: Conv}]\nlimits: {batch: 2}")
    for rows in (1, 2, 3):
        index = prepare_model(parse(text.format(rows=rows)), "test").index
        (mark,) = annotate_graph(index, taken)
        assert bool(mark.verdict) == (rows <= 2), rows
    assert "2" in str(mark.verdict)
    assert "limits.batch" in str(mark.verdict.reasons) + str(mark.verdict.causes)


def test_a_tensor_without_a_type_is_not_known_to_be_taken() -> None:
    model = parse("g (float[4] x) => (int64[1] y) { a = acme.Odd(x) y = Shape(a) }")
    model.opset_import.add(domain="acme", version=1)
    found = annotate_graph(prepare_model(model, "test").index, rules("- op: Shape"))
    assert "which Odd 'a' makes, is not known" in str(found[-1].verdict)
