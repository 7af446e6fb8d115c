"""libyaml, which reads YAML first, and PyYAML's own parser, which says what is wrong, read the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.support import ANNOTATIONS, COST_MODELS, _yamlfile, dump_yaml, find_files, read_mapping

FILES = [
    path
    for group, folder in ((ANNOTATIONS, ""), (ANNOTATIONS, "composites"), (COST_MODELS, ""))
    for files in find_files(group, folder)[0].values()
    for path in files
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
CONTENT = st.recursive(
    SCALARS,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(), parts, max_size=4),
    max_leaves=12,
)


def read_fast(text: str) -> Any:
    return _yamlfile._load_with(_yamlfile._FAST_LOADER, text)


def read_slowly(text: str) -> Any:
    return _yamlfile._load_with(_yamlfile._Loader, text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_that_come_along(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert repr(read_fast(text)) == repr(read_slowly(text))


@given(CONTENT)
def test_what_is_written_is_read_by_both(content: object) -> None:
    text = dump_yaml(content)

    assert read_fast(text) == content
    assert read_slowly(text) == content


ALIASES = "x: [&a y, *a" + ", *a" * 200 + "]"


@pytest.mark.parametrize("text", ["a: 1\na: 2", "a: *x", ALIASES, "a: " + "1" * 5000, "{", "\tx: 1"])
def test_both_refuse(text: str) -> None:
    for read in (read_fast, read_slowly):
        with pytest.raises(yaml.MarkedYAMLError):
            read(text)


def test_a_large_text_that_is_refused_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_again(*_: object) -> None:
        raise AssertionError("PyYAML's own parser takes several times as long")

    file = tmp_path / "r.yaml"
    file.write_text("- a: 1\n" * 50_000 + "'", encoding="utf-8")
    monkeypatch.setattr(_yamlfile, "_Loader", read_again)
    with pytest.raises(InputError, match=r"r\.yaml:50001:2: not valid YAML: found unexpected end"):
        read_mapping(file)
