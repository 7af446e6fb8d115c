"""Costs of onnxruntime and OpenVINO fitted to whole models, each family left out in turn.

    python benchmarks/library_costs.py measure WHOLES.json MODEL ... [--seconds 0.4]
    python benchmarks/library_costs.py fit WHOLES.json [--costs FOLDER] [--write FOLDER]
    python benchmarks/library_costs.py judge WHOLES.json [--costs FOLDER]

`measure` runs each file or `zoo:NAME` on both libraries in turn, one thread each, by the processor's
time, and adds medians in seconds and the median ratio of the rounds to the file; what stands in it is
not measured again. The models are those of `benchmarks/cost_networks.py` and of the zoo.

`fit` starts from `onnxruntime-cpu.yaml` and `openvino-cpu.yaml` of a folder, `cost_models/` unless
given. Each kind of operator has three coefficients (`operation`, `byte`, `call`), fitted by
non-negative least squares of relative errors of the wholes; what these leave open stays where it was
(ridge regression). OpenVINO's lines start from onnxruntime's new ones, and are fitted to what
onnxruntime is predicted to take, divided by the measured ratio: both libraries come near the same peak,
so that an error which they share names no wrong library, and load on the machine, which slows both,
cancels out. Then each family of models is left out of the fit in turn, and predicted by it. With
`--write` both files are written to a folder.

`judge` predicts the models of WHOLES.json by the files in a folder, `cost_models/` unless given.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import scipy
from numpy.typing import NDArray
from real_gain import CLOCKS, Case, ContestClock, run_onnxruntime, run_openvino

from byoc.comparison import Patience, Samples, measure_in_turn
from byoc.costs import Linear, Task, build_tasks, read_cost_file
from byoc.errors import ByocError
from byoc.onnxrt import with_threads
from byoc.samples import model_samples
from byoc.zoo import load_model

COSTS = Path(__file__).parents[1] / "cost_models"
FILES = ("onnxruntime-cpu.yaml", "openvino-cpu.yaml")
CLOSE = 1.05  # times the faster library: no loss that a user notices
_COEFFICIENTS = ("operation", "byte", "call")
# Weights of a coefficient's relative distance from where it started, against the relative error of a
# whole: of onnxruntime's lines that were fitted before, of those that were not, and of OpenVINO's.
_PULL, _PULL_NEW, _PULL_BESIDE = 0.03, 3e-6, 0.1
_ROUNDS = 4  # of least squares, each weighed by the one before
_USUAL, _USUAL_FUSED = 0.9, 0.3  # parts of the line through all operators, for a kind without one
_LEAST = 0.1  # of a whole that its operators take: less of it is known than of what surrounds them

Floats = NDArray[np.float64]
Lines = dict[str, Floats]
"""The three coefficients of each kind of operator, float64 (3,)."""


@dataclass(frozen=True, eq=False)
class Whole:
    """A model on both libraries: operations, bytes and calls by kind, and measured seconds.

    `around` are the seconds that a plan counts for OpenVINO's launch and what enters and leaves.
    """

    name: str
    features: Mapping[str, Floats]
    around: float
    seconds: tuple[float, float]
    weight: float = 1.0

    @property
    def family(self) -> str:
        """What is left out of a fit together: models of one architecture."""
        stem = Path(self.name).stem
        head, _, number = stem.rpartition("_")
        return head if number.isdecimal() and len(number) == 1 and "/" in self.name else stem

    @property
    def ratio(self) -> float:
        """What onnxruntime takes over what OpenVINO takes."""
        return self.seconds[0] / self.seconds[1]


def measure(path: Path, models: Sequence[str], seconds: float) -> None:
    """Measure models on both libraries in turn, and add them to a file after each."""
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for name in models:
        if name in found:
            continue
        clock = ContestClock(CLOCKS["processor"])
        try:
            with TemporaryDirectory(prefix="byoc-") as folder, with_threads(1):
                model = load_model(name)
                case = Case(model, dict(model_samples(model)), 1, clock, Path(folder))
                patience = Patience(warmup=3, least=11, most=2000, seconds=seconds, settled=0.003)
                runs = [run_onnxruntime(case), run_openvino(case)]
                one, other = (np.array(times) for times in measure_in_turn(runs, patience, clock))
        except (ByocError, RuntimeError) as error:
            print(f"{name}: not measured: {' '.join(str(error).split())[:200]}")
            continue
        found[name] = {
            "seconds": [Samples.of(times.tolist()).median for times in (one, other)],
            "ratio": float(np.median(one / other)),
        }
        print(f"{name:50}{found[name]['seconds'][0] * 1e3:10.3f} ms, ratio {found[name]['ratio']:.3f}")
        path.write_text(json.dumps(found, indent=1), "utf-8")


def read_wholes(path: Path, files: Sequence[Linear]) -> list[Whole]:
    """Return the measured models whose shapes are all known."""
    wholes = []
    for name, row in json.loads(path.read_text("utf-8")).items():
        index = load_model(name).index
        tasks = build_tasks(index)
        running = [tasks[i] for i in range(len(index.nodes)) if tasks.task_of_node[i] >= 0]
        running = [task for task in running if not task.view]
        if not all(task.sized for task in running):
            print(f"{name}: left out, a shape is not known")
            continue
        names = {*(each for each in index.inputs if not index.is_constant(each)), *index.outputs}
        sizes = [kind.bytes or 0 for each in names if (kind := index.types.get(each)) is not None]
        around = files[1].launch + sum(files[1].transfer(size).seconds for size in sizes)
        middle, root = float(np.sqrt(np.prod(row["seconds"]))), float(np.sqrt(row["ratio"]))
        weight = row.get("weight", 1.0)
        wholes.append(Whole(name, _count(running), around, (middle * root, middle / root), weight))
    return wholes


def _count(tasks: Sequence[Task]) -> dict[str, Floats]:
    """Return operations, bytes and calls by the narrowest kind."""
    counts: dict[str, Floats] = {}
    for task in tasks:
        each = counts.setdefault(task.families[0], np.zeros(3))
        each += (task.work.operations, task.work.bytes, 1.0)
    return counts


def read_lines(file: Linear) -> Lines:
    """Return the coefficients of a file as they count within wholes."""
    return {
        kind: np.array([line.operation, line.byte, line.call]) * line.together
        for kind, line in file.operators.items()
    }


def start_line(file: Linear, lines: Lines, kind: str) -> Floats:
    """Return the coefficients of a kind, of its operator, or a usual part of those of all operators."""
    found = lines.get(kind, lines.get(kind.partition("/")[0]))
    if found is not None:
        return found
    assert file.estimates
    every = np.array([file.estimates.operation, file.estimates.byte, file.estimates.call])
    return every * (_USUAL_FUSED if kind.endswith("/fused") else _USUAL)


def fit_lines(
    wholes: Sequence[Whole], seconds: Sequence[float], start: Lines, pull: Mapping[str, float]
) -> Lines:
    """Return lines whose sums are these seconds; `start` has the kinds, `pull` the weight of each."""
    kinds = sorted(start)
    first = np.concatenate([start[kind] for kind in kinds])
    usual = np.tile(np.median(first.reshape(-1, 3), axis=0) / 20, len(kinds))
    scale = np.where(first > 0, first, usual)
    sums = scale * np.array(
        [np.concatenate([w.features.get(kind, np.zeros(3)) for kind in kinds]) for w in wholes]
    )
    wanted, counts = np.array(seconds), np.sqrt([whole.weight for whole in wholes])
    weights = np.sqrt(np.repeat([pull[kind] for kind in kinds], 3))
    middle = wanted  # of prediction and measurement: errors by a factor weigh the same up and down
    for _ in range(_ROUNDS):
        rows = np.vstack([sums * (counts / middle)[:, None], np.diag(weights)])
        targets = np.concatenate([counts * wanted / middle, weights * (first > 0)])
        found = scipy.optimize.nnls(rows, targets, maxiter=50 * len(scale))[0]
        middle = np.sqrt(wanted * np.maximum(sums @ found, wanted / 10))
    return dict(zip(kinds, (found * scale).reshape(-1, 3), strict=True))


def fit_both(wholes: Sequence[Whole], files: Sequence[Linear]) -> tuple[Lines, Lines]:
    """Return the lines of onnxruntime and of OpenVINO, fitted to wholes."""
    before = read_lines(files[0])
    kinds = sorted({kind for whole in wholes for kind in whole.features})
    start = {kind: start_line(files[0], before, kind) for kind in kinds}
    pull = {kind: _PULL if kind in before else _PULL_NEW for kind in kinds}
    host = fit_lines(wholes, [whole.seconds[0] for whole in wholes], start, pull)
    inside = [(whole, sum_lines(host, files[0], whole) / whole.ratio) for whole in wholes]
    known = [(w, total - w.around) for w, total in inside if total - w.around > _LEAST * total]
    own = fit_lines(
        [whole for whole, _ in known],
        [seconds for _, seconds in known],
        host,
        dict.fromkeys(kinds, _PULL_BESIDE),
    )
    return host, own


def sum_lines(lines: Lines, file: Linear, whole: Whole) -> float:
    """Return the seconds of a model's operators."""
    return sum(float(counts @ start_line(file, lines, kind)) for kind, counts in whole.features.items())


