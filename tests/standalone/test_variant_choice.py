"""A program in C chooses among variants as `byoc.load` does, on simulated machines, or says why not."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import ClassVar

import pytest
from helpers import vendors
from helpers.support import parse

import byoc
from byoc.codegen import YES, Artifact, DriverSources, Fit, InputError, Region, refuse
from byoc.codegen.drivers import get_include_folder
from byoc.standalone import export_c, list_programs, verify_program

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(os.name == "nt", reason="drivers are opened by dlopen"),
]
DRIVER = Path(__file__).with_name("simulated_driver.c")
NAMES = ("detector", "recognizer", "classifier")
MODEL = "g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }"
BYTES = {"npu_tables": 4096, "pc_tables": 64}  # that a region needs of its driver's memory


class Npu(vendors.Tables):
    """Runs by a driver: `version` is the one on this machine, `chip` the device that is here."""

    name = "npu_tables"
    version: ClassVar[str] = "2"
    chip: ClassVar[str] = "v73"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        made = super().compile(region, {})
        return Artifact(made.files, {**made.metadata, "driver": "2", "chip": "v73"})

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        if not self.version:
            return Fit("", refuse("its driver is not installed"))
        if float(self.version) < float(metadata["driver"]):
            return Fit(self.name, refuse("it is too old"))
        return Fit(self.name, YES if metadata["chip"] == self.chip else refuse("it is for another chip"))

    def driver(self) -> DriverSources:
        return DriverSources(self.name, (DRIVER,), abi=2)


class Pc(Npu):
    """Another accelerator, slower by prediction."""

    name = "pc_tables"


@dataclass(frozen=True)
class Device:
    """What a machine has of a device: whether the library of its driver is there, and what that says."""

    installed: bool = True
    version: str = "2"
    chip: str = "v73"

    def make_codegen(self, base: type[Npu]) -> type[Npu]:
        version = self.version if self.installed else ""
        return type("Simulated", (base,), {"version": version, "chip": self.chip})


NPUS = {
    "here": Device(),
    "missing": Device(installed=False),
    "older": Device(version="1.9"),
    "foreign": Device(chip="v75"),
}
PCS = {"here": Device(), "missing": Device(installed=False), "newer": Device(version="10")}
PREFERENCES = ("", "pc_tables", "pc,dla", "npu")
REFUSED = {
    "missing": "cannot open shared object file",
    "older": "driver npu_tables: the artifact is of version 2, and it has to be 1 to 1.9",
    "foreign": "it is for another chip",
}
APPLICATION = """
#include "models.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *load(const char *path, size_t bytes) {
    void *found = aligned_alloc(64, (bytes + 63) / 64 * 64);
    FILE *file = fopen(path, "rb");
    if (!file || fread(found, 1, bytes, file) != bytes) exit(9);
    fclose(file);
    return found;
}
int main(int count, char **given) { /* the folder, the preference, bytes of the arena or nothing */
    float x[4] = {-1, 0, 1.5f, 4}, y[4] = {9, 9, 9, 9};
    const void *inputs[] = {x};
    void *outputs[] = {y};
    char path[1000];
@runs@
    return 0;
}
"""
RUN = """
    {
        static NAME opened;
        snprintf(path, sizeof path, "%s/NAME/weights.bin", given[1]);
        void *weights = load(path, BIG_WEIGHT_BYTES);
        size_t needed = NAME_arena_bytes(weights, BIG_WEIGHT_BYTES);
        size_t bytes = count > 3 ? (size_t)atol(given[3]) : needed;
        void *arena = aligned_alloc(64, (bytes + 127) / 64 * 64);
        int failed = NAME_open_preferred(&opened, weights, BIG_WEIGHT_BYTES, arena, bytes, given[2]);
        printf("NAME %zu %s\\n", needed, failed ? "" : NAME_variants[NAME_chosen(&opened)]);
        for (size_t i = 0; i < BIG_VARIANTS; i++) {
            printf("%s\\t%s\\n", NAME_variants[i], NAME_why(&opened, i));
        }
        printf("error\\t%s\\n", NAME_error(&opened));
        if (NAME_run(&opened, inputs, outputs) != failed) exit(8);
        if (!failed && (y[0] != 0 || y[1] != 0 || y[2] != 3 || y[3] != 8)) exit(7);
        NAME_close(&opened);
        NAME_close(&opened);
        if (NAME_check(weights, BIG_WEIGHT_BYTES)) exit(6);
        ((unsigned char *)weights)[BIG_WEIGHT_BYTES - 1] ^= 1;
        if (!NAME_check(weights, BIG_WEIGHT_BYTES)) exit(5);
    }
