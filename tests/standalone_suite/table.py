"""Make the tables of `benchmarks/RESULTS.md`: models as C programs, on each machine emulated here.

    python tests/standalone_suite/table.py [--machines x86-64,s390x] [--results FILE] [MODEL...]

A model is one of the zoo, a path, or a bundle; `MODEL@dla` is the model with regions of `dla`, where the
costs give none with all that `dla` takes. What was found is a line of the results file, and not measured
again. A machine without its compiler or emulator is left out, with a line that says so. Leaves with 1 if
an output is wrong.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from byoc import partition
from byoc.errors import ByocError
from byoc.standalone import ExportedProgram, export_c, verify_program

RUN_WASI = Path(__file__).parents[1] / "standalone" / "run_wasi.py"
TOLERANCE = 1e-5  # of the range; more is allowed where right results lie further apart
BASELINE = """#include <stdio.h>
int main(void) {
    char line[128];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        fputs(line, stdout);
    }
    return 0;
}
"""
"""A program that prints what its process takes: of an emulator, all that is not the program's."""


@dataclass(frozen=True)
class Machine:
    """A machine: the compiler's command, what runs its programs, and its byte order."""

    name: str
    compiler: str
    runner: str = ""
    byte_order: str = "little"

    def find_missing(self) -> str:
        """Return what is not installed first, empty if all is."""
        commands = [each.split()[0] for each in (self.compiler, self.runner) if each]
        missing = next((name for name in commands if shutil.which(name) is None), "")
        if not missing and "wasm" in self.name and find_spec("wasmtime") is None:
            return "the package wasmtime"
        return missing


@cache
def measure_emulator(machine: Machine) -> int:
    """Return the bytes of an empty process under an emulator, 0 where there is none."""
    if not machine.runner.startswith("qemu"):
        return 0
    with TemporaryDirectory() as folder:
        source, program = Path(folder) / "empty.c", Path(folder) / "empty"
        source.write_text(BASELINE)
        subprocess.run([*machine.compiler.split(), str(source), "-o", str(program)], check=True)
        command = [machine.runner, str(program)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if "VmHWM" in line)


WASI = "clang --target=wasm32-wasi -O3 -D_WASI_EMULATED_PROCESS_CLOCKS -lwasi-emulated-process-clocks"
MACHINES = (
    Machine("x86-64", "gcc -O3"),
    Machine("wasm32-wasi", WASI, f"{sys.executable} {RUN_WASI}"),
    Machine("aarch64", "aarch64-linux-gnu-gcc -static -O3", "qemu-aarch64"),
    Machine("riscv64", "riscv64-linux-gnu-gcc -static -O3", "qemu-riscv64"),
    Machine("ppc64le", "powerpc64le-linux-gnu-gcc -static -O3", "qemu-ppc64le"),
    Machine("s390x", "s390x-linux-gnu-gcc -static -O3", "qemu-s390x", "big"),
)
NAMES = (
    *("squeezenet", "resnet50", "mobilenet_v3_large", "yunet", "centerface", "bert", "vit_tiny"),
    *("khmercut_int8", "eff_word_net_qint8", "smart_turn_v3_qdq"),
    *("decoder_int4", "decoder_int4_decode", "decoder_int4_prefill"),
)
MODELS = tuple(f"zoo:{name}{rules}" for name in NAMES for rules in ("", "@dla"))

SIZES = {
    "zoo:khmercut_int8": {"batch": 1, "time": 64},
    "zoo:smart_turn_v3_qdq": {"s6": 1},
    "zoo:decoder_int4": {
        "batch_size": 1,
        "sequence_length": 8,
        "past_sequence_length": 24,
        "total_sequence_length": 32,
    },
}
"""Sizes of the open extents of models."""

Row = dict[str, Any]


def cut(model: str, rules: str, output: Path) -> None:
    """Write a bundle with a region at least: as the costs have it, else of all that is supported."""
    for strategy in ("launch-aware", "all-supported"):
        options = {"dims": SIZES.get(model, {}), "strategy": strategy}
        if partition(model, rules, output=output, verify=False, **options).report.regions:
            return


