"""`byoc partition --save-placement` and `--placement`: out to a file, edited, back in."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import yaml
from helpers.cutting import CHAIN
from helpers.support import VANILLA, Ran, parse

Cli = Callable[..., Ran]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with m.onnx in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(CHAIN), "m.onnx")
    return tmp_path


PARTITION = ("partition", "m.onnx", "--rules", VANILLA)


@pytest.mark.usefixtures("here")
def test_saved_edited_and_given_back(byoc: Cli) -> None:
    ran = byoc(*PARTITION, "--strategy", "all-supported", "--save-placement", "p.yaml")
    assert (ran.code, ran.err) == (0, "")
    text = Path("p.yaml").read_text("utf-8")
    assert text.startswith("# Where each node runs. Edit it and give it to `byoc partition --placement`")
    content = yaml.safe_load(text)
    assert content["model"] == "m.onnx"
    assert content["nodes"] == {"a": "dla", "b": "host", "y": "dla"}
    # The default strategy would leave all of it on the host.
    assert "\nm.onnx: 0 of 3 nodes" in byoc(*PARTITION).out
    ran = byoc(*PARTITION, "--placement", "p.yaml", "-o", "out")
    assert (ran.code, ran.err) == (0, "")
    assert "\nm.onnx: 2 of 3 nodes" in ran.out
    assert "placement p.yaml" in byoc("inspect", "out").out
    Path("p.yaml").write_text(text.replace("a: dla", "a: host", 1), "utf-8")
    ran = byoc(*PARTITION, "--placement", "p.yaml", "--save-placement", "p.yaml", "--verbose")
    assert "\nm.onnx: 1 of 3 nodes" in ran.out
    assert "the placement that this plan follows has it on the host" in ran.out
    assert yaml.safe_load(Path("p.yaml").read_text("utf-8"))["nodes"]["a"] == "host"


@pytest.mark.usefixtures("here")
def test_what_does_not_fit_is_a_note(byoc: Cli) -> None:
    Path("p.yaml").write_text("format: 1\nnodes: {gone: dla, b: dla}\n", "utf-8")
    ran = byoc(*PARTITION, "--placement", "p.yaml")
    assert ran.code == 0
    assert "note: p.yaml: 1 node is not in the model: 'gone'" in ran.out
    assert "note: p.yaml: not taken by the device: 'b'; placed anew" in ran.out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("format: 1\nnodes: {a: dlb}\n", "p.yaml: nodes.a: no device 'dlb' here (did you mean dla?); "),
        ("format: 1\nnode: {a: dla}\n", "p.yaml: "),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_file_that_is_wrong(text: str, sentence: str, byoc: Cli) -> None:
    Path("p.yaml").write_text(text, "utf-8")
    ran = byoc(*PARTITION, "--placement", "p.yaml")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"byoc: {sentence}")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("place", ["no/p.yaml", "."])
def test_a_place_that_cannot_be_written_to_is_found_first(place: str, here: Path, byoc: Cli) -> None:
    """Before anything is planned, let alone written."""
    ran = byoc(*PARTITION, "-o", "out", "--save-placement", place)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"byoc: {place}: cannot be written: ")
    assert [path.name for path in here.iterdir()] == ["m.onnx"]


@pytest.mark.usefixtures("here")
def test_two_rule_files(byoc: Cli) -> None:
    rules = "target: npu\ncost_model: dla\ndtype: any\nops: [{op: Sigmoid}]\n"
    Path("npu.yaml").write_text(rules, "utf-8")
    both = ("--rules", VANILLA, "--rules", "npu.yaml", "--strategy", "all-supported")
    ran = byoc("partition", "m.onnx", *both, "-o", "out", "--save-placement", "p.yaml")
    assert (ran.code, ran.err) == (0, "")
    assert "on dla and npu in 3 regions" in ran.out
    assert yaml.safe_load(Path("p.yaml").read_text())["nodes"] == {"a": "dla", "b": "npu", "y": "dla"}
    assert byoc("verify", "out", "--against", "m.onnx").code == 0
    ran = byoc("partition", "m.onnx", *both, "--cost-model", "npu=dla", "--codegen", "npu=reference")
    assert ran.code == 0
    ran = byoc("partition", "m.onnx", *both, "--codegen", "npx=reference")
    assert ran.err == "byoc: codegen for npx: no such target (did you mean npu?)\n"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("strategy", "option", "why"),
    [
        ("exact", "time_limit=-1", "time_limit is -1, but must be a number of seconds above 0"),
        ("launch-aware", "time_limit=0", "time_limit is 0, but must be a number of seconds above 0"),
        ("launch-aware", "rounds=-5", "rounds is -5, but must be 0 or more"),
        ("makespan", "time_limit=-1", "time_limit is -1, but must be a number of seconds above 0"),
        ("makespan", "restarts=-1", "restarts is -1, but must be 0 or more"),
        ("throughput", "time_limit=1e999", "time_limit is inf, but must be a number of seconds above 0"),
    ],
)
def test_limits_of_a_strategy_that_are_none(strategy: str, option: str, why: str, byoc: Cli) -> None:
    ran = byoc(*PARTITION, "--strategy", strategy, "--strategy-option", option)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith(f"refuses its options: {why}\n")
