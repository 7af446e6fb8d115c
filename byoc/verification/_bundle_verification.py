"""Verification of a bundle: the model on plain onnxruntime against the bundle on its executors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byoc.bundle import Bundle
from byoc.model import Model
from byoc.runtime import RUNTIMES
from byoc.samples import model_samples
from byoc.verification._bundle_comparison import BundleComparison, VerificationModels
from byoc.verification._bundle_runs import Values
from byoc.verification._plain_models import convert_errors
from byoc.verification._region_verification import NotVerifiableError
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._verification_result import Verification


@dataclass(frozen=True)
class NotVerified:
    """The reason why there was no verification; `missing` says that one was to be made."""

    reason: str
    missing: bool = False


def verify_bundle(  # noqa: PLR0913, PLR0917 - each has a default
    bundle: Bundle,
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    original: Model | None = None,
    computed: str = "",
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = False,
    boundary: bool = False,
) -> Verification:
    """Compare the outputs of a bundle with those of the model that it was made from, on one sample.

    The sample is seeded unless `inputs` are given. Everything else is as in `verify_on_samples`.
    """
    models = VerificationModels(model, original, computed)
    samples = (("", inputs),)
    return verify_on_samples(bundle, models, samples, thresholds, regions, boundary)


def verify_on_samples(  # noqa: PLR0913, PLR0917 - each has a default
    bundle: Bundle,
    models: VerificationModels,
    samples: Sequence[tuple[str, Values | None]] = (("", None),),
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = False,
    boundary: bool = False,
    runtime: str = RUNTIMES[0],
    special: bool = False,
) -> Verification:
    """Compare the outputs of a bundle with those of the model that it was made from.

    `samples` are inputs with names for messages; None stands for the seeded ones of the model. The
    errors are the worst over all of them, and `models.original`, which has a higher precision, is
    compared without a limit. Where regions compute in a lower precision, the tolerance is that of its
    dtype. An error beyond its tolerance is compared with the noise of its tensor. With `regions`, each
    region alone is compared, too: on what reaches it, and one that nothing reaches on other samples;
    with `boundary`, every boundary tensor on the first sample. `runtime` runs the bundle. onnxruntime
    runs without optimizations, since these change results.

    Raises MissingRuntimeError; NotVerifiableError if the model does not run on a sample, or its outputs
    have no elements on any; InputError if the bundle does not run, or has other inputs.
    """
    computed = thresholds.for_computation_in(models.computed)
    comparison = BundleComparison(bundle, models, computed, runtime)
    for name, inputs in samples:
        comparison.add_sample(name, inputs)
    if special:
        comparison.add_special_samples()
    if boundary:
        comparison.compare_boundary()
    if regions:
        comparison.compare_regions(seeded=samples[0][1] is None, special=special)
    return comparison.conclude()


def make_inputs(model: Model, seed: int = 0) -> Mapping[str, Any]:
    """Return inputs of a model that depend on the seed only. Raise NotVerifiableError."""
    with convert_errors(NotVerifiableError, model.source):
        return model_samples(model, seed)
