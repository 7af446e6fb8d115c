"""Give exported programs damaged weights and samples, and run them in threads, under sanitizers.

    python tests/standalone_suite/sanitized.py [--inputs 200000] [--runs 200] [--seed 0]

A third of the inputs are files of weights or samples for the program's own `main`, byoc's `main.c`. The
programs are a model by byoc's kernels and functions of emx-onnx-cgen, and a bundle whose region runs
by the driver of `dla`. Exits 1 where one crashed, or a sanitizer reported something.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "standalone")]

from helpers.support import parse  # noqa: E402
from small_programs import SMALL  # noqa: E402

import byoc  # noqa: E402

_WARNINGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-g", "-Wall", "-Wextra")
_SANITIZERS = {
    "fuzz": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "main": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "threads": ("-fsanitize=thread",),
}


def export_programs(folder: Path) -> Iterator[Path]:
    """Export a model and a bundle of it; yield their folders."""
    model = parse(SMALL)
    byoc.export_c(model, output=folder / "model")
    yield folder / "model"
    byoc.partition(model, "dla", output=folder / "net.byoc", strategy="all-supported")
    byoc.export_c(folder / "net.byoc", output=folder / "bundle")
    yield folder / "bundle"


def build(program: Path, mode: str) -> Path:
    """Build a program with this suite's own main function, under the sanitizers of a mode."""
    files = [path for path in sorted(program.rglob("*.c")) if path.name != "main.c"]
    made = program / f"sanitized_{mode}"
    source = "sanitized_main.c" if mode == "main" else "sanitized.c"
    command = ["cc", *_WARNINGS, *_SANITIZERS[mode], "-DBYOC_LINKED", f"-I{program}"]
    command += [str(Path(__file__).with_name(source)), *map(str, files)]
    subprocess.run([*command, "-o", str(made), "-lm", "-lpthread"], check=True)
    return made


def run(inputs: int, runs: int, seed: int) -> Iterator[str]:
    """Yield what was found of each program in each mode; what went wrong begins with `wrong`."""
    with tempfile.TemporaryDirectory() as name:
        for program in export_programs(Path(name)):
            weights, sample = str(program / "weights.bin"), str(program / "sample.bin")
            words = {
                "fuzz": ["fuzz", weights, str(inputs - inputs // 3), str(seed)],
                "main": [weights, sample, str(inputs // 3), str(seed)],
                "threads": ["threads", weights, str(runs)],
            }
            for mode, given in words.items():
                command = [str(build(program, mode)), *given]
                ran = subprocess.run(command, capture_output=True, text=True, check=False)
                said = (ran.stdout + ran.stderr[-2000:]).strip()
                wrong = "wrong: " if ran.returncode or "WARNING" in ran.stderr else ""
                yield f"{wrong}{program.name}, {mode}: {said}"


def main() -> None:
    """Build the programs, and run them."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--inputs", type=int, default=200_000)
    asked.add_argument("--runs", type=int, default=200)
    asked.add_argument("--seed", type=int, default=0)
    chosen = asked.parse_args()
    if shutil.which("cc") is None:
        sys.exit("it needs a C compiler")
    found = list(run(chosen.inputs // 2, chosen.runs, chosen.seed))
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.exit(int(any(line.startswith("wrong") for line in found)))


if __name__ == "__main__":
    main()
