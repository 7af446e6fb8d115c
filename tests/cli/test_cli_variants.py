"""The verbs on bundles of several variants: each says a variant by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import number_regions
from helpers.support import VANILLA, Ran, parse

import byoc
from byoc.errors import InputError

Cli = Callable[..., Ran]
MODEL = "g (float[n, m] x) => (float[n, m] y) { a = Relu(x) y = Relu(a) }"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("variants") / "b"
    options: Any = {"strategy": "all-supported", "output": path, "dims": {"m": 4}}
    with number_regions():
        byoc.partition(parse(MODEL), VANILLA, buckets={"n": [1, 2]}, **options)
    return path


def test_flags_are_read(byoc: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def partition(_: str, **keywords: Any) -> None:
        given.update(keywords)
        raise InputError("that is all")

    monkeypatch.setattr("byoc.partition", partition)
    prefill = "prefill:seq=64,past=0,total=max(seq,past),x[0]=3"
    flags = ("--variant", prefill, "--variant", "decode:seq=1..4", "--bucket", "seq=1, 16")
    assert byoc("partition", "m.onnx", "--rules", VANILLA, *flags).err == "byoc: that is all\n"
    assert given["variants"] == {
        "prefill": {"seq": 64, "past": 0, "total": "max(seq,past)", "x[0]": 3},
        "decode": {"seq": "1..4"},
    }
    assert given["buckets"] == {"seq": (1, 16)}


def test_partition_prints_a_line_for_each(tmp_path: Path, byoc: Cli) -> None:
    onnx.save(parse(MODEL), tmp_path / "m.onnx")
    asked = (
        *("partition", tmp_path / "m.onnx", "--rules", VANILLA, "--strategy", "all-supported"),
        *("--dim", "m=4", "--variant", "one:n=1", "--bucket", "n=2"),
    )
    ran = byoc(*asked, "-o", tmp_path / "b")
    assert ran.code == 0, ran.err
    lines = [line.split("; ") for line in ran.out.splitlines() if " nodes (" in line]
    assert [line[0].partition(": ")[0].rpartition(", ")[2] for line in lines] == ["one", "n_2"]
    assert all(line[-1].startswith("verified") for line in lines)
    document = json.loads(byoc(*asked, "--format", "json").out)
    assert [each["variant"] for each in document["variants"]] == ["one", "n_2"]
    assert byoc(*asked, "--max-regions", "0").err.splitlines() == [
        "byoc: variant one: there is 1 region; at most 0 is required (--max-regions)",
        "byoc: variant n_2: there is 1 region; at most 0 is required (--max-regions)",
    ]
    ran = byoc(*asked, "--html", tmp_path / "r.html")
    assert ran.code == 2
    assert "each variant has one" in ran.err


def test_verify_and_inspect_name_variants(bundle: Path, byoc: Cli) -> None:
    ran = byoc("verify", bundle)
    assert ran.code == 0
    assert all(name in ran.out for name in ("n_1: y", "n_2: y", "dla_0_n_1", "dla_0_n_2"))
    assert "n_2" not in byoc("verify", bundle, "--variant", "n_1").out
    ran = byoc("inspect", bundle)
    assert "variants:  n_1 (n=1); n_2 (n=2)\n" in ran.out
    assert ran.out.count("verified") >= 2


def test_run_takes_the_variant_that_fits(bundle: Path, tmp_path: Path, byoc: Cli) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4), np.float32))
    ran = byoc("run", bundle, "--inputs", tmp_path / "x.npz")
    assert ran.out.startswith("variant n_2\n")
    ran = byoc("run", bundle, "--inputs", tmp_path / "x.npz", "--variant", "n_1")
    sentence = "input 'x' is float32[2, 4], the model takes float32[1, 4]"
    assert ran.err == f"byoc: {tmp_path / 'x.npz'}: {sentence}\n"
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    ran = byoc("run", bundle, "--input", f"x={tmp_path / 'x.npy'}", "--variant", "n_1")
    assert ran.err == f"byoc: {tmp_path / 'x.npy'}: {sentence}\n"
    document = json.loads(
        byoc("run", bundle, "--inputs", "random", "--variant", "n_1", "--format", "json").out
    )
    assert document["variant"] == "n_1"


def test_run_pads_inputs_and_says_so(tmp_path: Path, byoc: Cli) -> None:
    onnx.save(parse(MODEL), tmp_path / "m.onnx")
    asked = ("partition", tmp_path / "m.onnx", "--rules", VANILLA, "--strategy", "all-supported")
    ran = byoc(*asked, "--dim", "m=4", "--bucket", "n=1,8", "-o", tmp_path / "b", "--verbose")
    assert "inputs may be padded: n 1 to 8" in ran.out
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4), np.float32))
    run = ("run", tmp_path / "b", "--inputs", tmp_path / "x.npz")
    ran = byoc(*run, "-o", tmp_path / "y.npz", "--repeat", 3, "--pipeline", 2)
    assert ran.out.startswith("variant n_8, padded: n 3 to 8\n"), ran.err
    assert "\ny: float32[3, 4]\n" in ran.out
    assert np.load(tmp_path / "y.npz")["y"].tolist() == np.ones((3, 4)).tolist()
    assert json.loads(byoc(*run, "--format", "json").out)["padded"] == "n 3 to 8"
    ran = byoc(*run, "--no-pad")
    assert ran.code == 1
    assert "no variant takes these inputs" in ran.err
    assert "padding:   n_8: n 1 to 8\n" in byoc("inspect", tmp_path / "b").out
    assert byoc(*asked, "--dim", "m=4", "--bucket", "n=8", "-o", tmp_path / "c", "--no-pad").code == 0
    assert json.loads((tmp_path / "c/manifest.json").read_text())["variants"][0]["padding"] is None


def test_what_takes_one_variant_asks_for_its_name(bundle: Path, tmp_path: Path, byoc: Cli) -> None:
    sentence = (
        f"byoc: {bundle}: has several variants, and this takes one: give --variant (in Python variant=) "
        "one of n_1, n_2\n"
    )
    page = tmp_path / "r.html"
    for verb in (
        ("run", bundle, "--inputs", "random"),
        ("report", bundle, "-o", page),
        ("diff", bundle, bundle),
    ):
        ran = byoc(*verb)
        assert (ran.code, ran.err) == (1, sentence)
    ran = byoc("export-c", bundle, "-o", tmp_path / "c")
    assert ran.code == 1
    assert "n_1 and n_2 are of different sizes, and a program has one: give --variant" in ran.err
    assert byoc("report", bundle, "-o", page, "--variant", "n_2").code == 0
    assert page.stat().st_size > 10_000
    assert "placed alike" in byoc("diff", bundle, bundle, "--variant", "n_2").out
    assert byoc("pack", bundle, "-o", tmp_path / "b.zip").code == 0
    assert byoc("verify", tmp_path / "b.zip").code == 0
