"""The compilers of targets: whose options count, which of them recover, and what is wrong with one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from helpers import vendors
from helpers.support import copy_vanilla

from byoc.bundle import find_rule_file_problems, load_compilers, read_rule_file_options
from byoc.codegen import Artifact, Codegens, Region
from byoc.errors import InputError
from byoc.rules import Target, load_rules


@dataclass(frozen=True)
class Levels:
    """Two options."""

    level: int = 1
    fast: bool = False


class Leveled:
    """A codegen with options, of which others are tried where a region is computed wrong."""

    name = "leveled"
    Options = Levels
    recovery_options: ClassVar[Sequence[Mapping[str, object]]] = (
        {"fast": "true"},
        {"fast": "true"},  # the same again
        {"level": 1},  # in a rule file that has this level, nothing new
        {"level": 7, "fast": "true"},
    )

    def compile(self, region: Region, options: Any) -> Artifact:
        return Artifact()


class Other(Leveled):
    """Another one, which recovers by nothing."""

    name = "other"
    recovery_options = ()


@pytest.fixture
def codegens(monkeypatch: pytest.MonkeyPatch) -> Codegens:
    vendors.forbid_processes(monkeypatch)
    vendors.install(monkeypatch, leveled=Leveled, other=Other)
    return Codegens()


def make_target(folder: Path, options: str, name: str = "npu") -> Target:
    path = folder / f"{name}.yaml"
    own = f"target: {name}\ncodegen: leveled\ncodegen_options: {options}\n"
    path.write_text(f"extends: {copy_vanilla(folder)}\n{own}")
    return load_rules(str(path))


def load(
    targets: Sequence[Target], codegens: Codegens, given: Mapping[str, str], codegen: str = "leveled"
) -> dict[str, list[dict[str, str]]]:
    """Return the options of each target's compiler, and those to recover with."""
    found = load_compilers(targets, {each.name: codegen for each in targets}, given, codegens)
    return {
        name: [dict(each.options) for each in (compiler, *compiler.recoveries)]
        for name, compiler in found.items()
    }


def test_options_of_a_rule_file_are_those_of_its_own_codegen(codegens: Codegens, tmp_path: Path) -> None:
    target = make_target(tmp_path, "{level: 1}")
    own, other = codegens.find("leveled"), codegens.find("other")
    assert read_rule_file_options(target, own) == {"level": "1"}
    assert read_rule_file_options(target, other) == {}
    assert load([target], codegens, {}, "other") == {"npu": [{}]}


def test_a_user_wins_over_the_rule_file_also_where_regions_recover(
    codegens: Codegens, tmp_path: Path
) -> None:
    target = make_target(tmp_path, "{level: 1}")
    for given, expected in (
        ({}, [{"level": "1"}, {"level": "1", "fast": "true"}, {"level": "7", "fast": "true"}]),
        ({"level": "3"}, [{"level": "3"}, {"level": "3", "fast": "true"}]),
        ({"fast": "true"}, [{"level": "1", "fast": "true"}, {"level": "7", "fast": "true"}]),
        ({"fast": "false", "level": "7"}, [{"level": "7", "fast": "false"}]),
    ):
        found = load([target], codegens, given)
        assert found == {"npu": expected}


def test_an_option_may_be_of_one_target_alone(codegens: Codegens, tmp_path: Path) -> None:
    targets = [make_target(tmp_path, "{}", name) for name in ("one", "two")]
    found = load(targets, codegens, {"level": "2", "two:level": "5"}, "other")
    assert found == {"one": [{"level": "2"}], "two": [{"level": "5"}]}
    with pytest.raises(InputError, match="three"):
        load(targets, codegens, {"three:level": "5"})


def test_each_wrong_option_of_a_rule_file_is_told_with_its_place(
    codegens: Codegens, tmp_path: Path
) -> None:
    target = make_target(tmp_path, "{level: high, fats: true}")
    own = codegens.find("leveled")
    problems = find_rule_file_problems(target, own)
    assert len(problems) == 2
    for problem, key in zip(sorted(problems), ("fats", "level"), strict=True):
        assert f"codegen_options.{key}: codegen leveled " in problem
        assert problem.startswith(f"{tmp_path / 'npu.yaml'}: ")
    with pytest.raises(InputError) as caught:
        read_rule_file_options(target, own)
    assert all(problem in str(caught.value) for problem in problems)
    assert read_rule_file_options(target, codegens.find("other")) == {}
    with pytest.raises(InputError, match="codegen leveled"):
        load([make_target(tmp_path, "{}")], codegens, {"level": "high"})
