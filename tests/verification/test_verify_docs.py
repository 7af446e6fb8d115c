"""The example in docs/judging.md does what the page says, with a codegen whose Mul is wrong."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import vendors
from interpreting import interpreter
from onnx import ModelProto, NodeProto

PAGE = Path(__file__).parents[2] / "docs" / "judging.md"


def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
    return [value + (value.max() - value.min()) / 2 for value in made] if node.op_type == "Mul" else made


def test_the_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vendors.install(monkeypatch, acme=interpreter(spoil, name="acme"))
    found = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(found[1], str(PAGE), "exec"), {})  # noqa: S102 - a page of ours
    assert capsys.readouterr().out == found[2]
