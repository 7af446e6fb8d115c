"""`refit`: compiled regions of an earlier bundle with the weights of another model."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byoc.codegens.dla import DLA
from helpers import vendors
from onnx import helper, numpy_helper

import byoc as library
from byoc.codegen import Artifact, CompileError, Region
from byoc.errors import InputError


def write_model(folder: Path, seed: int, kernel: int = 3, layers: int = 3) -> Path:
    """Write a chain of convolutions with weights by a seed, and return its path."""
    draw = np.random.default_rng(seed).standard_normal
    nodes, stored, last = [], [], "x"
    for number in range(layers):
        weight = draw((8, 8, kernel, kernel)).astype(np.float32) / 8
        stored += [numpy_helper.from_array(weight, f"w{number}")]
        pads = [kernel // 2] * 4
        nodes += [helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], pads=pads)]
        nodes += [helper.make_node("Relu", [f"c{number}"], [f"r{number}"])]
        last = f"r{number}"
    types = [helper.make_tensor_value_info(name, 1, [1, 8, 24, 24]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "chain", types[:1], types[1:], stored)
    path = folder / f"{seed}_{kernel}_{layers}.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return path


def partition(model: Path, output: Path, refit: Path | None = None, **options: Any) -> list[str]:
    """Write a bundle of a model for dla, and return its notes; it is verified, or that raises."""
    given = {"rules": "dla", "strategy": "all-supported", "cache": False} | options
    found = library.partition(model, output=output, refit=refit, **given)
    return [note for note in map(str, found.report.notes) if note.startswith("taken from")]


def read_artifact(bundle: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((bundle / "artifacts").rglob("*.*"))}


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    partition(write_model(tmp_path, 1), tmp_path / "earlier")
    return tmp_path / "earlier"


def test_nothing_is_compiled_and_the_program_is_that_of_a_compilation(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path, 2)
    partition(model, tmp_path / "compiled")

    def refuse(*_: Any) -> Artifact:
        raise AssertionError("compiled")

    monkeypatch.setattr(DLA, "compile", refuse)
    notes = partition(model, tmp_path / "refitted", earlier)

    assert [note.split(": ")[1].split(" ", 1)[1] for note in notes] == [
        "with other weights, and nothing was compiled"
    ]
    assert read_artifact(tmp_path / "refitted") == read_artifact(tmp_path / "compiled")
    assert read_artifact(tmp_path / "refitted") != read_artifact(earlier)


@pytest.mark.parametrize(("kernel", "layers"), [(1, 3), (3, 2)])
def test_a_region_of_another_structure_is_compiled(
    earlier: Path, tmp_path: Path, kernel: int, layers: int
) -> None:
    (note,) = partition(write_model(tmp_path, 2, kernel, layers), tmp_path / "new", earlier)

    assert ": nothing, and " in note
    assert note.endswith("had to be compiled")


def test_a_region_in_integers_is_compiled(tmp_path: Path) -> None:
    options = {"precision": library.Precision(quantize="int8", data="random")}
    partition(write_model(tmp_path, 1), tmp_path / "earlier", **options)

    (note,) = partition(write_model(tmp_path, 2), tmp_path / "new", tmp_path / "earlier", **options)

    assert note.endswith("had to be compiled")


def test_a_codegen_that_fails_to_take_weights_compiles(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Artifact:
        raise CompileError("the weights do not fit")

    monkeypatch.setattr(DLA, "take_weights", fail)

    (note,) = partition(write_model(tmp_path, 2), tmp_path / "new", earlier)

    assert note.endswith("had to be compiled")


class Plain:
    """A codegen that cannot exchange weights."""

    name = "plain"

    def compile(self, region: Region, options: Any) -> Artifact:
        return Artifact()


def test_a_codegen_without_exchange_is_an_error(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, plain=Plain)

    with pytest.raises(InputError, match="--refit: plain takes no weights"):
        partition(write_model(tmp_path, 2), tmp_path / "new", earlier, codegen="plain")

    assert not (tmp_path / "new").exists()


def test_other_options_are_an_error_that_says_what_there_is(earlier: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="asked for now; it has dla by dla"):
        partition(
            write_model(tmp_path, 2), tmp_path / "new", earlier, codegen_options={"stripes": "true"}
        )


def test_nothing_is_taken_from_a_stranger(earlier: Path, tmp_path: Path) -> None:
    with (earlier / "manifest.json").open("a", encoding="utf-8") as file:
        file.write("\n")  # else this process knows that it wrote it
    (earlier / "signature.json").unlink()

    with pytest.raises(InputError, match="earlier: nothing is taken from it: "):
        partition(write_model(tmp_path, 2), tmp_path / "new", earlier)


def test_a_plan_alone_cannot_be_refitted(earlier: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--refit makes a bundle: say where"):
        library.partition(write_model(tmp_path, 2), "dla", refit=earlier)


def test_what_one_accelerator_can_take_is_taken_where_others_cannot(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, plain=Plain)
    (tmp_path / "plain.yaml").write_text("extends: dla\ntarget: other\ncodegen: plain\n")
    variants = {"board": {"rules": "dla"}, "other": {"rules": str(tmp_path / "plain.yaml")}}

    found = library.partition(
        write_model(tmp_path, 2),
        output=tmp_path / "new",
        variants=variants,
        refit=earlier,
        strategy="all-supported",
        verify=False,
    )

    told = [
        [str(note) for note in each.report.notes if "taken from" in str(note)] for each in found.variants
    ]
    assert [note.split(": ")[1].split(" ", 1)[1] for (note,) in told[:1]] == [
        "with other weights, and nothing was compiled"
    ]
    assert told[1][0].endswith("had to be compiled")
