"""What partitioning offloads of models as exporters write them, without a flag and with an expert's.

    python benchmarks/exports.py FOLDER_OR_FILE ... [--targets dla,openvino-cpu] [--compile TARGET,...]
        [--lengths 64,128] [--strategy all-supported] [--timeout 300] [--only NAME,...] [--json FILE]

Each model is partitioned twice for each target: by its rule file alone, and as an expert would who
knows it, with `--dim` for every open dimension: a batch of 1, and of the other ones that of `--lengths`
of which most is offloaded. For rules of quantized models `--quantize int8 --data random` is given both
times. A line says what share of the compute is offloaded, in how many regions, whether the bundle gave
the outputs of the original (for targets in `--compile`; for the others nothing is compiled), and the
share of the expert. The exit code is 1 when a share is below 95 % of the expert's.

Every model runs in a process of its own, which is stopped after `--timeout` seconds. Targets to be
compiled for whose tools are not installed are left out.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

import byoc
from byoc.errors import ByocError
from byoc.samples import model_samples

# What has to be installed to compile for a target; the others come with byoc.
_TOOLS = {
    "openvino-cpu": "openvino",
    "iree-cpu": "iree.compiler",
    "ethos-u55": "ethosu.vela",
    "ethos-u65": "ethosu.vela",
    "ethos-u85": "ethosu.vela",
}
_QUANTIZED = ("ethos-u55", "ethos-u65", "ethos-u85", "qnn-htp")
_ENOUGH = 0.95
"""The share of an expert's that no flags have to reach: less is a loss that users notice."""

Row = dict[str, Any]


def main(arguments: argparse.Namespace) -> int:
    """Print a line for each model and target; return the exit code."""
    compiled = arguments.compile.split(",") if arguments.compile else []
    rows = []
    for target in arguments.targets.split(","):
        if target in compiled and not _is_installed(_TOOLS.get(target, "byoc")):
            print(f"{target}: left out, {_TOOLS[target]} is not installed")
            continue
        for path in _list_models(arguments.models, arguments.only):
            row = _run_apart(path, target, target in compiled, arguments)
            rows.append({"model": path.stem, "target": target, **row})
            print(describe(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    below = [row for row in rows if is_below(row)]
    for target in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == target]
        good = sum(not is_below(row) for row in own)
        print(f"{target}: {good} of {len(own)} models reach {_ENOUGH:.0%} of the expert's share")
    return int(bool(below))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _list_models(given: Sequence[Path], only: str | None) -> Iterator[Path]:
    names = only.split(",") if only else []
    for each in given:
        for path in sorted(each.glob("*.onnx")) if each.is_dir() else [each]:
            if not names or path.stem in names:
                yield path


def describe(row: Row) -> str:
    """Return a row of the table, in Markdown."""
    name = f"| {row['model']} | {row['target']} |"
    if "problem" in row:
        return f"{name} {row['problem']} | | | |"
    return (
        f"{name} {row['share']:.1%} | {row['regions']} | {row['verified']} | {row['expert']:.1%} "
        f"({row['flags'] or 'the same'}) |"
    )


def is_below(row: Row) -> bool:
    """Return whether less is offloaded than an expert's flags do, or nothing came of it."""
    return "problem" in row or row["share"] < _ENOUGH * row["expert"]


def _run_apart(path: Path, target: str, compiled: bool, arguments: argparse.Namespace) -> Row:
    """Return the row of a model, made in a process of its own."""
    command = [sys.executable, __file__, str(path), "--targets", target, "--one"]
    command += ["--lengths", arguments.lengths, *(["--compile", target] if compiled else [])]
    command += ["--strategy", arguments.strategy] if arguments.strategy else []
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=arguments.timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"not done after {arguments.timeout} s"}
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        return {"problem": f"failed: {last}"}
    row: Row = json.loads(ran.stdout.strip().splitlines()[-1])
    return row


def measure(
    path: Path, target: str, compiled: bool, lengths: Sequence[int], strategy: str | None = None
) -> Row:
    """Return what is offloaded of a model without flags, and with those of an expert."""
    asked: dict[str, Any] = {} if strategy is None else {"strategy": strategy}
    if target in _QUANTIZED:
        asked["precision"] = byoc.Precision(quantize="int8", data="random")
    with TemporaryDirectory() as folder:
        output = Path(folder) / "m.byoc" if compiled else None
        report = byoc.partition(path, target, output=output, **asked).report
    row = {
        "share": report.compute.offloaded,
        "regions": len(report.regions),
        "verified": "not compiled" if not compiled else "yes" if report.verification else "no",
        "sizes": dict(report.chosen_sizes),
    }
    best, flags, sizes = -1.0, {}, list_expert_sizes(path, lengths)
    for dims in sizes:
        try:
            if len(sizes) > 1:  # a length may be longer than the model's table of positions
                model_samples(byoc.load_model(path, dims))
            found = byoc.partition(path, target, dims=dims, **asked).report
        except ByocError:
            continue
        if found.compute.offloaded > best:
            best, flags = found.compute.offloaded, dims
    return {**row, "expert": best, "flags": " ".join(f"{name}={size}" for name, size in flags.items())}


def list_expert_sizes(path: Path, lengths: Sequence[int]) -> list[Mapping[str, int]]:
    """Return the sizes that an expert may give: a batch of 1, and for all other dimensions a length."""
    model = onnx.load(path, load_external_data=False)
    stored = {tensor.name for tensor in model.graph.initializer}
    batch, others = [], []
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param and value.name not in stored:
                (others if axis else batch).append(dim.dim_param)
    fixed = dict.fromkeys(batch, 1)
    rest = [name for name in dict.fromkeys(others) if name not in fixed]
    return [{**fixed, **dict.fromkeys(rest, length)} for length in (lengths if rest else lengths[:1])]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--targets", default="dla")
    parser.add_argument("--compile", default="")
    parser.add_argument("--lengths", default="64,128")
    parser.add_argument("--strategy")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        lengths = [int(each) for each in given.lengths.split(",")]
        compiled = bool(given.compile)
        row = measure(given.models[0], given.targets, compiled, lengths, given.strategy)
        print(json.dumps(row))
        sys.exit()
    sys.exit(main(given))
