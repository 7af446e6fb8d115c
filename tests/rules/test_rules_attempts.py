"""What every rule says of a node, the nearest first, each objection with its place in the file."""

from helpers.ruling import filled, rules, target

from byoc.model import prepare_model
from byoc.rules import Annotator, Attempt, Objection, Target

CONV = """
g (float[1,4,9,9] x) => (float[1,4,7,5] y) <float[4,2,3,5] w, float[4] b> {
  y = Conv <group = 2> (x, w, b)
}
"""


def attempts(ops: Target, text: str = CONV) -> list[Attempt]:
    return Annotator(ops, prepare_model(filled(text), "test").index).list_attempts(0)


def test_places_and_order() -> None:
    ops = """
      - op: Conv
        where: ["X.rank == 5", "X.nosuch == 1 || W.value[0] == 0.0"]
        attributes: {kernel_shape: {each: {max: 4}, length: 3}, group: {one_of: 1}, pads: {absent: true}}
        tensors:
          X: {rank: 3, dims: {-1: {max: 4}, each: {max: 8}}, dtype: float16, bytes: {max: 8}}
          W: {constant: false, elements: {multiple_of: 7}}
          B: {absent: true}
        opset: {max: 12}
    """
    content = rules(ops.replace("X.nosuch == 1 || ", ""))
    (attempt,) = attempts(content)
    assert attempt.rule == "ops[0]"
    assert [objection.location for objection in attempt.objections] == [
        "ops[0].opset.max",
        "ops[0].tensors.X.dtype",
        "ops[0].tensors.X.rank",
        "ops[0].tensors.X.dims[-1].max",
        "ops[0].tensors.X.dims.each.max",
        "ops[0].tensors.X.bytes.max",
        "ops[0].tensors.W.constant",
        "ops[0].tensors.W.elements.multiple_of",
        "ops[0].tensors.B.absent",
        "ops[0].attributes.kernel_shape.length",
        "ops[0].attributes.kernel_shape.each.max",
        "ops[0].attributes.group.one_of",
        "ops[0].attributes.pads.absent",
        "ops[0].where[0]",
    ]


def test_what_is_not_known_comes_last() -> None:
    text = "g (float[N,3] x) => (float[N,3] y) { y = LeakyRelu (x) }"
    ops = rules("[{op: LeakyRelu, tensors: {X: {dims: {0: 1}}}, attributes: {alpha: {max: 0}}}]")
    (attempt,) = attempts(ops, text)
    assert attempt.objections == (
        Objection("ops[0].attributes.alpha.max", "alpha is 0.01, at most 0 is supported"),
        Objection("ops[0].tensors.X.dims[0]", "dimension 0 of X is not known (--dim N=SIZE)"),
    )


def test_the_nearest_first() -> None:
    """One objection before two; of as many that to an attribute before that to the operator set."""
    ops = rules("""
      - {op: Conv, opset: {max: 9}, attributes: {group: {max: 1}}}
      - {op: Conv, opset: {max: 9}}
      - {op: Conv, tensors: {X: {rank: 3}}}
      - {op: Conv, attributes: {group: {max: 1}}, opset: {max: 21}}
      - {op: Conv, dtype: float16, tensors: {X: {dtype: float32}, W: {dtype: float32}}}
    """)
    assert [attempt.rule for attempt in attempts(ops)] == [
        "ops[3]",
        "ops[2]",
        "ops[1]",
        "ops[4]",
        "ops[0]",
    ]


def test_a_rule_that_accepts_has_no_objections() -> None:
    assert attempts(rules("[{op: Conv, opset: {max: 9}}, {op: Conv}]"))[0] == Attempt("ops[1]", ())


def test_what_no_rule_is_asked_about() -> None:
    relu = "g (float[2] x) => (float[2] y) { a = Relu (x)\n y = Neg (x) }"
    assert attempts(rules("[{op: Conv}]"), relu) == [
        Attempt("", (Objection("ops", "Relu is not among the operators of dla"),))
    ]
    assert attempts(rules("[{op: Relu}]"), relu) == [
        Attempt("", (Objection("", "nothing reads what Relu makes"),))
    ]


def test_rules_for_any_operator_stand_in_the_order_of_the_file() -> None:
    ops = rules("[{op: Conv, opset: {max: 9}}, {op: '*', dtype: int8}, {op: [Relu, Conv]}]")
    index = prepare_model(filled(CONV), "test").index
    assert Annotator(ops, index).annotate_node(0).rule == "ops[2]"
    ops = rules(
        "[{op: '*', standalone: false}, {op: Relu}]".replace("{op: Relu}", "{op: Sin, dtype: any}")
    )
    assert Annotator(ops, index).annotate_node(0).standalone is False


def test_the_level_is_that_of_the_rule_that_holds() -> None:
    index = prepare_model(filled(CONV), "test").index
    first = target("ops: [{op: Conv, level: must, opset: {max: 17}}, {op: Conv}]")
    second = target("ops: [{op: Conv, level: must, opset: {max: 16}}, {op: Conv}]")
    assert Annotator(first, index).annotate_node(0).is_required
    assert not Annotator(second, index).annotate_node(0).is_required


def test_places_of_inherited_rules() -> None:
    ops = rules("[{op: Conv, attributes: {group: {max: 1}}}]")
    inherited = Target("test", ops.rules, {"ops[0]": "dla.yaml: ops[4]", "dtype": "dla.yaml: dtype"})
    index = prepare_model(filled(CONV), "test").index
    (attempt,) = Annotator(inherited, index).list_attempts(0)
    assert attempt == Attempt(
        "dla.yaml: ops[4]",
        (Objection("dla.yaml: ops[4].attributes.group.max", "group is 2, at most 1 is supported"),),
    )
    other = rules("[{op: Conv}]", dtype="float16")
    inherited = Target("test", other.rules, inherited.locations)
    (attempt,) = Annotator(inherited, index).list_attempts(0)
    assert {objection.location for objection in attempt.objections} == {"dla.yaml: dtype"}
