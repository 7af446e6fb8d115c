"""Verification of a bundle on several samples: the user's, or made ones of several sizes."""

from collections.abc import Sequence
from dataclasses import replace

from byoc.bundle import Bundle
from byoc.model import Model
from byoc.samples import Inputs, NoSampleError, Sample, list_samples
from byoc.verification._bundle_verification import VerificationModels, verify_bundle
from byoc.verification._region_verification import NotVerifiableError, worst_errors
from byoc.verification._tensor_comparison import Verification


def verify_samples(
    bundle: Bundle, against: VerificationModels, given: Sequence[Sample], source: Model
) -> Verification:
    """Compare the outputs of a bundle with those of its model on samples, and return the worst errors.

    `given` are the user's samples; without any, samples are made for `source`, whose inputs the bundle
    has. Raises as `verify_bundle` does; NotVerifiableError names the user's sample that does not run.
    """

    def verify(inputs: Inputs | None) -> Verification:
        return verify_bundle(
            bundle, against.model, inputs, original=against.original, computed=against.computed
        )

    found = []
    for sample in given:
        try:
            found.append(verify(sample.inputs))
        except NotVerifiableError as error:
            raise NotVerifiableError(f"{sample.name}: {error}") from error
    if not given:
        try:
            others = list_samples(source)[1:]
        except NoSampleError as error:
            raise NotVerifiableError(f"{source.source}: {error}") from error
        found = [verify(None), *(verify(other.inputs) for other in others)]
    return _merge_verifications(found)


def _merge_verifications(found: Sequence[Verification]) -> Verification:
    """Return the first verification, with the worst error of each output over all of them."""
    outputs = worst_errors([each.outputs for each in found])
    accuracy = {one.name: one for each in found for one in each.accuracy}
    for each in found:
        for one in each.accuracy:
            if one.signal_to_noise < accuracy[one.name].signal_to_noise:
                accuracy[one.name] = one
    return replace(found[0], outputs=outputs, accuracy=tuple(accuracy.values()), samples=len(found))
