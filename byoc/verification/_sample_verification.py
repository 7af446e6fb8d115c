"""Verification of a bundle on several samples: the user's, or made ones of several sizes."""

from collections.abc import Sequence

from byoc.bundle import Bundle
from byoc.errors import InputError
from byoc.model import Model
from byoc.runtime import RUNTIMES
from byoc.samples import Sample, list_samples
from byoc.verification._bundle_comparison import VerificationModels
from byoc.verification._bundle_runs import Values
from byoc.verification._bundle_verification import verify_on_samples
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._verification_result import Verification


def verify_samples(  # noqa: PLR0913, PLR0917 - each has a default
    bundle: Bundle,
    against: VerificationModels,
    given: Sequence[Sample],
    source: Model,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = True,
    boundary: bool = False,
    runtime: str = RUNTIMES[0],
) -> Verification:
    """Compare the outputs and regions of a bundle with those of its model; return the worst errors.

    `given` are the user's samples; without any, samples are made for `source`, whose inputs the bundle
    has. Raises as `verify_on_samples` does; NotVerifiableError names the user's sample that does not
    run.
    """
    samples = choose_samples(given, source)
    return verify_on_samples(bundle, against, samples, thresholds, regions, boundary, runtime, regions)


def choose_samples(given: Sequence[Sample], source: Model) -> list[tuple[str, Values | None]]:
    """Return the samples to verify on, with names for messages; None stands for the seeded ones."""
    if given:
        return [(sample.name, sample.inputs) for sample in given]
    try:
        return [("", None), *(("", other.inputs) for other in list_samples(source)[1:])]
    except InputError:  # raised again, unless another judge than onnxruntime takes what is made
        return [("", None)]
