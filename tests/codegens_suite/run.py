"""Runs models of the zoo through a codegen: `python tests/codegens_suite/run.py CODEGEN [MODEL ...]`.

Each is cut so that all its rules support is on the accelerator, compiled, and verified in a process of
its own. `--rules` are the codegen's own unless given; `any` are rules that take every operator. Without
models, the nine light ones. `--option NAME=VALUE`, several times, are the codegen's, as
`scratchpad=131072` of `dla`. What the codegen refuses goes back to the host; how often is counted, and
the first reason told. Of a codegen with a simulator, as `dla`, the table has what it noted as well: what
its programs take, the bytes of the largest arena, below which no plan could be, and those that the DMA
moves. The exit code is 1 when there is no bundle, or one that does not do what its model does.
"""

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from bundled import Row, Simulated, row  # noqa: E402 - needs the path
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
        f"{'model':<22}{'regions':>8}{'refused':>8}{'error':>10}{'compile s':>11}{'run s':>8}"
        f"{'predicted ms':>14}{'simulated ms':>14}{'arena':>10}{'bound':>10}{'DMA':>12}\n"
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
        f"{row.compiling:>11.1f}{row.running:>8.1f}{row.predicted * 1e3:>14.3f}{_told(row.simulated)}"
        f"{why}\n"
    )


def _told(simulated: Simulated | None) -> str:
    """Return the columns of a codegen with a simulator; `>` is where an arena is above its bound."""
    if simulated is None:
        return f"{'-':>14}{'-':>10}{'-':>10}{'-':>12}"
    above = "" if simulated.planned else ">"
    return (
        f"{simulated.seconds * 1e3:>14.3f}{simulated.arena:>10}{above + str(simulated.bound):>10}"
        f"{simulated.moved:>12}"
    )


if __name__ == "__main__":
    sys.exit(main())
