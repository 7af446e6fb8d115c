"""The codegen `dla`: byoc's conformance tests, its artifacts, options and what it says of nodes."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from byoc.codegens.dla.dla_options import DLAOptions
from byoc.codegens.dla.machine import assemble, disassemble
from byoc.codegens.dla.region_artifact import (
    DRIVER_INTERFACE,
    DRIVER_LAYERS,
    INTERFACE,
    PIECES,
    PROGRAM,
    WEIGHTS,
)
from byoc.codegens.dla.simulator import Simulator
from dla_regions import executed, floats, model, region
from dla_runtime_cases import RUNTIME_CASES

from byoc.codegen import Artifact, CompileError, find_codegen, parse_codegen_options
from byoc.errors import InputError
from byoc.testing import CodegenConformance

CONSTANTS = {"w": floats(4, 3, 3, 3), "b": floats(4)}
CONV = "g (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads=[1,1,1,1]>(x, w, b) y = Relu(c) }"
FOUND: Any = find_codegen("dla")


class TestDla(CodegenConformance):
    codegen = "dla"
    rules = "dla"
    most_cases = 2
    cases = RUNTIME_CASES


@pytest.mark.thorough
class TestDlaThoroughly(CodegenConformance):
    """The same with as many cases of each operator as a vendor's own tests have by default."""

    codegen = "dla"
    rules = "dla"
    cases = RUNTIME_CASES


class TestDlaStriped(CodegenConformance):
    """The same with layers that take turns, and with tiles that are cut small."""

    codegen = "dla"
    rules = "dla"
    options = MappingProxyType({"stripes": "yes", "scratchpad": "16384"})
    operators = ("Conv", "MaxPool", "Gemm", "Add", "Concat", "Reshape", "BatchNormalization")
    most_cases = 2
    zoo = ()


def compiled(folder: Path, **options: str) -> tuple[Any, Artifact]:
    made = region(model(CONV, CONSTANTS), folder)
    return made, FOUND.compile(made, parse_codegen_options(FOUND, options))


def test_an_artifact_says_what_it_is(tmp_path: Path) -> None:
    made, artifact = compiled(tmp_path, scratchpad="65536")
    program = disassemble(artifact.files[PROGRAM])

    known = {PROGRAM, WEIGHTS, INTERFACE, DRIVER_INTERFACE, DRIVER_LAYERS, PIECES}
    assert set(artifact.files) == known
    assert artifact.metadata["scratchpad"] == "65536" == str(program.scratchpad)
    assert artifact.metadata["arena"] == artifact.metadata["arena_bound"] == str(program.arena)
    assert artifact.metadata["weights"] == str(len(artifact.files[WEIGHTS]))
    assert artifact.metadata["sram_limit"] == "65536"
    used = int(artifact.metadata["sram"])
    assert 0 < used <= 65536
    for size, fits in ((used, True), (used - 1, False)):  # that many bytes are enough, and no fewer
        least = assemble(replace(program, scratchpad=size))
        run = FOUND.load(made, replace(artifact, files={**artifact.files, PROGRAM: least}))
        with nullcontext() if fits else pytest.raises(Exception, match="scratchpad"):
            run({"x": floats(1, 3, 8, 8)})
    layers = json.loads(artifact.files[INTERFACE])["layers"]
    assert [(each["name"], each["operation"]) for each in layers][1] == ("y", "CONV")
    assert layers[1]["nodes"] == ["c", "y"]
    cycles = [each["cycles"] for each in layers]
    assert min(cycles) > 0
    assert 0 < sum(cycles) < int(artifact.metadata["cycles"])  # without the launch


