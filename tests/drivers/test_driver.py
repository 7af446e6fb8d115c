"""The driver of the dla by the interface in C: what it refuses, in one sentence, and threads."""

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import onnx
import pytest
from drivers_suite.fuzz import write_case
from helpers.support import parse

from byoc.codegen import Artifact, DriverSources, Region, find_codegen, read_region
from byoc.codegen.drivers import DriverError, DriverLibrary, build_driver, get_include_folder
from byoc.errors import InputError, MissingRuntimeError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
WEIGHTS = ", ".join(f"{number % 7 - 3}" for number in range(108))
NET = f"""net (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) <float[4, 3, 3, 3] k = {{{WEIGHTS}}}> {{
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    y = Relu(a)
}}"""
PROGRAM, INTERFACE = "program.bin", "interface.bin"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> DriverLibrary:
    codegen = find_codegen("dla")
    return DriverLibrary(build_driver(codegen.driver(), tmp_path_factory.mktemp("driver") / "dla.so"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Region, Artifact]:
    path = tmp_path_factory.mktemp("region") / "dla_0.onnx"
    onnx.save(parse(NET), path)
    region = read_region(path, "dla_0", "dla")
    codegen = find_codegen("dla")
    return region, codegen.compile(region, codegen.Options())


def change(artifact: Artifact, name: str, content: bytes) -> Artifact:
    return replace(artifact, files={**artifact.files, name: content})


def set_word(content: bytes, place: int, word: int) -> bytes:
    return content[:place] + struct.pack("<I", word) + content[place + 4 :]


def make_input(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)}


def test_it_computes_what_the_simulator_does(
    driver: DriverLibrary, compiled: tuple[Region, Artifact]
) -> None:
    region, artifact = compiled
    opened = driver.open_region(region, artifact)
    expected = find_codegen("dla").load(region, artifact)
    assert (driver.name, opened.arena_bytes % 64) == ("dla", 0)
    for seed in range(3):
        found = opened(make_input(seed))["y"]
        np.testing.assert_allclose(found, expected(make_input(seed))["y"], rtol=1e-5, atol=1e-5)
        assert found.any()


def test_regions_on_several_threads_are_independent(
    driver: DriverLibrary, compiled: tuple[Region, Artifact]
) -> None:
    expected = [driver.open_region(*compiled)(make_input(seed))["y"] for seed in range(4)]

    def run(seed: int) -> bool:
        opened = driver.open_region(*compiled)
        return all(np.array_equal(opened(make_input(seed))["y"], expected[seed]) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))


def test_wrong_artifacts_are_one_sentence(
    driver: DriverLibrary, compiled: tuple[Region, Artifact]
) -> None:
    region, artifact = compiled
    program, interface = artifact.files[PROGRAM], artifact.files[INTERFACE]
    without = {name: content for name, content in artifact.files.items() if name != INTERFACE}
    command = "program.bin: command "
    mistakes = [
        (replace(artifact, files=without), "incompatible", "the artifact lacks "),
        (change(artifact, PROGRAM, b"ELF"), "bad artifact", "program.bin is not a program of the dla"),
        (change(artifact, PROGRAM, set_word(program, 4, 1)), "incompatible", "another version"),
        (change(artifact, PROGRAM, program[:-4]), "bad artifact", "the program breaks off inside it"),
        (change(artifact, PROGRAM, program[:20]), "bad artifact", "the program ends without END"),
        (change(artifact, PROGRAM, set_word(program, 12, 8)), "bad artifact", f"{command}0: an operand"),
        (change(artifact, PROGRAM, set_word(program, 20, 99)), "bad artifact", "has its opcode"),
        (change(artifact, "weights.bin", b""), "bad artifact", "weights.bin has another size"),
        (
            change(artifact, INTERFACE, interface[:-4]),
            "bad artifact",
            "interface.bin is of another region",
        ),
        (
            change(artifact, INTERFACE, set_word(interface, 24, 2**31)),
            "bad artifact",
            "leaves the arena",
        ),
        (change(artifact, INTERFACE, set_word(interface, 64, 0)), "bad artifact", "no address"),
    ]
    for wrong, status, sentence in mistakes:
        with pytest.raises(DriverError) as caught:
            driver.open_region(region, wrong)
        assert sentence in str(caught.value)
        assert str(caught.value).startswith("driver dla: dla_0: ")
        assert caught.value.status == status


