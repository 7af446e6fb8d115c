"""Errors of regions that are allowed in each, and add up in the outputs of the network."""

from collections.abc import Collection, Sequence

from byoc.bundle import Bundle
from byoc.onnxrt import without_optimizations
from byoc.runtime import load_bundle
from byoc.support import report_step
from byoc.verification._bundle_comparison import BundleComparison, VerificationModels
from byoc.verification._bundle_runs import BundleRuns, Values, load_all_executors
from byoc.verification._part_trials import TrialOutcome, minimize_wrong
from byoc.verification._plain_models import convert_errors, make_reference_executor
from byoc.verification._region_verification import NotVerifiableError, RecordedRuns
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds


def find_added_errors(
    bundle: Bundle,
    models: VerificationModels,
    samples: Sequence[tuple[str, Values | None]],
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> tuple[str, ...]:
    """Return as few regions as must run on plain onnxruntime for the outputs of a bundle to be right.

    None of them can be left out; there are none where the outputs are off with all regions there, so
    that the host's part is wrong. Raises as `verify_on_samples` does.
    """
    computed = thresholds.for_computation_in(models.computed)
    not_here: dict[str, str] = {}
    executors = load_all_executors(bundle, not_here)
    regions = {region.name: region for _, region, _ in bundle.regions() if region.name not in not_here}
    with convert_errors(NotVerifiableError, "plain onnxruntime does not run the regions"):
        plain = {name: make_reference_executor(region) for name, region in regions.items()}

    def is_right(names: Collection[str]) -> bool:
        report_step(f"compare with {len(names)} of {len(regions)} regions on onnxruntime")
        runs = {**executors, **{name: plain[name] for name in names}}
        recorded = {name: RecordedRuns() for name in runs}
        with without_optimizations():
            loaded = BundleRuns(load_bundle(bundle, runs), runs, recorded, not_here)
        comparison = BundleComparison(bundle, models, computed, "", loaded)
        for name, inputs in samples:
            comparison.add_sample(name, inputs)
        comparison.add_special_samples()
        return comparison.conclude().passed

    if not regions or not is_right(regions):
        return ()
    return tuple(
        minimize_wrong(
            [*regions], lambda names: TrialOutcome.WRONG if is_right(names) else TrialOutcome.RIGHT
        )
    )
