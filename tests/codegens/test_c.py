"""The codegen `c`: real compiles, what runs them again elsewhere, and what is refused."""

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import CASES, at_once, compiled, computes, model, refusal, region, same, with_composite
from helpers.cutting import original, ramp
from helpers.support import VANILLA, parse, sample_cases

import byoc
from byoc.codegen import Artifact, Executable, Oracle, Stamped, find_codegen
from byoc.errors import InputError, MissingRuntimeError

pytest.importorskip("emx_onnx_cgen")

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    computes(name, tmp_path, "c")


def test_it_runs_here_and_can_be_asked() -> None:
    found = find_codegen("c")

    assert isinstance(found, Executable)
    assert isinstance(found, Oracle)
    assert isinstance(found, Stamped)


def test_the_artifact_is_source_and_library_and_no_weights(tmp_path: Path) -> None:
    text, _ = CASES["large constant"]
    _, artifact, _ = compiled(model(text), tmp_path, "c")

    assert set(artifact.files) == {"region.c", "region.so"}
    assert len(artifact.files["region.c"]) < 10_000  # 64 * 256 numbers are not in it
    assert json.loads(artifact.metadata["arguments"]) == ["x", "many", "y"]


def test_the_same_region_gives_the_same_source_and_the_same_numbers(tmp_path: Path) -> None:
    text, inputs = CASES["conv and relu"]
    other, _ = CASES["gemm"]
    _, first, run = compiled(model(text), tmp_path, "c")
    compiled(model(other), tmp_path, "c")
    _, second, again = compiled(model(text), tmp_path, "c")

    assert first.files["region.c"] == second.files["region.c"]
    np.testing.assert_array_equal(run(inputs)["y"], again(inputs)["y"])
    np.testing.assert_array_equal(run(inputs)["y"], run(inputs)["y"])


def test_outputs_that_no_node_makes_and_outputs_that_stand_twice(tmp_path: Path) -> None:
    proto = model("g (float[2] x, float[3] u) => (float[2] x, float[4] b, float[2] y, float[2] y)"
                  " { y = Neg(x) }")  # fmt: skip
    _, _, run = compiled(proto, tmp_path, "c")

    x = ramp(2)
    found = run({"x": x, "u": ramp(3)})

    same(found, {"x": x, "b": ramp(4), "y": -x})
    assert not np.shares_memory(found["x"], x)


def test_a_region_without_nodes_needs_no_compiler(tmp_path: Path) -> None:
    _, artifact, run = compiled(parse("g (float[2] x) => (float[2] x) { }"), tmp_path, "c")

    assert not artifact.files
    same(run({"x": ramp(2)}), {"x": ramp(2)})


def test_threads_may_call_at_once(tmp_path: Path) -> None:
    text, _ = CASES["conv and relu"]
    proto = model(text)
    _, _, run = compiled(proto, tmp_path, "c")
    inputs = [{"x": ramp(1, 3, 8, 8) * scale} for scale in range(1, 41)]

    found = at_once(run, inputs)

    for given, outputs in zip(inputs, found, strict=True):
        np.testing.assert_array_equal(outputs["y"], run(given)["y"])
    same(found[0], original(proto, inputs[0]))


def test_too_little_memory_is_said_and_forgotten(tmp_path: Path) -> None:
    proto = parse(
        "g (float[1] x, int64[3] s) => (float[1] y, float z)"
        " { y = Neg(x) a = Expand(x, s) z = ReduceMax<keepdims=0>(a) }"
    )
    del proto.graph.input[1:]
    extents = np.array([1 << 20, 1 << 20, 1 << 4])  # 64 TiB
    proto.graph.initializer.append(onnx.numpy_helper.from_array(extents, "s"))
    _, _, run = compiled(proto, tmp_path, "c")

    for _ in range(2):
        with pytest.raises(InputError, match="there is not enough memory"):
            run({"x": ramp(1)})


def test_arrays_that_are_not_contiguous_or_not_writable(tmp_path: Path) -> None:
    _, _, run = compiled(parse(RELU), tmp_path, "c")
    x = np.asfortranarray(ramp(2, 3))
    x.flags.writeable = False

    same(run({"x": x}), {"y": np.maximum(x, 0)})