def predict(lines: tuple[Lines, Lines], files: Sequence[Linear], whole: Whole) -> tuple[float, float]:
    """Return the seconds of a model on both libraries."""
    host = sum_lines(lines[0], files[0], whole)
    known = {**lines[0], **lines[1]}  # a kind of which nothing is known is no reason to go elsewhere
    return host, whole.around + sum_lines(known, files[0], whole)


def judge(title: str, wholes: Sequence[Whole], predicted: Mapping[str, tuple[float, float]]) -> None:
    """Print how well predictions name the faster library."""
    losses = []
    for whole in wholes:
        one, other = predicted[whole.name]
        losses.append(whole.seconds[0 if one <= other else 1] / min(whole.seconds))
    ratios = [one / other for one, other in (predicted[whole.name] for whole in wholes)]
    off = [abs(log(ratio / whole.ratio)) for ratio, whole in zip(ratios, wholes, strict=True)]
    close = sum(loss <= CLOSE for loss in losses)
    print(
        f"{title}: {len(wholes)} models, the faster library named {sum(loss <= 1 for loss in losses)}, "
        f"within {CLOSE:g} {close}, mean {np.mean(losses):.3f}, worst {max(losses):.3f}, "
        f"ratio off by {exp(float(np.mean(off))):.3f}"
    )


