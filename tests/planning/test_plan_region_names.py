"""Names of regions: what they depend on, and what they do not."""

import random
import re

import onnx
import pytest
from accelerators import Files
from helpers.support import parse

from byoc.pipeline import partition
from byoc.planning import Plan

# Two blocks of one shape with weights of their own, a lone Relu, and a Sigmoid between each.
BLOCKS = """
blocks (float[1, 4] x) => (float[1, 4] y)
  <float[4, 4] v = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1},
   float[4, 4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> {
  [one] a = MatMul(x, v)
  [two] b = Relu(a)
  [host1] c = Sigmoid(b)
  [three] d = MatMul(c, w)
  [four] e = Relu(d)
  [host2] f = Sigmoid(e)
  [five] y = Relu(f)
}
"""
BODIES = """
bodies (float[4] x, bool c) => (float[4] y) {
  a = Sigmoid (x)
  y = If <then_branch = t () => (float[4] u) { s = Relu (a) u = Sigmoid (s) },
          else_branch = e () => (float[4] v) { r = Relu (a) n = Neg (r) v = Sigmoid (n) }> (c)
}
"""


@pytest.fixture
def rules(files: Files) -> str:
    return str(files.rules("npu", "MatMul", "Relu", "Neg", "Sub"))


def plan(text: str | onnx.ModelProto, rules: str) -> Plan:
    model = parse(text) if isinstance(text, str) else text
    return partition(model, rules, strategy="all-supported").plan


def names(text: str | onnx.ModelProto, rules: str) -> dict[str, str]:
    """Return the name of each region by the first output of its last node."""
    return {
        region.index.nodes[region.nodes[-1]].output[0]: region.name
        for region in plan(text, rules).regions
    }


def test_names_say_the_target_and_six_characters(rules: str) -> None:
    found = names(BLOCKS, rules)
    assert len(set(found.values())) == 3
    for name in found.values():
        assert re.fullmatch(r"npu_[0-9a-hjkmnp-tv-z]{6}", name)
        assert name.isidentifier()


def test_names_are_the_same_on_every_system_and_in_every_version(rules: str) -> None:
    """Saved placements, bundles and notes of users have them: a change here renames all of these."""
    assert names(BLOCKS, rules) == {"b": "npu_66vt2d", "e": "npu_615qqd", "y": "npu_z3gajy"}


# A body that captures, constants of all kinds, an input that is left out, two outputs, attributes.
MANY_KINDS = """
many (float[2, 4] x, float[2, 4] z, bool c) =>
  (float[2, 4] y, float[2, 2] o, float[2, 4] p, int64[2, 2] q)
  <float[4] w = {1, 2, 3, 4}, float one = {1}, int64[1] k = {2}, float[2] both = {1, 2}> {
  n = Constant <value = float[4] table {4, 3, 2, 1}> ()
  a = Add (x, n)
  b = Clip (a, , one)
  d = Sigmoid (b)
  y = If (c) <then_branch = t () => (float[2, 4] u) { e = Relu (d) u = Mul (e, w) },
              else_branch = f () => (float[2, 4] v) { v = Sub (d, z) }>
  h = Sigmoid (y)
  g = Add (h, w)
  o, q = TopK <axis = 1> (g, k)
  m = Tanh (h)
  p = LeakyRelu <alpha = 0.25> (m)
}
"""


