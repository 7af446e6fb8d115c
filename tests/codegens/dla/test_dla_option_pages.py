"""The pages of the accelerator name its options, with their defaults; tests/docs runs what they show."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from byoc.codegens.dla.dla_options import DLAOptions

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["dla.md", "codegens.md"])
def test_the_options_are_on_the_pages(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")

    for option in fields(DLAOptions):
        default = re.search(rf"^\| `{option.name}` \| (\S+) \|", text, re.MULTILINE)
        assert default is not None, option.name
        assert default[1].strip("`") == str(option.default).replace("True", "true").replace(
            "False", "false"
        )
