"""Regions that differ in names and weights: compiled once where the codegen takes weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import cut, files, original, ramp
from helpers.support import parse
from numpy.typing import NDArray

from byoc.codegen import Artifact, CompileError, Executor, NoOptions, Region, find_codegen
from byoc.runtime import load

IMAGE = {"x0": ramp(1, 4, 8, 8)}


class Exchanging:
    """The reference, whose artifacts say which region they were compiled for, and whose they became."""

    name = "exchanging"
    Options = NoOptions
    compiled: list[str]
    exchanged: list[tuple[str, str]]
    given: Callable[[str], object] = staticmethod(lambda name: Artifact({"for.txt": name.encode()}))

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        self.compiled.append(region.name)
        return Artifact({"for.txt": region.name.encode()})

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: NoOptions
    ) -> Artifact | None:
        assert artifact.files["for.txt"].decode() == first.name
        assert [node.op_type for node in region.nodes] == [node.op_type for node in first.nodes]
        self.exchanged.append((region.name, first.name))
        return self.given(region.name)  # type: ignore[return-value]

    def load(self, region: Region, artifact: Artifact) -> Executor:
        assert artifact.files["for.txt"].decode() == region.name
        return find_codegen("reference").load(region, artifact)  # type: ignore[attr-defined]


@pytest.fixture
def exchanging(monkeypatch: pytest.MonkeyPatch) -> type[Exchanging]:
    Exchanging.compiled, Exchanging.exchanged = [], []
    vendors.install(monkeypatch, exchanging=Exchanging)
    return Exchanging


def chain(*weights: NDArray[np.float32]) -> onnx.ModelProto:
    """Return a chain of Conv and Relu on the accelerator, with a Sigmoid of the host between."""
    text = ["g (float[1, 4, 8, 8] x0) => (float[1, 4, 8, 8] y) {"]
    for i in range(len(weights)):
        text += [f"c{i} = Conv<pads = [2, 2, 2, 2]>(x{i}, weight_{i}, bias_{i}) r{i} = Relu(c{i})"]
        text += [f"x{i + 1} = Sigmoid(r{i})"]
    model = parse("\n".join([*text, f"y = Identity(x{len(weights)})", "}"]))
    for i, weight in enumerate(weights):
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"weight_{i}"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight[:, 0, 0, 0], f"bias_{i}"))
    return model


def computes_as_original(model: onnx.ModelProto, bundle: Path, inputs: dict[str, Any]) -> None:
    np.testing.assert_allclose(load(bundle)(inputs)["y"], original(model, inputs)["y"], 1e-5)


def weight(factor: float) -> NDArray[np.float32]:
    return ramp(4, 4, 5, 5) * np.float32(factor)


def test_regions_that_differ_in_weights_are_compiled_once(
    exchanging: type[Exchanging], tmp_path: Path
) -> None:
    model = chain(weight(1), weight(2), weight(1), weight(3))
    cut(model, tmp_path / "b", codegen="exchanging")
    assert exchanging.compiled == ["dla_0"]
    assert exchanging.exchanged == [("dla_1", "dla_0"), ("dla_3", "dla_0")]  # dla_2 is dla_0
    computes_as_original(model, tmp_path / "b", IMAGE)


def test_regions_that_differ_in_more_are_compiled(exchanging: type[Exchanging], tmp_path: Path) -> None:
    model = chain(weight(1), weight(2))
    model.graph.node[3].attribute[0].ints[:] = [4, 4, 4, 4]
    model.graph.node[3].attribute.append(onnx.helper.make_attribute("dilations", [2, 2]))
    cut(model, tmp_path / "b", codegen="exchanging")
    assert (exchanging.compiled, exchanging.exchanged) == (["dla_0", "dla_1"], [])


def test_the_codegen_may_want_to_compile(
    exchanging: type[Exchanging], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanging, "given", staticmethod(lambda name: None))
    cut(chain(weight(1), weight(2)), tmp_path / "b", codegen="exchanging")
    assert exchanging.compiled == ["dla_0", "dla_1"]
    computes_as_original(chain(weight(1), weight(2)), tmp_path / "b", IMAGE)


def test_what_is_no_artifact_is_a_fault(
    exchanging: type[Exchanging], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanging, "given", staticmethod(lambda name: name))
    with pytest.raises(CompileError, match="take_weights gave str, not an Artifact"):
        cut(chain(weight(1), weight(2)), tmp_path / "b", codegen="exchanging")
    assert not (tmp_path / "b").exists()


def additions(*weights: NDArray[np.float32]) -> onnx.ModelProto:
    """Return a chain of Add and Relu on the accelerator, with a Sigmoid of the host between."""
    shape = ", ".join(map(str, weights[0].shape))
    text = [f"g (float[{shape}] x0) => (float[{shape}] y) {{"]
    for i in range(len(weights)):
        text += [f"a{i} = Add(x{i}, w{i}) r{i} = Relu(a{i}) x{i + 1} = Sigmoid(r{i})"]
    model = parse("\n".join([*text, f"y = Identity(x{len(weights)})", "}"]))
    for i, each in enumerate(weights):
        model.graph.initializer.append(onnx.numpy_helper.from_array(each, f"w{i}"))
    return model


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The sources that the codegen `c` has compiled to libraries."""
    pytest.importorskip("emx_onnx_cgen")
    import byoc.codegens.c as module  # noqa: PLC0415 - what is replaced

    sources: list[bytes] = []
    compile_library = module.compile_library

    def compile_and_note(source: bytes, options: Any) -> bytes:
        sources.append(source)
        return compile_library(source, options)

    monkeypatch.setattr(module, "compile_library", compile_and_note)
    return sources


