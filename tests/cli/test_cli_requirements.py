"""Requirements on the command line: exit code 6, what is written, and the JUnit file."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from helpers.cutting import CHAIN
from helpers.support import VANILLA, Ran, parse

Cli = Callable[..., Ran]
PARTITION = ("partition", "m.onnx", "--rules", VANILLA, "--strategy", "all-supported")

OUTPUTS = ("--junit", "--html", "--save-placement")
COUNTS = {"tests", "failures", "errors", "skipped"}
ATTRIBUTES = {
    "testsuites": ({"name", "tests", "failures", "errors"}, set()),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped"}, set()),
    "testcase": ({"name", "classname"}, set()),
    "failure": ({"message", "type"}, set()),
    "error": ({"message", "type"}, set()),
    "skipped": ({"message"}, set()),
    "system-out": (set(), set()),
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}
"""The elements and attributes that are written; the schemas of Jenkins and of Ant know all of them."""


def check_junit(path: Path) -> dict[str, tuple[str, str]]:
    """Hold a file against the format; return the outcome and the message of each case."""
    root = ElementTree.fromstring(path.read_bytes())
    assert root.tag == "testsuites"
    for element in root.iter():
        required, _ = ATTRIBUTES[element.tag]
        assert set(element.attrib) == required
        assert {inner.tag for inner in element} <= CHILDREN.get(element.tag, set())
        assert element.tag == "system-out" or not (element.text or "").strip()
        assert (element.text or "").isprintable() or not (element.text or "").strip()
        assert all(value.isprintable() for value in element.attrib.values())
        assert all(element.attrib[name].isdecimal() for name in COUNTS & set(element.attrib))
    found: dict[str, tuple[str, str]] = {}
    for suite in root:
        for case in suite:
            assert len(case) <= 1
            assert case.attrib["classname"] == suite.attrib["name"]
            inner = next(iter(case), None)
            told = ("passed", "")
            if inner is not None:
                passed = inner.tag == "system-out"
                told = ("passed", inner.text) if passed else (inner.tag, inner.attrib["message"])
            found[case.attrib["name"]] = told
    for element in (root, *root):
        for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            if name in element.attrib:
                assert int(element.attrib[name]) == len(list(element.iter(tag)))
        assert int(element.attrib["tests"]) == len(list(element.iter("testcase")))
    assert len(found) == int(root.attrib["tests"])
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with m.onnx in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(CHAIN), "m.onnx")
    return tmp_path


def test_what_is_met_leaves_with_0(here: Path, byoc: Cli) -> None:
    ran = byoc(*PARTITION, "--min-offload", 0.3, "--max-regions", 2, "--junit", "j.xml")
    assert (ran.code, ran.err) == (0, "")
    cases = check_junit(here / "j.xml")
    assert [name for name, (outcome, _) in cases.items() if outcome == "passed"] == [
        *("partition", "min-offload", "max-regions")
    ]
    assert cases["max-regions"][1] == "there are 2 regions; at most 2 is required (--max-regions)"
    assert cases["verification"][0] == "skipped"


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_is_missed_leaves_with_6_and_the_bundle_stays(here: Path, byoc: Cli, form: str) -> None:
    limits = ("--max-regions", 1, "--max-slowdown", 1.0, "--require-verified")
    ran = byoc(*PARTITION, "-o", "b", *limits, "--junit", "j.xml", "--format", form)
    assert ran.code == 6
    first, second = ran.err.splitlines()
    assert first == "byoc: there are 2 regions; at most 1 is required (--max-regions)"
    assert second.startswith("byoc: it is predicted to take ")
    assert (here / "b/manifest.json").is_file()
    assert "m.onnx" in ran.out
    cases = check_junit(here / "j.xml")
    assert {name: outcome for name, (outcome, _) in cases.items()} == {
        "partition": "passed",
        "codegens": "passed",
        "verification": "passed",
        "max-regions": "failure",
        "max-slowdown": "failure",
    }
    assert cases["max-regions"][1] == "there are 2 regions; at most 1 is required (--max-regions)"

    again = byoc("inspect", "b", *limits, "--junit", "i.xml", "--format", form)
    assert (again.code, again.err) == (6, ran.err)
    assert check_junit(here / "i.xml") == {"inspect": cases.pop("partition")} | cases
    assert byoc("inspect", "b", "--max-regions", 2, "--require-verified").code == 0


def test_verification_that_is_required(here: Path, byoc: Cli) -> None:
    ran = byoc(*PARTITION, "-o", "b", "--no-verify", "--require-verified", "--junit", "j.xml")
    assert (ran.code, ran.err.count("\n")) == (6, 1)
    assert "(--require-verified)" in ran.err
    assert check_junit(here / "j.xml")["verification"][0] == "failure"


def test_an_error_is_in_the_file_too(here: Path, byoc: Cli) -> None:
    ran = byoc("partition", "gone\x1b.onnx", "--rules", VANILLA, "--junit", "j.xml")
    assert ran.code == 1
    cases = check_junit(here / "j.xml")
    assert list(cases) == ["partition"]
    assert cases["partition"][0] == "error"
    assert ran.err == f"byoc: {cases['partition'][1]}\n"


def test_the_same_results_are_the_same_bytes(here: Path, byoc: Cli) -> None:
    for name in ("a.xml", "b.xml"):
        byoc(*PARTITION, "--min-offload", 0.9, "--junit", name)
    assert (here / "a.xml").read_bytes() == (here / "b.xml").read_bytes()


def test_verify_writes_a_case_for_each_output_and_region(here: Path, byoc: Cli) -> None:
    byoc(*PARTITION, "-o", "b")
    ran = byoc("verify", "b", "--junit", "v.xml")
    assert (ran.code, ran.err) == (0, "")
    cases = check_junit(here / "v.xml")
    assert cases.pop("output y") == ("passed", "")
    assert len(cases) == 2
    assert all(name.startswith("region dla_") for name in cases)


def test_compare_writes_a_suite_for_each_model(here: Path, byoc: Cli) -> None:
    onnx.save(parse(CHAIN), here / "n.onnx")
    models = ("m.onnx", "gone.onnx", "n.onnx")
    strategies = ("--strategies", "min-cut,host-only", "--jobs", 1)
    ran = byoc("compare", *models, "--rules", VANILLA, *strategies, "--junit", "c.xml")
    assert ran.code == 1
    root = ElementTree.fromstring((here / "c.xml").read_bytes())
    assert sorted(suite.attrib["name"] for suite in root) == sorted(models)
    for suite in root:
        assert [case.attrib["name"] for case in suite] == ["min-cut", "host-only"]
        failed = suite.attrib["name"] == "gone.onnx"
        assert [len(case) for case in suite] == [failed, failed]
    assert (root.attrib["tests"], root.attrib["errors"]) == ("6", "2")


def test_names_with_markup_are_escaped(here: Path, byoc: Cli) -> None:
    name = 'a<b>&"c\x07.onnx'
    onnx.save(parse(CHAIN), here / name)
    byoc("partition", name, "--rules", VANILLA, "--junit", "j.xml")
    root = ElementTree.fromstring((here / "j.xml").read_bytes())
    assert root[0].attrib["name"] == 'a<b>&"c\\x07.onnx'
    check_junit(here / "j.xml")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "wrong", [("--min-offload", "2"), ("--max-slowdown", "0"), ("--max-slowdown", "nan")]
)
def test_limits_that_are_none(byoc: Cli, wrong: tuple[str, str]) -> None:
    ran = byoc(*PARTITION, *wrong)
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)


@pytest.mark.usefixtures("here")
def test_a_file_inside_of_the_bundle_is_refused(byoc: Cli) -> None:
    byoc(*PARTITION, "-o", "b")
    for command in ((*PARTITION, "-o", "b"), ("inspect", "b"), ("verify", "b")):
        ran = byoc(*command, "--junit", "b/j.xml")
        assert (ran.code, ran.out) == (1, "")
        assert "b/j.xml: cannot be written: it would change the bundle that is " in ran.err


def test_a_file_that_is_read_is_not_replaced(here: Path, byoc: Cli) -> None:
    np.savez(here / "x.npz", x=np.zeros((1, 4), np.float32))
    (here / "r.yaml").write_text(f"extends: {VANILLA}\n")
    byoc(*PARTITION, "-o", "b")
    byoc("pack", "b", "-o", "p")
    own = ("partition", "m.onnx", "--rules", "r.yaml")
    wrong = [(*own, flag, file) for flag in OUTPUTS for file in ("m.onnx", "r.yaml")]
    wrong += [(*own, "--inputs", "x.npz", "--junit", "x.npz")]
    wrong += [("compare", "m.onnx", "--rules", "r.yaml", "--junit", f) for f in ("m.onnx", "r.yaml")]
    wrong += [("inspect", "p", "--junit", "p"), ("verify", "b", "--inputs", "x.npz", "--junit", "x.npz")]
    wrong += [("run", "b", "--inputs", "x.npz", flag, "x.npz") for flag in ("-o", "--trace")]
    before = {each: each.read_bytes() for each in here.iterdir() if each.is_file()}
    for command in wrong:
        ran = byoc(*command)
        told = f"byoc: {command[-1]}: cannot be written: it would replace what is read, {command[-1]}\n"
        assert (ran.code, ran.out, ran.err) == (1, "", told), command
    assert {each: each.read_bytes() for each in before} == before
