"""A model of the zoo compiled by a codegen, and its bundle verified in a process of its own."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import byoc
from byoc.bundle import open_bundle
from byoc.errors import ByocError, shorten_text

_ANY = "target: any\ncost_model: dla\ndtype: any\nregions: connected\nops: [{op: '*'}]\n"
_VERIFY = (
    "import json, sys\n"
    "from byoc.verification import verify_against\n"
    "found = verify_against(*sys.argv[1:])\n"
    "errors = [o.relative for o in found.outputs if not o.problem]\n"
    "print(json.dumps([found.passed, max(errors, default=None)]))\n"
)
_DIFFER = "the outputs differ by more than verification allows"


@dataclass(frozen=True)
class Simulated:
    """What a codegen with a simulator noted of its programs, over all regions of a model.

    `arena` and `bound` are the bytes of the largest arena and of the largest bound on one, `planned`
    is whether no arena is larger than its own bound, `moved` the bytes of the DMA.
    """

    arena: int
    bound: int
    planned: bool
    moved: int


@dataclass(frozen=True)
class Row:
    """What came of a model; `error` is the largest relative one over all outputs.

    `codegen` is empty where the row is of no table of several. A quantized model is compared with its
    own integers on plain onnxruntime, and not with the floats that it was quantized from.

    `refused` counts the times that the codegen refused something, which went back to the host, and
    `first` is what it said then; `problem` is why there is no bundle that does what the model does.
    `nodes` of `total` are in regions, which are `share` of the operations. `predicted` are the seconds
    of all regions by the cost model, `estimate` those by the compiler, None where it tells none.
    `compiling` are the processor's seconds of `byoc.partition`, its processes included; `not_here`
    counts the regions that this machine cannot run.
    """

    model: str
    codegen: str = ""
    nodes: int = 0
    total: int = 0
    share: float = 0.0
    regions: int = 0
    not_here: int = 0
    refused: int = 0
    error: float | None = None
    compiling: float = 0.0
    running: float = 0.0
    first: str = ""
    problem: str = ""
    predicted: float = 0.0
    estimate: float | None = None
    simulated: Simulated | None = None

    @property
    def passed(self) -> bool:
        """Whether a bundle with regions was run, and does what the model does."""
        return not self.problem and self.error is not None


def row(
    name: str,
    codegen: str,
    rules: str,
    options: Mapping[str, str],
    *,
    quantize: str | None,
    limit: float,
) -> Row:
    """Return what comes of a model, found in a process that may take `limit` seconds by the clock.

    `quantize` is the type of integers that a model of floats is quantized to, by ranges of random data.
    """
    asked = json.dumps([name, codegen, rules, dict(options), quantize])
    # A session of its own, since a compiler's processes have to end as well.
    process = subprocess.Popen(
        [sys.executable, __file__, asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Row(name, codegen, problem=f"not done after {limit:g} s")
    if process.returncode:
        last = err.strip().rpartition("\n")[2]
        return Row(name, codegen, problem=shorten_text(f"ended with {process.returncode}: {last}", 300))
    found = json.loads(out.strip().rpartition("\n")[2])
    simulated = found.pop("simulated")
    return Row(**found, simulated=None if simulated is None else Simulated(**simulated))


def find_row(
    name: str, codegen: str, rules: str, options: Mapping[str, str], quantize: str | None
) -> Row:
    """Return what comes of a model with a codegen and options of it; what goes wrong is in the row."""
    with tempfile.TemporaryDirectory() as folder:
        if rules == "any":
            rules = f"{folder}/any.yaml"
            Path(rules).write_text(_ANY, encoding="utf-8")
        bundle = Path(folder) / "b"
        try:
            result = byoc.partition(
                f"zoo:{name}",
                rules,
                output=bundle,
                strategy="all-supported",
                codegen=codegen,
                codegen_options=dict(options),
                precision=byoc.Precision(quantize, data="random" if quantize else None),
                verify=False,  # the outputs are compared below
                cache=False,
            )
        except ByocError as error:
            return Row(name, codegen, problem=shorten_text(str(error), 300))
        report = result.report
        first = shorten_text(report.refusals[0].reason, 200) if report.refusals else ""
        estimates = [each.estimate.seconds * each.trips for each in report.regions if each.estimate]
        found = Row(
            name,
            codegen,
            report.nodes.offloaded,
            report.nodes.total,
            report.compute.offloaded,
            len(report.regions),
            sum(bool(each.not_here) for each in report.regions),
            len(report.refusals),
            compiling=_processor_seconds(),
            first=first,
            predicted=sum(each.seconds * each.trips for each in report.regions),
            estimate=sum(estimates) if len(estimates) == len(report.regions) > 0 else None,
            simulated=_simulated(bundle),
        )
        if not found.nodes:
            return replace(found, problem=f"nothing was offloaded: {first or _find_reason(report)}")
        start = time.monotonic()
        original = [] if quantize else [f"zoo:{name}"]
        ran = subprocess.run(
            [sys.executable, "-c", _VERIFY, str(bundle), *original],
            capture_output=True,
            text=True,
            check=False,
        )
    found = replace(found, running=time.monotonic() - start)
    if ran.returncode:
        problem = f"ended with {ran.returncode}: {ran.stderr.strip().rpartition(chr(10))[2]}"
        return replace(found, problem=shorten_text(problem, 300))
    passed, error = json.loads(ran.stdout.strip().rpartition("\n")[2])
    return replace(found, error=error, problem="" if passed else _DIFFER)


def _find_reason(report: Any) -> str:
    """Return why most nodes are on the host."""
    reasons = [each.reason for each in report.host_reasons]
    return shorten_text(reasons[0], 200) if reasons else "no reason is told"


def _processor_seconds() -> float:
    """Return the processor's seconds of this process so far, and of those it started that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _simulated(bundle: Path) -> Simulated | None:
    """Return what the artifacts of a bundle tell; None where they tell nothing of a simulator."""
    noted = [region.artifact_metadata for region in open_bundle(bundle).manifest.regions]
    if not noted or any("arena_bound" not in told for told in noted):
        return None
    plans = [(int(told["arena"]), int(told["arena_bound"])) for told in noted]
    return Simulated(
        arena=max(arena for arena, _ in plans),
        bound=max(bound for _, bound in plans),
        planned=all(arena == bound for arena, bound in plans),
        moved=sum(int(told["bytes_loaded"]) + int(told["bytes_stored"]) for told in noted),
    )


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(asdict(find_row(*json.loads(sys.argv[1]))))}\n")
