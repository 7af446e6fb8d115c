"""What a damaged artifact is told: each fault of interface.json and of the program's header."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from byoc.codegens.dla.region_artifact import INTERFACE, PROGRAM, WEIGHTS
from byoc.codegens.dla.simulator import SimulationError
from dla_regions import floats, model, region

from byoc.codegen import Artifact, Region, find_codegen, parse_codegen_options
from byoc.errors import InputError

FOUND: Any = find_codegen("dla")
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(name="made", scope="module")
def fixture_made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Region, Artifact]:
    text = "g (float[1,3,4,4] x) => (float[1,4,4,4] y) { y = Conv(x, w) }"
    made = region(model(text, {"w": floats(4, 3, 1, 1)}), tmp_path_factory.mktemp("region"))
    return made, FOUND.compile(made, parse_codegen_options(FOUND, {}))


def changed(artifact: Artifact, change: Change) -> Artifact:
    told = json.loads(artifact.files[INTERFACE])
    change(told)
    return with_file(artifact, INTERFACE, json.dumps(told).encode())


def with_file(artifact: Artifact, name: str, content: bytes) -> Artifact:
    return replace(artifact, files={**artifact.files, name: content})


def setting(place: str, value: object) -> Change:
    """Return what sets one value of a document: "outputs.0.box.rows"."""

    def change(told: Any) -> None:
        *way, last = place.split(".")
        for step in way:
            told = told[int(step) if step.isdigit() else step]
        told[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda told: told.pop("outputs"), "outputs: Field required"),
        (setting("more", 1), "more: Extra inputs are not permitted"),
        (setting("inputs", None), "inputs: Input should be a valid array"),
        (setting("inputs", []), "inputs: there are 0, but the region has 1"),
        (setting("outputs.0.name", "z"), "outputs.0: 'z' float32 (1, 4, 4, 4), but the region has 'y'"),
        (setting("outputs.0.dtype", "int8"), "outputs.0: 'y' int8 (1, 4, 4, 4), but the region has 'y'"),
        (setting("outputs.0.dtype", "bool"), "outputs.0.dtype: Input should be 'float32'"),
        (setting("outputs.0.shape", [4, 16]), "outputs.0: 'y' float32 (4, 16), but the region has 'y'"),
        (setting("outputs.0.shape", [1, 4, "4", 4]), "outputs.0.shape.2: Input should be a valid int"),
        (setting("outputs.0.box", None), "outputs.0.box: 'y' has no address in the arena"),
        (setting("outputs.0.box.dtype", "INT8"), "outputs.0.box: int8 of "),
        (setting("outputs.0.box.dtype", "NONE"), "outputs.0.box.dtype: Input should be 'FLOAT32'"),
        (setting("outputs.0.box.rows", 3), "outputs.0.box: float32 of 3 x "),
        (setting("outputs.0.box.window", 0), "outputs.0.box: the operand y has "),
        (setting("outputs.0.box.tensor", 0), "outputs.0.box: the operand y has no tensor"),
        (setting("outputs.0.box.address", -4), "outputs.0.box.address: Input should be greater"),
        (setting("outputs.0.box.address", 2**31), "outputs.0.box: it ends at byte 21474"),
        (setting("inputs.0.box.rows", 2**32), "inputs.0.box.rows: Input should be less than"),
        (setting("inputs.0.box.row_pitch", 2.5), "inputs.0.box.row_pitch: Input should be a valid int"),
        (setting("layers.0.nodes", "c"), "layers.0.nodes: Input should be a valid array"),
    ],
)
def test_what_is_wrong_with_the_interface_is_told_by_its_place(
    made: tuple[Region, Artifact], change: Change, wrong: str
) -> None:
    with pytest.raises(InputError) as caught:
        FOUND.load(made[0], changed(made[1], change))
    assert str(caught.value).startswith(f"{INTERFACE}: {wrong}")


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "it is nested too deep"),
        (b"\xff", "it is not UTF-8 text"),
        (b'{"inputs": [], "inputs": []}', "the key 'inputs' stands twice"),
        (b"[]", "Input should be an object"),
    ],
)
def test_what_is_no_interface_is_refused(
    made: tuple[Region, Artifact], content: bytes, wrong: str
) -> None:
    with pytest.raises(InputError) as caught:
        FOUND.load(made[0], with_file(made[1], INTERFACE, content))
    assert str(caught.value).startswith(f"{INTERFACE}: {wrong}")


def test_a_missing_file_and_other_weights_are_refused(made: tuple[Region, Artifact]) -> None:
    whole, artifact = made
    without = {name: content for name, content in artifact.files.items() if name != WEIGHTS}

    with pytest.raises(InputError, match=r"^the artifact has no weights\.bin$"):
        FOUND.load(whole, replace(artifact, files=without))
    with pytest.raises(InputError, match=r"^program\.bin: the program is for 64 bytes of weights"):
        FOUND.load(whole, with_file(artifact, WEIGHTS, b""))
    with pytest.raises(InputError, match=r"^program\.bin: not a program of the dla"):
        FOUND.load(whole, with_file(artifact, PROGRAM, b""))


@pytest.mark.parametrize("field", [8, 12])
def test_a_header_that_asks_for_gigabytes_takes_none(made: tuple[Region, Artifact], field: int) -> None:
    whole, artifact = made
    content = bytearray(artifact.files[PROGRAM])
    struct.pack_into("<I", content, field, 2**32 - 1)
    x = {"x": floats(1, 3, 4, 4)}

    tracemalloc.start()
    try:
        found = FOUND.load(whole, with_file(artifact, PROGRAM, bytes(content)))(x)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (found["y"] == FOUND.load(whole, artifact)(x)["y"]).all()
    assert most < 2**24


@pytest.mark.parametrize("field", [8, 12])
def test_a_header_that_asks_for_too_little_is_noticed(made: tuple[Region, Artifact], field: int) -> None:
    whole, artifact = made
    content = bytearray(artifact.files[PROGRAM])
    size = struct.unpack_from("<I", content, field)[0]
    struct.pack_into("<I", content, field, 64)
    assert size > 64

    with pytest.raises((InputError, SimulationError), match="64 bytes"):
        FOUND.load(whole, with_file(artifact, PROGRAM, bytes(content)))({"x": floats(1, 3, 4, 4)})
