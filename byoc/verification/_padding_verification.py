"""Verification of padding: smaller inputs, padded to a bundle, against the model at their own sizes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from byoc.bundle import Bundle
from byoc.model import Model, evaluate_dim
from byoc.padding import PaddingRule, cut_outputs
from byoc.runtime import RUNTIMES
from byoc.samples import model_samples
from byoc.verification._bundle_comparison import BundleComparison, VerificationModels
from byoc.verification._bundle_runs import BundleRuns, Values
from byoc.verification._plain_models import convert_errors
from byoc.verification._region_verification import NotVerifiableError, worst_errors
from byoc.verification._tensor_comparison import compare_tensors
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._verification_result import OutputError, Verification

LoadSized = Callable[[Mapping[str, int]], Model]
"""Loads the original with dimensions at some sizes."""


def verify_padding(
    bundle: Bundle,
    rule: PaddingRule,
    load: LoadSized,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    runtime: str = RUNTIMES[0],
) -> Verification:
    """Compare the cut outputs of a bundle on padded inputs with those of its model without padding.

    That is done at several sizes of the rule's dimensions (`PaddingRule.list_trial_sizes`). Outputs are
    called `logits, padded`. Raises NotVerifiableError if the model does not run at one of them, and
    InputError if the bundle does not.
    """
    runs = replace(BundleRuns.load(bundle, runtime), padding=rule)
    found: list[Verification] = []
    for sizes in rule.list_trial_sizes():
        told = ", ".join(f"{name}={size}" for name, size in sizes.items())
        with convert_errors(NotVerifiableError, f"at {told}"):
            model = load(rule.complete(sizes))
            inputs = _meet_conditions(rule, model_samples(model))
        comparison = BundleComparison(bundle, VerificationModels(model), thresholds, runtime, runs)
        comparison.add_sample(f"at {told}", inputs)
        found.append(comparison.conclude())
    errors = worst_errors([one.outputs for one in found])
    return replace(found[0], outputs=_name_padded(errors), samples=len(found))


def _name_padded(errors: tuple[OutputError, ...]) -> tuple[OutputError, ...]:
    return tuple(replace(error, name=f"{error.name}, padded") for error in errors)


def _meet_conditions(rule: PaddingRule, inputs: Values) -> dict[str, Any]:
    """Return inputs that begin as the rule asks for."""
    found = dict(inputs)
    for name, each in rule.inputs.items():
        if each.first is not None and name in found:
            value = np.array(found[name])
            value[(slice(None),) * each.first.axis + (0,)] = each.first.value
            found[name] = value
    return found


def verify_independence(
    bundle: Bundle, rule: PaddingRule, inputs: Values, thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> Verification:
    """Compare the cut outputs of a bundle on padded inputs with the same elements of the whole.

    `inputs` are of the sizes of the variant. For a rule that reads no values an output does not depend
    on what stands behind an input, so that both are equal, in whatever precision regions compute.
    Raises InputError if the bundle does not run.
    """
    runs = BundleRuns.load(bundle)
    padded = replace(runs, padding=rule)
    whole = runs.run(inputs)
    rounds = []
    for sizes in rule.list_trial_sizes():
        smaller = dict(_cut_inputs(rule, inputs, sizes))
        expected = cut_outputs(rule, whole, sizes)
        rounds.append(tuple(compare_tensors(expected, padded.run(smaller), thresholds)))
    against = "itself on other values behind the inputs"
    return Verification(against, _name_padded(worst_errors(rounds)), samples=len(rounds))


def _cut_inputs(
    rule: PaddingRule, inputs: Values, sizes: Mapping[str, int]
) -> Iterator[tuple[str, Any]]:
    for name, value in inputs.items():
        each = rule.inputs.get(name)
        if each is None:
            yield name, value
        else:
            yield name, value[tuple(slice(evaluate_dim(dim, sizes)) for dim in each.shape)]


def add_padded(verification: Verification, padded: Verification) -> Verification:
    """Return a verification with the outputs of another, on padded inputs, besides its own."""
    return replace(
        verification,
        outputs=(*verification.outputs, *padded.outputs),
        samples=verification.samples + padded.samples,
    )


def describe_failure(padded: Verification) -> str:
    """Return why padded outputs do not pass, empty where they do."""
    worst = padded.worst
    if worst is None or worst.within:
        return ""
    return f"verification: output '{worst.name}' {worst.problem or 'differs ' + worst.error_phrase}"
