"""Names that a terminal would obey: every verb prints them as text, whoever chose them."""

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, Ran
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from rich.console import Console

from byoc.console import print_errors, print_lines, print_table
from byoc.errors import InputError, escape_unprintable
from byoc.support import Note, report_step

Cli = Callable[..., Ran]

ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\rPASS\nverified\u2028\x7f\u200f\u200b"
SHOWN = escape_unprintable(ATTACK)
# What moves the cursor, ends a line, or turns the direction of writing: C0, DEL, C1, separators, bidi.
OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def _hostile(name: str) -> str:
    return f"{name}{ATTACK}"


def _make_model() -> onnx.ModelProto:
    """Return a chain of which Relu is for the accelerator; every name and text in it attacks."""
    nodes = [
        helper.make_node("Relu", [_hostile("x")], [_hostile("a")], _hostile("first"), _hostile("doc")),
        helper.make_node("Sigmoid", [_hostile("a")], [_hostile("b")], _hostile("second")),
        helper.make_node("Add", [_hostile("b"), _hostile("b")], [_hostile("c")], _hostile("third")),
        helper.make_node("Mul", [_hostile("c"), _hostile("w")], [_hostile("y")], _hostile("fourth")),
    ]
    values = [
        helper.make_tensor_value_info(_hostile(name), TensorProto.FLOAT, [_hostile("batch"), 4])
        for name in ("x", "y")
    ]
    weight = onnx.numpy_helper.from_array(np.full((4,), 2, np.float32), _hostile("w"))
    graph = helper.make_graph(nodes, _hostile("graph"), values[:1], values[1:], [weight])
    model = helper.make_model(
        graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)], producer_name=_hostile("by")
    )
    for part in (model, *graph.node):
        part.metadata_props.add(key=_hostile("key"), value=_hostile("value"))
    return model


def _check(ran: Ran) -> Ran:
    """Assert that every line of both streams is text, and that nothing is a defect."""
    for text in (ran.out, ran.err):
        for line in text.split("\n"):
            assert not OBEYED.search(line), ascii(line)
        assert "Traceback" not in text
        assert not re.search("^ *(PASS|verified)", text, re.MULTILINE)
    return ran


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a model of hostile names in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(_make_model(), "m.onnx")
    return tmp_path


@pytest.fixture
def bundle(here: Path, byoc: Cli) -> Path:
    """A bundle of the model, in a folder whose name is hostile, too."""
    folder = here / _hostile("out").replace("/", "_")
    given = ("--rules", VANILLA, "--strategy", "all-supported")
    ran = _check(byoc("partition", "m.onnx", *given, "-o", folder))
    assert ran.code == 0, ran.err
    assert SHOWN in ran.out
    return folder


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "arguments",
    [
        ("partition", "m.onnx", "--rules", VANILLA, "--verbose"),
        ("partition", "m.onnx", "--rules", VANILLA, "--dim", f"{_hostile('batch')}=2"),
        ("partition", "m.onnx", "--rules", VANILLA, "--dim", "other=2"),
        ("partition", "m.onnx", "--rules", VANILLA, "--strategy", "all-supported", "--quantize", "int8"),
        ("explain", "m.onnx", "--rules", VANILLA),
        ("explain", "m.onnx", "--rules", VANILLA, "--op", "Sigmoid"),
        ("explain", "m.onnx", "--rules", VANILLA, "--node", _hostile("second")),
        ("explain", "m.onnx", "--rules", VANILLA, "--node", _hostile("none")),
        ("compare", "m.onnx", "--rules", VANILLA, "--jobs", "1"),
        ("compare", "m.onnx", "--rules", VANILLA, "--jobs", "1", "--format", "csv"),
        ("plan-memory", "m.onnx", "--dim", f"{_hostile('batch')}=2", "--svg", "m.svg"),
        ("calibrate", "m.onnx", "--random", "2", "-o", "ranges.yaml"),
        ("profile", "m.onnx", "--device", "host", "-o", "costs.yaml", "--seconds", "0.01"),
        ("compare-costs", "m.onnx", "--seconds", "0.01", "--repeats", "1"),
        ("inspect", _hostile("none")),
        ("inspect", "--format", _hostile("none")),
        ("inspect", "m.onnx", _hostile("more")),
        ("inspect", f"--{_hostile('none')}"),
        (_hostile("verb"),),
        ("codegens", _hostile("none")),
        ("rules", "check", _hostile("none")),
        ("rules", "composites", _hostile("none")),
        ("zoo", "fetch", _hostile("none")),
        ("new-codegen", _hostile("none")),
        ("place", _hostile("none")),
        ("run", _hostile("none"), "--inputs", "random"),
    ],
    ids=lambda arguments: " ".join(map(str, arguments))[:40].encode("ascii", "ignore").decode(),
)
def test_a_verb_prints_names_as_text(arguments: tuple[str, ...], byoc: Cli) -> None:
    ran = _check(byoc(*arguments))
    assert ran.out + ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect",),
        ("verify", "--against", "m.onnx"),
        ("verify", "--against", "m.onnx", "--threshold", "float32=0", "--bisect"),
        ("run", "--inputs", "random"),
        ("run", "--input", f"{_hostile('none')}={_hostile('none')}.npy"),
        ("run", "--inputs", f"{_hostile('none')}.npz"),
        ("pack", "-o", f"{_hostile('packed')}.zip"),
        ("plan-memory",),
        ("compare-costs", "--seconds", "0.01", "--repeats", "1"),
    ],
    ids=lambda arguments: " ".join(arguments)[:40].encode("ascii", "ignore").decode(),
)
def test_a_verb_on_a_bundle_prints_names_as_text(
    arguments: tuple[str, ...], bundle: Path, byoc: Cli
) -> None:
    verb, *rest = arguments
    ran = _check(byoc(verb, bundle, *rest))
    assert SHOWN in ran.out + ran.err


