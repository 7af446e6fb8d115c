"""Inputs at the ends of what can be stated: extents of 2**62, names of files that are not UTF-8."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import Ran, copy_vanilla, parse

from byoc.bundle import open_bundle
from byoc.samples import write_npz

NET = "g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"
HUGE = "g (TYPE[0, EXTENT] x) => (TYPE[0, EXTENT] y) { y = Identity(x) }"
Cli = Callable[..., Ran]


def name(path: bytes) -> str:
    """Return a path that is not UTF-8 as Python has it."""
    return os.fsdecode(path)


@pytest.mark.parametrize(("dtype", "extent"), [("float", 2**62), ("int8", 2**61), ("float", 2**60)])
def test_an_empty_input_that_no_array_can_hold_is_told_in_a_sentence(
    dtype: str, extent: int, tmp_path: Path, byoc: Cli
) -> None:
    model, bundle = tmp_path / "m.onnx", tmp_path / "b"
    onnx.save(parse(HUGE.replace("TYPE", dtype).replace("EXTENT", str(extent))), model)
    ran = byoc("partition", model, "--rules", "dla", "-o", bundle)
    assert ran.code == 4
    assert "no sample input can be made for 'x'" in ran.err + ran.out
    for verb in (
        ["run", bundle, "--inputs", "random"],
        ["verify", bundle],
        ["verify", bundle, "--against", model],
        ["export-c", model, "-o", tmp_path / "c"],
        ["profile", model, "-o", tmp_path / "costs.yaml"],
        ["compare-costs", model, "--rules", "dla"],
    ):
        ran = byoc(*verb)
        assert ran.code == 1
        assert f"[0, {extent}] is larger than arrays may be" in ran.err
        assert "Traceback" not in ran.err
    assert byoc("simplify", model, "-o", tmp_path / "s.onnx").code == 4


def test_a_sequence_of_such_tensors_is_told_in_a_sentence(tmp_path: Path, byoc: Cli) -> None:
    text = f"g (seq(float[0, {2**62}]) x) => (float[a, b] y) {{ y = ConcatFromSequence<axis=0>(x) }}"
    onnx.save(parse(text), tmp_path / "m.onnx")
    ran = byoc("profile", tmp_path / "m.onnx", "-o", tmp_path / "costs.yaml")
    assert ran.code == 1
    assert "is larger than arrays may be" in ran.err


@pytest.mark.skipif(sys.platform == "darwin", reason="all names of files are UTF-8 there")
def test_names_of_files_need_not_be_utf8(
    tmp_path: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, rules, inputs = (name(each) for each in (b"m\xff.onnx", b"r\xff.yaml", b"i\xff.npz"))
    onnx.save(parse(NET), model)
    Path(copy_vanilla(tmp_path)).rename(rules)
    write_npz(Path(inputs), {"x": np.ones((2, 3), np.float32)})
    cut = ["partition", model, "--rules", rules, "--strategy", "all-supported"]
    for output in ("-o", "b"), ("-o", "b", "--html", name(b"h\xff.html")):
        ran = byoc(*cut, *output, "--inputs", inputs)
        assert ran.code == 0, ran.err
    manifest = json.loads(Path("b", "manifest.json").read_bytes().decode())
    assert manifest["asked"]["model"] == "m\\udcff.onnx"
    open_bundle("b").check_regions()
    for verb in (
        ["inspect", "b"],
        ["report", "b", "-o", name(b"p\xff.html")],
        ["verify", "b", "--against", model, "--inputs", inputs, "--junit", name(b"j\xff.xml")],
        ["run", "b", "--inputs", inputs, "--output", name(b"o\xff.npz")],
        ["compare-costs", model, "--rules", rules],
        ["profile", model, "-o", name(b"c\xff.yaml")],
        ["partition", model, "--rules", rules, "--host-cost-model", name(b"c\xff.yaml"), "-o", "b2"],
    ):
        ran = byoc(*verb)
        assert ran.code == 0, (verb, ran.err)
    for verb, sentence in (
        ([*cut, "-o", name(b"b\xff")], "is not UTF-8, and onnxruntime opens no other paths"),
        (["profile", model, "-o", "c.yaml", "--else", name(b"c\xff.yaml")], "is not UTF-8 text"),
        (["run", "b", "--inputs", name(b"gone\xff.npz")], "no such file"),
        (["partition", name(b"gone\xff.onnx"), "--rules", "dla"], "no such file"),
    ):
        ran = byoc(*verb)
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert sentence in ran.err


@pytest.mark.skipif(sys.platform == "darwin", reason="all names of files are UTF-8 there")
def test_a_program_of_a_model_whose_name_is_not_utf8(
    tmp_path: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("emx_onnx_cgen")
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(NET), model := name(b"m\xff.onnx"))

    ran = byoc("export-c", model, "-o", "program")

    assert ran.code == 0, ran.err
    assert "m\\udcff.onnx" in Path("program/README.md").read_text("utf-8")


@pytest.mark.skipif(sys.platform == "darwin", reason="all names of files are UTF-8 there")
def test_weights_in_a_file_whose_name_is_not_utf8_are_copied_or_refused(
    tmp_path: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(name(os.fsencode(tmp_path) + b"/f\xff"))
    folder.mkdir()
    model = parse("g (float[2, 64] x) => (float[2, 64] y) { y = MatMul(x, w) }")
    weights = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=9)
    for each in ("m.onnx", "w"):
        (tmp_path / each).rename(folder / each)
    monkeypatch.chdir(tmp_path)
    cut = ["partition", folder / "m.onnx", "--rules", "dla", "-o"]
    assert byoc(*cut, "copy").code == 0
    ran = byoc(*cut, "reference", "--weights", "reference")
    assert (ran.code, "is not UTF-8 text, so no bundle can name it" in ran.err) == (1, True)
    assert not (tmp_path / "reference").exists()
