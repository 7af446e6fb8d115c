"""Verification of a bundle against plain onnxruntime: samples, sizes, padding."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from byoc.bundle import FAULT_FILE, Bundle, Consent, RegionCompiler
from byoc.codegen import UNLESS_TRUSTED, Codegens, Isolation, Region, drop_executing_options, read_region
from byoc.errors import InputError, escape_unprintable
from byoc.model import Model, check_model, evaluate_dim, parse_layout
from byoc.padding import PaddingRule, RowSplit, cut_outputs
from byoc.runtime import RUNTIMES
from byoc.samples import (
    Sample,
    keeping_sessions,
    list_samples,
    model_samples,
    read_npz,
    restore_dtype,
    write_npz,
)
from byoc.support import StrictModel, read_limited, require_inside, write_text
from byoc.verification._bisection import Fault
from byoc.verification._bundle_comparison import BundleComparison, VerificationModels
from byoc.verification._bundle_runs import BundleRuns, Values
from byoc.verification._noise import compare_tensors
from byoc.verification._part_trials import run_trial, save_part
from byoc.verification._quantization_noise import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._region_cutter import RegionPart, convert_errors
from byoc.verification._region_verification import NotVerifiableError, worst_errors
from byoc.verification._verification_result import OutputError, RegionError, Verification

# A fault on disk: the smallest model that shows it, with its inputs and outputs.
#
# The folder can be sent to a vendor: `byoc verify FOLDER` compiles the model with the codegen once
# more, and reports whether it is still wrong.

FAULT_MODEL = "model.onnx"
FAULT_INPUTS = "inputs.npz"
_FILES = (FAULT_FILE, FAULT_MODEL, FAULT_INPUTS, "expected.npz", "actual.npz", "README.txt")
_MOST_BYTES = 1 << 24


class FaultFile(StrictModel):
    """The content of `fault.json`: the fault, and the way the model was compiled."""

    format: int = Field(ge=1, le=1)
    region: str
    target: str
    codegen: str
    codegen_options: dict[str, str]
    weights: str
    operation: str
    op: str
    operations: tuple[str, ...]
    told: str
    thresholds: dict[str, Any]


def write_fault(fault: Fault, folder: Path, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> None:
    """Write a fault to a folder, which is created; an earlier fault there is replaced.

    Raise InputError if the folder holds something else, or cannot be written.
    """
    if (
        folder.exists()
        and not (folder / FAULT_FILE).is_file()
        and (folder.is_file() or any(folder.iterdir()))
    ):
        raise InputError(f"{folder}: there is something else than a fault of byoc verify")
    if folder.is_symlink():  # the user named the folder around it, if any
        raise InputError(f"{folder}: cannot be written: it is a link")
    for name in _FILES:
        require_inside(folder, name)  # of an earlier fault, which may be a stranger's
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_part(fault.trial.part.model, folder / FAULT_MODEL)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    write_npz(folder / FAULT_INPUTS, fault.trial.part.inputs)
    write_npz(folder / "expected.npz", fault.trial.expected)
    write_npz(folder / "actual.npz", fault.trial.actual)
    content = FaultFile(
        format=1,
        region=fault.region,
        target=fault.target,
        codegen=fault.codegen,
        codegen_options=fault.options,
        weights=fault.weights,
        operation=fault.operation,
        op=fault.op,
        operations=fault.operations,
        told=str(fault),
        thresholds=asdict(thresholds) | {"asked": sorted(thresholds.asked)},
    )
    text = json.dumps(content.model_dump(mode="json"), indent=1, sort_keys=True)
    write_text(folder / FAULT_FILE, text + "\n")
    write_text(folder / "README.txt", _readme(fault, folder.name))


def rerun_fault(
    folder: Path,
    isolation: Isolation | None = UNLESS_TRUSTED,
    *,
    trust: bool = False,
    codegens: Iterable[str] | str | None = None,
) -> tuple[FaultFile, RegionError]:
    """Compile and run the model of a fault once more; return the fault and its error now.

    With `isolation` the codegen runs in a worker process, by default unless the user gives `trust`:
    nobody signs a fault. `codegens` names those that may compile it, by default all.

    Raise InputError if the folder holds no fault, or the codegen is not allowed, missing, refuses or
    fails.
    """
    path, model, inputs = (
        require_inside(folder, name) for name in (FAULT_FILE, FAULT_MODEL, FAULT_INPUTS)
    )
    try:
        with path.open("rb") as file:
            content = read_limited(file, _MOST_BYTES)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        fault = FaultFile.model_validate_json(content, strict=True)
        thresholds = Thresholds(**fault.thresholds)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValidationError, TypeError, ValueError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise InputError(f"{path}: not a fault of byoc verify: {first}") from None
    Consent.of(trust, codegens).require_allowed(fault.codegen, f"{path}: the fault is for")
    if isolation is not None and isolation.unless_trusted and trust:
        isolation = None
    weights = parse_layout(fault.weights) if fault.weights else None
    region = read_region(model, fault.region, fault.target, None, weights)
    try:
        check_model(region.model, folder)  # its weights are in no file outside of the folder
    except InputError as error:
        raise InputError(f"{model}: {error}") from None
    with closing(Codegens(isolation)) as found:
        codegen = found.find(fault.codegen)
        compiler = RegionCompiler(codegen, drop_executing_options(codegen, fault.codegen_options))
        trial = run_trial(
            RegionPart(region.model, _read_inputs(inputs, region)),
            region,
            compiler,
            thresholds,
        )
    return fault, RegionError(fault.region, trial.errors, layers=trial.layers)


def _read_inputs(path: Path, region: Region) -> dict[str, Any]:
    types = {contract.name: contract.type for contract in region.inputs}
    return {name: restore_dtype(array, types.get(name)) for name, array in read_npz(path).items()}


def _readme(fault: Fault, folder: str) -> str:
    options = "".join(f" --codegen-option {key}={value}" for key, value in fault.options.items())
    text = f"""{fault}.