def _poison(document: Any) -> Any:
    """Return a manifest in which every text that is free carries the attack."""
    if isinstance(document, list):
        return [_poison(part) for part in document]
    if isinstance(document, dict):
        return {key: _poison(value) for key, value in document.items()}
    return _hostile(document) if isinstance(document, str) else document


def _rewrite(bundle: Path, change: Callable[[Any], None]) -> None:
    path = bundle / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_inspect_prints_a_poisoned_manifest_as_text(bundle: Path, byoc: Cli) -> None:
    """A forged row, a title of the window: in each text that a manifest may choose."""

    def poison(document: Any) -> None:
        document["asked"] = _poison(document["asked"]) | {_hostile("key"): {_hostile("a"): 1}}
        document["targets"] = _poison(document["targets"])
        document["versions"] = {_hostile(name): _hostile("1") for name in document["versions"]} | {
            "byoc": "1"
        }
        (variant,) = document["variants"]
        report = variant["report"]
        report["model"] = _hostile("m")
        report["host_reasons"] = [{"nodes": 1, "reason": _hostile("why")}]
        report["notes"] = [_hostile("note"), f"warning: {_hostile('note')}"]
        for region in report["regions"]:
            region["device"] = _hostile("dla")
        for region in variant["regions"]:
            region["artifact_metadata"] = {_hostile("key"): _hostile("value")}
            region["codegen"] = region["target"] = _hostile("dla")
            region["composites"] = [_hostile("conv")]

    _rewrite(bundle, poison)
    ran = _check(byoc("inspect", bundle))
    assert ran.code == 0, ran.err
    assert ran.out.count(SHOWN) > 20
    exact = json.loads(byoc("inspect", bundle, "--format", "json").out)
    assert exact["variants"][0]["report"]["model"] == _hostile("m")
    assert exact["asked"][_hostile("key")] == {_hostile("a"): 1}


def test_a_document_is_ascii_and_exact(here: Path, byoc: Cli) -> None:
    ran = _check(byoc("explain", "m.onnx", "--rules", VANILLA, "--op", "Sigmoid", "--format", "json"))
    assert ran.out.isascii()
    assert "\x7f" not in ran.out
    assert _hostile("second") in [row["node"] for row in json.loads(ran.out)["details"]]
    assert here.name.isascii()


@pytest.mark.usefixtures("here")
def test_a_picture_holds_no_control_characters(byoc: Cli) -> None:
    byoc("plan-memory", "m.onnx", "--dim", f"{_hostile('batch')}=2", "--svg", "m.svg")
    picture = Path("m.svg").read_text(encoding="utf-8")
    assert SHOWN in picture
    assert not OBEYED.search(picture.replace("\n", ""))


def test_rule_files_are_quoted_as_text(here: Path, byoc: Cli) -> None:
    (here / "bad.yaml").write_text(
        f'target: "a{json.dumps(ATTACK)[1:-1]}"\ncost_model: dla\n'
        f"ops:\n  - {json.dumps(_hostile('op'))}: Relu\n  - op: {json.dumps(_hostile('Relu'))}\n"
    )
    ran = _check(byoc("rules", "check", "bad.yaml"))
    assert ran.code == 1
    assert SHOWN[:20] in ran.out


