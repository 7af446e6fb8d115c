"""The help of a verb: what most users need comes first, the rest in groups."""

import re
from collections.abc import Callable

from support import Ran

from byoc.cli._main import load_verb
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