def test_predicted_cycles_are_those_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, artifact = compiled(tmp_path)
    results: list[Any] = []
    run = Simulator.run

    def watched(*given: Any) -> Any:
        results.append(run(*given))
        return results[-1]

    monkeypatch.setattr(Simulator, "run", watched)

    FOUND.load(made, artifact)({"x": floats(1, 3, 8, 8)})

    statistics = results[0].statistics
    assert artifact.metadata["cycles"] == str(statistics.cycles)
    assert artifact.metadata["bytes_loaded"] == str(statistics.total("loaded"))
    estimate = FOUND.estimate(made, DLAOptions(), artifact)
    assert estimate.count == statistics.cycles
    assert estimate.seconds == pytest.approx(statistics.seconds, rel=1e-12)
    with pytest.raises(CompileError, match="the artifact's metadata has no cycles"):
        FOUND.estimate(made, DLAOptions(), replace(artifact, metadata={}))


def test_what_was_made_for_another_machine_does_not_fit(tmp_path: Path) -> None:
    made, artifact = compiled(tmp_path)
    other = replace(artifact, metadata={**artifact.metadata, "isa": "0"})

    assert FOUND.compatible(made, artifact)
    assert str(FOUND.compatible(made, other)).startswith("the program is for version 0 of the")


def test_loading_asks_nothing_of_the_regions_model(tmp_path: Path) -> None:
    made, artifact = compiled(tmp_path)
    x = {"x": floats(1, 3, 8, 8)}
    (tmp_path / "dla_0.onnx").unlink()

    found = FOUND.load(replace(made), artifact)(x)

    np.testing.assert_array_equal(found["y"], FOUND.load(made, artifact)(x)["y"])


def test_another_shape_is_refused(tmp_path: Path) -> None:
    made, artifact = compiled(tmp_path)

    with pytest.raises(InputError, match=r"^'x' has shape \(1, 3, 9, 8\), but was compiled for"):
        FOUND.load(made, artifact)({"x": floats(1, 3, 9, 8)})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scratchpad": "100"}, "scratchpad is 100, but must be at least 1024 bytes"),
        ({"scratchpad": "1073741825"}, "but must be at most 1073741824 bytes"),
        ({"memory": "worst"}, "'memory' one of no-reuse, best-fit, by-size, reordered, exact, not"),
    ],
)
def test_options_are_checked(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_codegen_options(FOUND, options)
    assert reason in str(caught.value)


def test_no_reuse_takes_more_memory(tmp_path: Path) -> None:
    sizes = [
        int(compiled(tmp_path, memory=method)[1].metadata["arena"]) for method in ("no-reuse", "exact")
    ]

    assert sizes[0] > sizes[1]


def test_nodes_are_asked_about_one_by_one() -> None:
    proto = model(
        "g (float[2,4] x) => (float[2,4] a, float[2,4] y) { y = Sigmoid(x) s = Sin(y) a = Add(s, x) }"
    )

    assert [str(verdict) for verdict in FOUND.check(proto, FOUND.Options())] == [
        "yes",
        "the machine has no Sin",
        "yes",
    ]


def test_whole_quantized_groups_are_taken() -> None:
    proto = model(
        "g (int8[2,4] x) => (int8[2,4] y)"
        " { d = DequantizeLinear(x, s, z) r = Relu(d) y = QuantizeLinear(r, s, z) }",
        {"s": np.float32(0.5), "z": np.int8(1)},
    )

    assert all(FOUND.check(proto, FOUND.Options()))


def test_outputs_that_are_inputs_constants_or_empty(tmp_path: Path) -> None:
    proto = model(
        "g (float[2,3] x, float[0,3] e, float[4] u) => (float[2,3] d, float[2] k, float[0,3] z)"
        " { d = Dropout(x) z = Relu(e) }",
        {"k": np.array([1, 2], np.float32)},
    )
    x = floats(2, 3)

    found = executed(proto, {"x": x, "e": np.zeros((0, 3), np.float32), "u": floats(4)}, tmp_path)

    np.testing.assert_array_equal(found["d"], x)
    assert found["k"].tolist() == [1, 2]
    assert found["z"].shape == (0, 3)