def test_names_of_every_kind_of_node_stay(rules: str, files: Files) -> None:
    most = str(files.rules("most", "Add", "Clip", "If", "TopK", "LeakyRelu", "Relu", "Mul", "Sub"))
    found = names(MANY_KINDS, most)
    assert found == {
        "b": "most_2j5cvn",
        "y": "most_s3metg",
        "o": "most_fe9410",
        "p": "most_c3zqrf",
    }
    renamed = MANY_KINDS
    for old in ("a", "e", "n", "table", "k", "one"):
        renamed = re.sub(rf"\b{old}\b", f"{old}_", renamed)
    assert list(names(renamed, most).values()) == list(found.values())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[two]", "[renamed]"),
        ("[host1]", ""),
        ("[host1] c = Sigmoid(b)", "c = Tanh(b)"),
        ("[host1] c = Sigmoid(b)", "[new] n = Abs(b)\n c = Sigmoid(n)"),
        ("[host2] f = Sigmoid(e)", "f = Sigmoid(e)\n g = Sigmoid(b)"),
        ("[one] a = MatMul(x, v)", "[one] first = MatMul(x, v)\n a = Identity(first)"),
        ("float[1, 4] x)", "float[1, 4] x, float unused)"),
    ],
)
def test_edits_elsewhere_change_no_name(old: str, new: str, rules: str) -> None:
    """What is gone or new has another name; what holds the same has the same."""
    before, after = names(BLOCKS, rules), names(BLOCKS.replace(old, new), rules)
    assert BLOCKS.replace(old, new) != BLOCKS
    assert after["e"] == before["e"]
    assert after["y"] == before["y"]
    if "first" not in new:
        assert after["b"] == before["b"]


def test_inner_tensors_and_inputs_may_be_renamed(rules: str) -> None:
    renamed = BLOCKS
    for old, new in (("d", "inner"), ("c", "between"), ("a", "first")):
        renamed = re.sub(rf"\b{old}\b", new, renamed)
    assert names(renamed, rules) == names(BLOCKS, rules)


def test_the_tensor_that_a_region_with_weights_makes_may_be_renamed(rules: str) -> None:
    renamed = re.sub(r"\bb\b", "made", BLOCKS)
    assert names(renamed, rules)["made"] == names(BLOCKS, rules)["b"]


def test_a_region_without_weights_is_told_by_the_tensors_that_it_makes(rules: str) -> None:
    """Otherwise all lone Relu would share a name, and a new one would rename the ones behind it."""
    text = "g (float[4] x) => (float[4] y) { a = Relu(x) b = Sigmoid(a) c = Relu(b) y = Sigmoid(c) }"
    before = names(text, rules)
    assert before["a"] != before["c"]
    more = text.replace("a = Relu(x)", "p = Relu(x) q = Sigmoid(p) a = Relu(q)")
    after = names(more, rules)
    assert {name: after[name] for name in "ac"} == before
    assert names(re.sub(r"\ba\b", "n", text), rules)["n"] != before["a"]


def test_regions_that_share_all_weights_are_told_by_the_tensors_that_they_make(rules: str) -> None:
    shared = re.sub(r"\bw\b", "v", BLOCKS.replace("   float[4, 4] w", "   float[4, 4] unused"))
    before = names(BLOCKS, rules)
    found = names(shared, rules)
    assert len(set(found.values())) == 3
    assert found["b"] != before["b"]
    alone = names(shared.replace("[four] e = Relu(d)", "[four] e = Neg(d)"), rules)
    assert (alone["b"], alone["e"] == found["e"]) == (found["b"], False)  # its weight is shared still
    reordered = names(shared.replace("[one] a = MatMul(x, v)", "a = MatMul(x, v)"), rules)
    assert reordered == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[four] e = Relu(d)", "[four] e = Neg(d)"),
        ("[three] d = MatMul(c, w)", "[three] d = MatMul(w, c)"),
        ("[three] d = MatMul(c, w)", "[three] d = MatMul(c, w2)"),
        ("[four] e = Relu(d)", "[four] h = Relu(d)\n e = Relu(h)"),
    ],
)
def test_other_content_has_another_name(old: str, new: str, rules: str) -> None:
    text = BLOCKS.replace("[1, 4]", "[4, 4]")
    changed = text.replace(old, new)
    if "w2" in new:
        changed = changed.replace("4] w =", "4] w2 =")
    before, after = names(text, rules), names(changed, rules)
    assert after["e"] != before["e"]
    assert (after["b"], after["y"]) == (before["b"], before["y"])


