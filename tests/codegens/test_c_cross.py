"""The codegen `c` with a cross compiler: its regions are kept, and never run on this machine."""

import platform
import shutil
import sys
from pathlib import Path

import pytest
from byoc.codegens.c.c_compiler import find_other_machine
from helpers.cutting import cut
from helpers.support import parse

from byoc.errors import InputError
from byoc.runtime import load

pytest.importorskip("emx_onnx_cgen")

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
CROSS = "aarch64-linux-gnu-gcc"


def _patching_compiler(folder: Path) -> str:
    """Return the path of a C compiler whose libraries are marked as those of another machine."""
    script = folder / "other-cc"
    script.write_text(
        '#!/bin/sh\ncc "$@" || exit 1\ncase "$*" in *region.so*)\n'
        "printf '\\263\\001' | dd of=region.so bs=1 seek=18 conv=notrunc 2>/dev/null;; esac\n"
    )
    script.chmod(0o755)
    return str(script)


@pytest.mark.skipif(sys.platform != "linux", reason="libraries of other systems are not ELF")
@pytest.mark.parametrize("compiler", ["aarch64", "patching"])
def test_what_a_cross_compiler_makes_is_kept_and_not_run(compiler: str, tmp_path: Path) -> None:
    if compiler == "aarch64" and shutil.which(CROSS) is None:
        pytest.skip(f"{CROSS} is not installed")
    cc, machine = (CROSS, "aarch64") if compiler == "aarch64" else (_patching_compiler(tmp_path), "ELF")
    if machine == platform.machine():
        pytest.skip("this is the machine that it compiles for")
    output = tmp_path / "b"
    options = {"cc": cc}
    result = cut(parse(RELU), output, codegen="c", codegen_options=options)
    (region,) = result.report.regions
    assert region.not_here.startswith(f"the library was compiled for the machine {machine}")
    assert result.report.nodes.offloaded == 1
    library = next((output / "artifacts").rglob("region.so")).read_bytes()
    assert library[18:20] == (b"\xb7\x00" if compiler == "aarch64" else b"\xb3\x01")
    with pytest.raises(InputError, match=rf"{region.name} cannot run on this machine: the library was"):
        load(output)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("7f454c46020101" + "00" * 11 + "3e00", ""),
        ("7f454c46020101" + "00" * 11 + "b700", "aarch64"),
        ("7f454c46020101" + "00" * 11 + "f300", "riscv, 64 bits, little endian"),
        ("7f454c46010101" + "00" * 11 + "f300", "riscv, 32 bits, little endian"),
        ("7f454c46010201" + "00" * 11 + "0008", "mips, 32 bits, big endian"),
        ("7f454c46020101" + "00" * 11 + "3412", "ELF machine 4660, 64 bits, little endian"),
        ("cffaedfe0c000001" + "00" * 12, ""),
    ],
)
def test_machines_are_read_from_elf_headers(header: str, name: str) -> None:
    own = bytes.fromhex("7f454c46020101" + "00" * 11 + "3e00")
    assert find_other_machine(bytes.fromhex(header), own) == name
    assert bool(find_other_machine(bytes.fromhex(header), b"MZ" + bytes(18))) == header.startswith("7f")
