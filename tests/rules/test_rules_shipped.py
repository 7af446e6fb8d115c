"""The rule files that come with byoc, as files."""

from pathlib import Path

import pytest

from byoc.support import ANNOTATIONS, find_files

SHIPPED = {name: next(iter(found)) for name, found in find_files(ANNOTATIONS)[0].items()}


@pytest.mark.parametrize("path", SHIPPED.values(), ids=SHIPPED)
def test_the_schema_is_named_for_editors(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / name).name == "rules.schema.json"
    assert (path.parent / name).is_file()


def test_the_documentation_lists_each() -> None:
    text = (Path(__file__).parents[2] / "docs" / "rule_files.md").read_text(encoding="utf-8")
    assert [name for name in SHIPPED if f"| `{name}` |" not in text] == []