def test_c_has_one_library_for_all_weights(libraries: list[bytes], tmp_path: Path) -> None:
    model = additions(*(ramp(20, 20) * np.float32(factor) for factor in (1, 2, 3)))
    for output in ("first", "second"):  # the second from the cache
        cut(model, tmp_path / output, codegen="c")
        assert len(libraries) == 1
    made = files(tmp_path / "first")
    assert made == files(tmp_path / "second")
    assert len({made[f"artifacts/dla_{number}/region.so"] for number in range(3)}) == 1
    computes_as_original(model, tmp_path / "first", {"x0": -ramp(20, 20)})


def test_c_compiles_anew_where_a_constant_is_in_the_source(
    libraries: list[bytes], tmp_path: Path
) -> None:
    model = additions(ramp(5), ramp(5) + 1, ramp(5) + 2)
    cut(model, tmp_path / "b", codegen="c")
    assert len(libraries) == 3
    computes_as_original(model, tmp_path / "b", {"x0": -ramp(5)})


def test_weights_are_taken_in_a_process_of_its_own(libraries: list[bytes], tmp_path: Path) -> None:
    model = additions(ramp(20, 20), ramp(20, 20) * 2)
    cut(model, tmp_path / "b", codegen="c", isolate=True, cache=False)
    assert libraries == []
    made = files(tmp_path / "b")
    assert made["artifacts/dla_0/region.so"] == made["artifacts/dla_1/region.so"]
    computes_as_original(model, tmp_path / "b", {"x0": -ramp(20, 20)})


def list_artifacts(bundle: Path) -> dict[str, bytes]:
    return {name: content for name, content in files(bundle).items() if name.startswith("artifacts/")}


def test_dla_fills_the_weights_of_a_program_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from byoc.codegens.dla import DLA  # noqa: PLC0415 - what is replaced

    compiled: list[str] = []
    compile_region = DLA.compile

    def compile_and_note(self: DLA, region: Region, options: Any) -> Artifact:
        compiled.append(region.name)
        return compile_region(self, region, options)

    monkeypatch.setattr(DLA, "compile", compile_and_note)
    random = np.random.default_rng(0)
    model = chain(*(random.standard_normal((4, 4, 5, 5)).astype(np.float32) for _ in range(4)))
    cut(model, tmp_path / "once", codegen="dla", cache=False)
    assert compiled == ["dla_0"]
    computes_as_original(model, tmp_path / "once", IMAGE)
    monkeypatch.setattr(DLA, "take_weights", lambda *given: None)
    cut(model, tmp_path / "each", codegen="dla", cache=False)
    assert compiled[1:] == ["dla_0", "dla_1", "dla_2", "dla_3"]
    once, each = (list_artifacts(tmp_path / name) for name in ("once", "each"))
    assert once == each  # names, weights and program, byte for byte
    assert len({once[f"artifacts/dla_{number}/weights.bin"] for number in range(4)}) == 4


def test_dla_compiles_anew_where_pieces_that_were_equal_are_not(tmp_path: Path) -> None:
    same, other = ramp(20, 20), ramp(20, 20) * 2
    model = parse(
        "g (float[20, 20] x) => (float[20, 20] y) {"
        " a = Add(x, w0) b = Add(a, w1) c = Sigmoid(b) d = Add(c, w2) e = Add(d, w3) y = Sigmoid(e) }"
    )
    for number, values in enumerate((same, same, same, other)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, f"w{number}"))
    cut(model, tmp_path / "b", codegen="dla")
    computes_as_original(model, tmp_path / "b", {"x": ramp(20, 20)})
