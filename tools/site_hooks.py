"""Hooks of mkdocs: links out of docs/ become paths, and the page of `byoc` lists its names.

mkdocstrings reads source code, in which `byoc` has no members: it imports each when it is first used.
Nor does it see the keyword arguments that a function takes from a dataclass of options.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import byoc

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")
_ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Prepare the Markdown of a page for the site, where only docs/ is published."""
    if page.file.src_uri == "api/byoc.md":
        return "\n".join([markdown, *map(_describe_name, sorted(byoc.__all__, key=str.lower))])
    folder = Path(page.file.abs_src_path).parent

    def name_file(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(_ROOT / "docs"):
            return link[0]
        return f"{link[1]} (`{target.relative_to(_ROOT)}`)"

    return _LINK.sub(name_file, markdown)


def _describe_name(name: str) -> str:
    lines = [f"::: byoc.{name}", "    options:", "      heading_level: 2", "", *_list_arguments(name)]
    return "\n".join(lines)


def _list_arguments(name: str) -> Iterator[str]:
    """Yield a line for each keyword argument that a function takes from its dataclass of options."""
    function = getattr(byoc, name)
    if not hasattr(function, "__wrapped__"):
        return
    _, _, arguments = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    for argument, text in re.findall(r"^    (\w+): (.*)$", arguments, re.MULTILINE):
        default = inspect.signature(function).parameters[argument].default
        shown = "" if default is inspect.Parameter.empty else f" = `{default!r}`"
        yield f"- **{argument}**{shown}: {text}"
