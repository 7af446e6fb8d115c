"""Compile TOSA files with Vela, one after the other, and print what it says of each.

Run as a program, in a process of its own: `vela_worker.py FOLDER FIRST COUNT LIMIT ARGUMENT...`
compiles `FOLDER/NUMBER.tosa` for each number from FIRST to COUNT into `FOLDER/NUMBER`, and prints a line
of JSON for each: a text that is Vela's reason where it refuses the file, and empty where it does not. A
file that takes more than LIMIT seconds of processor time (0: any) ends the process by SIGPROF.
"""

import contextlib
import io
import json
import os
import re
import signal
import sys
from pathlib import Path

_NOISE = re.compile(r"^(Warning|Network summary|$)")


def main(folder: Path, first: int, count: int, limit: float, arguments: list[str]) -> None:
    """Compile the files, and print a line for each."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for number in range(first, count):
        if limit:  # without a handler, which would wait for Vela's native code
            signal.setitimer(signal.ITIMER_PROF, limit)
        log = folder / f"{number}.log"
        why = _compile(folder, number, arguments, log)
        print(json.dumps(why), file=answers, flush=True)


def _compile(folder: Path, number: int, arguments: list[str], log: Path) -> str:
    """Compile a file; return the reason if Vela refuses it. What it prints goes to `log`."""
    from ethosu.vela import vela  # noqa: PLC0415 - only where it runs

    path, output = str(folder / f"{number}.tosa"), str(folder / str(number))
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    error = ""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = vela.main([path, *arguments, "--output-dir", output])
    except SystemExit as exit_:
        code = exit_.code
    except Exception as failure:  # whatever Vela raises is its reason
        code, error = 1, f"{type(failure).__name__}: {failure}"
    if not code and any(Path(output).glob("*_vela.npz")):
        return ""
    said = printed.getvalue() + log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in said.splitlines() if not _NOISE.match(line)]
    return " ".join([*lines, error]).strip() or f"it ended with {code}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
