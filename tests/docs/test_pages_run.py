"""Every block of shell and Python of README.md and docs/ runs, and prints what the page says."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.warm_processes import WarmProcesses
from page_files import find_site
from pages import ROOT, read
from running import Block, PageRun, Programs, find_blocks, fits

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {page.name: list(find_blocks(read(page))) for page in PAGES}
# What no test runs, in blocks: it needs what the tests of codegens bring along, another machine, or is a
# command for work on byoc. A new one is a decision.
NOT_RUN = 46


def has_to_run(block: Block) -> bool:
    return block.language in {"sh", "python"}


@pytest.fixture(scope="module")
def programs(
    tmp_path_factory: pytest.TempPathFactory, warm_processes: WarmProcesses
) -> Iterator[Programs]:
    found = Programs(tmp_path_factory.mktemp("programs") / "bin", warm_processes)
    yield found
    found.close()


def list_pages() -> Iterator[object]:
    """Yield the pages that have something to run, and once more those with a part that takes long."""
    for name, blocks in BLOCKS.items():
        if any(map(has_to_run, blocks)):
            yield pytest.param(name, False, id=name)
        if any(block.thorough or block.thorough_lines for block in blocks):
            yield pytest.param(name, True, id=f"{name}-whole", marks=pytest.mark.thorough)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What codegens compiled for one page serves the next: most compile the same model."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(("name", "whole"), [*list_pages()])
def test_the_page_runs_and_prints_what_it_says(  # noqa: PLR0917 - fixtures
    name: str,
    whole: bool,
    programs: Programs,
    shared_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    for kind in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(kind, str(tmp_path / kind))
    own = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(own if name == "cache.md" else shared_cache))
    monkeypatch.syspath_prepend(find_site(folder))
    page = PageRun(folder, programs, whole)
    for block in BLOCKS[name]:
        page.run(block)
    assert page.failures == []


def test_few_blocks_are_not_run() -> None:
    left_out = Counter(
        name for name, blocks in BLOCKS.items() for block in blocks if block.skipped is not None
    )
    assert left_out.total() <= NOT_RUN, left_out


def test_no_command_is_in_a_block_that_is_not_run() -> None:
    """A block without a language is what is printed; commands stand in blocks of `sh`."""
    hidden = [
        f"{name}:{block.line}"
        for name, blocks in BLOCKS.items()
        for block in blocks
        if not block.language and re.search(r"^(\$ |byoc [a-z])", block.text, re.MULTILINE)
    ]
    assert hidden == []


def test_a_page_that_says_something_else_fails(programs: Programs, tmp_path: Path) -> None:
    """What the mechanism is for: an output that is stale, another exit code, an error in Python."""
    text = (
        "```sh\necho 3; exit 4\n```\n\n```\n2\n```\n\n```python\nprint(1 / 0)\n```\n\n"
        "<!-- exit codes: 1 1 -->\n```sh\nfalse\ntrue\nfalse\n```\n"
        "<!-- not run: it cannot be -->\n```sh\nfalse\n```\n"
    )
    page = PageRun(tmp_path, programs)
    for block in find_blocks(text):
        page.run(block)
    assert [failure.partition("\n")[0] for failure in page.failures] == [
        "line 2: exit codes (4,), not none:",
        "line 6: the page shows",
        "line 10: ZeroDivisionError: division by zero",
    ]
    for note in ("after:", "not run:", "files:", "thorough:"):
        with pytest.raises(AssertionError, match="says nothing"):
            list(find_blocks(f"<!-- {note} -->\n```sh\nfalse\n```\n"))
    with pytest.raises(AssertionError, match="not right above a block"):
        list(find_blocks("<!-- exit codes: 1 -->\nText.\n\n```sh\nfalse\n```\n"))


@pytest.mark.parametrize(
    ("shown", "printed", "fit"),
    [
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("largest error 5.5e-07 of 1\n", "largest error 0 of 1\n", True),
        ("predicted 3.59 ms\n", "predicted 3.60 ms\n", False),
        ("30 passed in 1.2s\n", "30 passed in 7.9s\n", True),
        ("30 passed in 1.2s\n", "31 passed in 1.2s\n", False),
        ("took ... ms\n", "took 4.1 ms   \n", True),
    ],
)
def test_what_varies_between_machines_is_not_compared(shown: str, printed: str, fit: bool) -> None:
    assert fits(shown, printed) is fit