"""


@dataclass(frozen=True)
class Chosen:
    """What the application printed of a model: the variant, why of each, and the error."""

    variant: str
    arena_bytes: int
    error: str = ""
    why: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """A package, the program that was exported of it and built, and libraries of its drivers."""

    package: Path
    program: Path
    libraries: Path
    folder: Path

    def run(self, npu: Device, pc: Device, *given: object, **more: str) -> dict[str, Chosen]:
        """Run the application on a machine with some drivers; return what it chose for each model."""
        drivers = self.folder / f"drivers-{npu.installed}-{pc.installed}"
        drivers.mkdir(exist_ok=True)
        variables = {"BYOC_DRIVERS": str(drivers), **more}
        for name, device in (("npu_tables", npu), ("pc_tables", pc)):
            library = f"libbyoc_driver_{name}.so"
            variables |= {f"{name}_version": device.version, f"{name}_chip": device.chip}
            if device.installed and not (drivers / library).exists():
                shutil.copy(self.libraries / library, drivers)
        command = [str(self.program), str(self.program.parent), *map(str, given)]
        ran = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        found: dict[str, Chosen] = {}
        for line in ran.stdout.splitlines():
            name, tab, why = line.partition("\t")
            if not tab:
                name, needed, variant = line.split(" ")
                found[name] = last = Chosen(variant, int(needed))
            elif name == "error":
                found[[*found][-1]] = Chosen(last.variant, last.arena_bytes, why, last.why)
            else:
                last.why[name] = why
        return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("choice")
    shutil.copy(Path(vendors.__file__).with_name("vanilla.yaml"), folder / "npu.yaml")
    (folder / "pc.yaml").write_text("extends: npu.yaml\ntarget: pc\ncost_model: slow.yaml\n")
    (folder / "slow.yaml").write_text("extends: dla\nname: slow\nlaunch: 1.0\n")
    with pytest.MonkeyPatch.context() as patch:
        vendors.install(patch, npu_tables=Npu, pc_tables=Pc)
        byoc.package(
            {name: parse(MODEL) for name in NAMES},
            output=folder / "p",
            devices={name: str(folder / f"{name}.yaml") for name in ("npu", "pc")},
            codegen={"dla": "npu_tables", "pc": "pc_tables"},
            strategy="all-supported",
        )
        export_c(folder / "p", output=folder / "out")
    runs = "".join(RUN.replace("NAME", name).replace("BIG", name.upper()) for name in NAMES)
    (folder / "app.c").write_text(APPLICATION.replace("@runs@", runs))
    program = folder / "out/app"
    sources = [
        path
        for path in (folder / "out").rglob("*.c")
        if path.name != "main.c" and "drivers" not in path.parts
    ]
    includes = [
        f"-I{path.parent}" for path in (folder / "out").rglob("*.h") if "drivers" not in path.parts
    ]
    strict = ["-std=c99", "-D_ISOC11_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-pedantic"]
    compile_c("-O0", *strict, *includes, folder / "app.c", *sources, "-o", program, "-lm", "-ldl")
    for name, size in BYTES.items():
        names = (f'-DSTUB_NAME="{name}"', f"-DSTUB_BYTES={size}", f"-I{get_include_folder()}")
        library = folder / f"libbyoc_driver_{name}.so"
        compile_c("-shared", "-fPIC", *names, DRIVER, "-o", library)
    return Built(folder / "p", program, folder, folder)


def compile_c(*arguments: object) -> None:
    ran = subprocess.run(["cc", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("npu", "pc"), [*product(NPUS, PCS)])
def test_c_chooses_what_python_does(
    npu: str, pc: str, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 12 machines, by 4 preferences, for the 3 models of a package."""
    one, other = NPUS[npu], PCS[pc]
    codegens = {"npu_tables": one.make_codegen(Npu), "pc_tables": other.make_codegen(Pc)}
    vendors.install(monkeypatch, **codegens)
    for prefer in PREFERENCES:
        found = built.run(one, other, prefer)
        assert [*found] == [*NAMES]
        for name, chosen in found.items():
            names = prefer.split(",") if prefer else ()
            expected = byoc.find_fitting(built.package / name, names).choice
            if expected is None:
                assert chosen.variant == ""
                assert chosen.error.startswith("none of its variants runs on this machine: npu: ")
                assert all(why in chosen.error for why in chosen.why.values())
                assert chosen.arena_bytes == 0
                continue
            assert chosen.variant == expected.chosen[0]
            assert chosen.error == ""
            for variant, why in expected.reasons.items():  # those that fit are told in the same words
                state = npu if variant == "npu" else pc
                assert (
                    REFUSED[state] in chosen.why[variant]
                    if "predicted" not in why
                    else (chosen.why[variant] == why)
                )


