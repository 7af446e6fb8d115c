"""A driver that lies is a sentence or does no harm: in Python, onnxruntime's provider and C programs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from drivers_of_tests import HOSTILE, Hostile
from helpers import vendors
from helpers.cutting import number_regions
from helpers.support import VANILLA, parse

import byoc
from byoc.bundle import CONTEXT_MODEL_FILE
from byoc.codegen import DriverSources
from byoc.codegen.drivers import build_driver, get_include_folder
from byoc.onnxrt import build_provider, get_provider_folder
from byoc.standalone import export_c

pytest.importorskip("emx_onnx_cgen")
pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(sys.platform == "win32", reason="the provider is built for POSIX"),
]
# Two regions, `t` passes from one to the other; of inputs that are not negative y is x.
MODEL = """same (float[4, 8] x) => (float[4, 8] y) {
  p = Abs(x)
  a = Relu(p)
  t = Relu(a)
  s = Sub(a, p)
  y = Add(t, s)
}"""
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
# A compiler of the system may lack leaks' detection where processes are traced.
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0"}

_NO_TABLE = (r"no table for version 2 or 1|no table for version 1 or 2", "", "of a version that this")
_VERSION = r"of no version of byoc_driver|table is not of version 1 or 2"
_MISSING = r"the driver's table has no \w+$|table lacks a function"
_NOTHING = "open answers that all is well, and gives nothing"
_RIGHT = "the outputs are right"
# What is said of each lie; without optional functions, and where nobody reads it, the outputs are right.
LIES = {
    "": _RIGHT,
    "no table": "no table for version|none of a version that this program knows",
    "version 9": _VERSION,
    "version 0": _VERSION,
    "a table of 8 bytes": _VERSION,
    "another codegen's": "of codegen another, not of hostile|for another codegen|is that of another",
    **{
        f"without {name}": _MISSING
        for name in ("name", "compatible", "arena_size", "open", "run", "close", "error")
    },
    **{f"without {name}": _RIGHT for name in ("submit", "wait", "open_buffer", "close_buffer")},
    "compatible fails": "dla_0: status 77|dla_0: (.*: )?an unknown failure",
    "compatible is negative": "dla_0: status -1|dla_0: .*an unknown failure",
    "the arena is SIZE_MAX": "arena_size refuses what open takes|the arena is smaller than",
    "the arena is enormous": "no memory for its arena|there is no memory left|the arena is smaller",
    "the arena has no bytes": _RIGHT,
    "the arena grows": f"{_RIGHT}|the arena is smaller than",
    "open gives nothing": _NOTHING,
    "open fails": "dla_0: status 77|dla_0: .*an unknown failure",
    "run fails": "status 77|an unknown failure",
    "submit fails": "status 77|an unknown failure",
    "wait fails": "status 77|an unknown failure",
    "wait is always busy": "busy",
    "done is called twice": _RIGHT,
    "done is not called": _RIGHT,
    "the message is long": "a{100}",
    "the message is no text": "not a text|not",
    "a buffer is nothing": f"{_RIGHT}|open_buffer answers that all is well, and gives nothing",
    "buffers fail": f"{_RIGHT}|a buffer of 128 bytes: status 77",
    "versions are no numbers": f"{_RIGHT}|is of version",
    "versions fail": _RIGHT,
}
# What is said of what no run of a model asks for.
ASKED = {
    "": "all is there",
    "events are nowhere": "dla_0: list_events counts what it does not list",
    "a layer has nodes that are nowhere": "dla_0: list_events counts what it does not list",
    "counters fail": "dla_0: status 77",
    "without wait": "driver hostile has no wait",
    "without close_buffer": "driver hostile has no close_buffer",
    "a buffer is nothing": "open_buffer answers that all is well, and gives nothing",
    "wait is always busy": "dla_0: busy",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("bundle") / "b"
    with pytest.MonkeyPatch.context() as patch, number_regions():
        vendors.install(patch, hostile=Hostile)
        byoc.partition(
            parse(MODEL), VANILLA, output=output, codegen="hostile", strategy="all-supported",
            emit="epcontext", verify=False, isolate=False, cache=False,
        )  # fmt: skip
        export_c(output, output=output.parent / "c")
    return output


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    return build_driver(DriverSources("hostile", (HOSTILE,)), folder / "libbyoc_driver_hostile.so")


def compile_sanitized(folder: Path, program: str, *arguments: str) -> Path:
    """Build a program under the sanitizers; skip where the compiler has none."""
    probe = ["cc", *SANITIZED, "-x", "c", "-", "-o", str(folder / "probe")]
    found = subprocess.run(
        probe, input=b"int main(void) { return 0; }", capture_output=True, check=False
    )
    if found.returncode or subprocess.run([folder / "probe"], check=False).returncode:
        pytest.skip("cc has no sanitizers that work here")
    subprocess.run(["cc", "-std=c11", *SANITIZED, *arguments, "-o", program], cwd=folder, check=True)
    return folder / program


@pytest.fixture(scope="module")
def program(bundle: Path) -> Path:
    """The model as a program in C that links the driver."""
    folder = bundle.parent / "c"
    sources = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.c"))
    return compile_sanitized(folder, "m", "-I.", f"-I{get_include_folder()}", *sources, "-lm")


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An application of onnxruntime, and the provider, both under the sanitizers."""
    folder = tmp_path_factory.mktemp("application")
    source = Path(__file__).with_name("application.c")
    built = compile_sanitized(folder, "a", f"-I{get_provider_folder()}", str(source), "-ldl")
    return built, build_provider(folder / "provider.so", flags=SANITIZED)


