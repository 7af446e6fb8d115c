"""The results of a verification as data and as rows of tables."""

from collections.abc import Iterable
from dataclasses import asdict
from math import inf, isfinite
from typing import Any

from byoc.reporting._quantities import format_share
from byoc.verification import Fault, OutputError, RegionError, Verification


def make_verification_document(verification: Verification) -> dict[str, Any]:
    """Convert a verification to data: against, passed, largest_relative_error, outputs, accuracy.

    An error that is not finite is null, and so is the largest error then. `accuracy` compares with the
    model before its precision was lowered, null if it was not; a signal-to-noise ratio (dB) that is not
    finite is null, and `exact` says whether it is infinite.
    """
    outputs = [make_error_document(output) for output in verification.outputs]
    errors = [output["relative"] for output in outputs]
    return {
        "against": verification.against,
        "passed": verification.passed,
        "largest_relative_error": None if None in errors else max(errors, default=0.0),
        "outputs": outputs,
        "accuracy": _accuracy_document(verification),
    }


def _accuracy_document(verification: Verification) -> dict[str, Any] | None:
    if not verification.original:
        return None
    outputs = [
        {
            "name": output.name,
            "signal_to_noise": finite_or_none(output.signal_to_noise),
            "same_class": finite_or_none(output.same_class),
            "exact": output.signal_to_noise == inf,
        }
        for output in verification.accuracy
    ]
    return {"original": verification.original, "outputs": outputs}


def finite_or_none(value: float | None) -> float | None:
    """Return a number, or None if JSON cannot represent it."""
    return value if value is not None and isfinite(value) else None


def make_full_verification_document(verification: Verification) -> dict[str, Any]:
    """Convert a verification to data, with the keys boundary, regions and not_compared in addition."""
    return make_verification_document(verification) | {
        "boundary": [make_error_document(error) for error in verification.boundary],
        "regions": [make_region_error_document(region) for region in verification.regions],
        "not_compared": verification.not_compared or None,
    }


def make_error_document(error: OutputError) -> dict[str, Any]:
    """Convert the error of a tensor to data; a number that is not finite is null."""
    data = asdict(error) | {"within": error.within}
    keys = ("absolute", "relative", "signal_to_noise", "cosine")
    return data | {key: finite_or_none(data[key]) for key in keys}


def make_region_error_document(region: RegionError) -> dict[str, Any]:
    """Convert the error of a region to data."""
    return {
        "name": region.name,
        "runs": region.runs,
        "within": region.within,
        "problem": region.problem,
        "outputs": [make_error_document(error) for error in region.outputs],
    }


def make_fault_document(fault: Fault, folder: str) -> dict[str, Any]:
    """Convert a fault to data; `folder` is the path that it was written to."""
    return {
        "region": fault.region,
        "operation": fault.operation,
        "op": fault.op,
        "operations": list(fault.operations),
        "told": str(fault),
        "tried": fault.trial_count,
        "outputs": [make_error_document(error) for error in fault.trial.errors],
        "folder": folder,
    }


def make_error_rows(
    heading: str, errors: Iterable[OutputError], region: str = ""
) -> list[dict[str, str]]:
    """Return the rows of a table of errors; `heading` is the column of the tensors' names."""
    first = {"region": region} if region else {}
    return [
        first
        | {
            heading: error.name,
            "dtype": error.dtype,
            "largest_error": f"{error.absolute:.1e}",
            "of_its_range": f"{error.relative:.1e}",
            "noise": _format_decibels(error.signal_to_noise),
            "cosine": "" if error.cosine is None else f"{error.cosine:.6f}",
            "differ": "" if error.differing is None else format_share(error.differing),
            "allowed": _format_tolerance(error),
            "within": "yes" if error.within else f"NO{error.problem and f': it {error.problem}'}",
        }
        for error in errors
    ]


def _format_decibels(value: float | None) -> str:
    if value is None:
        return ""
    return "none" if value == inf else f"{value:.1f} dB"


def _format_tolerance(error: OutputError) -> str:
    match error.measure:
        case "units":
            return f"{error.tolerance:g} units"
        case "dB":
            return f"{error.tolerance:g} dB"
        case _:
            return f"{error.tolerance:g}" if error.tolerance else "equal"
