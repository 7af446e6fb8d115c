"""All sources in C: compiled by gcc and clang with warnings as errors, and read by cppcheck."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.support import parse
from small_programs import SMALL, RecurrentModel

from byoc import partition
from byoc.bundle import open_bundle
from byoc.codegen import find_codegen
from byoc.codegen.drivers import get_include_folder
from byoc.onnxrt import get_provider_folder
from byoc.standalone import export_c, write_model_driver

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-pedantic")
SHIPPED = "-Wconversion"  # of what is exported
# gcc finds some faults while it optimizes, clang finds all while it reads.
WORK = {"gcc": ("-O1", "-c"), "clang": ("-fsyntax-only",)}
ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "byoc" / "standalone" / "source"
# Nodes that are emitted with sizes and indices of other types than they are used as.
MOVED = parse("""net (float[2, 3] x, int64[2] at) => (float[4, 3] y, float[2, 3] z) {
    y = Concat <axis = 0> (x, x)
    z = Gather (x, at)
}""")
EMITTED = "nodes.c"  # at the end of what is by emx-onnx-cgen


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a program with a region, and in it a driver that is made of a bundle."""
    folder = tmp_path_factory.mktemp("program")
    partition(parse(SMALL), rules="dla", output=folder / "b", strategy="all-supported")
    export_c(folder / "b", output=folder / "out")
    for name, model in (("moved", MOVED), ("recurrent", RecurrentModel(11).build())):
        export_c(model, output=folder / name, threads=2)
        text = (folder / name / "nodes.c").read_text().replace("nodes.h", f"{name}_nodes.h")
        (folder / "out" / f"{name}_nodes.c").write_text(text)
        shutil.copy(folder / name / "nodes.h", folder / "out" / f"{name}_nodes.h")
    partition(parse(SMALL), "dla", codegen="reference", output=folder / "r", strategy="all-supported")
    made = write_model_driver(open_bundle(folder / "r"), "reference", folder / "out" / "made").files
    for file in made:
        if (folder / "out" / file.name).exists():  # the same kernels
            file.unlink()
    return folder / "out"


def list_sources(program: Path) -> Iterator[Path]:
    """Yield each file of C that byoc has or writes."""
    yield from sorted(program.rglob("*.c"))
    yield from sorted(each for each in SOURCES.glob("*.c") if not (program / each.name).exists())
    yield from find_codegen("dla").driver().files
    yield from sorted(get_provider_folder().glob("*.c"))
    for folder in ("tests/drivers", "tests/drivers_suite", "benchmarks"):
        yield from sorted((ROOT / folder).rglob("*.c"))


def list_folders(program: Path) -> list[str]:
    """Return the options for folders with headers."""
    return [f"-I{folder}" for folder in (program, get_include_folder(), get_provider_folder())]


@pytest.mark.parametrize("compiler", list(WORK))
def test_no_compiler_warns(compiler: str, program: Path, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    sources = list(dict.fromkeys(list_sources(program)))
    assert len(sources) > 20
    for source in sources:
        standard = "-std=c11" if "tests" in source.parts or "provider" in source.parts else "-std=c99"
        command = [compiler, standard, *STRICT, "-DBYOC_LINKED", *list_folders(program), str(source)]
        command += [SHIPPED] * (source.parent == program)
        command += [*WORK[compiler], "-o", str(tmp_path / "o")]
        ran = subprocess.run(command, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr.decode()


@pytest.mark.thorough
def test_cppcheck_finds_nothing(program: Path) -> None:
    """Of what emx-onnx-cgen emits, its remarks on style are left out."""
    if shutil.which("cppcheck") is None:
        pytest.skip("cppcheck is not installed")
    sources = [str(source) for source in dict.fromkeys(list_sources(program))]
    emitted = [source for source in sources if source.endswith(EMITTED)]
    own = [source for source in sources if source not in emitted]
    assert emitted
    folders = list_folders(program)
    for kinds, files in (("warning,performance,portability,style", own), ("warning", emitted)):
        command = ["cppcheck", f"--enable={kinds}", "--error-exitcode=1", "--quiet", *folders, *files]
        ran = subprocess.run(command, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr.decode()
