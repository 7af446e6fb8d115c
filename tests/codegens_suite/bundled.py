"""A model of the zoo compiled by a codegen, and its bundle verified in a process of its own."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import byoc
from byoc.bundle import open_bundle
from byoc.errors import ByocError, shorten_text

_ANY = "target: any\ncost_model: dla\ndtype: any\nregions: connected\nops: [{op: '*'}]\n"
_VERIFY = (
    "import json, sys\n"
    "from byoc.verification import verify_against\n"
    "found = verify_against(*sys.argv[1:])\n"
    "print(json.dumps([found.passed, max((o.relative for o in found.outputs), default=0.0)]))\n"
)


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
    seconds: float


@dataclass(frozen=True)
class Row:
    """What came of a model; `error` is the largest relative one over all outputs.

    `refused` counts the times that the codegen refused something, which went back to the host, and
    `first` is what it said then; `problem` is why there is no bundle that does what the model does.
    `predicted` are the seconds of all regions by the cost model.
    """

    model: str
    regions: int = 0
    refused: int = 0
    error: float | None = None
    compiling: float = 0.0
    running: float = 0.0
    first: str = ""
    problem: str = ""
    predicted: float = 0.0
    simulated: Simulated | None = None

    @property
    def passed(self) -> bool:
        """Return whether the bundle does what the model does."""
        return not self.problem


def row(name: str, codegen: str, rules: str, options: Mapping[str, str]) -> Row:
    """Return what comes of a model with a codegen and options of it; what goes wrong is in the row."""
    start = time.monotonic()
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
                verify=False,
                cache=False,
            )
        except ByocError as error:
            return Row(name, problem=shorten_text(str(error), 300))
        refusals = result.report.refusals
        first = shorten_text(refusals[0].reason, 200) if refusals else ""
        compiling = time.monotonic() - start
        found = Row(
            name,
            len(result.plan.regions),
            len(refusals),
            compiling=compiling,
            first=first,
            predicted=sum(region.seconds for region in result.report.regions),
            simulated=_simulated(bundle),
        )
        start = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-c", _VERIFY, str(bundle), f"zoo:{name}"],
            capture_output=True,
            text=True,
            check=False,
        )
    found = replace(found, running=time.monotonic() - start)
    if ran.returncode:
        problem = f"ended with {ran.returncode}: {ran.stderr.strip().rpartition(chr(10))[2]}"
        return replace(found, problem=shorten_text(problem, 300))
    passed, error = json.loads(ran.stdout)
    return replace(found, error=error, problem="" if passed else "the outputs differ")


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
        seconds=sum(float(told["seconds"]) for told in noted),
    )
