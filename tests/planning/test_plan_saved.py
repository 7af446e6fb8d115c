"""Placements as files: saved, edited, given back; what no longer fits is told."""

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from accelerators import Files, everywhere, notes
from helpers.cutting import CHAIN
from helpers.support import parse

from byoc.errors import InputError
from byoc.pipeline import Result, partition
from byoc.planning import save_placement

# Its first Neg and Abs have names, the rest do not.
NAMED = """
named (float[1, 4] x) => (float[1, 4] y) {
  [first] a = Neg(x)
  [second] b = Abs(a)
  c = Tanh(b)
  [twice] d = Neg(c)
  [twice] e = Relu(d)
  y = Add(e, a)
}
"""
BODIES = """
bodies (float[4] x, bool c, int64 n) => (float[4] y, float[4] z) {
  a = Relu (x)
  [choice] y = If <then_branch = t () => (float[4] u) { s = Neg (a) u = Relu (s) },
                   else_branch = e () => (float[4] v) { v = Relu (x) }> (c)
  [round] z = Loop <body = l (int64 i, bool k, float[4] p) => (bool m, float[4] q)
     { m = Identity (k) r = Neg (p) q = Relu (r) }> (n, c, a)
}
"""


def saved(result: Result, path: Path) -> dict[str, Any]:
    save_placement(result.plan, path)
    content = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def write(path: Path, nodes: dict[str, str], **more: Any) -> Path:
    path.write_text(yaml.safe_dump({"format": 1, "nodes": nodes, **more}), "utf-8")
    return path


def test_what_is_saved_comes_back(files: Files, tmp_path: Path) -> None:
    rules = [files.rules("one", "Neg", "Abs"), files.rules("two", "Relu", "Add", "Neg")]
    first = partition(parse(NAMED), rules, strategy="all-supported")
    content = saved(first, tmp_path / "p.yaml")
    assert content["model"] == "named"
    # Two nodes have one name: these go by their outputs, as do nodes without a name.
    assert (
        list(content["nodes"])
        == list(content["signatures"])
        == [
            *("first", "second", "c", "d", "e", "y"),
        ]
    )
    assert set(content["nodes"].values()) == {"host", "one", "two"}
    for strategy in ("host-only", "launch-aware", "exact"):
        if strategy == "host-only":
            continue
        again = partition(parse(NAMED), rules, strategy=strategy, placement=tmp_path / "p.yaml")
        assert everywhere(again) == everywhere(first)
        save_placement(again.plan, tmp_path / "q.yaml")
        assert (tmp_path / "q.yaml").read_text() == (tmp_path / "p.yaml").read_text()


def test_a_model_without_nodes_comes_back(files: Files, tmp_path: Path) -> None:
    rules = files.rules("one", "Neg")
    first = partition(parse("empty (float[4] x) => (float[4] x) {}"), rules)
    assert saved(first, tmp_path / "p.yaml")["nodes"] == {}
    assert partition(
        parse("empty (float[4] x) => (float[4] x) {}"), rules, placement=tmp_path / "p.yaml"
    )


def test_an_edited_file_is_followed(files: Files, tmp_path: Path) -> None:
    """What is listed goes where it is said to be; the strategy has the rest."""
    rules = files.rules("one", "Neg", "Abs", "Relu", "Add")
    path = write(tmp_path / "p.yaml", {"second": "host", "e": "one"})
    result = partition(parse(NAMED), rules, placement=path)
    assert everywhere(result) == {
        **dict.fromkeys(("a", "d", "e", "y"), "one"),
        **dict.fromkeys(("b", "c"), "host"),
    }
    reasons = [row.reason for row in result.report.host_reasons]
    assert "supported, but the placement that this plan follows has it on the host" in reasons
    assert Path(result.plan.asked["placement"]).name == path.name


def test_a_slow_device_is_used_where_the_file_says_so(files: Files, tmp_path: Path) -> None:
    rules = files.rules("far", "Relu", costs=files.costs("far", peak="1.0", launch="10.0"))
    assert set(everywhere(partition(parse(CHAIN), rules)).values()) == {"host"}
    path = write(tmp_path / "p.yaml", {"y": "far"})
    result = partition(parse(CHAIN), rules, placement=path)
    assert everywhere(result) == {"a": "host", "b": "host", "y": "far"}


