"""What `byoc verify` tells, as data and as rows of tables."""

from collections.abc import Iterable
from dataclasses import asdict
from math import inf
from typing import Any

from byoc.report.document import finite, verification_document
from byoc.report.units import share
from byoc.verify.bisect import Fault
from byoc.verify.compare import OutputError, RegionError, Verification

_NUMBERS = ("absolute", "relative", "signal_to_noise", "cosine")


def full_document(verification: Verification) -> dict[str, Any]:
    """Return all of a verification: `verification_document`, and boundary, regions, not_compared."""
    return verification_document(verification) | {
        "boundary": [error_document(error) for error in verification.boundary],
        "regions": [region_document(region) for region in verification.regions],
        "not_compared": verification.not_compared or None,
    }


def error_document(error: OutputError) -> dict[str, Any]:
    """Return the error of a tensor as data; what is not finite is null."""
    data = asdict(error) | {"within": error.within}
    return data | finite(data, *_NUMBERS)


def region_document(region: RegionError) -> dict[str, Any]:
    """Return the error of a region as data."""
    return {
        "name": region.name,
        "runs": region.runs,
        "within": region.within,
        "problem": region.problem,
        "outputs": [error_document(error) for error in region.outputs],
    }


def fault_document(fault: Fault, folder: str) -> dict[str, Any]:
    """Return a fault as data; `folder` is where it was written."""
    return {
        "region": fault.region,
        "operation": fault.operation,
        "op": fault.op,
        "operations": list(fault.operations),
        "told": str(fault),
        "tried": fault.tried,
        "outputs": [error_document(error) for error in fault.trial.errors],
        "folder": folder,
    }


def error_rows(what: str, errors: Iterable[OutputError], region: str = "") -> list[dict[str, str]]:
    """Return rows of a table, one for each tensor; `what` is what the tensors are called."""
    first = {"region": region} if region else {}
    return [
        first
        | {
            what: error.name,
            "dtype": error.dtype,
            "largest_error": f"{error.absolute:.1e}",
            "of_its_range": f"{error.relative:.1e}",
            "noise": _decibels(error.signal_to_noise),
            "cosine": "" if error.cosine is None else f"{error.cosine:.6f}",
            "differ": "" if error.differing is None else share(error.differing),
            "allowed": _allowed(error),
            "within": "yes" if error.within else f"NO{error.problem and f': it {error.problem}'}",
        }
        for error in errors
    ]


def _decibels(value: float | None) -> str:
    if value is None:
        return ""
    return "none" if value == inf else f"{value:.1f} dB"


def _allowed(error: OutputError) -> str:
    match error.measure:
        case "units":
            return f"{error.tolerance:g} units"
        case "dB":
            return f"{error.tolerance:g} dB"
        case _:
            return f"{error.tolerance:g}" if error.tolerance else "equal"
