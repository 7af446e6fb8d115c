"""Print the table of `docs/standalone.md`: models as C programs, on each machine that is emulated here.

python tests/standalone_suite/table.py [--machines x86-64,s390x] [--folder FOLDER] MODEL...

A model is one of the zoo, or a bundle. A machine without its compiler or emulator is left out, with a
line that says so. Leaves with 1 if an output is wrong.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from byoc.errors import ByocError
from byoc.standalone import ExportedProgram, export_c, verify_program


@dataclass(frozen=True)
class Machine:
    """A machine: the compiler's command, what runs its programs, and its byte order."""

    name: str
    compiler: str
    runner: str = ""
    byte_order: str = "little"

    def find_missing(self) -> str:
        """Return the first command that is not installed, empty if all are."""
        commands = [each.split()[0] for each in (self.compiler, self.runner) if each]
        return next((name for name in commands if shutil.which(name) is None), "")


MACHINES = (
    Machine("x86-64", "gcc -O3"),
    Machine("x86-64, native", "gcc -O3 -march=native"),
    Machine("aarch64", "aarch64-linux-gnu-gcc -static -O3", "qemu-aarch64"),
    Machine("riscv64", "riscv64-linux-gnu-gcc -static -O3", "qemu-riscv64"),
    Machine("ppc64le", "powerpc64le-linux-gnu-gcc -static -O3", "qemu-ppc64le"),
    Machine("s390x", "s390x-linux-gnu-gcc -static -O3", "qemu-s390x", "big"),
)


def list_rows(model: str, machines: list[Machine], folder: Path) -> Iterator[str]:
    """Yield the rows of a model; one that fails says why."""
    written: dict[str, ExportedProgram] = {}
    for machine in machines:
        place = folder / machine.byte_order
        try:
            if machine.byte_order not in written:
                written[machine.byte_order] = export_c(
                    model, output=place, byte_order=machine.byte_order
                )
            made = written[machine.byte_order]
            found = verify_program(place, machine.compiler, machine.runner or None)
        except ByocError as error:
            yield f"| {model} | {machine.name} | failed: {error} |"
            return
        worst = max((each.error for each in found.outputs), default=float("nan"))
        proof = "=" if made.arena_bytes == made.bound else f"{made.bound:,}"
        parts = (
            model,
            machine.name,
            f"{worst:.1e}" if found.passed else f"WRONG: {found.problem}",
            f"{made.arena_bytes:,}",
            proof,
            f"{found.arena_bytes - found.plan_bytes:,}",
            f"{made.weight_bytes:,}",
            f"{found.binary_bytes:,}",
            f"{found.stack_bytes:,}" if found.stack_bytes is not None else "",
        )
        yield f"| {' | '.join(parts)} |"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--machines", default="")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    wanted = given.machines.split(",") if given.machines else [each.name for each in MACHINES]
    machines = [each for each in MACHINES if each.name in wanted]
    for machine in machines:
        if machine.find_missing():
            print(f"{machine.name} is left out: {machine.find_missing()} is not installed")
    machines = [each for each in machines if not each.find_missing()]
    print("| model | machine | error | plan | bound | drivers | weights | binary | stack |")
    print("|---|---|---|---|---|---|---|---|---|")
    wrong = False
    for model in given.models:
        with TemporaryDirectory(dir=given.folder) as folder:
            for row in list_rows(model, machines, Path(folder)):
                print(row, flush=True)
                wrong |= "WRONG" in row or "failed" in row
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
