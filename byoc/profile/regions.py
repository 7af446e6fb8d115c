"""The regions of a bundle: the predicted seconds, and those that their codegens report."""

from dataclasses import dataclass

from byoc.bundle.read import Bundle
from byoc.codegen import Measured, find_codegen
from byoc.codegen.asking import measure_seconds
from byoc.errors import InputError


@dataclass(frozen=True, slots=True)
class TimedRegion:
    """The predicted seconds of a region, and those its codegen reports, without transfers."""

    region: str
    where: str
    predicted: float
    codegen_seconds: float

    @property
    def error(self) -> float:
        """The relative error of the prediction; positive if it is too long."""
        return self.predicted / self.codegen_seconds - 1


def time_regions(bundle: Bundle) -> list[TimedRegion]:
    """Return the regions of a bundle whose codegens can report a time.

    Raise InputError if a codegen is missing or the report lacks a region, and CompileError if a codegen
    fails to report a time.
    """
    predicted = _predicted_seconds(bundle)
    found = []
    for name, region, _ in bundle.regions():
        codegen = find_codegen(name)
        if isinstance(codegen, Measured):
            seconds = predicted.get(region.name)
            if not isinstance(seconds, (int, float)):
                raise InputError(f"the bundle's report does not say what was predicted of {region.name}")
            reported = measure_seconds(codegen, region)
            found.append(TimedRegion(region.name, region.target, float(seconds), reported))
    return found


def _predicted_seconds(bundle: Bundle) -> dict[str, object]:
    """Return the predicted seconds of each region, as far as they are in the report."""
    regions = bundle.manifest.report.get("regions")
    rows = regions if isinstance(regions, list) else []
    return {str(row.get("name")): row.get("seconds") for row in rows if isinstance(row, dict)}