def measure(model: str, machines: Sequence[Machine], folder: Path) -> Iterator[Row]:
    """Yield what is found of a model on each machine; a problem ends it."""
    source, _, rules = model.partition("@")
    written: dict[str, ExportedProgram] = {}
    for machine in machines:
        row: Row = {"model": model, "machine": machine.name}
        place = folder / machine.byte_order
        try:
            if rules and not written:
                cut(source, rules, folder / "m.byoc")
            if machine.byte_order not in written:
                sizes = {} if rules else SIZES.get(source, {})
                written[machine.byte_order] = export_c(
                    folder / "m.byoc" if rules else source,
                    output=place,
                    byte_order=machine.byte_order,
                    dims=sizes,
                )
            made = written[machine.byte_order]
            found = verify_program(place, machine.compiler, machine.runner or None)
        except ByocError as error:
            yield row | {"problem": str(error)}
            return
        worst = max(found.outputs, key=lambda each: each.error / each.allowed, default=None)
        yield row | {
            "problem": found.problem,
            "error": worst.error if worst else None,
            "allowed": worst.allowed if worst else None,
            "regions": made.regions,
            "plan": found.plan_bytes,
            "bound": made.bound,
            "arena": found.arena_bytes,
            "weights": made.weight_bytes,
            "binary": found.binary_bytes,
            "stack": found.stack_bytes,
            "peak": found.peak_bytes and found.peak_bytes - measure_emulator(machine),
        }


def format_error(row: Row | None) -> str:
    """Return the cell of an error, with what is allowed where that is the noise; bold above 1e-5."""
    if row is None:
        return ""
    if row["problem"]:
        return f"WRONG: {row['problem']}"
    noise = f" of {row['allowed']:.1e}" if row["allowed"] > TOLERANCE else ""
    error = f"{row['error']:.1e}" if row["error"] else "0"
    return f"**{error}**{noise}" if row["error"] > TOLERANCE else f"{error}{noise}"


def list_tables(rows: Mapping[tuple[str, str], Row], machines: Sequence[Machine]) -> Iterator[str]:
    """Yield the lines of the two tables: errors by machine, and in KB binary, stack and most memory."""
    names = [machine.name for machine in machines]
    found_models = dict.fromkeys(model for model, _ in rows)
    ranks = {model: number for number, model in enumerate(MODELS)}
    models = sorted(found_models, key=lambda model: ranks.get(model, len(ranks)))
    yield f"| | regions | {' | '.join(names)} | arena's plan, as proven least |"
    yield "|---|---|" + "---|" * (len(names) + 1)
    for model in models:
        found = [rows.get((model, name)) for name in names]
        known = next((row for row in found if row and "plan" in row), None)
        plan = (known["regions"], known["plan"], known["bound"]) if known else ("", 0, 0)
        cells = " | ".join(map(format_error, found))
        proof = "" if plan[1] == plan[2] else f", at least {plan[2]:,}"
        yield f"| {format_model(model)} | {plan[0] or ''} | {cells} | {plan[1]:,}{proof} |"
    yield ""
    yield f"| | arena with drivers | {' | '.join(names)} |"
    yield "|---|---|" + "---|" * len(names)
    for model in models:
        found = [rows.get((model, name)) for name in names]
        arena = next((row["arena"] for row in found if row and "arena" in row), 0)
        cells = " | ".join(map(format_sizes, found))
        yield f"| {format_model(model)} | {arena / 1000:,.0f} | {cells} |"


def format_model(model: str) -> str:
    """Return the name of a row."""
    return model.removeprefix("zoo:").replace("@", ", ")


def format_sizes(row: Row | None) -> str:
    """Return the cell of sizes."""
    if row is None or "binary" not in row:
        return ""
    sizes = (row["binary"] / 1000, (row["stack"] or 0) / 1000, (row["peak"] or 0) / 1000)
    return f"{sizes[0]:,.0f}, {f'{sizes[1]:.1f}' if row['stack'] else '?'}, {sizes[2]:,.0f}"


def main() -> int:
    """Measure what is not yet known, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--machines", default="")
    parser.add_argument("--results", type=Path, default=Path("standalone.jsonl"))
    given = parser.parse_args()
    wanted = given.machines.split(",") if given.machines else [each.name for each in MACHINES]
    machines = [each for each in MACHINES if each.name in wanted]
    for machine in machines:
        if machine.find_missing():
            print(f"{machine.name} is left out: {machine.find_missing()} is not installed")
    machines = [each for each in machines if not each.find_missing()]
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    rows = {(row["model"], row["machine"]): row for row in map(json.loads, lines)}
    for model in given.models:
        left = [each for each in machines if (model, each.name) not in rows]
        with TemporaryDirectory() as folder, given.results.open("a") as file:
            for row in measure(model, left, Path(folder)):
                rows[model, row["machine"]] = row
                print(json.dumps(row), file=file, flush=True)
    print("\n".join(list_tables(rows, machines)))
    return int(any(row["problem"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
