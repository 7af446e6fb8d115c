"""Several models in one program: names of their own, one driver for all, a package that CMake finds."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import Ran, parse
from small_programs import SMALL

import byoc as library
from byoc.errors import InputError
from byoc.standalone import export_c, verify_program

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
needs_cmake = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("cmake") is None, reason="needs CMake and a C compiler"
)
REGION = """net (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
    a = Relu(x)
    b = Add(a, x)
    y = Tanh(b)
}"""
PROJECT = """cmake_minimum_required(VERSION 3.13)
project(app C)
enable_testing()
add_subdirectory(one)
add_subdirectory(two)
add_subdirectory(three)
add_executable(app app.c)
target_link_libraries(app PRIVATE one two three)
"""
INSTALLED = """cmake_minimum_required(VERSION 3.13)
project(app C)
find_package(two REQUIRED)
find_package(three REQUIRED)
add_executable(app app.c)
target_link_libraries(app PRIVATE byoc::two byoc::three)
"""
HEAD = """#include <stdio.h>
#include <stdlib.h>
static void *read_file(const char *path, size_t bytes) {
    void *found = aligned_alloc(64, (bytes + 63) / 64 * 64);
    FILE *file = fopen(path, "rb");
    if (!file || fread(found, 1, bytes, file) != bytes) exit(9);
    fclose(file);
    return found;
}
"""
RUN = """
#include "{name}.h"
static int run_{name}(const char *path) {{
    {name} opened;
    void *weights = read_file(path, {NAME}_WEIGHT_BYTES);
    size_t bytes = {name}_arena_bytes(weights, {NAME}_WEIGHT_BYTES);
    void *arena = aligned_alloc(64, (bytes + 63) / 64 * 64);
    float *x = calloc({name}_inputs[0].elements, sizeof *x);
    const void *inputs[{NAME}_INPUTS + 1] = {{0}};
    void *outputs[{NAME}_OUTPUTS + 1] = {{0}};
    for (size_t i = 0; i < {name}_inputs[0].elements; i++) x[i] = (float)i / 7 - 1;
    inputs[0] = x;
    for (size_t i = 0; i < {NAME}_OUTPUTS; i++) outputs[i] = malloc({name}_outputs[i].bytes);
    if ({name}_open(&opened, weights, {NAME}_WEIGHT_BYTES, arena, bytes)) return 1;
    if ({name}_run(&opened, inputs, outputs)) return 2;
    for (size_t i = 0; i < {name}_outputs[0].elements; i++) printf("%a ", ((float *)outputs[0])[i]);
    printf("\\n");
    {name}_close(&opened);
    return 0;
}}
"""


def make_app(*names: str) -> str:
    parts = [HEAD, *(RUN.format(name=name, NAME=name.upper()) for name in names)]
    calls = " || ".join(f"run_{name}(files[{place + 1}])" for place, name in enumerate(names))
    return "".join(parts) + f"int main(int count, char **files) {{ return count < 2 || {calls}; }}\n"


def call(*command: object) -> str:
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three programs: of a model, and of two bundles with a region of the same codegen."""
    folder = tmp_path_factory.mktemp("programs")
    export_c(parse(SMALL), output=folder / "one", prefix="one")
    library.partition(parse(REGION), "dla", output=folder / "b", strategy="all-supported")
    for name in ("two", "three"):
        export_c(folder / "b", output=folder / name, prefix=name)
    return folder


def compute(model: onnx.ModelProto) -> np.ndarray:
    session = onnx.reference.ReferenceEvaluator(model)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = (np.arange(np.prod(shape), dtype=np.float32) / np.float32(7) - 1).reshape(shape)
    found: np.ndarray = session.run(None, {model.graph.input[0].name: x})[0]
    return found.ravel()


def read_lines(printed: str) -> list[np.ndarray]:
    return [np.array([float.fromhex(each) for each in line.split()]) for line in printed.splitlines()]


@needs_cmake
def test_three_models_are_linked_into_one_program(programs: Path) -> None:
    (programs / "CMakeLists.txt").write_text(PROJECT)
    (programs / "app.c").write_text(make_app("one", "two", "three"))
    call("cmake", "-S", programs, "-B", programs / "build")
    call("cmake", "--build", programs / "build")
    assert "0 tests failed out of 3" in call("ctest", "--test-dir", programs / "build")
    weights = [programs / name / "weights.bin" for name in ("one", "two", "three")]
    found = read_lines(call(programs / "build/app", *weights))
    expected = [compute(parse(SMALL)), *[compute(parse(REGION))] * 2]
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


@needs_cmake
def test_what_is_installed_is_found_as_a_package(programs: Path, tmp_path: Path) -> None:
    for name in ("two", "three"):
        call("cmake", "-S", programs / name, "-B", tmp_path / name)
        call("cmake", "--build", tmp_path / name)
        call("cmake", "--install", tmp_path / name, "--prefix", tmp_path / "installed" / name)
    (tmp_path / "CMakeLists.txt").write_text(INSTALLED)
    (tmp_path / "app.c").write_text(make_app("two", "three"))
    paths = ";".join(str(tmp_path / "installed" / name) for name in ("two", "three"))
    call("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={paths}")
    call("cmake", "--build", tmp_path / "build")
    weights = [tmp_path / f"installed/{name}/share/{name}/weights.bin" for name in ("two", "three")]
    first, second = read_lines(call(tmp_path / "build/app", *weights))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, compute(parse(REGION)), rtol=1e-4, atol=1e-5)


def test_no_name_that_others_can_see_is_without_the_prefix(programs: Path, tmp_path: Path) -> None:
    """Of all files but main.c and drivers; `model` is left in sentences alone."""
    for path in (programs / "one").glob("*.[ch]"):
        text = re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", "", path.read_text(), flags=re.DOTALL)
        assert not re.findall(r"\b(?:model\w*|MODEL\w*|kernel_\w+|node\d+_\w+)", text), path.name
    assert not list((programs / "one").glob("model.*"))
    assert {path.name for path in (programs / "one").glob("one.*")} == {"one.c", "one.h"}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_program_with_a_prefix_is_verified(programs: Path) -> None:
    found = verify_program(programs / "one")
    assert found.passed
    assert found.stack_bytes


@pytest.mark.parametrize("prefix", ["", "Detector", "1st", "int", "kernels", "a-b", "x" * 41, "class"])
def test_a_prefix_that_is_no_name_is_refused(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^prefix '.*': a name in small letters, digits and _ is"):
        export_c(parse(SMALL), output=tmp_path / "p", prefix=prefix)
    assert not (tmp_path / "p").exists()


def test_models_of_a_package_have_their_names(tmp_path: Path) -> None:
    models = {name: parse(SMALL) for name in ("one", "Int")}
    options = {"rules": "dla", "strategy": "host-only", "verify": False}
    library.package(models, output=tmp_path / "p", **options)
    with pytest.raises(InputError, match=r"^prefix 'two': models of a package have their names as"):
        export_c(str(tmp_path / "p"), output=tmp_path / "c", prefix="two")
    with pytest.raises(InputError, match=r"^prefix 'int': a name in small letters"):
        export_c(str(tmp_path / "p"), output=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_command_line_has_it(byoc: Callable[..., Ran], tmp_path: Path) -> None:
    onnx.save(parse(SMALL), tmp_path / "m.onnx")
    ran = byoc("export-c", tmp_path / "m.onnx", "-o", tmp_path / "p", "--prefix", "detector")
    assert ran.code == 0, ran.err
    assert (tmp_path / "p/detector.h").exists()
