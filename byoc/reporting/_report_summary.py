"""The one-line summary of a report: what is where, what it is predicted to take, how it was verified."""

from collections.abc import Iterable

from byoc.bundle import PredictedCosts, ReachReport, RefusalReport, Report, VerificationReport
from byoc.reporting._estimates import ESTIMATE_LIMIT
from byoc.reporting._quantities import format_count, format_quantity, format_share, objective_unit

# A smaller share would be shown as 0.0 %.
_LEAST_ESTIMATE = 5e-4

# What a strategy minimized where that is no sum.
_MEASURES = {
    "total": "",
    "makespan": ", {} with host and accelerators at work at once",
    "load": ", in a pipeline a run every {}",
}


def summarize_report(report: Report) -> str:
    """Format the one-line summary of a report."""
    nodes, regions = report.nodes, len(report.regions)
    used = {region.device for region in report.regions}
    target = " and ".join(
        report.name_target(name) for name in report.targets if not used or name in used
    )
    return (
        f"{report.display_name}: {nodes.offloaded} of {format_count(nodes.total, 'node')} "
        f"({_format_compute(report)}) on {target} in "
        f"{format_count(regions, 'region')}, {nodes.host} on the host; "
        f"{_format_returned(report.refusals)}{_format_prediction(report.predicted)}; "
        f"{_format_estimate(report.predicted)}{_format_verification(report)}"
    )


def _format_compute(report: Report) -> str:
    """Format the share of the compute that is offloaded, `unknown` if more than that is an estimate.

    Operations behind an unknown shape are hardly counted, so where they are many it is of the rest.
    """
    some = report.nodes.offloaded > 0
    if some and report.predicted.estimated > report.compute.offloaded:
        return "an unknown share of the compute"
    known = "known " if some and report.predicted.estimated > ESTIMATE_LIMIT else ""
    return f"{format_share(report.compute.offloaded)} of the {known}compute"


def _format_estimate(predicted: PredictedCosts) -> str:
    """Format the share of the work that is an estimate, with `; ` at the end; empty if there is none."""
    if predicted.estimated < _LEAST_ESTIMATE:
        return ""
    return f"{format_share(predicted.estimated)} of the work is an estimate; "


def _format_returned(refusals: Iterable[RefusalReport]) -> str:
    """Format the number of nodes that went back to the host, and why, with `; ` at the end."""
    back = [each for each in refusals if each.host]
    if not back:
        return ""
    reasons = dict.fromkeys(f"codegen {each.codegen}: {each.reason}" for each in back)
    first, *others = reasons
    more = f", and {format_count(len(others), 'other reason')}" if others else ""
    nodes = format_count(sum(each.host for each in back), "node")
    return f"{nodes} went back to the host: {first}{more}; "


def _format_prediction(predicted: PredictedCosts) -> str:
    """Format the prediction: joules first if they are the objective, last if they are known."""
    seconds = format_quantity(predicted.seconds, "s")
    unit, joules = objective_unit(predicted.objective), predicted.joules
    if unit == "J" and joules is not None:
        alone = predicted.host_only_joules
        host = "" if alone is None else f", host alone {format_quantity(alone, 'J')}"
        return f"predicted {format_quantity(joules, 'J')}{host}; {seconds}"
    also = "" if unit or joules is None else f"; {format_quantity(joules, 'J')}"
    least = _MEASURES[predicted.measure].format(format_quantity(predicted.optimized, unit))
    return f"predicted {seconds}{least}, host alone {format_quantity(predicted.host_only, 's')}{also}"


def _format_verification(report: Report) -> str:
    verification = report.verification
    left = [region for region in report.regions if region.not_here]
    if left and len(left) == len(report.regions):
        return f"compiled, not verified here: {left[0].not_here}"
    if verification is not None:
        error = verification.largest_relative_error
        size = f"{error:.1e}" if error else "0"
        kept = _format_accuracy(verification)
        if " dB " in kept and report.precision is not None and report.precision.budget:
            kept += " on the verification's sample"  # the budget was held on others
        on = f" on {verification.samples} samples" if verification.samples > 1 else ""
        by = f" by {verification.judge}" if verification.judge else ""
        but = _format_left(len(left), len(report.regions))
        return (
            f"verified{but}{on}{by}, largest error {size} of the output's range"
            f"{_format_explanation(verification)}{_format_ties(verification)}"
            f"{_format_reach(verification.reach)}{kept}"
        )
    return "not verified" if report.verification_missing else f"not verified: {report.not_verified}"


def _format_left(count: int, total: int) -> str:
    """Format the number of regions that could not be run here; empty where there are none."""
    return f" but for {count} of {format_count(total, 'region')}" if count else ""


def _format_explanation(verification: VerificationReport) -> str:
    """Format what explains the largest error where that is beyond the tolerance: noise, or fidelity."""
    known = [
        each
        for each in verification.outputs
        if (each.noise or each.fidelity) and each.relative is not None
    ]
    worst = max(known, key=lambda each: each.relative or 0.0, default=None)
    if worst is None:
        return ""
    if worst.fidelity is not None and (worst.absolute or 0.0) > (worst.noise or 0.0):
        kept = worst.fidelity.reference
        of_reference = "" if kept is None else f" ({kept:.1f} dB)"
        return f", as near to the float model as onnxruntime with the same integers{of_reference}"
    return f", within the noise of {worst.noise_source}"


def _format_ties(verification: VerificationReport) -> str:
    """Format the rows that are in another order or others, of the selection with most of them."""
    if not verification.tie_breaks:
        return ""
    first, *others = verification.tie_breaks
    moved = f"{first.moved} in another order" if first.moved else ""
    replaced = f"{first.replaced} replaced by others" if first.replaced else ""
    more = f", and {format_count(len(others), 'other selection')} like it" if others else ""
    return (
        f"; of {first.rows} rows of {', '.join(first.outputs)} "
        f"{' and '.join(filter(None, (moved, replaced)))}, tied within {first.gap:.1e}{more}"
    )


def _format_reach(reach: ReachReport | None) -> str:
    """Format the number of regions that the sample did not reach, and what they were compared on."""
    if reach is None or not reach.not_reached:
        return ""
    ways = [
        f"{reach.others} reached by other inputs" if reach.others else "",
        f"{reach.alone} compared alone" if reach.alone else "",
        f"{reach.never} never compared" if reach.never else "",
    ]
    missed = f"{reach.not_reached} of {format_count(reach.regions, 'region')}"
    return f"; {missed} not reached by the sample ({', '.join(filter(None, ways))})"


def _format_accuracy(verification: VerificationReport) -> str:
    """Format the accuracy that lower precision left of the original's, for the worst output."""
    accuracy = verification.accuracy
    if accuracy is None:
        return ""
    known = [output.signal_to_noise for output in accuracy.outputs]
    worst = min((ratio for ratio in known if ratio is not None), default=None)
    if worst is None:
        exact = all(output.exact for output in accuracy.outputs)
        return f"; equal to {accuracy.original}" if exact else ""
    return f"; {worst:.1f} dB signal-to-noise against {accuracy.original}"
