"""The compilers' own estimates of the regions that they compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from byoc.bundle import EstimateReport
from byoc.codegen import (
    CodegenFailedError,
    CompileError,
    Cycles,
    can_estimate,
    estimate_region,
)
from byoc.errors import MissingRuntimeError
from byoc.reporting import format_quantity
from byoc.support import Note

if TYPE_CHECKING:
    from byoc.bundle import Bundle, RegionCompiler
    from byoc.codegen import (
        Artifact,
        Region,
    )
    from byoc.planning import Plan

_DISAGREEMENT = 1.25


@dataclass(frozen=True, eq=False)
class RegionEstimates:
    """The estimates by region name, and notes on codegens that failed to give one."""

    by_region: Mapping[str, EstimateReport] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


def estimate_regions(bundle: Bundle, compilers: Mapping[str, RegionCompiler]) -> RegionEstimates:
    """Ask the compilers of targets, as far as they can estimate, about the regions of a bundle."""
    if not any(can_estimate(compiler.codegen) for compiler in compilers.values()):
        return RegionEstimates()
    found: dict[str, EstimateReport] = {}
    asked: dict[str, EstimateReport | None] = {}
    notes: list[Note] = []
    twins = bundle.identical_regions
    for name, region, artifact in bundle.regions():
        compiler, first = compilers[region.target], twins.get(region.name, region.name)
        if first not in asked and can_estimate(compiler.codegen):
            own = region if first == region.name else bundle.open_compiled(first)[1]
            asked[first] = None
            try:
                asked[first] = _estimate(compiler, own, artifact)
            except (CodegenFailedError, MissingRuntimeError) as error:
                text = f"codegen {name} failed to estimate {region.name}: {error}"
                notes.append(Note("warning", text))
            except CompileError:  # it does not say
                continue
        estimate = asked.get(first)
        if estimate is not None:
            found[region.name] = estimate
    return RegionEstimates(found, tuple(notes))


def _estimate(compiler: RegionCompiler, region: Region, artifact: Artifact) -> EstimateReport:
    assert can_estimate(compiler.codegen)
    made = estimate_region(compiler.codegen, region, compiler.parsed_options, artifact)
    if isinstance(made, Cycles):
        return EstimateReport(seconds=made.seconds, cycles=made.count, hertz=made.hertz)
    return EstimateReport(seconds=made)


def add_estimate_notes(plan: Plan, estimates: RegionEstimates, asked: bool) -> Plan:
    """Return a plan with the notes, and one for each target whose compiler disagrees with its costs.

    Where compilers were `asked` before placing, the plan is by their seconds, and there is no such note.
    """
    notes = [*estimates.notes]
    for target in plan.targets if not asked else ():
        pairs = [
            (region.trips * region.seconds, region.trips * estimates.by_region[region.name].seconds)
            for region in plan.regions
            if region.target is target and region.name in estimates.by_region
        ]
        predicted, estimated = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
        if estimated > _DISAGREEMENT * predicted or predicted > _DISAGREEMENT * estimated:
            text = (
                f"the compiler estimates {format_quantity(estimated, 's')} for the regions of "
                f"{target.name}, predicted are {format_quantity(predicted, 's')}; "
                "--ask costs places by its seconds"
            )
            notes.append(Note("note", text))
    return replace(plan, notes=(*plan.notes, *notes)) if notes else plan
