"""The lines of a report that say how much a placement depends on its costs."""

from collections.abc import Iterator

from byoc.planning import DoubtfulUnit, PerturbedPlan
from byoc.reporting._quantities import format_count


def format_perturbation(found: PerturbedPlan | None, most: int | None) -> Iterator[str]:
    """Yield the regrets of a placement at perturbed costs, and the units whose device is in doubt.

    At most so many groups of units are told (`most`), None for all.
    """
    if found is None:
        return
    yield ""
    yield (
        f"With costs off by random factors ({found.sigma:g} the deviation of their logarithm, "
        f"{format_count(found.samples, 'sample')}):"
    )
    own = found.nominal if found.robust is None else found.chosen
    yield (
        f"  the placement costs {own.mean:.3f} times the best one on average, {own.worst:.3f} times at "
        f"worst; it is the best in {own.best:.0%} of the samples"
    )
    if found.robust is not None:
        before = found.nominal
        yield (
            f"  it is the best of {found.candidates} candidates for {_AIMS[found.robust]}; the one for "
            f"the costs as they are: {before.mean:.3f} on average, {before.worst:.3f} at worst"
        )
    if found.proven < found.samples:
        yield f"  the best is proven in {found.proven} of the samples; elsewhere regrets may be larger"
    yield from _format_units(found, most)


_AIMS = {"mean": "the average", "worst": "the worst case"}


def _format_units(found: PerturbedPlan, most: int | None) -> Iterator[str]:
    """Yield a line for all units of the same operators that change in the same way."""
    alike: dict[tuple[str, str, str], list[DoubtfulUnit]] = {}
    for unit in found.units:
        key = " ".join(unit.operators), unit.device, unit.elsewhere
        alike.setdefault(key, []).append(unit)
    for (operators, device, elsewhere), units in list(alike.items())[:most]:
        nodes = sum(unit.nodes for unit in units)
        many = f" ({format_count(nodes, 'node')})" if nodes > 1 else ""
        share, largest = sum(unit.share for unit in units) / len(units), units[0].share
        each = f", the likeliest of them in {largest:.0%}" if largest > share else ""
        better = f"{elsewhere} is better in {share:.0%} of the samples"
        yield f"  {operators}{many} on {device}: {better}{each}"
    if most is not None and len(alike) > most:
        yield f"  and {format_count(len(alike) - most, 'other group')} of units (--verbose)"