def test_renamed_nodes_are_found_by_what_they_are(files: Files, tmp_path: Path) -> None:
    rules = files.rules("one", "Neg", "Abs", "Relu", "Add")
    content = saved(partition(parse(NAMED), rules, strategy="all-supported"), tmp_path / "p.yaml")
    content["nodes"] |= {"second": "host"}
    write(tmp_path / "p.yaml", content["nodes"], signatures=content["signatures"])
    renamed = NAMED.replace("[second]", "[renamed]").replace("[first]", "[other]")
    result = partition(parse(renamed), rules, placement=tmp_path / "p.yaml")
    assert everywhere(result) == {**dict.fromkeys("adey", "one"), "b": "host", "c": "host"}
    assert not [note for note in notes(result) if "p.yaml" in note]
    # Without signatures they are gone.
    write(tmp_path / "p.yaml", content["nodes"])
    result = partition(parse(renamed), rules, placement=tmp_path / "p.yaml")
    assert f"{tmp_path / 'p.yaml'}: 2 nodes are not in the model: 'first', 'second'" in notes(result)
    assert everywhere(result)["b"] == "one"


def test_two_that_look_alike_are_not_guessed(files: Files, tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { [p] y = Relu(x)\n [q] z = Relu(x) }"
    rules = files.rules("one", "Relu")
    content = saved(partition(parse(text), rules, strategy="all-supported"), tmp_path / "p.yaml")
    assert len(set(content["signatures"].values())) == 1
    write(tmp_path / "p.yaml", dict.fromkeys("pq", "host"), signatures=content["signatures"])
    renamed = text.replace("[p]", "[r]").replace("[q]", "[s]")
    result = partition(parse(renamed), rules, placement=tmp_path / "p.yaml")
    told = "not in the model by name, and several nodes are like it: 'p', 'q'; placed anew"
    assert f"{tmp_path / 'p.yaml'}: {told}" in notes(result)
    assert set(everywhere(result).values()) == {"one"}


def test_one_that_nothing_is_like_is_gone(files: Files, tmp_path: Path) -> None:
    """Beside another that is renamed, and two that look alike."""
    text = """g (float[4] x) => (float[4] y, float[4] z, float[4] v) {
        [p] y = Relu(x)
        [q] z = Relu(x)
        [gone] a = Neg(x)
        [old] v = Abs(a)
    }"""
    rules = files.rules("one", "Relu", "Neg", "Abs", "Sin")
    content = saved(partition(parse(text), rules, strategy="all-supported"), tmp_path / "p.yaml")
    names = dict.fromkeys(("p", "q", "gone", "old"), "host")
    write(tmp_path / "p.yaml", names, signatures=content["signatures"])
    renamed = text.replace("[p]", "[r]").replace("[q]", "[s]").replace("[old]", "[new]")
    renamed = renamed.replace("[gone] a = Neg(x)", "[other] a = Sin(x)")
    told = notes(partition(parse(renamed), rules, placement=tmp_path / "p.yaml"))
    several = [note for note in told if "several nodes are like it" in note]
    assert len(several) == 1
    assert several[0].endswith("and several nodes are like it: 'p', 'q'; placed anew")
    assert any("'gone'" in note for note in told)


def test_repeated_blocks_are_told_apart_by_where_they_are(files: Files, tmp_path: Path) -> None:
    """All nodes are renamed, and one operator is another than before: what is far from it is found."""
    lines = [f"[n{i}] t{i + 1} = {'Relu' if i % 2 else 'Neg'}(t{i})" for i in range(60)]
    text = "g (float[4] t0) => (float[4] t60) {\n" + "\n".join(lines) + "\n}"
    rules = files.rules("one", "Relu", "Neg")
    content = saved(partition(parse(text), rules, strategy="all-supported"), tmp_path / "p.yaml")
    assert (
        len(set(content["signatures"].values())) == 36
    )  # 17 from each end, and two kinds in the middle
    write(tmp_path / "p.yaml", {"n3": "host", "n50": "host"}, signatures=content["signatures"])
    renamed = re.sub(r"\[n(\d+)\]", r"[m\1]", text).replace("t31 = Neg", "t31 = Abs")
    result = partition(parse(renamed), rules, placement=tmp_path / "p.yaml", strategy="all-supported")
    placed = everywhere(result)
    assert {name for name, device in placed.items() if device == "host"} == {"t4", "t31", "t51"}


def test_names_that_yaml_takes_for_something_else_come_back(files: Files, tmp_path: Path) -> None:
    odd = ("1e5", "null", "yes", "~", "a: b", "#x", "0x1f", "1:30", "é ü", "'q'", "2026-01-01", "no")
    nodes = [onnx.helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"], name) for i, name in enumerate(odd)]
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("t0", kind, [4])],
        [onnx.helper.make_tensor_value_info(f"t{len(odd)}", kind, [4])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    rules = files.rules("one", "Neg")
    saved(partition(model, rules, strategy="all-supported"), tmp_path / "p.yaml")
    result = partition(model, rules, placement=tmp_path / "p.yaml")
    assert set(everywhere(result).values()) == {"one"}
    assert not [note for note in notes(result) if "placed anew" in note]


def test_a_name_that_is_another_nodes_output(files: Files, tmp_path: Path) -> None:
    """Each entry means one node, whatever exporters call theirs."""
    text = "g (float[4] x) => (float[4] y, float[4] z) { [z] y = Relu(x)\n z = Neg(x) }"
    rules = files.rules("one", "Neg")
    content = saved(partition(parse(text), rules, strategy="all-supported"), tmp_path / "p.yaml")
    assert content["nodes"] == {"y": "host", "z": "one"}


def test_what_is_gone_or_refused_is_told(files: Files, tmp_path: Path) -> None:
    rules = files.rules("one", "Neg", "Abs")
    wanted = {f"gone_{number}": "host" for number in range(7)} | {"e": "one", "first": "one"}
    path = write(tmp_path / "p.yaml", wanted)
    result = partition(parse(NAMED), rules, placement=path)
    assert sorted(notes(result)[:2], reverse=True) == [
        f"{path}: not taken by the device: 'e'; placed anew",
        f"{path}: 7 nodes are not in the model: 'gone_0', 'gone_1', 'gone_2', 'gone_3', 'gone_4' and "
        "2 more",
    ]
    assert everywhere(result)["a"] == "one"
    assert everywhere(result)["e"] == "host"


def test_a_composite_of_nodes_that_were_apart_is_none(files: Files, tmp_path: Path) -> None:
    more = "composites:\n- {name: pair, pattern: 'a = Neg(x)\n\n    y = Relu(a)'}\n"
    rules = files.rules("one", "Neg", "Relu", more=more)
    path = write(tmp_path / "p.yaml", {"d": "one", "e": "host"})
    result = partition(parse(NAMED), rules, placement=path)
    assert {name: everywhere(result)[name] for name in "de"} == {"d": "one", "e": "host"}
    assert not [note for note in notes(result) if "p.yaml" in note]
    (whole,) = partition(parse(NAMED), rules, strategy="all-supported").plan.regions[1:]
    assert [unit.composite for unit in whole.units] == ["pair"]


def test_a_quantized_group_whose_nodes_were_apart_is_placed_anew(files: Files, tmp_path: Path) -> None:
    text = """g (int8[4] x) => (int8[4] y) <float s = {0.5}, int8 o = {0}> {
        d = DequantizeLinear(x, s, o) r = Relu(d) y = QuantizeLinear(r, s, o) }"""
    rules = files.rules("one", "{op: Relu, quantized: true}")
    path = write(tmp_path / "p.yaml", {"d": "one", "r": "host"})
    result = partition(parse(text), rules, placement=path, strategy="all-supported")
    assert f"{path}: on several devices, and now run as one: 'd', 'r'; placed anew" in notes(result)
    assert set(everywhere(result).values()) == {"one"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("[second]", "[other]", id="renamed"),
        pytest.param("[second] b = Abs(a)", "[other] b = Abs(x)", id="renamed and read from elsewhere"),
        pytest.param("[second]", "[first]", id="its name is another's, too"),
        pytest.param("[twice] d", "d", id="its name is its own now"),
        pytest.param("[twice] d = Neg(c)", "[twice] d = Tanh(c)", id="beside one with its name"),
        pytest.param("b = Abs(a)\n  c = Tanh(b)", "m = Abs(a)\n  c = Tanh(m)", id="its tensor renamed"),
        pytest.param(
            "c = Tanh(b)", "[second] n = Abs(b)\n  c = Tanh(n)", id="one of its name behind it"
        ),
        pytest.param(
            "c = Tanh(b)", "[b] n = Abs(x)\n  c = Tanh(b)", id="a new node of its tensor's name"
        ),
        pytest.param("[second] b = Abs(a)", "n = Relu(a)\n  [second] b = Abs(n)", id="one inserted"),
        pytest.param("c = Tanh(b)\n  [twice] d = Neg(c)", "[twice] d = Neg(b)", id="one removed"),
    ],
)
def test_nodes_stay_where_they_were_after_edits(
    old: str, new: str, files: Files, tmp_path: Path
) -> None:
    """`b`, `e` and `y` are the same before and after; without signatures, names alone find them."""
    rules = files.rules("one", "Neg", "Abs", "Relu", "Add")
    content = saved(partition(parse(NAMED), rules, strategy="all-supported"), tmp_path / "p.yaml")
    nodes = dict.fromkeys(content["nodes"], "one") | {"second": "host", "c": "host", "y": "host"}
    path = write(tmp_path / "p.yaml", nodes, outputs=content["outputs"])
    assert NAMED.count(old) == 1
    placed = everywhere(
        partition(parse(NAMED.replace(old, new)), rules, placement=path, strategy="all-supported")
    )
    assert placed["m" if "m = Abs" in new else "b"] == "host"
    assert (placed["e"], placed["y"]) == ("one", "host")


def test_a_node_that_has_the_name_of_another_is_found_by_its_output(
    files: Files, tmp_path: Path
) -> None:
    """Both are alike, and what is around both changed: each has one output, and one name is gone."""
    text = """g (float[4] x) => (float[4] y) {
      [p] a = Neg(x) [q] b = Relu(a) [r] c = Neg(b) [s] d = Relu(c) [t] y = Neg(d) }"""
    rules = files.rules("one", "Neg", "Relu")
    content = saved(partition(parse(text), rules, strategy="all-supported"), tmp_path / "p.yaml")
    more = {key: content[key] for key in ("outputs", "signatures")}
    path = write(tmp_path / "p.yaml", content["nodes"] | {"s": "host"}, **more)
    edited = text.replace("[q]", "[new]").replace("[s]", "[q]").replace("Neg(x)", "Abs(x)")
    result = partition(parse(edited), rules, placement=path, strategy="all-supported")
    assert {name: everywhere(result)[name] for name in "bd"} == {"b": "one", "d": "host"}


def test_nodes_of_a_body_stay_where_the_node_around_it_is_renamed(files: Files, tmp_path: Path) -> None:
    rules = files.rules("one", "Relu", "Neg")
    content = saved(partition(parse(BODIES), rules, strategy="all-supported"), tmp_path / "p.yaml")
    inside = [name for name in content["nodes"] if name.count("/") == 2]
    assert len(inside) == 6
    path = write(tmp_path / "p.yaml", dict.fromkeys(inside, "host"), outputs=content["outputs"])
    for old, new in (("[choice]", "[other]"), ("[choice]", ""), ("[round]", "[choice]")):
        edited = parse(BODIES.replace(old, new))
        result = partition(edited, rules, placement=path, strategy="all-supported")
        assert {everywhere(result)[name] for name in "suvrq"} == {"host"}
        assert everywhere(result)["a"] == "one"
        assert not [note for note in notes(result) if "p.yaml" in note]


def test_a_device_that_is_not_there(files: Files, tmp_path: Path) -> None:
    path = write(tmp_path / "p.yaml", {"first": "ones"})
    with pytest.raises(InputError) as caught:
        partition(parse(NAMED), files.rules("one", "Neg"), placement=path)
    assert str(caught.value) == (
        f"{path}: nodes.first: no device 'ones' here (did you mean one?); there are host, one"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("format: 1\n", "nodes: "),
        ("format: 2\nnodes: {a: host}\n", "format: "),
        ("format: 1\nnods: {a: host}\n", "nods: no such key (did you mean nodes?)"),
        ("format: 1\nnodes: {a: [1]}\n", "nodes.a: "),
        ("a: [", ""),
    ],
)
def test_a_file_that_is_none(text: str, sentence: str, files: Files, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError) as caught:
        partition(parse(NAMED), files.rules("one", "Neg"), placement=path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}:") for line in lines)
    assert any(line.startswith(f"{path}: {sentence}".rstrip()) for line in lines)