def check(lie: str, code: int, said: str, wanted: str) -> None:
    """Hold what was said of a lie to one sentence; programs leave with 0 where the outputs are right."""
    lines = said.strip().splitlines()
    assert code in (0, 1, 2), f"{lie}: it ended with {code}: {said}"
    assert re.search(wanted, said), f"{lie}: {said}"
    assert (code == 0) == (_RIGHT in said)
    assert len(lines) == 1
    assert len(said) < 2000  # onnxruntime says it twice


def test_in_python(bundle: Path, library: Path) -> None:
    lies = [*LIES, *(f"asked: {lie}" for lie in ASKED)]
    script = Path(__file__).with_name("run_hostile.py")
    paths = os.pathsep.join((str(script.parents[1]), os.environ.get("PYTHONPATH", "")))
    ran = subprocess.run(
        [sys.executable, str(script), str(bundle), str(library)], input=json.dumps(lies),
        env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found = json.loads(ran.stdout)
    for lie, sentence in LIES.items():
        code, said = found[lie]
        assert code == 0, f"{lie}: it ended with {code}: {said}"
        check(lie, 0 if _RIGHT in said else 1, said, sentence)
    for lie, sentence in ASKED.items():
        assert found[f"asked: {lie}"][0] == 0
        assert sentence in found[f"asked: {lie}"][1]


@pytest.mark.parametrize("lie", LIES)
def test_in_the_provider(lie: str, bundle: Path, library: Path, application: tuple[Path, Path]) -> None:
    onnxrt = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    built, provider = application
    x = np.arange(32, dtype=np.float32)
    arguments = [onnxrt, provider, bundle / CONTEXT_MODEL_FILE, "driver.hostile", library]
    ran = subprocess.run(
        [str(built), *map(str, arguments), "4", "8"],
        input=x.tobytes(), env=os.environ | ENVIRONMENT | {"LIE": lie}, capture_output=True, check=False,
    )  # fmt: skip
    if ran.returncode == 0:
        np.testing.assert_array_equal(np.frombuffer(ran.stdout, np.float32), x)
    said = _RIGHT if ran.returncode == 0 else ran.stderr.decode(errors="replace")
    check(lie, ran.returncode, " ".join(said.split()), LIES[lie])


# What is linked is no library that could have another table.
@pytest.mark.parametrize("lie", sorted(LIES.keys() - {"no table", "another codegen's"}))
def test_in_a_program_in_c(lie: str, program: Path) -> None:
    ran = subprocess.run(
        [str(program)], cwd=program.parent, env=os.environ | ENVIRONMENT | {"LIE": lie},
        capture_output=True, check=False,
    )  # fmt: skip
    said = _RIGHT if ran.returncode == 0 else ran.stderr.decode(errors="replace")
    check(lie, ran.returncode, " ".join(said.split()), LIES[lie])
