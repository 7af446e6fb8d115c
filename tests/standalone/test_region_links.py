"""Regions of a program in C: what passes between them, what runs at once, drivers that can do less."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers import vendors
from helpers.support import VANILLA, parse

from byoc import partition
from byoc.codegen import Artifact, DriverSources, NoOptions, Region
from byoc.standalone import export_c

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
DRIVERS = Path(__file__).parents[1] / "drivers"
CHOSEN = DRIVERS / "chosen_driver.c"
# `t` passes from the first region to the second; the host reads `a`.
ROW = """row (float[1, 3, 32, 32] x) => (float[1, 3, 32, 32] y) {
  a = Relu(x)
  t = Tanh(a)
  s = Softsign(a)
  y = Add(t, s)
}"""
BRANCHES = """branches (float[1, 3, 32, 32] x, float[1, 3, 32, 32] w) => (float[1, 3, 32, 32] q) {
  u = Tanh(x)
  s = Softsign(w)
  r = Softsign(s)
  y = Softsign(u)
  q = Sub(y, r)
}"""
# Of inputs that are not negative each region gives out its first input, as the driver `chosen` does.
SAME = """same (float[4, 8] x) => (float[4, 8] y) {
  p = Abs(x)
  a = Relu(p)
  t = Relu(a)
  s = Sub(a, p)
  y = Add(t, s)
}"""
# The driver `doubling` gives out twice what it is given, whose sign is the same.
SIGNS = """signs (float[4, 8] x) => (float[4, 8] y) {
  p = Abs(x)
  a = Relu(p)
  y = Sign(a)
}"""
BYTES = 3 * 32 * 32 * 4


class Chosen:
    """A codegen whose driver is one of tests, of version 2."""

    name = "chosen"
    api = 2
    Options = NoOptions

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        return Artifact({"code.bin": b"fine"})

    def driver(self) -> DriverSources:
        return DriverSources("chosen", (CHOSEN,), abi=2)


def build_and_run(folder: Path, *flags: str) -> str:
    """Build a program as its README says, and return what its self-test prints."""
    sources = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.c"))
    command = ["cc", "-std=c99", "-O1", *flags, "-DBYOC_LINKED", "-I.", *sources, "-lm", "-o", "m"]
    subprocess.run(command, cwd=folder, check=True)
    return subprocess.run(["./m"], cwd=folder, check=True, capture_output=True, text=True).stdout


def read_regions(printed: str) -> Mapping[int, tuple[int, int, int]]:
    found = re.findall(
        r"region (\d+): (\d+) bytes from the program, (\d+) to it, (\d+) on the device", printed
    )
    return {int(number): (int(one), int(two), int(three)) for number, one, two, three in found}


def test_a_tensor_passes_from_region_to_region_on_the_device(tmp_path: Path) -> None:
    partition(parse(ROW), "dla", output=tmp_path / "b", strategy="all-supported", verify=False)
    export_c(tmp_path / "b", output=tmp_path / "out")
    for flags in ((), ("-DBYOC_THREADS", "-pthread", "-fsanitize=thread")):
        printed = build_and_run(tmp_path / "out", *flags)
        assert "the outputs are right" in printed
        # The first reads `x`, and gives `a` to the host; the second reads `s`, and gives `y`.
        assert read_regions(printed) == {0: (BYTES, BYTES, BYTES), 1: (BYTES, BYTES, BYTES)}


def test_the_host_computes_while_a_region_runs(tmp_path: Path) -> None:
    partition(parse(BRANCHES), "dla", output=tmp_path / "b", strategy="all-supported", verify=False)
    export_c(tmp_path / "b", output=tmp_path / "out")
    source = (tmp_path / "out" / "model.c").read_text(encoding="utf-8")
    spans = re.findall(r"begin_region\(opened, (\d), (.*?)end_region\(opened, \1", source, re.DOTALL)
    assert any(span.count('STEP("Softsign")') >= 2 for _, span in spans)
    printed = build_and_run(tmp_path / "out", "-DBYOC_THREADS", "-pthread", "-fsanitize=thread")
    assert "the outputs are right" in printed
    assert {on_device for _, _, on_device in read_regions(printed).values()} == {
        0
    }  # no tensor is linked


def test_drivers_that_can_do_less_are_given_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vendors.install(monkeypatch, chosen=Chosen)
    partition(
        parse(SAME), VANILLA, codegen="chosen", output=tmp_path / "b", strategy="all-supported",
        verify=False, isolate=False, cache=False,
    )  # fmt: skip
    export_c(tmp_path / "b", output=tmp_path / "out")
    size = 4 * 8 * 4
    counted = {
        (): (4 * size, 2 * size),  # in the program: p, a, s, y; in buffers: t twice
        ("-DWITHOUT_BUFFERS",): (6 * size, 0),
        ("-DWITHOUT_SUBMIT",): (0, 0),  # the driver counts what is submitted
    }
    for flags, (in_program, in_buffers) in counted.items():
        printed = build_and_run(tmp_path / "out", *flags)
        assert "the outputs are right" in printed
        assert {each[::2] for each in read_regions(printed).values()} == {(in_program, in_buffers)}


def test_a_driver_that_was_built_before_version_2_is_linked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its table and the program's structures are those of two headers."""
    source = tmp_path / "doubling.c"
    table = "const byoc_driver byoc_driver_doubling"
    text = (DRIVERS / "doubling_driver.c").read_text().replace("static const byoc_driver driver", table)
    source.write_text(text.replace("&driver", "&byoc_driver_doubling"))
    sources = DriverSources("doubling", (source,))
    doubling = type("Doubling", (Chosen,), {"name": "doubling", "driver": lambda _: sources})
    vendors.install(monkeypatch, doubling=doubling)
    partition(
        parse(SIGNS), VANILLA, codegen="doubling", output=tmp_path / "b", strategy="all-supported",
        verify=False, isolate=False, cache=False,
    )  # fmt: skip
    program = tmp_path / "out"
    export_c(tmp_path / "b", output=program)
    next(program.rglob(source.name)).unlink()
    built = ["cc", "-std=c99", "-DONLY_VERSION_1", f"-I{DRIVERS / 'interface_1'}", "-c", source]
    subprocess.run([*built, "-o", program / "old.o"], check=True)
    assert "the outputs are right" in build_and_run(program, "old.o")
