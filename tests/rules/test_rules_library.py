"""Composites of the library: taken by name, found in every package, clashes and broken files told."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from helpers.installing import add_entry_points
from helpers.ruling import lint, target

from byoc.errors import InputError
from byoc.rules import read_library
from byoc.support import ANNOTATIONS

FILE = """
composites:
  - name: {name}
    description: what it does
    pattern: y = Relu(x)
    where: [{{expr: x.rank == 4, reason: images}}]
"""


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Register two packages of rule files, `one_rules` and `two_rules`, beside what is installed."""
    for name in ("one_rules", "two_rules"):
        (tmp_path / name / "composites").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint(name, name, ANNOTATIONS) for name in ("one_rules", "two_rules")]
    add_entry_points(monkeypatch, points)
    return tmp_path


def test_a_composite_of_another_package(packages: Path) -> None:
    (packages / "one_rules" / "composites" / "mine.yaml").write_text(FILE.format(name="mine"))
    rules = target(
        "ops: [{op: Relu}]\n"
        "composites: [{library: mine}, {library: mine, name: other, where: y.rank == 3, description: d}]"
    )
    first, second = rules.patterns
    assert (first.name, first.description, len(first.where)) == ("mine", "what it does", 1)
    assert (second.name, second.description, len(second.where)) == ("other", "d", 2)
    assert [pattern.name for pattern in rules.patterns] == ["mine", "other"]


def test_conditions_are_counted_from_the_rule_file(packages: Path) -> None:
    (packages / "one_rules" / "composites" / "mine.yaml").write_text(FILE.format(name="mine"))
    content = {"ops": [{"op": "Relu"}], "composites": [{"library": "mine", "where": ["q.rank == 3"]}]}
    assert lint(content) == ["composites[0].where[0]: nothing in the pattern is called 'q'"]


def test_clashes(packages: Path) -> None:
    for name in ("one_rules", "two_rules"):
        (packages / name / "composites" / f"{name}.yaml").write_text(FILE.format(name="mine"))
    with pytest.raises(InputError) as caught:
        read_library().get("mine")
    assert str(caught.value) == (
        "several composites of the library are called 'mine': "
        "one_rules.yaml of an unknown distribution, two_rules.yaml of an unknown distribution"
    )
    assert read_library().get("silu").name == "silu"


def test_files_that_are_broken(packages: Path) -> None:
    path = packages / "one_rules" / "composites" / "bad.yaml"
    path.write_text("composites: [{name: a, patern: y = Relu(x)}]\n")
    assert read_library().get("silu").name == "silu"
    with pytest.raises(InputError) as caught:
        read_library().get("siluu")
    assert str(caught.value).startswith("the library has no composite 'siluu' (did you mean silu?); ")
    assert f"{path}: composites[0].description: must be given" in str(caught.value)


def test_all_that_is_shipped_can_be_parsed() -> None:
    names = list(read_library().entries)
    assert read_library().problems == ()
    assert len(names) > 20
    rules = target(f"ops: [{{op: '*'}}]\ncomposites: [{', '.join(f'{{library: {n}}}' for n in names)}]")
    assert [pattern.name for pattern in rules.patterns] == names
