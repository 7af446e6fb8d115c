"""What changed between two placements: bundles, reports, saved placements, rule files."""

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.support import parse

import byoc
from byoc.comparison import PlacementDiff
from byoc.errors import InputError

DLA = Path(__file__).parents[2] / "annotations" / "dla.yaml"
NET = """net (float[1, 64] x) => (float[1, 64] y) {
    [one] a = Relu(x)
    [two] b = Add(a, a)
    [three] c = Sigmoid(b)
    [four] d = Relu(c)
    [five] y = Add(d, d)
}"""
RULES = "target: npu\ncost_model: dla\ncodegen: reference\ndtype: float32\nops:\n  - op: Relu\n"


def rules(folder: Path, name: str, *ops: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(RULES + "".join(f"  - op: {op}\n" for op in ops), encoding="utf-8")
    return path


def without(operator: str, folder: Path) -> Path:
    """Write the rules of dla without an operator."""
    text = DLA.read_text(encoding="utf-8")
    less = re.sub(rf"  - op: {operator}\n(?:    .*\n|\n(?=    ))*", "", text, count=1)
    assert len(less) < len(text)
    path = folder / "less.yaml"
    path.write_text(less, encoding="utf-8")
    return path


def planned(text: str, file: Path, **options: Any) -> Any:
    return byoc.partition(parse(text), file, strategy="all-supported", **options)


def changes(found: PlacementDiff) -> list[tuple[str, str, str, int]]:
    moves = [move for move in found.moves if move.is_move]
    return [(m.operator, m.device_before, m.device_after, len(m.nodes)) for m in moves]


def test_an_operator_less_in_the_rules_of_a_network(tmp_path: Path) -> None:
    """SqueezeNet's nine Concats split its one region; what moves along is held against two plans."""
    less = without("Concat", tmp_path)
    found = byoc.diff("dla", less, "zoo:squeezenet")
    before, after = (byoc.partition("zoo:squeezenet", file, what_if=False) for file in ("dla", less))
    assert found.costs["seconds"].before == before.report.predicted.seconds
    assert found.costs["seconds"].after == after.report.predicted.seconds
    assert found.costs["launches"].after == len(after.report.regions)
    assert found.moved == before.report.nodes.offloaded - after.report.nodes.offloaded
    (concats,) = [move for move in found.moves if move.operator == "Concat"]
    assert (len(concats.nodes), concats.device_before, concats.device_after) == (8, "dla", "host")
    assert "Concat" in concats.reason_after
    assert concats.rules_before
    assert concats.regions_before == tuple(region.name for region in before.report.regions)
    conv = next(move for move in found.moves if move.operator == "Conv")
    assert "the host is cheaper" in conv.reason_after
    assert found.matched == 65
    assert {each.after for each in found.regions} == {region.name for region in after.report.regions}
    assert [each.before for each in found.regions if each.before] == [before.report.regions[0].name]


def test_the_way_back_is_the_same_way(tmp_path: Path) -> None:
    less = without("Concat", tmp_path)
    there, back = byoc.diff("dla", less, "zoo:squeezenet"), byoc.diff(less, "dla", "zoo:squeezenet")
    assert {(m.operator, m.nodes) for m in there.moves} == {(m.operator, m.nodes) for m in back.moves}
    assert there.costs["joules"].before == back.costs["joules"].after


def test_two_bundles(tmp_path: Path) -> None:
    first = planned(NET, rules(tmp_path, "a", "Add"), output=tmp_path / "a")
    planned(NET, rules(tmp_path, "b"), output=tmp_path / "b")
    found = byoc.diff(tmp_path / "a", tmp_path / "b")
    assert (found.matched, found.moved, found.equal) == (5, 2, False)
    (move,) = found.moves
    assert (move.operator, move.nodes) == ("Add", ("two", "five"))
    assert (move.device_before, move.device_after) == ("npu", "host")
    assert (move.reason_before, move.reason_after) == ("", "Add is not among the operators of npu")
    assert (move.rules_before, move.rules_after) == (("ops[1]",), ())
    assert [change.kind for change in found.regions] == ["changed", "changed"]
    assert [(c.nodes_before, c.nodes_after) for c in found.regions] == [(2, 1), (2, 1)]
    names = [region.name for region in first.report.regions]
    assert [change.before for change in found.regions] == names
    assert not found.notes


def test_equal_bundles(tmp_path: Path) -> None:
    file = rules(tmp_path, "a", "Add")
    for name in "ab":
        planned(NET, file, output=tmp_path / name)
    found = byoc.diff(tmp_path / "a", byoc.open_bundle(tmp_path / "b"))
    assert found.equal
    assert (found.moves, found.regions, found.added, found.removed) == ((), (), {}, {})


def test_nodes_that_are_new_gone_and_renamed(tmp_path: Path) -> None:
    file = rules(tmp_path, "a", "Add")
    text = NET.replace("[four] d = Relu(c)", "[new] n = Tanh(c)\n    [other] d = Relu(n)")
    text = text.replace("    [two] b = Add(a, a)\n", "").replace("Sigmoid(b)", "Sigmoid(a)")
    found = byoc.diff(planned(NET, file), planned(text, file))
    assert (dict(found.added), dict(found.removed)) == ({"Tanh": {"host": 1}}, {"Add": {"npu": 1}})
    assert (found.matched, found.moved) == (4, 0)  # `four` is called otherwise, and makes `d` still
    assert not found.equal


def test_a_region_that_another_target_has_is_renamed(tmp_path: Path) -> None:
    file = rules(tmp_path, "a", "Add")
    other = tmp_path / "b.yaml"
    other.write_text(file.read_text().replace("target: npu", "target: dsp"), encoding="utf-8")
    first, second = planned(NET, file), planned(NET, other)
    found = byoc.diff(first, second)
    assert [change.kind for change in found.regions] == ["renamed", "renamed"]
    assert changes(found) == [("Relu", "npu", "dsp", 2), ("Add", "npu", "dsp", 2)]
    for name, result in (("a", first), ("b", second)):
        (tmp_path / f"{name}.json").write_text(json.dumps(result.report.to_json()))
    told = byoc.diff(tmp_path / "a.json", tmp_path / "b.json")
    assert [(c.kind, c.before, c.after) for c in told.regions] == [
        (c.kind, c.before, c.after) for c in found.regions
    ]


def test_reports_have_regions_reasons_and_costs(tmp_path: Path) -> None:
    for name, ops in (("a", ["Add"]), ("b", [])):
        result = planned(NET, rules(tmp_path, name, *ops))
        (tmp_path / f"{name}.json").write_text(json.dumps(result.report.to_json()))
    found = byoc.diff(tmp_path / "a.json", tmp_path / "b.json")
    assert (found.matched, found.moves) == (None, ())
    assert dict(found.reasons) == {"Add is not among the operators of npu": (0, 2)}
    assert sorted(change.kind for change in found.regions) == ["added", "added", "gone", "gone"]
    assert (
        found.costs["offloaded_nodes"]
        == byoc.diff(planned(NET, rules(tmp_path, "a", "Add")), tmp_path / "b.json").costs[
            "offloaded_nodes"
        ]
    )
    assert found.notes == (
        f"{tmp_path / 'a.json'} has no nodes: regions, reasons and costs are compared",
        f"{tmp_path / 'b.json'} has no nodes: regions, reasons and costs are compared",
    )


def test_a_bundle_without_decisions_is_compared_by_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "b"
    planned(NET, rules(tmp_path, "a", "Add"), output=bundle)
    monkeypatch.setattr(byoc.Bundle, "decisions", lambda self: None)
    found = byoc.diff(bundle, planned(NET, rules(tmp_path, "b")))
    assert found.matched is None
    assert dict(found.reasons) == {"Add is not among the operators of npu": (0, 2)}


def test_saved_placements_have_nodes_alone(tmp_path: Path) -> None:
    first, second = planned(NET, rules(tmp_path, "a", "Add")), planned(NET, rules(tmp_path, "b"))
    byoc.save_placement(first.plan, tmp_path / "first.yaml")
    byoc.save_placement(second.plan, tmp_path / "second.yaml")
    found = byoc.diff(tmp_path / "first.yaml", tmp_path / "second.yaml")
    assert changes(found) == [("Add", "npu", "host", 2)]
    assert (dict(found.costs), found.regions) == ({}, ())
    assert byoc.diff(tmp_path / "first.yaml", first).equal
    assert changes(byoc.diff(tmp_path / "first.yaml", second)) == [("Add", "npu", "host", 2)]


def test_nodes_that_stay_on_the_host_for_another_reason(tmp_path: Path) -> None:
    first = planned(NET, rules(tmp_path, "a", "Add"))
    other = rules(tmp_path, "b", "Add", "Sigmoid\n    dtype: float16")
    found = byoc.diff(first, planned(NET, other))
    (move,) = found.moves
    assert (move.operator, move.is_move, found.moved) == ("Sigmoid", False, 0)
    assert move.reason_before == "Sigmoid is not among the operators of npu"
    assert move.reason_after not in ("", move.reason_before)
    assert not found.equal


def test_other_costs_alone_are_a_difference(tmp_path: Path) -> None:
    file = rules(tmp_path, "a", "Add")
    first = planned(NET, file)
    found = byoc.diff(first, planned(NET, file, cost_model="nnpa"))
    assert not found.moves
    assert {change.kind for change in found.regions} == {"repriced"}
    assert not found.equal


def test_nodes_of_bodies_are_compared(tmp_path: Path) -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        [choice] y = If <then_branch = t () => (float[4] u) { u = Relu (x) },
                         else_branch = e () => (float[4] v) { v = Add (x, x) }> (c) }"""
    found = byoc.diff(planned(text, rules(tmp_path, "a", "Add")), planned(text, rules(tmp_path, "b")))
    (move,) = found.moves
    assert move.nodes == ("choice/else_branch/v",)


def test_the_document_of_programs(tmp_path: Path) -> None:
    found = byoc.diff(planned(NET, rules(tmp_path, "a", "Add")), planned(NET, rules(tmp_path, "b")))
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(told) == {
        *("equal", "moved", "old", "new", "matched", "moves", "added", "removed", "regions"),
        *("reasons", "costs", "notes", "lost", "errors", "predicted", "not_compared"),
    }
    assert (told["equal"], told["moved"], told["matched"]) == (False, 2, 5)
    assert told["moves"][0]["nodes"] == ["two", "five"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"^{}: no such bundle, report, saved placement or rule file "),
        ("{{", r"^{}: not a report: "),
        ('{{"model": 1}}', r"^{}: not a report of byoc: "),
        ("format: 1\nnodes: 1\n", r"^{}: nodes: "),
        ("target: x\n", r"^{}: a rule file is compared by what it makes of a model: say which"),
        ("a: [", r"^{}:1:\d+: not valid YAML"),
        ("PK", r"^{}: "),
    ],
)
def test_what_is_nothing_to_compare(content: str | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "what"
    if content is not None:
        path.write_text(content.format(), encoding="utf-8")
    good = planned(NET, rules(tmp_path, "a"))
    for old, new in ((path, good), (good, path)):
        with pytest.raises(InputError, match=sentence.format(re.escape(str(path)))):
            byoc.diff(old, new)


def test_sources_that_have_nothing_in_common(tmp_path: Path) -> None:
    result = planned(NET, rules(tmp_path, "a"))
    byoc.save_placement(result.plan, tmp_path / "p.yaml")
    (tmp_path / "r.json").write_text(json.dumps(result.report.to_json()))
    with pytest.raises(InputError, match="have nothing in common: a saved placement has nodes"):
        byoc.diff(tmp_path / "p.yaml", tmp_path / "r.json")


def test_the_command(tmp_path: Path, byoc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, ops in (("a", ["Add"]), ("b", [])):
        rules(tmp_path, name, *ops)
    onnx.save(parse(NET), "net.onnx")
    asked = ("--model", "net.onnx", "--strategy", "all-supported")
    ran = byoc("diff", "a.yaml", "b.yaml", *asked)
    assert (ran.code, ran.err) == (0, "")
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert re.fullmatch(
        r"a\.yaml -> b\.yaml: 2 of 5 nodes moved; predicted \S+ \S+ -> \S+ \S+ \([+-]\S+ %\)", lines[0]
    )
    why = "npu host Add is not among the operators of npu (before: ops[1])"
    assert any(line.startswith("2 Add") and why in line and line.endswith("two, five") for line in lines)
    assert byoc("diff", "a.yaml", "b.yaml", *asked, "--exit-code").code == 6
    same = byoc("diff", "a.yaml", "a.yaml", *asked, "--exit-code")
    assert (same.code, same.err) == (0, "")
    assert same.out.startswith("a.yaml -> a.yaml: placed alike; predicted ")
    told = json.loads(byoc("diff", "a.yaml", "b.yaml", *asked, "--format", "json").out)
    assert told["moves"][0]["nodes"] == ["two", "five"]
    wrong = byoc("diff", "a.yaml", "c.yaml", *asked, "--exit-code")
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("byoc: c.yaml: no such bundle, report, saved placement or rule file")


def test_options_of_planning_are_refused_where_nothing_is_planned(
    tmp_path: Path, byoc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be passed over in silence."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse("g (float[1] x) => (float[1] y) { y = Relu(x) }"), "net.onnx")
    Path("a.json").write_text(byoc("partition", "net.onnx", "--rules", "dla", "--format", "json").out)
    for words in (["--strategy", "exact"], ["--model", "net.onnx"], ["--dim", "N=1"]):
        ran = byoc("diff", "a.json", "a.json", *words)
        assert ran.code == 1
        assert "is for rule files, and a.json and a.json are plans already" in ran.err
