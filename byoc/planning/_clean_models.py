"""Clean-up of models for the targets that they are planned for."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from byoc.errors import InputError
from byoc.model import TARGET_KEY, Model, get_metadata
from byoc.passes import (
    CleanedModel,
    CleanPass,
    ReadQuantizedOperators,
    clean_model,
    list_clean_passes,
)
from byoc.rules import Target
from byoc.samples import model_samples


def clean_for_targets(
    model: Model, targets: Sequence[Target], left_out: str | Collection[str] = ()
) -> CleanedModel:
    """Clean a model by the passes that run without being asked for, but for those that are left out.

    Raises InputError for a name among `left_out` that no such pass has, and for the model of a bundle.
    """
    _check_not_partitioned(model)
    names = [left_out] if isinstance(left_out, str) else left_out
    cleaned = clean_model(model, choose_clean_passes(targets, names))
    if cleaned.model is model or model.make_samples is not None:
        return cleaned
    # Samples are made from what reads the inputs, and are to be the same with and without clean-up.
    return replace(cleaned, model=replace(cleaned.model, make_samples=partial(model_samples, model)))


def _check_not_partitioned(model: Model) -> None:
    """Raise InputError for the model of a bundle, whose regions are calls, which no rule speaks of."""
    for node in model.structure.graph.node:
        target = get_metadata(node, TARGET_KEY)
        if target:
            raise InputError(
                f"{model.source}: is partitioned already: '{node.op_type}' is a region of {target}; "
                "take the model that it was made of"
            )


def choose_clean_passes(
    targets: Sequence[Target], left_out: Collection[str] = ()
) -> tuple[CleanPass, ...]:
    """Return the clean-up passes for some targets. Raises InputError as `clean_for_targets` does.

    Flatten becomes Reshape if a target takes the one only, and none the other only; BatchNormalization
    is folded if a target wants that. Operators of integers are read as QDQ groups if a target takes
    quantized operators, and none speaks of operators of integers.
    """
    spoken = [_list_operators(target) for target in targets]
    reshape = any("Reshape" in each and "Flatten" not in each for each in spoken)
    flatten = any("Flatten" in each and "Reshape" not in each for each in spoken)
    wants = {want for target in targets for want in target.rules.wants}
    integers = ReadQuantizedOperators.list_read_operators()
    quantized = any(target.has_quantized_rules for target in targets) and not any(
        "*" in each or integers & each for each in spoken
    )
    return list_clean_passes(
        reshape and not flatten, "folded_batchnorm" in wants, left_out, quantized=quantized
    )


def _list_operators(target: Target) -> frozenset[str]:
    """Return the operators that a rule file speaks of, in rules or composites."""
    ruled = {operator for rule in target.rules.ops for operator in rule.op}
    if "*" in ruled:
        ruled |= {"Flatten", "Reshape"}
    composed = {operator for each in target.patterns for line in each.lines for operator in line.ops}
    return frozenset(ruled | composed)
