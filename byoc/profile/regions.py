"""The regions of a bundle: the seconds predicted, and those that their codegens say they take."""

from dataclasses import dataclass

from byoc.bundle.read import Bundle
from byoc.codegen import Measured, find_codegen
from byoc.codegen.asking import timed
from byoc.errors import InputError


@dataclass(frozen=True, slots=True)
class TimedRegion:
    """A region on `where`: the seconds predicted and those that its codegen says, transfers left out."""

    region: str
    where: str
    predicted: float
    told: float

    @property
    def error(self) -> float:
        """The part of the codegen's seconds that the prediction is over (positive) or under them."""
        return self.predicted / self.told - 1


def timed_regions(bundle: Bundle) -> list[TimedRegion]:
    """Return the regions of a bundle whose codegens can time one.

    Raises InputError where a codegen is missing or the report lacks a region, and CompileError where a
    codegen fails to time one.
    """
    predicted = _predicted(bundle)
    found = []
    for name, region, _ in bundle.regions():
        codegen = find_codegen(name)
        if isinstance(codegen, Measured):
            seconds = predicted.get(region.name)
            if not isinstance(seconds, (int, float)):
                raise InputError(f"the bundle's report does not say what was predicted of {region.name}")
            told = timed(codegen, region)
            found.append(TimedRegion(region.name, region.target, float(seconds), told))
    return found


def _predicted(bundle: Bundle) -> dict[str, object]:
    """Return the seconds predicted of each region, as far as the report tells them."""
    told = bundle.manifest.report.get("regions")
    rows = told if isinstance(told, list) else []
    return {str(row.get("name")): row.get("seconds") for row in rows if isinstance(row, dict)}
