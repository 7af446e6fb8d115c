"""The results of a verification as data and as rows of tables."""

from collections.abc import Iterable
from dataclasses import asdict
from math import inf, isfinite
from typing import Any

from byoc.report.units import share
from byoc.verify.bisect import Fault
from byoc.verify.compare import OutputError, RegionError, Verification


def verification_document(verification: Verification) -> dict[str, Any]:
    """Convert a verification to data: against, passed, largest_relative_error, outputs, accuracy.

    An error that is not finite is null, and so is the largest error then. `accuracy` compares with the
    model before its precision was lowered, null if it was not; a signal-to-noise ratio (dB) that is not
    finite is null, and `exact` says whether it is infinite.
    """
    outputs = [error_document(output) for output in verification.outputs]
    errors = [output["relative"] for output in outputs]
    return {
        "against": verification.against,
        "passed": verification.passed,
        "largest_relative_error": None if None in errors else max(errors, default=0.0),
        "outputs": outputs,
        "accuracy": _accuracy(verification),
    }


def _accuracy(verification: Verification) -> dict[str, Any] | None:
    if not verification.original:
        return None
    outputs = [
        {
            "name": output.name,
            "signal_to_noise": finite(output.signal_to_noise),
            "same_class": finite(output.same_class),
            "exact": output.signal_to_noise == inf,
        }
        for output in verification.accuracy
    ]
    return {"original": verification.original, "outputs": outputs}


def finite(value: float | None) -> float | None:
    """Return a number, or None if JSON cannot represent it."""
    return value if value is not None and isfinite(value) else None


def full_document(verification: Verification) -> dict[str, Any]:
    """Convert a verification to data, with the keys boundary, regions and not_compared in addition."""
    return verification_document(verification) | {
        "boundary": [error_document(error) for error in verification.boundary],
        "regions": [region_document(region) for region in verification.regions],
        "not_compared": verification.not_compared or None,
    }


def error_document(error: OutputError) -> dict[str, Any]:
    """Convert the error of a tensor to data; a number that is not finite is null."""
    data = asdict(error) | {"within": error.within}
    keys = ("absolute", "relative", "signal_to_noise", "cosine")
    return data | {key: finite(data[key]) for key in keys}


def region_document(region: RegionError) -> dict[str, Any]:
    """Convert the error of a region to data."""
    return {
        "name": region.name,
        "runs": region.runs,
        "within": region.within,
        "problem": region.problem,
        "outputs": [error_document(error) for error in region.outputs],
    }


def fault_document(fault: Fault, folder: str) -> dict[str, Any]:
    """Convert a fault to data; `folder` is the path that it was written to."""
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


def error_rows(heading: str, errors: Iterable[OutputError], region: str = "") -> list[dict[str, str]]:
    """Return the rows of a table of errors; `heading` is the column of the tensors' names."""
    first = {"region": region} if region else {}
    return [
        first
        | {
            heading: error.name,
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