def write_file(path: Path, source: Path, lines: Lines, wholes: Sequence[Whole]) -> None:
    """Write a cost file with new lines of the kinds in wholes; all else is as in `source`."""
    text = source.read_text("utf-8")
    head, _, old = text.partition("\noperators:\n")
    rows = {line.strip().partition(": ")[0]: line for line in old.splitlines() if line.strip()}
    for kind, line in lines.items():
        models = sum(kind in whole.features for whole in wholes)
        named = zip(_COEFFICIENTS, line.tolist(), strict=True)
        fields = [f"{name}: {value:.6g}" for name, value in named if value] + [f"samples: {models}"]
        rows[kind] = f"  {kind}: {{{', '.join(fields)}}}"
    written = [f"{head}\noperators:", *(rows[kind] for kind in sorted(rows)), ""]
    path.write_text("\n".join(written), "utf-8")


def main() -> int:
    """Do what is asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit", "judge"))
    parser.add_argument("wholes", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each library and model")
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--costs", type=Path, default=COSTS, metavar="FOLDER")
    asked = parser.parse_intermixed_args()
    if asked.what == "measure":
        measure(asked.wholes, asked.models, asked.seconds)
        return 0
    files = [read_cost_file(asked.costs / name) for name in FILES]
    assert all(isinstance(file, Linear) for file in files)
    wholes = read_wholes(asked.wholes, files)
    before = (read_lines(files[0]), read_lines(files[1]))
    if asked.what == "judge":
        found = {
            w.name: (sum_lines(before[0], files[0], w), w.around + sum_lines(before[1], files[1], w))
            for w in wholes
        }
        for whole in wholes:
            one, other = found[whole.name]
            print(f"{whole.name:50} measured {whole.ratio:.3f}, predicted {one / other:.3f}")
        judge("as the files stand", wholes, found)
        return 0
    lines = fit_both(wholes, files)
    judge("in the fit", wholes, {whole.name: predict(lines, files, whole) for whole in wholes})
    left: dict[str, tuple[float, float]] = {}
    for family in sorted({whole.family for whole in wholes}):
        others = fit_both([whole for whole in wholes if whole.family != family], files)
        left |= {w.name: predict(others, files, w) for w in wholes if w.family == family}
    judge("each family left out", wholes, left)
    if asked.write:
        for name, own in zip(FILES, lines, strict=True):
            write_file(asked.write / name, asked.costs / name, own, wholes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
