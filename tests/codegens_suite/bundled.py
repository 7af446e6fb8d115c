"""A model of the zoo compiled by a codegen, and its bundle verified in a process of its own."""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutting import planned

import byoc
from byoc.bundle.compile import Compiler
from byoc.codegen import Artifact, Codegen, CompileError, Region, find_codegen
from byoc.emit import emit
from byoc.errors import ByocError, shortened
from byoc.placement.strategies.all_supported import AllSupported
from byoc.rules.load import load_rules

_ANY = "target: any\ncost_model: dla\ndtype: any\nregions: connected\nops: [{op: '*'}]\n"
_VERIFY = (
    "import json, sys\n"
    "from byoc.pipeline import verify_against\n"
    "found = verify_against(*sys.argv[1:])\n"
    "print(json.dumps([found.passed, max((o.relative for o in found.outputs), default=0.0)]))\n"
)


@dataclass(frozen=True)
class Row:
    """What came of a model; `error` is the largest relative one over all outputs."""

    model: str
    regions: int = 0
    refused: int = 0
    error: float | None = None
    compiling: float = 0.0
    running: float = 0.0
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Return whether the bundle does what the model does."""
        return not self.problem


@dataclass(frozen=True, eq=False)
class Lenient:
    """A codegen whose refusals are kept instead of raised, so that every region is tried."""

    codegen: Codegen
    name: str
    refusals: list[str] = field(default_factory=list)

    @property
    def Options(self) -> Any:  # noqa: N802 - the interface's name
        return getattr(self.codegen, "Options", None)

    def compile(self, region: Region, options: Any) -> Artifact:
        try:
            return self.codegen.compile(region, options)
        except CompileError as error:
            self.refusals.append(f"{region.name}: {error}")
            return Artifact()


def row(name: str, codegen: str, rules: str) -> Row:
    """Return what comes of a model with a codegen; whatever goes wrong is told in the row."""
    start = time.monotonic()
    compiler = Lenient(find_codegen(codegen), codegen)
    regions = 0
    with tempfile.TemporaryDirectory() as folder:
        if rules == "any":
            rules = f"{folder}/any.yaml"
            Path(rules).write_text(_ANY, encoding="utf-8")
        try:
            target = load_rules(rules)
            model = byoc.load_model(f"zoo:{name}")
            plan = planned(model, target, AllSupported(), asked={"model": f"zoo:{name}", "dims": {}})
            regions = len(plan.regions)
            compilers = {target.name: Compiler(compiler, {})}
            emit(plan, Path(folder) / "b", compilers, False, lambda step: None)
        except ByocError as error:
            return Row(name, regions, len(compiler.refusals), problem=shortened(str(error), 300))
        compiling = time.monotonic() - start
        refused = len(compiler.refusals)
        if refused:
            return Row(name, regions, refused, None, compiling, problem=compiler.refusals[0])
        start = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-c", _VERIFY, f"{folder}/b", f"zoo:{name}"],
            capture_output=True,
            text=True,
            check=False,
        )
    running = time.monotonic() - start
    if ran.returncode:
        problem = f"ended with {ran.returncode}: {ran.stderr.strip().rpartition(chr(10))[2]}"
        return Row(name, regions, 0, None, compiling, running, shortened(problem, 300))
    passed, error = json.loads(ran.stdout)
    problem = "" if passed else "the outputs differ"
    return Row(name, regions, 0, error, compiling, running, problem)