def test_memory_is_asked_for_too(built: Built) -> None:
    here = NPUS["here"]
    whole = built.run(here, here, "")["detector"]
    assert whole.variant == "npu"
    assert whole.arena_bytes == 128 + BYTES["npu_tables"]  # the plan, and the most that a driver keeps
    less = built.run(here, here, "", whole.arena_bytes - 1)["detector"]
    assert less.variant == "pc"
    assert less.why["npu"] == "it needs 4224 bytes of memory, and gets 4223"
    least = built.run(here, here, "", 64)["detector"]
    assert "npu: it needs 4224 bytes of memory, and gets 64; pc: it needs 192 bytes" in least.error


def test_a_driver_that_cannot_be_used_is_a_sentence(built: Built, tmp_path: Path) -> None:
    here = NPUS["here"]
    broken = built.run(here, here, "", npu_tables_broken="1")["detector"]
    assert (broken.variant, broken.why["npu"]) == ("pc", "the device is broken")
    newer = built.run(here, here, "", npu_tables_is_new="1")["detector"]
    assert newer.variant == "pc"
    assert newer.why["npu"].endswith("has none of a version that this program knows")
    nameless = built.run(here, here, "", npu_tables_is_nameless="1")["detector"]
    assert nameless.variant == "pc"
    assert nameless.why["npu"].endswith(": its driver's table lacks a function, or the name")
    library = "libbyoc_driver_npu_tables.so"
    for content, end in ((b"no library", "file too short"), (None, "is that of pc_tables")):
        for name in ("npu_tables", "pc_tables"):
            shutil.copy(
                built.libraries / "libbyoc_driver_pc_tables.so", tmp_path / f"libbyoc_driver_{name}.so"
            )
        if content is not None:
            (tmp_path / library).write_bytes(content)
        found = built.run(here, here, "", BYOC_DRIVERS=str(tmp_path))["detector"]
        assert found.variant == "pc"
        assert end in found.why["npu"]
    unknown = built.run(here, here, "pc,gpu")["detector"]
    assert unknown.variant == ""
    assert unknown.error == (
        "prefer: no variant, target or codegen 'gpu'; there are npu, dla, npu_tables, pc, pc_tables"
    )


def test_the_host_comes_last_where_it_is_asked_for(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a program of its own, which is verified as each variant, and has the smallest weights."""
    vendors.install(monkeypatch, npu_tables=Npu, pc_tables=Pc)
    made = export_c(built.package / "detector", output=tmp_path / "out", variant=["host", "pc"])
    assert not made.left_out
    assert [each.name for each in list_programs(tmp_path / "out")] == ["pc", "host"]
    assert verify_program(tmp_path / "out/host", "cc -O0").passed
    text = (tmp_path / "out/model.c").read_text()
    assert 'names_host[] = {"host", NULL}' in text
    assert text.index("names_pc, ") < text.index("names_host, ")
    alone = export_c(
        built.package / "detector", output=tmp_path / "one", variant=["host", "host"], prefix="alone"
    )
    assert (alone.regions, list_programs(tmp_path / "one")) == (0, [tmp_path / "one"])


def test_what_cannot_be_chosen_among_is_refused(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driverless(vendors.Tables):
        name = "pc_tables"

    one = built.package / "detector"
    vendors.install(monkeypatch, npu_tables=Npu, pc_tables=Driverless)
    made = export_c(one, output=tmp_path / "a")
    assert "codegen pc_tables has no driver in C" in made.left_out["pc"]
    assert [each.name for each in list_programs(tmp_path / "a")] == ["npu"]
    with pytest.raises(InputError, match="codegen pc_tables has no driver in C"):
        export_c(one, output=tmp_path / "b", variant="pc")
    with pytest.raises(InputError, match=r"detector: no variant 'gpu'"):
        export_c(one, output=tmp_path / "b", variant=["npu", "gpu"])
    with pytest.raises(InputError, match="--embed makes the weights of one variant a part of a program"):
        export_c(one, output=tmp_path / "b", embed=True)
    byoc.partition(
        parse(MODEL),
        output=tmp_path / "h",
        variants={"Host": {"rules": str(built.folder / "npu.yaml")}},
        codegen="npu_tables",
        strategy="all-supported",
    )
    with pytest.raises(InputError, match="h: Host and host would have one folder"):
        export_c(tmp_path / "h", output=tmp_path / "b", variant=["Host", "host"])
    sizes = {"one": {"n": 1}, "two": {"n": 2}}
    byoc.partition(parse(MODEL.replace("1", "n")), "dla", output=tmp_path / "s", variants=sizes)
    with pytest.raises(InputError, match="one and two are of different sizes, and a program has one"):
        export_c(tmp_path / "s", output=tmp_path / "b")
    assert not (tmp_path / "b").exists()
