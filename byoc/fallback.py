"""Emitting a plan that works: what a codegen does not take goes elsewhere, and the rest is cut anew.

What ONNX Runtime first had to learn the same way: a region that its provider claims and then fails to
compile must not end the run (microsoft/onnxruntime pull request 6580, issue 25334).
"""

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from byoc.bundle.compile import Compiler
from byoc.codegen.refusal import Refusal, RefusedError
from byoc.emit import emit
from byoc.plan import EVERYTHING, Facts, Plan, PlannedRegion, Refused, Split, nodes_at_fault
from byoc.verify.compare import Verification
from byoc.verify.thresholds import Thresholds

# Rounds in which a codegen may name single nodes, then in which whole regions go; then the target does.
_PATIENT = 24
_MOST = 32


@dataclass(frozen=True, eq=False)
class Emitted:
    """The plan whose bundle was written, and its verification or why there was none."""

    plan: Plan
    outcome: Verification | str


def emit_working(  # noqa: PLR0913, PLR0917 - what `emit` takes
    plan_for: Callable[[Facts], Plan],
    output: Path,
    compilers: Mapping[str, Compiler],
    verify: bool,
    progress: Callable[[str], None],
    strict: bool = False,
    gate: Thresholds | None = None,
    contexts: bool = False,
) -> Emitted:
    """Write the bundle of a plan all of whose regions their codegens take, and return it.

    `plan_for` gives the plan for what is known so far. What a codegen refuses is known from then on, and
    the model is planned again; after 32 rounds a target that still refuses something gets nothing. A
    region that is off by more than `gate` counts as refused. Where `strict`, `emit`'s error is raised.
    """
    facts = Facts()
    told: list[Refused] = []
    rounds = 0
    while True:
        plan = replace(plan_for(facts), refusals=tuple(told))
        try:
            return Emitted(plan, emit(plan, output, compilers, verify, progress, strict, gate, contexts))
        except RefusedError as error:
            if strict:
                raise
            if error.__cause__ is not None and os.environ.get("BYOC_DEBUG"):
                traceback.print_exception(error.__cause__)
            rounds += 1
            facts, more = _known(facts, plan, error.refusals, rounds)
            told += more
            progress(f"place again: {error.refusals[0]}")


def _known(
    facts: Facts, plan: Plan, refusals: Sequence[Refusal], rounds: int
) -> tuple[Facts, list[Refused]]:
    """Return the facts with what some refusals add to them, and what is told of each."""
    regions = {region.name: region for region in plan.regions}
    places = {region.name: graph.place for graph in plan.root.walk() for region in graph.regions}
    told = []
    splits: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        region = regions[refusal.region]
        if refusal.too_large and rounds < _MOST and _splittable(region):
            splits.setdefault(refusal.target, []).append(refusal)
            continue
        found = Refused(refusal.target, refusal.region, refusal.codegen, refusal.reason)
        if rounds < _MOST:
            named = refusal.nodes if rounds < _PATIENT and not refusal.too_large else ()
            found = replace(found, nodes=nodes_at_fault(region, places[region.name], named))
            facts = facts.refusing(refusal.target, found.nodes, found.why)
        else:
            reason = f"regions still fail after {rounds} rounds: {refusal.reason}"
            found = replace(found, reason=reason)
            facts = facts.refusing(refusal.target, [EVERYTHING], found.why)
        told.append(found)
    for target, each in splits.items():
        half = min(_half(regions[refusal.region]) for refusal in each)
        parts = [
            Refused(target, refusal.region, refusal.codegen, refusal.reason, split=half)
            for refusal in each
        ]
        facts = facts.splitting(target, Split(half, parts[0].why))
        told += parts
    return facts, told


def _splittable(region: PlannedRegion) -> bool:
    """Return whether smaller regions of a target may be had instead of one."""
    least = region.target.rules.limits.min_nodes or 0
    return len(region.units) > 1 and _half(region) >= least


def _half(region: PlannedRegion) -> int:
    """Return half of a region's nodes, but no less than the largest of its units has."""
    return max(len(region.nodes) // 2, *(len(unit.nodes) for unit in region.units))