@pytest.mark.parametrize("change", [{"machine": "riscv64"}, {"system": "Plan9"}])
def test_on_another_machine_the_source_is_compiled_anew(change: dict[str, str], tmp_path: Path) -> None:
    made, artifact, _ = compiled(parse(RELU), tmp_path, "c")
    files = {**artifact.files, "region.so": b"for another machine"}
    moved = Artifact(files, {**artifact.metadata, **change})

    run = _load(made, moved)

    same(run({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})


def test_a_library_that_does_not_open_is_compiled_anew(tmp_path: Path) -> None:
    made, artifact, _ = compiled(parse(RELU), tmp_path, "c")
    damaged = replace(artifact, files={**artifact.files, "region.so": b"\x7fELF"})

    same(_load(made, damaged)({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})


def test_a_temporary_folder_that_is_not_text_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, artifact, _ = compiled(parse(RELU), tmp_path, "c")
    place = tmp_path / os.fsdecode(b"t\xff")
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    damaged = replace(artifact, files={**artifact.files, "region.so": b"\x7fELF"})
    for stored in (artifact, damaged):
        same(_load(made, stored)({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})
    assert list(place.iterdir()) == []


def test_native_code_is_stamped_with_the_cpu(tmp_path: Path) -> None:
    _, plain, _ = compiled(parse(RELU), tmp_path, "c")
    made, native, run = compiled(parse(RELU), tmp_path, "c", cflags="-O3 -march=native")

    assert "cpu" not in plain.metadata
    other = Artifact(
        {**native.files, "region.so": b"other"}, {**native.metadata, "cpu": "of somebody else"}
    )
    for one in (run, _load(made, other)):
        same(one({"x": ramp(2, 3)}), {"y": np.maximum(ramp(2, 3), 0)})


def test_an_artifact_of_another_region_is_not_run(tmp_path: Path) -> None:
    _, artifact, _ = compiled(parse(RELU.replace("x", "other")), tmp_path, "c")

    with pytest.raises(InputError, match="acc_0: the C function and the region have other arguments"):
        _load(region(parse(RELU), tmp_path), artifact)


@pytest.mark.parametrize(
    ("text", "sentence", "nodes"),
    [
        (
            "g (float[N,3] x, float[2] z) => (float[N,3] y, float[2] w) { [n] y = Relu(x) w = Neg(z) }",
            "'x' is float32[N, 3]: all extents must be known (--dim gives a model's)",
            ("n",),
        ),
        (
            "g (float[2] x) => (float[2] y) { a = Relu(x) y = com.acme.Fold(a) }",
            "emx-onnx-cgen: Unsupported op com.acme.Fold",
            ("y",),
        ),
    ],
)
def test_what_is_refused_is_one_sentence_and_names_the_nodes(
    text: str, sentence: str, nodes: tuple[str, ...], tmp_path: Path
) -> None:
    proto = parse(text)
    if "acme" in text:
        proto.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))

    error = refusal(region(proto, tmp_path), "c")

    assert (str(error), error.nodes) == (sentence, nodes)


def test_the_node_of_an_extent_that_the_model_states_but_values_decide_is_named(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y, int64[1,4] z) { [r] y = Relu(x) [n] z = NonZero(x) }"
    stated = region(parse(text), tmp_path)
    relu, found = stated.outputs
    opened = replace(found, type=replace(found.type, shape=(1, None)))

    error = refusal(replace(stated, outputs=(relu, opened)), "c")

    assert error.nodes == ("n",)


def test_composites_are_inlined_and_named_when_refused(tmp_path: Path) -> None:
    proto = with_composite()
    x = ramp(1, 3, 8, 8)
    _, _, run = compiled(proto, tmp_path, "c")
    same(run({"x": x}), original(proto, {"x": x}))

    proto.functions[0].node[1].op_type = "StringNormalizer"
    proto.graph.node[0].name = "blamed"
    assert refusal(region(proto, tmp_path), "c").nodes == ("blamed",)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cc": " "}, "codegen c refuses its options: cc is empty, but must name a compiler"),
        (
            {"cflag": "-O1"},
            "codegen c has no option 'cflag' (did you mean cflags?); it has: cc, cflags",
        ),
    ],
)
def test_options_are_checked(options: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        compiled(parse(RELU), tmp_path, "c", **options)
    assert str(caught.value) == sentence


def test_what_is_not_there_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from byoc.codegens.c import c_source as source  # noqa: PLC0415 - what is replaced

    with pytest.raises(MissingRuntimeError) as caught:
        compiled(parse(RELU), tmp_path, "c", cc="/no/such/cc")
    assert str(caught.value) == (
        "there is no C compiler '/no/such/cc' here (install one, or name it with the option cc)"
    )
    monkeypatch.setitem(sys.modules, "emx_onnx_cgen.compiler", None)
    source.compiler.cache_clear()
    with pytest.raises(MissingRuntimeError, match=r"^emx-onnx-cgen is not installed \(pip install "):
        compiled(parse(RELU), tmp_path, "c")
    source.compiler.cache_clear()


def test_it_says_whether_a_library_fits(tmp_path: Path) -> None:
    made, artifact, _ = compiled(parse(RELU), tmp_path, "c")
    moved = Artifact(artifact.files, {**artifact.metadata, "machine": "riscv64"})
    found: Any = find_codegen("c")

    assert found.compatible(made, artifact)
    assert str(found.compatible(made, moved)).startswith(
        "the library was compiled for the machine riscv64, but this is "
    )


def test_the_compilers_own_refusal_is_told(tmp_path: Path) -> None:
    error = refusal(region(parse(RELU), tmp_path), "c", cflags="--no-such-flag")

    assert str(error).startswith("'cc' refuses the C source: ")
    assert "no-such-flag" in str(error)


def test_a_type_that_the_compiler_lacks_leaves_out_the_nodes_of_that_type(tmp_path: Path) -> None:
    older = tmp_path / "cc"
    older.write_text(
        """#!/bin/sh
        case "$*" in *-fsyntax-only*) text=$(cat) ;; *-shared*) text=$(cat region.c) ;; esac
        case "$text" in *__bf16*) echo "error: unknown type name '__bf16'" >&2; exit 1 ;; esac
        exec cc "$@"
        """
    )
    older.chmod(0o755)
    proto = parse(
        "g (float[2] x) => (float[2] y, bfloat16[2] z) { [r] y = Relu(x) [c] z = Cast<to=16>(x) }"
    )
    found: Any = find_codegen("c")

    error = refusal(region(proto, tmp_path), "c", cc=str(older))
    relu, cast = found.check(proto, found.Options(cc=str(older)))

    assert error.nodes == ("c",)
    assert relu
    assert str(cast) == str(error)
    assert "it has no type bfloat16" in str(cast)


def test_a_failure_that_is_no_refusal_names_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from byoc.codegens.c import c_source as source  # noqa: PLC0415 - what is replaced

    class Stumbles:
        def compile(self, given: onnx.ModelProto) -> str:
            if any(node.op_type == "Neg" for node in given.graph.node):
                raise KeyError("t_a")
            return "void region(void) {}"

    monkeypatch.setattr(source, "compiler", Stumbles)
    made = region(parse("g (float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }"), tmp_path)

    error = refusal(made, "c")

    assert str(error) == "emx-onnx-cgen refuses Neg (y): KeyError: 't_a'"
    assert error.nodes == ("y",)


def test_it_says_of_each_node_whether_it_emits_it() -> None:
    proto = parse(
        "g (float[2] x) => (float[2] y) <float[2] b> { a = Relu(x) b = com.acme.Bogus(a) y = Relu(b) }"
    )
    proto.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    found: Any = find_codegen("c")

    assert [str(verdict) for verdict in found.check(proto, found.Options())] == [
        "yes",
        "emx-onnx-cgen: Unsupported op com.acme.Bogus",
        "yes",
    ]


@pytest.mark.parametrize("name", sample_cases(["squeezenet", "shufflenet"], "squeezenet"))
def test_a_network_is_cut_compiled_and_verified(name: str, tmp_path: Path) -> None:
    result = byoc.partition(
        f"zoo:{name}", VANILLA, output=tmp_path / "b", strategy="all-supported", codegen="c"
    )

    assert result.verification is not None
    assert result.verification.passed
    assert byoc.load(tmp_path / "b").stages


def _load(made: Any, artifact: Artifact) -> Any:
    found: Any = find_codegen("c")
    return found.load(made, artifact)
