"""docs/json.md lists the fields that the verbs print with `--format json`."""

import json
import sys
from pathlib import Path
from typing import Any

import pages
import pytest
from helpers.support import Ran
from page_files import write_model

from byoc.cli import VERBS, load_verb

sys.path.insert(0, str(pages.ROOT / "tools"))
from json_fields import DOCUMENTS, PAGE, list_fields, make_page

_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { a = Conv(x, w) y = Relu(a) }"""
# Commands that are cheap to run, and what they are given.
_COMMANDS = {
    "partition": "m.onnx --rules dla -o m.byoc",
    "inspect": "m.byoc",
    "inspect --fits": "m.byoc",
    "verify": "m.byoc",
    "explain": "m.onnx --rules dla",
    "diff": "m.byoc dla --model m.onnx",
    "rules check": "dla",
    "compare": "m.onnx --rules dla --strategies launch-aware",
    "pack": "m.byoc -o m.zip",
    "run": "m.byoc --inputs random",
    "plan-memory": "m.onnx",
    "tasks": "m.onnx --rules dla",
    "calibrate": "m.onnx --data random -o c.yaml --samples 1",
    "place": "two.json --objective latency",
    **dict.fromkeys(
        (
            "cache",
            "codegens",
            "cost-models",
            "passes",
            "rules",
            "rules composites",
            "strategies",
            "trust",
            "zoo",
        ),
        "",
    ),
    "cost-models check": "dla",
}
_NODE = {
    "id": 0,
    "supportedOnFpga": 1,
    "cpuLatency": 1.0,
    "fpgaLatency": 1.0,
    "isBackwardNode": 0,
    "size": 1.0,
}
_INSTANCE = {
    "maxFPGAs": 1,
    "maxCPUs": 1,
    "maxSizePerFPGA": 10.0,
    "nodes": [_NODE, {**_NODE, "id": 1}],
    "edges": [{"sourceId": 0, "destId": 1, "cost": 1.0}],
}


def list_json_commands() -> set[str]:
    """Return the verbs, and their commands, whose `--format` takes json."""
    found = set()
    for verb in VERBS:
        waiting = [(verb, load_verb(verb))]
        for name, each in waiting:
            waiting += [(f"{name} {sub}", below) for sub, below in getattr(each, "commands", {}).items()]
            forms = [param for param in each.params if "--format" in param.opts]
            if any(
                param.default is not None and hasattr(type(param.default), "json") for param in forms
            ):
                found.add(name)
    return found


def test_the_page_is_what_the_declarations_say() -> None:
    assert PAGE.read_text("utf-8") == make_page(), "run python tools/json_fields.py"


def test_each_verb_that_prints_json_is_on_the_page() -> None:
    documented = {name.partition(" --")[0].partition(" of ")[0] for name in DOCUMENTS}
    assert list_json_commands() - documented == set()
    assert {name.split()[0] for name in DOCUMENTS} <= set(VERBS)


def test_the_verbs_print_the_fields_of_the_page(
    byoc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an object of a class no other field, of all others these and no more."""
    monkeypatch.chdir(tmp_path)
    write_model(_MODEL, w=(4, 3, 3, 3))(tmp_path / "m.onnx")
    Path("two.json").write_text(json.dumps(_INSTANCE))
    for name, arguments in _COMMANDS.items():
        printed: Ran = byoc(*name.split(), *arguments.split(), "--format", "json")
        document = DOCUMENTS[name]
        assert printed.code in {0, 6}, f"{name}: {printed.err}"
        found = json.loads(printed.out)
        assert isinstance(found, list) is document.is_list, name
        own = set(document.fields)
        optional = set() if document.kind is None else set(list_fields(document.kind))
        left_out = {
            field for field, text in document.fields.items() if "left out" in text or "alone" in text
        }
        for each in found if document.is_list else [found]:
            assert own - left_out <= set(each) <= own | optional, name
