"""Small rule files that ask for much work: the work is limited, counted in steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.support import count_calls

from byoc.errors import InputError
from byoc.reporting import check_rules
from byoc.rules import RuleFile, lint_rule_file, load_rules
from byoc.support import read_mapping, validate_content
from byoc.support.expressions import compile_expression

HEAD = "target: npu\ncost_model: dla\ndtype: float32\n"


def _refused(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_rules(path)
    return str(caught.value)


def _find_hidden(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the linter says of a file's rules; the rest of the file is right."""
    return lint_rule_file({"target": "npu", "cost_model": "dla", "dtype": "float32", "ops": rules})


@pytest.mark.parametrize(("count", "told"), [(190, True), (220, False)])
def test_rules_for_one_operator_are_compared_so_often(count: int, told: bool) -> None:
    """20,000 took 44 s: each was compared with, and sorted among, all before it.

    Rules for ten operators are compared ten times: 190 of them 180,000 times, 220 beyond the limit.
    """
    many = ["Relu", "Abs", "Neg", "Exp", "Sqrt", "Ceil", "Floor", "Sin", "Cos", "Tanh"]
    rules = [{"op": many, "where": f"X.rank == {number}"} for number in range(count)]
    found = _find_hidden([*rules, {"op": "Relu", "where": "X.rank == 0"}])
    said = f"ops[{count}]: never asked, since ops[0] takes all that this rule would"
    assert (said in found) is told


def test_an_earlier_rule_for_any_operator_hides_too() -> None:
    narrow = {"op": "Relu", "where": "X.rank == 4"}
    assert _find_hidden([narrow, {"op": "*"}, narrow, {"op": "Relu"}]) == [
        "ops[2]: never asked, since ops[0] takes all that this rule would",
        "ops[3]: never asked, since ops[1] takes all that this rule would",
    ]


def test_the_linter_ends_after_so_many_mistakes(tmp_path: Path) -> None:
    """Of 1,999 rules that the first one hides 1,000 are looked for, and 50 of these are shown."""
    text = _refused(tmp_path / "r.yaml", f"{HEAD}ops:\n" + "  - op: Relu\n" * 2_000)
    assert text.count("\n") == 50
    assert text.endswith("and 950 more")


def test_hints_are_looked_for_where_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def suggest(*_: object) -> str:
        nonlocal asked
        asked += 1
        return " (did you mean op?)"

    monkeypatch.setattr("byoc.support._yamlfile.suggest_nearest", suggest)
    rules = "".join(f"  - {{op: Relu, opp{number}: 1}}\n" for number in range(300))
    text = _refused(tmp_path / "r.yaml", f"{HEAD}ops:\n{rules}")
    assert asked == 50
    assert text.count("did you mean op?") == 50
    assert text.endswith("and 250 more")


def test_empty_lists_are_explained_in_one_pass() -> None:
    """Each was looked for among all the others."""
    content = {"target": "t", "cost_model": "dla", "dtype": "float32", "ops": [{"op": []}] * 1_000}
    problems: list[str] = []
    calls = count_calls(
        lambda: problems.extend(validate_content(content, RuleFile)[1]), most=60 * len(content["ops"])
    )
    assert calls > 1_000
    assert len(problems) == 1_000
    assert problems[999] == "ops[999].op: must not be empty"


def test_a_list_whose_items_are_all_wrong_is_not_called_empty() -> None:
    content = {"target": "t", "cost_model": "dla", "dtype": "float32", "ops": [3]}
    assert validate_content(content, RuleFile)[1] == ["ops[0]: expected a mapping of keys"]


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byoc.support._yamlfile.MAX_YAML_BYTES", 100)
    path = tmp_path / "r.yaml"
    assert _refused(path, "#" * 101) == f"{path}: cannot be read: it has more than 100 bytes"


@pytest.mark.parametrize("key", ["target", "ops", "composites", "dtype"])
def test_aliases_are_counted_as_if_they_were_written_out(key: str, tmp_path: Path) -> None:
    """46 aliases stood for 16 million parts, which pydantic walks through."""
    levels = ["l0: &l0 [x, x]", *(f"l{i}: &l{i} [*l{i - 1}, *l{i - 1}]" for i in range(1, 24))]
    text = _refused(tmp_path / "r.yaml", "\n".join(levels) + f"\n{key}: *l23\n")
    assert "not valid YAML: more than 1048576 parts, aliases written out" in text


def test_an_alias_inside_of_what_it_names(tmp_path: Path) -> None:
    text = _refused(tmp_path / "r.yaml", f"{HEAD}ops: &a [{{op: *a}}]\n")
    assert "Traceback" not in text
    assert text.count("\n") < 50


@pytest.mark.parametrize("number", ["1:" * 3_000 + "1", "1:" * 3_000 + "1.5", "0x" + "f" * 5_000])
def test_a_number_of_thousands_of_digits(number: str, tmp_path: Path) -> None:
    """One in base 60 takes quadratic time: 600 KB took minutes."""
    path = tmp_path / "r.yaml"
    text = _refused(path, f"target: {number}\n")
    assert text == f"{path}:1:9: not valid YAML: a number of more than 4300 digits"


def test_numbers_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("a: 1e-5\nb: 0x1F\nc: 1_000\nd: 1.5\ne: .inf\nf: 1:30\ng: -7\n")
    assert read_mapping(path) == {
        **{"a": 1e-5, "b": 31, "c": 1000, "d": 1.5, "e": float("inf"), "f": 90, "g": -7}
    }


SIGNS = ["-" * 400 + "1 > 0", "!" * 400 + "true", "-" * 200 + "X.rank > 0", "- ! " * 100 + "true"]
DEEP = ["(" * 200 + "1" + ")" * 200, "[" * 200 + "]" * 200, "1" + " + 1" * 110, "X" + ".shape" * 70]
DEEP += ["X" + "[0]" * 100, "a?b:" * 100 + "c", "size(" * 80 + "X" + ")" * 80]


@pytest.mark.parametrize("condition", [*SIGNS, *DEEP], ids=lambda text: text[:12])
def test_a_condition_that_is_nested_too_deep(condition: str, tmp_path: Path) -> None:
    """Neither the parser nor what walks through the tree may recurse as deep as a file likes."""
    with pytest.raises(ValueError, match="parts are nested in one another"):
        compile_expression(condition)
    path = tmp_path / "r.yaml"
    path.write_text(f"{HEAD}ops:\n  - op: Relu\n    where: {condition!r}\n")
    (found,) = check_rules([path])
    assert len(found.problems) == 1
    assert "parts are nested in one another" in found.problems[0]


@pytest.mark.parametrize("signs", [1, 2, 58])
def test_a_condition_with_signs_is_evaluated(signs: int) -> None:
    expression = compile_expression("- " * signs + "X > 0")
    assert expression.decide({"X": 1})[0] == (signs % 2 == 0)