def test_attributes_count_and_their_order_does_not(files: Files) -> None:
    rules = str(files.rules("npu", "Gemm"))
    text = """g (float[4, 4] x) => (float[4, 4] y) <float[4, 4] w = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}>
        { y = Gemm<alpha = 2.0, transB = 1>(x, w) }"""
    first = names(text, rules)
    assert names(text.replace("alpha = 2.0, transB = 1", "transB = 1, alpha = 2.0"), rules) == first
    assert names(text.replace("2.0", "3.0"), rules) != first


def test_the_order_of_nodes_in_the_file_does_not_count(rules: str) -> None:
    text = """g (float[4, 4] x) => (float[4, 4] y)
      <float[4, 4] v = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1},
       float[4, 4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> {
      a = MatMul(x, v) b = MatMul(x, w) c = Relu(a) d = Neg(b) e = MatMul(c, d)
      f = Sigmoid(e) y = Neg(f) }"""
    first = names(text, rules)
    model = parse(text)
    nodes = list(model.graph.node)
    for seed in range(10):
        random.Random(seed).shuffle(nodes)
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        assert names(model, rules) == first


def test_regions_of_bodies_are_named_too(rules: str) -> None:
    found = names(BODIES, rules)
    assert set(found) == {"s", "n"}
    assert names(BODIES.replace("v = Sigmoid (n)", "p = Tanh (n) v = Sigmoid (p)"), rules) == found
    changed = names(BODIES.replace("n = Neg (r)", "n = Relu (r)"), rules)
    assert (changed["s"], changed["n"] == found["n"]) == (found["s"], False)


def test_equal_regions_of_two_bodies_are_numbered(rules: str) -> None:
    """Names of tensors are free in each body, so that these regions are equal in all that counts."""
    text = BODIES.replace("r = Relu (a) n = Neg (r) v = Sigmoid (n)", "s = Relu (a) v = Sigmoid (s)")
    first, second = [region.name for region in plan(text, rules).regions]
    assert second == f"{first}_2"


def test_a_body_counts_as_its_node_does(files: Files) -> None:
    """Of a node that goes to an accelerator with its bodies, these are what it holds."""
    rules = str(files.rules("npu", "If", "Relu", "Neg", "Sigmoid"))
    (first,) = names(BODIES, rules).values()
    renamed = re.sub(r"\br\b", "inside", re.sub(r"\bs\b", "inner", BODIES))
    assert list(names(renamed, rules).values()) == [first]
    assert list(names(BODIES.replace("Neg", "Sigmoid"), rules).values()) != [first]


def test_names_of_single_numbers_and_shapes_do_not_count(files: Files) -> None:
    """Scales are called after tensors, and exporters number what they fold."""
    rules = str(files.rules("npu", "MatMul", "Mul", "Reshape"))
    text = """g (float[1, 4] x) => (float[4, 1] y)
      <float[4, 4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}, float half = {0.5}, int64[2] to = {4, 1}> {
      a = MatMul(x, w) b = Mul(a, half) y = Reshape(b, to) }"""
    first = names(text, rules)
    renamed = re.sub(r"\bto\b", "onnx__Reshape_8", re.sub(r"\bhalf\b", "a_scale", text))
    assert names(renamed, rules) == first
    assert names(re.sub(r"\bw\b", "v", text), rules) != first
    assert names(text.replace("float half", "float[1] half"), rules) != first


def test_values_of_small_constants_count_and_of_weights_do_not(rules: str) -> None:
    """Reading weights takes time; what is in a Constant node is part of what it computes."""
    assert names(BLOCKS.replace("w = {1,", "w = {7,"), rules) == names(BLOCKS, rules)
    text = "g (float[4] x) => (float[4] y) { c = Constant<value = float[4] {1,2,3,4}>() y = Sub(x, c) }"
    first = list(names(text, rules).values())
    assert list(names(text.replace("c =", "k =").replace(", c)", ", k)"), rules).values()) == first
    assert list(names(text.replace("{1,", "{7,"), rules).values()) != first
