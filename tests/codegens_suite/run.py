"""Runs models of the zoo through a codegen: `python tests/codegens_suite/run.py CODEGEN [MODEL ...]`.

Each is cut so that all its rules support is on the accelerator, compiled, and verified in a process of
its own. `--rules` are the codegen's own unless given; `any` are rules that take every operator. Without
models, the nine light ones. `--option NAME=VALUE`, several times, are the codegen's, as
`scratchpad=131072` of `dla`. What the codegen refuses goes back to the host; how often is counted, and
the first reason told. Of a codegen with a simulator, as `dla`, the table has what it noted as well:
the bytes of the largest arena, below which no plan could be, and those that the DMA
moves. `--quantize int8` quantizes each model by ranges of random data first; `--limit SECONDS` ends a
model that takes longer by the clock. `--markdown` prints the rows that docs/codegens.md has, `--json
FILE` writes all that was found. The exit code is 1 when there is no bundle, nothing was offloaded, a
region cannot run here, or a bundle does not do what its model does.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from bundled import Row, Simulated, row  # noqa: E402 - needs the path
from support import LIGHT  # noqa: E402

_RULES = {"openvino": "openvino-cpu", "ethos_u": "ethos-u55", "qnn": "qnn-htp"}


def main() -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("codegen")
    parser.add_argument("models", nargs="*", default=LIGHT)
    parser.add_argument("--rules")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--quantize", choices=("int8", "uint8", "int16"))
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_intermixed_args()
    rules = asked.rules or _RULES.get(asked.codegen, "dla")
    options = dict(given.split("=", 1) for given in asked.option)
    sys.stdout.write(f"{asked.codegen} with the rules {rules} {' '.join(asked.option)}\n")
    sys.stdout.write(_MARKDOWN_HEAD if asked.markdown else _HEAD)
    found = []
    for name in asked.models:
        one = row(name, asked.codegen, rules, options, quantize=asked.quantize, limit=asked.limit)
        found.append(one)
        sys.stdout.write(_markdown_line(one) if asked.markdown else _line(one))
        sys.stdout.flush()
        if asked.json is not None:
            asked.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    passed = sum(one.passed for one in found)
    sys.stdout.write(f"{passed} of {len(found)} models\n")
    return int(passed < len(found))


_HEAD = (
    f"{'model':<22}{'nodes':>12}{'work':>8}{'regions':>8}{'refused':>8}{'error':>10}{'compile s':>11}"
    f"{'run s':>8}{'predicted ms':>14}{'estimate ms':>14}{'arena':>10}{'bound':>10}{'DMA':>12}\n"
)
_MARKDOWN_HEAD = (
    "| | nodes | work | regions | off by | predicted | estimate | compiled |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def _markdown_line(row: Row) -> str:
    if row.problem:
        return f"| {row.model} | {row.problem} |\n"
    error = "not run here" if row.error is None else f"{row.error:.1e}"
    estimate = "" if row.estimate is None else f"{row.estimate * 1e3:.3g} ms"
    return (
        f"| {row.model} | {row.nodes} of {row.total} | {row.share:.1%} | {row.regions} | {error} "
        f"| {row.predicted * 1e3:.3g} ms | {estimate} | {row.compiling:.0f} s |\n"
    )


def _line(row: Row) -> str:
    error = "-" if row.error is None else f"{row.error:.1e}"
    estimate = "-" if row.estimate is None else f"{row.estimate * 1e3:.3f}"
    told = row.problem or row.first
    why = f"  {told}" if told else ""
    return (
        f"{row.model:<22}{f'{row.nodes} of {row.total}':>12}{row.share:>8.1%}{row.regions:>8}"
        f"{row.refused:>8}{error:>10}{row.compiling:>11.1f}{row.running:>8.1f}"
        f"{row.predicted * 1e3:>14.3f}{estimate:>14}{_told(row.simulated)}"
        f"{why}\n"
    )


def _told(simulated: Simulated | None) -> str:
    """Return the columns of a codegen with a simulator; `>` is where an arena is above its bound."""
    if simulated is None:
        return f"{'-':>10}{'-':>10}{'-':>12}"
    above = "" if simulated.planned else ">"
    return f"{simulated.arena:>10}{above + str(simulated.bound):>10}{simulated.moved:>12}"


if __name__ == "__main__":
    sys.exit(main())