def test_a_defect_is_told_without_control_characters(
    here: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(_hostile("broken"))

    monkeypatch.setattr("byoc.open_bundle", fail)
    ran = byoc("inspect", here)
    assert ran.code == 3
    assert f"RuntimeError: {_hostile('broken')}".splitlines()[0] not in ran.err
    assert not OBEYED.search(ran.err.replace("\n", ""))


def test_a_terminal_gets_only_the_sequences_of_the_tables(bundle: Path) -> None:
    """On a terminal tables have styles: bold, and back; no other sequence reaches it."""
    if shutil.which("script") is None:
        pytest.skip("no `script` to make a terminal with")
    command = f"{sys.executable} -m byoc inspect out* --verbose 2> errors"
    shown = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        cwd=bundle.parent,
        capture_output=True,
        check=True,
        stdin=subprocess.DEVNULL,
    ).stdout.decode()
    plain = re.sub("\x1b\\[[0-9;]*m", "", shown)
    assert "\\x1b]0;owned\\x07" in plain.replace("\r\n", "")
    assert not OBEYED.search(plain.replace("\r\n", ""))


def _printed(print_to: Callable[[Console], None]) -> str:
    stream = io.StringIO()
    print_to(Console(file=stream, width=200, emoji=False))
    return stream.getvalue()


quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = st.text(st.characters(), max_size=20) | st.sampled_from([ATTACK, "[bold]", "\\", "a\u200db"])


@quick
@given(st.lists(NAMES, max_size=3))
def test_no_line_holds_what_a_terminal_obeys(names: list[str]) -> None:
    text = _printed(lambda console: print_lines(names, console))
    assert text.count("\n") == len(names)
    assert not OBEYED.search(text.replace("\n", "").replace("\u200c", "").replace("\u200d", ""))


@quick
@given(st.lists(st.fixed_dictionaries({"one": NAMES, "other": NAMES}), min_size=1, max_size=3))
def test_no_cell_holds_what_a_terminal_obeys(rows: list[dict[str, str]]) -> None:
    text = _printed(lambda console: print_table(rows, console, right=("other",)))
    assert not OBEYED.search(text.replace("\n", ""))
    short = [row for row in rows if all(0 < len(escape_unprintable(v)) < 60 for v in row.values())]
    for row in short:
        assert any(
            all(escape_unprintable(v).strip() in line for v in row.values()) for line in text.split("\n")
        )


@quick
@given(NAMES, NAMES)
def test_no_error_or_note_holds_what_a_terminal_obeys(first: str, second: str) -> None:
    error = InputError(first, second)
    assert error.lines == (escape_unprintable(first), escape_unprintable(second))
    assert str(error).count("\n") == 1
    assert not OBEYED.search(str(error).replace("\n", ""))
    note = Note("warning", first)
    assert not OBEYED.search(_printed(lambda console: print_lines([note], console)).replace("\n", ""))


@quick
@given(NAMES)
def test_a_printable_text_is_left_alone(name: str) -> None:
    shown = escape_unprintable(name)
    assert escape_unprintable(shown) == shown
    assert len(shown.splitlines()) <= 1
    assert shown.encode().decode() == shown


@pytest.mark.parametrize(
    "name",
    [
        "模型",
        "modèle d'été",
        "こんにちは\u3000世界",
        "👩\u200d💻 🎉 ❤️",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "שלום",
        "12\u202f%",
        "c:\\x1b",
    ],
)
def test_what_people_write_stays_readable(name: str) -> None:
    assert escape_unprintable(name) == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\r\t", "a\\nb\\r\\t"),
        ("a\x9bb\x7f", "a\\x9bb\\x7f"),
        ("a\u202eb\u2066", "a\\u202eb\\u2066"),
        ("re\u200dlu", "re\\u200dlu"),
        ("\u200d模", "\\u200d模"),
        ("\ud800", "\\ud800"),
        ("\ufeff\U000e0041", "\\ufeff\\U000e0041"),
    ],
)
def test_what_terminals_obey_is_shown(name: str, shown: str) -> None:
    assert escape_unprintable(name) == shown


def test_problems_are_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_errors(["one\ntwo", "three"])
    assert capsys.readouterr().err == "byoc: one\\ntwo\nbyoc: three\n"


def test_steps_are_logged_as_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="byoc"):
        report_step(_hostile("m"))
    assert [record.getMessage() for record in caplog.records] == [f"m{SHOWN}"]
