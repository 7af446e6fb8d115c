"""The example in docs/boundary.md does what the page says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "boundary.md"


def test_the_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(found[1], str(PAGE), "exec"), {})  # noqa: S102 - a page of ours
    assert capsys.readouterr().out == found[2]
