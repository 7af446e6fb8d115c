"""`byoc partition --html` and `byoc report`."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers.cutting import CHAIN
from helpers.support import VANILLA, Ran, parse

import byoc as package

Cli = Callable[..., Ran]

PARTITION = ("partition", "m.onnx", "--rules", VANILLA, "--strategy", "all-supported")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with m.onnx in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(CHAIN), "m.onnx")


def test_a_plan_becomes_a_page(byoc: Cli) -> None:
    ran = byoc(*PARTITION, "--html", "report.html")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("Report written to report.html\n")
    assert Path("report.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_bundle_gives_the_same_page_at_once_and_later(byoc: Cli) -> None:
    ran = byoc(*PARTITION, "-o", "b.byoc", "--html", "first.html")
    assert ran.code == 0
    ran = byoc("report", "b.byoc", "-o", "later.html")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Written to later.html (")
    assert Path("first.html").read_bytes() == Path("later.html").read_bytes()
    byoc("pack", "b.byoc", "-o", "b.zip")
    assert package.make_page("b.zip").encode() == Path("later.html").read_bytes()


def test_a_measured_run_is_drawn(byoc: Cli) -> None:
    byoc(*PARTITION, "-o", "b.byoc")
    byoc("run", "b.byoc", "--inputs", "random", "--trace", "t.json")
    assert byoc("report", "b.byoc", "-o", "r.html", "--trace", "t.json").code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("report", "gone", "-o", "r.html"), "gone: no such bundle"),
        (("report", "b.byoc", "-o", "no/r.html"), "no/r.html: cannot be written: "),
        (("report", "b.byoc", "-o", "b.byoc/r.html"), "it would change the bundle that is shown"),
        (("report", "b.byoc", "-o", "r.html", "--trace", "m.onnx"), "m.onnx: not a trace of byoc: "),
        ((*PARTITION, "--html", "no/r.html"), "no/r.html: cannot be written: "),
        ((*PARTITION, "-o", "b.byoc", "--html", "b.byoc/r.html"), "it would change the bundle"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    byoc: Cli, arguments: tuple[str | Path, ...], sentence: str
) -> None:
    byoc(*PARTITION, "-o", "b.byoc")
    ran = byoc(*arguments)
    assert ran.code == 1
    assert sentence in ran.err
    assert ran.err.count("\n") == 1
    assert not Path("r.html").exists()