def test_wrong_inputs_are_refused(driver: DriverLibrary, compiled: tuple[Region, Artifact]) -> None:
    opened = driver.open_region(*compiled)
    with pytest.raises(InputError, match="dla_0: input 'x' is missing"):
        opened({})
    with pytest.raises(InputError, match=r"'x' is float64\[1, 3, 8, 8\], and has to be float32"):
        opened({"x": np.zeros((1, 3, 8, 8))})


def test_what_is_no_driver(tmp_path: Path) -> None:
    empty = tmp_path / "empty.c"
    empty.write_text("int nothing;\n")
    library = build_driver(DriverSources("none", (empty,)), tmp_path / "none.so")
    with pytest.raises(InputError, match=r"none\.so: not a driver: it has no byoc_get_driver"):
        DriverLibrary(library)
    with pytest.raises(InputError, match=r"missing\.so: no such file"):
        DriverLibrary(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(InputError, match="not a library that can be loaded"):
        DriverLibrary(tmp_path / "text.so")
    old = tmp_path / "old.c"
    old.write_text(
        '#include "byoc_driver.h"\n'
        "const byoc_driver *byoc_get_driver(uint32_t version) { (void)version; return NULL; }\n"
    )
    library = build_driver(DriverSources("old", (old,)), tmp_path / "old.so")
    with pytest.raises(InputError, match=r"no table for version 1 or 2 of byoc_driver\.h"):
        DriverLibrary(library)


def test_a_driver_that_does_not_compile(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.c"
    wrong.write_text("int x = ;\n")
    with pytest.raises(InputError, match="driver wrong: cc failed: "):
        build_driver(DriverSources("wrong", (wrong,)), tmp_path / "wrong.so")
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.c"]
    with pytest.raises(MissingRuntimeError, match=r"driver wrong: no C compiler: nothing-here: "):
        build_driver(DriverSources("wrong", (wrong,)), tmp_path / "wrong.so", "nothing-here")


# Several threads, under the sanitizers of the compiler.

HARNESS = Path(__file__).parents[1] / "drivers_suite" / "threads_driver.c"
LOCKED = "    pthread_mutex_lock(&worker->lock);\n    int is_cancelled = worker->is_cancelled;\n"


def build_harness(sanitizer: str, folder: Path, sources: Sequence[Path]) -> Path:
    """Build the harness with a driver's sources; skip where the compiler has no such sanitizer."""
    command = ["cc", "-std=c11", "-O1", "-g", f"-fsanitize={sanitizer}"]
    command += [f"-I{get_include_folder()}", f"-I{sources[0].parent}", "-o", str(folder / "harness")]
    probe = ["-x", "c", "-", "-lpthread"]
    found = subprocess.run(
        [*command, *probe], input=b"int main(void) { return 0; }", capture_output=True, check=False
    )
    if found.returncode or subprocess.run([folder / "harness"], check=False).returncode:
        pytest.skip(f"cc has no -fsanitize={sanitizer} that works here")
    files = [str(HARNESS), *map(str, sources), "-lm", "-lpthread"]
    subprocess.run([*command, *files], check=True)
    return folder / "harness"


def run_harness(
    harness: Path, region: Region, artifact: Artifact, folder: Path
) -> CompletedProcess[str]:
    """Run regions in four threads, each opened 12 times; return what was printed and the exit code."""
    paths = write_case(region, artifact, folder / "case")
    environment = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(
        [str(harness), "12", "1", *paths],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_runs_of_several_threads_have_no_race_and_no_leak(
    sanitizer: str, compiled: tuple[Region, Artifact], tmp_path: Path
) -> None:
    """Each is submitted, waited for in pieces, called back; others cancel it, and share its inputs."""
    harness = build_harness(sanitizer, tmp_path, find_codegen("dla").driver().files)
    ran = run_harness(harness, *compiled, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    ended, cancelled = map(int, re.findall(r"\d+", ran.stdout))
    assert ended + cancelled == 4 * 12 * 4
    assert ended
    assert cancelled


def test_a_race_would_be_found(compiled: tuple[Region, Artifact], tmp_path: Path) -> None:
    """The same with a driver that asks without its lock whether a run is cancelled."""
    folder = tmp_path / "driver"
    shutil.copytree(find_codegen("dla").driver().files[0].parent, folder)
    device = folder / "dla_device.c"
    text = device.read_text()
    assert text.count(LOCKED) == 1
    unlocked = LOCKED.split("\n", 1)[1] + "    pthread_mutex_lock(&worker->lock);\n"
    device.write_text(text.replace(LOCKED, unlocked))
    ran = run_harness(build_harness("thread", tmp_path, sorted(folder.glob("*.c"))), *compiled, tmp_path)
    assert ran.returncode == 66  # the sanitizer's own
    assert "data race" in ran.stderr
