"""Recovery of regions that compute wrong: other options, then without an operation, then on the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from byoc.bundle import spread_refusal
from byoc.codegen import Refusal
from byoc.errors import InputError
from byoc.support import report_step
from byoc.verification import (
    DEFAULT_THRESHOLDS,
    bisect_region,
)

if TYPE_CHECKING:
    from byoc.bundle import Bundle, RegionCompiler, RegionEntry
    from byoc.verification import (
        Fault,
        OutputError,
        RegionError,
        Thresholds,
    )

# Rounds of planning in which the operation at fault is searched for; later ones give up whole regions,
# so that a compiler that is wrong everywhere costs a few rounds and no more.
_BISECTED_ROUNDS = 8


def refuse_wrong_regions(
    bundle: Bundle,
    compilers: Mapping[str, RegionCompiler],
    wrong: Iterable[RegionError],
    thresholds: Thresholds,
    rounds: int,
) -> list[Refusal]:
    """Return the refusals by which the next plan does without what computes wrong in some regions.

    A region gets the codegen's next options. Where these are used up, the operation at fault is left
    out, and without one, or after some `rounds` of planning, the whole region. Regions that share an
    artifact share its fate.
    """
    regions = {each.name: each for one in bundle.variants for _, each, _ in one.regions()}
    found: dict[str, Refusal] = {}
    for error in wrong:
        if error.name in found:  # as one that is identical to it
            continue
        entry = next(each for each in bundle.manifest.regions if each.name == error.name)
        refusal = _refuse(bundle, compilers[entry.target], entry, error, thresholds, rounds)
        twins = [regions[name] for name in _list_twins(bundle, entry) if name in regions]
        for each in (refusal, *spread_refusal(refusal, regions[entry.name], twins)):
            found.setdefault(each.region, each)
    return [*found.values()]


def refuse_added_errors(
    bundle: Bundle, compilers: Mapping[str, RegionCompiler], names: Iterable[str], reason: str
) -> list[Refusal]:
    """Return the refusals of regions that are right alone, and whose errors add up in the network."""
    entries = {entry.name: entry for entry in bundle.manifest.regions}
    return [
        Refusal(
            entries[name].target,
            entries[name].codegen,
            name,
            reason,
            failed=True,
            options=_find_next_options(compilers[entries[name].target], entries[name]),
        )
        for name in names
    ]


def _refuse(  # noqa: PLR0913, PLR0917 - what is refused, and by which limits
    bundle: Bundle,
    compiler: RegionCompiler,
    entry: RegionEntry,
    error: RegionError,
    thresholds: Thresholds,
    rounds: int,
) -> Refusal:
    """Return the refusal of a region that computes wrong."""
    whole = Refusal(
        entry.target,
        entry.codegen,
        entry.name,
        f"computed wrong: {error.description}",
        failed=_is_defect(error),
        options=_find_next_options(compiler, entry),
    )
    if whole.options is not None or error.problem or rounds >= _BISECTED_ROUNDS:
        return whole
    report_step(f"find the operation at fault in {entry.name}")
    try:
        fault = bisect_region(
            bundle,
            entry.name,
            thresholds=thresholds,
            own_inputs=error.wrong_inputs,
            special=error.special,
            find_alike=True,
        )
    except InputError:  # it is right when it is compiled again, or a part of it cannot be compiled
        return whole
    nodes = (fault.operation, *fault.alike)
    return replace(whole, reason=_describe_fault(fault), nodes=nodes)


def _find_next_options(compiler: RegionCompiler, entry: RegionEntry) -> Mapping[str, str] | None:
    """Return the options that change when a region is compiled next, None where no others are left."""
    attempts = [compiler, *compiler.recoveries]
    tried = [dict(each.options) == dict(entry.codegen_options) for each in attempts]
    following = attempts[tried.index(True) + 1 :] if True in tried else ()
    if not following:
        return None
    now = entry.codegen_options
    return {name: text for name, text in following[0].options.items() if now.get(name) != text}


def _list_twins(bundle: Bundle, entry: RegionEntry) -> Iterator[str]:
    """Yield the other regions, of all variants, that have the artifact of one."""
    own = entry.same_as or entry.name
    for each in bundle.manifest.regions:
        if own in (each.name, each.same_as) and each.name != entry.name:
            yield each.name


def _is_defect(error: RegionError) -> bool:
    """Return whether a region is off by more than is allowed where a user sets no limits of his own."""
    if error.problem or error.layer_problem:
        return True
    return any(_is_off_by_default(each) for each in error.outputs if not each.within)


def _is_off_by_default(error: OutputError) -> bool:
    limit, measure = DEFAULT_THRESHOLDS.limit_for(error.dtype, error.measure == "units")
    return not replace(error, tolerance=limit, measure=measure).within


def _describe_fault(fault: Fault) -> str:
    """Describe the operation that is wrong, and its error."""
    worst, layers = fault.worst, fault.trial.layers
    size = worst.problem or f"off {worst.error_phrase.partition(',')[0]}"
    if layers is not None and layers.wrong:
        size = str(layers.wrong[0])
    more = f" and {len(fault.alike)} more" if fault.alike else ""
    others = [f"'{name}'" for name in fault.operations if name != fault.operation]
    joint = f" together with {', '.join(others)}" if others else ""
    return f"{fault.op} '{fault.operation}'{more} computed wrong{joint} ({size})"
