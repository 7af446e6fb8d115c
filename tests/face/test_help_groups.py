"""The help of a verb: what most users need first, the rest in groups; tables in narrow terminals."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.support import Ran
from rich.console import Console

from byoc.cli import EXAMPLES, VERBS, load_verb
from byoc.console import print_table
from byoc.support import Panel

MOST_USED = [
    *("--rules", "--output", "--strategy", "--dim", "--shape", "--objective", "--quantize", "--data"),
    *("--inputs", "--html", "--verbose", "--format", "--help"),
]


def _read_sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if title := re.fullmatch(r"(\w.*):", line):
            sections[title[1]] = []
        elif (flag := re.match(r"  (?:-\w, )?(--[a-z-]+)", line)) and sections:
            list(sections.values())[-1].append(flag[1])
    return sections


def test_partition_has_a_dozen_options_first(byoc: Callable[..., Ran]) -> None:
    ran = byoc("partition", "--help")
    assert (ran.code, ran.err) == (0, "")
    sections = _read_sections(ran.out)
    assert sections["Options"] == MOST_USED
    assert list(sections)[:2] == ["Arguments", "Options"]
    assert set(sections) == {"Arguments", "Options", *map(str, Panel)}


def test_every_option_is_in_one_group(byoc: Callable[..., Ran]) -> None:
    shown = [
        flag for flags in _read_sections(byoc("partition", "--help").out).values() for flag in flags
    ]
    assert len(shown) == len(set(shown))
    names = {
        next(name for name in option.opts if name.startswith("--"))
        for option in load_verb("partition").params
        if option.param_type_name == "option"
    }
    assert set(shown) == names | {"--help"}


def test_verbs_without_groups_have_one_list(byoc: Callable[..., Ran]) -> None:
    assert list(_read_sections(byoc("pack", "--help").out)) == ["Arguments", "Options"]


def test_each_verb_shows_two_commands_that_it_takes(byoc: Callable[..., Ran]) -> None:
    """Examples are declared beside the verb; the parser takes each, required options included."""
    lines = EXAMPLES.strip().splitlines()
    assert Counter(line.split()[1] for line in lines) == dict.fromkeys(VERBS, 2)
    for line in lines:
        verb, *words = shlex.split(line.partition(" > ")[0])[1:]
        command = load_verb(verb)
        context = command.make_context(f"byoc {verb}", list(words))
        if hasattr(command, "commands") and context._protected_args:
            inner, *words = [*context._protected_args, *context.args]
            command.commands[inner].make_context(f"byoc {verb} {inner}", words)
    assert byoc("verify", "--help").out.endswith(
        "\n  Examples:\n    byoc verify m.byoc --against model.onnx --inputs samples/\n"
        "    byoc verify m.byoc --bisect\n"
    )
    assert "\n    byoc rules check mine.yaml\n" in byoc("rules", "check", "--help").out
    assert "byoc rules ask" not in byoc("rules", "check", "--help").out


ROW = {
    "region": "dla_cgdf9y",
    "device": "dla",
    "nodes": "64",
    "inputs": "1 (588 KiB)",
    "SRAM": "512 of 512 KiB",
    "predicted": "3.21 ms",
    "why": "the host is cheaper",
}


@pytest.mark.parametrize("width", range(1, 100, 3))
def test_a_table_in_a_narrow_terminal_breaks_no_word(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns are left out, and named; what is shown can be copied, the numbers as they are."""
    print_table([ROW], Console(width=width), right=("nodes", "inputs", "SRAM", "predicted"))
    printed = capsys.readouterr().out
    table, _, left_out = printed.partition("Left out, since the terminal is narrow: ")
    names = left_out.strip().split(", ") if left_out else []
    assert set(names) <= ROW.keys() - {"region"}
    shown = [name for name in ROW if name not in names]
    if width > len(ROW["region"]) + 2:
        assert all(len(line.rstrip()) <= width for line in table.splitlines())
        for name in shown:
            whole = (
                [ROW[name]] if name in {"nodes", "inputs", "SRAM", "predicted"} else ROW[name].split()
            )
            assert all(each in table for each in whole), name
    if width > 96:
        assert not names


def _list_commands(command: Any, path: str) -> Iterator[tuple[Any, str]]:
    yield command, path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _list_commands(inner, f"{path} {name}")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("width", [60, 80])
def test_no_line_of_a_help_is_wider_than_the_terminal(
    verb: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for command, path in _list_commands(load_verb(verb), f"byoc {verb}"):
        shown = command.make_context(path, [], resilient_parsing=True).get_help()
        assert [line for line in shown.splitlines() if len(line) > width] == [], path


def test_an_example_in_several_lines_is_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = load_verb("buckets").make_context("byoc buckets", [], resilient_parsing=True).get_help()
    commands = shown.partition("Examples:\n")[2].replace("\\\n", "").splitlines()
    wanted = [line for line in EXAMPLES.splitlines() if line.startswith("byoc buckets ")]
    assert [shlex.split(line) for line in commands] == [shlex.split(line) for line in wanted]
