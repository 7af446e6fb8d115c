"""The verification of a bundle of several variants, put together from those of each."""

from collections.abc import Mapping
from dataclasses import replace

from byoc.verification._verification_result import OutputError, Verification


def merge_verifications(found: Mapping[str, Verification]) -> Verification:
    """Return the verifications of variants, by name, as one, in which each is said by its name.

    It has passed where all have. Outputs and boundary tensors stand behind the name of their variant,
    `prefill: logits`; regions are called after it already.
    """
    each = found.items()
    first = next(iter(found.values()))
    return Verification(
        against=first.against,
        outputs=tuple(_name(error, name) for name, one in each for error in one.outputs),
        original=first.original,
        accuracy=tuple(
            replace(accuracy, name=f"{name}: {accuracy.name}")
            for name, one in each
            for accuracy in one.accuracy
        ),
        boundary=tuple(_name(error, name) for name, one in each for error in one.boundary),
        regions=tuple(region for _, one in each for region in one.regions),
        not_compared="; ".join(f"{name}: {one.not_compared}" for name, one in each if one.not_compared),
        samples=sum(one.samples for _, one in each),
        judge=next((one.judge for _, one in each if one.judge), ""),
        notes=tuple(f"{name}: {note}" for name, one in each for note in one.notes),
        not_here={region: why for _, one in each for region, why in one.not_here.items()},
    )


def _name(error: OutputError, variant: str) -> OutputError:
    return replace(error, name=f"{variant}: {error.name}")