{FAULT_MODEL}     the part of region {fault.region} that shows it: {", ".join(fault.operations)}
{FAULT_INPUTS}     what reaches them
expected.npz   what plain onnxruntime makes of that, its optimizations off
actual.npz     what codegen {fault.codegen} made of it{options and f" (with{options})"}

To compile it and run it again:

    byoc verify {folder}
"""
    return "".join(f"{escape_unprintable(line)}\n" for line in text.split("\n")[:-1])


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


# Verification of a bundle on several samples: the user's, or made ones of several sizes.


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
    with keeping_sessions():  # of the model, for which samples are found, and which they are compared on
        samples = choose_samples(given, source)
        return verify_on_samples(
            bundle, against, samples, thresholds, regions, boundary, runtime, regions
        )


def choose_samples(given: Sequence[Sample], source: Model) -> list[tuple[str, Values | None]]:
    """Return the samples to verify on, with names for messages; None stands for the seeded ones."""
    if given:
        return [(sample.name, sample.inputs) for sample in given]
    try:
        return [("", None), *(("", other.inputs) for other in list_samples(source)[1:])]
    except InputError:  # raised again, unless another judge than onnxruntime takes what is made
        return [("", None)]


# Verification of padding: smaller inputs, padded to a bundle, against the model at their own sizes.

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


def verify_split(
    bundle: Bundle,
    split: RowSplit,
    model: Model,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> Verification:
    """Compare a bundle that runs a batch row by row with a model of that batch.

    Outputs are called `logits, split`. Raises NotVerifiableError if the model does not run, and
    InputError if the bundle does not.
    """
    runs = replace(BundleRuns.load(bundle), split=split)
    with convert_errors(NotVerifiableError, "as a batch"):
        inputs = model_samples(model)
    comparison = BundleComparison(bundle, VerificationModels(model), thresholds, RUNTIMES[0], runs)
    comparison.add_sample("split", inputs)
    found = comparison.conclude()
    outputs = tuple(replace(error, name=f"{error.name}, split") for error in found.outputs)
    return replace(found, outputs=outputs)


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