def test_no_such_file(files: Files, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p\.yaml: no such file"):
        partition(parse(NAMED), files.rules("one", "Neg"), placement=tmp_path / "p.yaml")


def test_nodes_of_bodies_in_bodies_stay_where_the_nodes_around_them_are_renamed(
    files: Files, tmp_path: Path
) -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        [a] y = If <then_branch = t () => (float[4] u) {
            [b] u = If <then_branch = p () => (float[4] v) { [a] v = Relu (x) },
                        else_branch = q () => (float[4] w) { [w] w = Neg (x) }> (c) },
          else_branch = e () => (float[4] z) { [z] z = Relu (x) }> (c) }"""
    rules = files.rules("one", "Relu", "Neg")
    content = saved(partition(parse(text), rules, strategy="all-supported"), tmp_path / "p.yaml")
    nodes = {name: "host" for name in content["nodes"] if name[-1] in "wz"}
    nodes["a/then_branch/b/then_branch/a"] = "one"
    assert content["outputs"]["a/then_branch/b/then_branch/a"] == "a/then_branch/b/then_branch/v"
    path = write(tmp_path / "p.yaml", nodes, outputs=content["outputs"])
    renamed = re.sub(r"\[.\]", "", text)
    result = partition(parse(renamed), rules, placement=path, strategy="all-supported")
    assert {name: everywhere(result)[name] for name in "vwz"} == {"v": "one", "w": "host", "z": "host"}
    assert not [note for note in notes(result) if "p.yaml" in note]


def test_nodes_of_bodies_are_placed_too(files: Files, tmp_path: Path) -> None:
    rules = files.rules("one", "Relu", "Neg")
    options: dict[str, Any] = {"trips": {"round": 3}}
    first = partition(parse(BODIES), rules, **options)
    content = saved(first, tmp_path / "p.yaml")
    assert set(content["nodes"]) == {
        *("a", "choice", "choice/then_branch/s", "choice/then_branch/u", "choice/else_branch/v"),
        *("round", "round/body/m", "round/body/r", "round/body/q"),
    }
    again = partition(parse(BODIES), rules, placement=tmp_path / "p.yaml", **options)
    assert everywhere(again) == everywhere(first)
    here = {"choice/then_branch/s": "host", "round/body/q": "host"}
    edited = partition(parse(BODIES), rules, placement=write(tmp_path / "q.yaml", here), **options)
    assert everywhere(edited) == everywhere(first) | {"s": "host", "q": "host"}
    assert everywhere(first)["q"] == everywhere(first)["s"] == "one"


def test_bodies_of_nodes_of_one_name(files: Files, tmp_path: Path) -> None:
    branch = "If <then_branch = t () => (float[4] {0}) {{ {0} = Relu (x) }}, "
    branch += "else_branch = e () => (float[4] {1}) {{ {1} = Neg (x) }}> (c)"
    text = f"""g (float[4] x, bool c) => (float[4] y, float[4] z) {{
        [same] y = {branch.format("p", "q")}
        [same] z = {branch.format("r", "s")}
    }}"""
    rules = files.rules("one", "Relu", "Neg")
    path = write(tmp_path / "p.yaml", {"z/then_branch/r": "host", "y/else_branch/q": "host"})
    result = partition(parse(text), rules, placement=path)
    where = everywhere(result)
    assert {name for name in "pqrs" if where[name] == "host"} == {"r", "q"}
    assert not [note for note in notes(result) if "p.yaml" in note]


def test_a_quantized_model_comes_back(files: Files, tmp_path: Path) -> None:
    """A DequantizeLinear of two readers becomes two; names still tell them apart."""
    text = """g (int8[4] x) => (int8[4] y, int8[4] z)
        <float s = {0.5}, int8 o = {0}> {
      [shared] d = DequantizeLinear(x, s, o)
      r = Relu(d)
      y = QuantizeLinear(r, s, o)
      n = Neg(d)
      z = QuantizeLinear(n, s, o)
    }"""
    rules = files.rules("one", "{op: Relu, quantized: true}", "{op: Neg, quantized: true}")
    first = partition(parse(text), rules, strategy="all-supported")
    assert list(everywhere(first).values()).count("one") == 6
    content = saved(first, tmp_path / "p.yaml")
    assert partition(parse(text), rules, placement=tmp_path / "p.yaml").report.nodes.host == 0
    assert len(content["nodes"]) == 6
    path = write(tmp_path / "q.yaml", {"n": "host", "z": "host"})
    where = everywhere(partition(parse(text), rules, placement=path))
    assert [where[name] for name in "rynz"] == ["one", "one", "host", "host"]
