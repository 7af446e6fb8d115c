"""Runs models of the zoo through codegens: `python tests/codegens_suite/run.py CODEGENS [MODEL ...]`.

CODEGENS is a name, or several joined by commas. Each model is cut so that all that the rules support is
on the accelerator, compiled, and verified in a process of its own. `--rules` are the codegen's own
unless given; `any` are rules that take every operator. Codegens of integers (ethos_u, qnn) get models
that are quantized first, by ranges of random data; `--quantize int8` says so of any, `none` of none.
Without models: of one codegen the nine light ones, of several those of its table in
benchmarks/RESULTS.md.

`--option NAME=VALUE`, several times, are the codegen's, as `scratchpad=131072` of `dla`. What the
codegen refuses goes back to the host; how often is counted, and the first reason told. Of a codegen
with a simulator, as `dla`, the table has what it noted as well: the bytes of the largest arena, below
which no plan could be, and those that the DMA moves.

`--limit SECONDS` ends a model that takes longer by the clock. `--format md` prints the rows of
benchmarks/RESULTS.md. `--json FILE` keeps all that is found, and with `--resume` what FILE has
already is not run again. The exit code is 1 when there is no bundle, nothing was offloaded, a region
cannot run here, or a bundle does not do what its model does.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from bundled import Row, Simulated, row  # noqa: E402 - needs the path
from helpers.support import LIGHT  # noqa: E402

_RULES = {
    **{"ethos_u": "ethos-u55", "iree": "iree-cpu", "openvino": "openvino-cpu", "ort_ep": "ort-ep"},
    **{"qnn": "qnn-htp", "rknn": "rknn-rk3588", "tvm": "tvm-cpu"},
}
_QUANTIZED = {"ethos_u": "int8", "qnn": "uint8"}
"""The integers of codegens that take no floats."""
_TRAINED = ("eff_word_net_qint8", "smart_turn_v3_qdq")
"""Models that come quantized."""
_TABLE = (
    *LIGHT,
    *("mobilenet_v3_large", "efficientnet_b0", "eff_word_net_qint8", "bert", "vit_tiny", "ssdlite320"),
)


def main() -> int:
    """Print the table, and return the exit code."""
    asked = _parse_arguments()
    codegens = asked.codegens.split(",")
    models = asked.models or (_TABLE if len(codegens) > 1 else LIGHT)
    known = _read_rows(asked.json) if asked.resume else {}
    found = dict(known)
    for codegen in codegens:
        rules = asked.rules or _RULES.get(codegen, "dla")
        sys.stdout.write(_describe_run(codegen, rules, asked))
        for name in models:
            if (codegen, name) not in known:
                found[codegen, name] = _run(name, codegen, rules, asked)
                _write_rows(asked.json, found)
            one = found[codegen, name]
            sys.stdout.write(_line(one) if asked.format == "text" else _markdown_line(one))
            sys.stdout.flush()
    rows = [found[codegen, name] for codegen in codegens for name in models]
    passed = sum(one.passed for one in rows)
    sys.stdout.write(f"{passed} of {len(rows)} models\n")
    return int(passed < len(rows))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("codegens", metavar="CODEGENS")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--rules")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--quantize", choices=("int8", "uint8", "int16", "none"))
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--format", choices=("text", "md"), default="text")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--resume", action="store_true")
    asked = parser.parse_intermixed_args()
    if asked.resume and asked.json is None:
        parser.error("--resume needs --json FILE")
    return asked


def _run(name: str, codegen: str, rules: str, asked: argparse.Namespace) -> Row:
    wanted = asked.quantize or _QUANTIZED.get(codegen, "none")
    quantize = None if wanted == "none" or name in _TRAINED else wanted
    options = dict(given.split("=", 1) for given in asked.option)
    return row(name, codegen, rules, options, quantize=quantize, limit=asked.limit)


def _describe_run(codegen: str, rules: str, asked: argparse.Namespace) -> str:
    """Return the lines above a codegen's rows."""
    said = f"{codegen} with the rules {rules} {' '.join(asked.option)}".rstrip()
    return f"{said}\n{_HEAD}" if asked.format == "text" else f"\n{said}\n\n{_MARKDOWN_HEAD}"


def _read_rows(path: Path) -> dict[tuple[str, str], Row]:
    if not path.exists():
        return {}
    rows = []
    for each in json.loads(path.read_text(encoding="utf-8")):
        noted = each.pop("simulated")
        rows.append(Row(**each, simulated=None if noted is None else Simulated(**noted)))
    return {(one.codegen, one.model): one for one in rows}


def _write_rows(path: Path | None, found: Mapping[tuple[str, str], Row]) -> None:
    if path is not None:
        text = json.dumps([asdict(each) for each in found.values()], indent=1)
        path.write_text(f"{text}\n", encoding="utf-8")


_HEAD = (
    f"{'model':<22}{'nodes':>12}{'work':>8}{'regions':>8}{'refused':>8}{'error':>10}{'compile s':>11}"
    f"{'run s':>8}{'predicted ms':>14}{'estimate ms':>14}{'arena':>10}{'bound':>10}{'DMA':>12}\n"
)
_MARKDOWN_HEAD = (
    "| | nodes | work | regions | off by | predicted | estimate | compiled |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def _markdown_line(row: Row) -> str:
    if not row.nodes:
        return f"| {row.model} | {row.problem} | | | | | | |\n"
    error = "not run here" if row.error is None else f"{row.error:.1e}"
    refused = f", {row.problem}" if row.problem else ""
    estimate = "" if row.estimate is None else f"{row.estimate * 1e3:.3g} ms"
    return (
        f"| {row.model} | {row.nodes} of {row.total} | {row.share:.1%} | {row.regions} "
        f"| {error}{refused} | {row.predicted * 1e3:.3g} ms | {estimate} | {row.compiling:.0f} s |\n"
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
