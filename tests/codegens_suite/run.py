"""Runs models of the zoo through a codegen: `python tests/codegens_suite/run.py CODEGEN [MODEL ...]`.

Each is cut so that all its rules support is on the accelerator, compiled, and verified in a process of
its own. `--rules` are the codegen's own unless given; `any` are rules that take every operator. Without
models, the nine light ones. `--option NAME=VALUE`, several times, are the codegen's, as
`scratchpad=131072` of `dla`. What the codegen refuses goes back to the host; how often is counted, and
the first reason told. The exit code is 1 when there is no bundle, or one that does not do what its model
does.
"""

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from bundled import Row, row  # noqa: E402 - needs the path
from support import LIGHT  # noqa: E402

_RULES = {"openvino": "openvino-cpu"}


def main() -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("codegen")
    parser.add_argument("models", nargs="*", default=LIGHT)
    parser.add_argument("--rules")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    asked = parser.parse_intermixed_args()
    rules = asked.rules or _RULES.get(asked.codegen, "dla")
    options = dict(given.split("=", 1) for given in asked.option)
    sys.stdout.write(f"{asked.codegen} with the rules {rules} {' '.join(asked.option)}\n")
    sys.stdout.write(
        f"{'model':<22}{'regions':>8}{'refused':>8}{'error':>10}{'compile s':>11}{'run s':>8}\n"
    )
    failed = 0
    for name in asked.models:
        found = row(name, asked.codegen, rules, options)
        failed += not found.passed
        sys.stdout.write(_line(found))
        sys.stdout.flush()
    sys.stdout.write(f"{len(asked.models) - failed} of {len(asked.models)} models\n")
    return int(failed > 0)


def _line(row: Row) -> str:
    error = "-" if row.error is None else f"{row.error:.1e}"
    told = row.problem or row.first
    why = f"  {told}" if told else ""
    return (
        f"{row.model:<22}{row.regions:>8}{row.refused:>8}{error:>10}"
        f"{row.compiling:>11.1f}{row.running:>8.1f}{why}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
