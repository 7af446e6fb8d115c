"""The stage that compares regions, and the bundle, with onnxruntime, and gives wrong ones up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.bundle import MODEL_FILE, spread_refusal
from byoc.codegen import Executable, Refusal, RefusedError
from byoc.errors import InputError, MissingRuntimeError
from byoc.model import read_model_file
from byoc.onnxrt import INSTALL_HINT, has_runtime
from byoc.pipeline._state import Estimated, Verified, take
from byoc.runtime import RegionFailedError, RegionNotHereError
from byoc.samples import MAX_SAMPLES, NO_PREPROCESSING, find_samples, model_samples
from byoc.support import report_step
from byoc.verification import (
    DEFAULT_THRESHOLDS,
    NotVerifiableError,
    NotVerified,
    VerificationModels,
    bisect_region,
    choose_samples,
    find_added_errors,
    record_region_inputs,
    require_passed,
    verify_regions,
    verify_samples,
)

if TYPE_CHECKING:
    from byoc.bundle import Bundle, RegionCompiler, RegionEntry
    from byoc.codegen import Region
    from byoc.pipeline._state import Emitting, Prepared
    from byoc.planning import Plan
    from byoc.samples import Sample
    from byoc.verification import Fault, OutputError, RegionError, Thresholds, Verification


# The user's samples: to verify on, and as they reach regions, for codegens that calibrate.


def attach_samples(regions: Sequence[Region], state: Emitting, folder: Path) -> Sequence[Region]:
    """Return regions with what reaches them of the user's samples, in files of a folder.

    Only those of codegens that calibrate have some. Raises InputError when the model does not run.
    """
    wanted = {
        target
        for target, compiler in state.setup.compilers.items()
        if getattr(compiler.codegen, "calibrates", False)
    }
    own = [region for region in regions if region.target in wanted and region.inputs]
    samples = read_user_samples(state) if own and has_runtime() else ()
    if not samples:
        return regions
    report_step("run the samples")
    proto = read_model_file(state.weights.folder / state.request.variant.name_file(MODEL_FILE))
    names = {region.name: [each.name for each in region.inputs] for region in own}
    files: dict[str, Path] = {}
    given = [sample.inputs for sample in samples]
    for name, rows in record_region_inputs(proto, state.weights.folder, names, given):
        files[name] = folder / f"{name}.npz"
        np.savez(files[name], *(array for row in rows for array in row))
    return [replace(region, samples_file=files.get(region.name)) for region in regions]


def read_user_samples(state: Prepared, most: int = MAX_SAMPLES) -> Sequence[Sample]:
    """Return the samples to verify on, or else some of those that ranges were measured on."""
    precision = state.request.options.precision
    if state.loaded.samples or precision.data is None:
        return state.loaded.samples
    images = precision.images or NO_PREPROCESSING
    source = find_samples(precision.data, state.loaded.original, images, most)
    return () if source.random else tuple(islice(source.read_from(0), most))


# Of the data that ranges were measured on so many samples are verified on.
_DATA_SAMPLES = 4


@dataclass(frozen=True)
class Verify:
    """Compare each region with onnxruntime where there is a gate, then the bundle with the original.

    Raises RefusedError for regions that are not loaded or run, that compute wrong, or are off by more
    than the gate lets pass; InputError when an output is off for another reason, with `strict` for any,
    or when a region cannot be run here and there is a gate.
    """

    def run(self, state: Estimated) -> Verified:
        """Return the state with the verification."""
        largest_errors = state.request.options.largest_errors
        if largest_errors is not None:
            _verify_each_region(state, largest_errors)
        return Verified(**take(Estimated, state), verification=_verify(state))


def _verify(state: Estimated) -> Verification | NotVerified:
    """Return the verification, which has passed, or why there is none."""
    if not state.request.options.verify:
        return NotVerified("verification was turned off")
    if not has_runtime():
        return NotVerified(INSTALL_HINT, missing=True)
    problem = _find_not_executable(state.plan, state.setup.compilers)
    if problem:
        return NotVerified(problem, missing=True)
    report_step("verify")
    try:
        against = _choose_reference(state)
        samples = read_user_samples(state, _DATA_SAMPLES)
        verification = verify_samples(state.bundle, against, samples, state.loaded.original)
        if not verification.passed and not state.request.options.strict:
            _recover(state, against, samples, verification)
        require_passed(verification)
    except RefusedError:
        raise
    except NotVerifiableError as error:
        return NotVerified(str(error), missing=True)
    except InputError as error:
        message = f"{error} (nothing was written; --no-verify writes it all the same)"
        raise _as_refusal(error, state.bundle, message) from error
    return verification


def _recover(
    state: Estimated, against: VerificationModels, samples: Sequence[Sample], verification: Verification
) -> None:
    """Raise RefusedError for the regions by which outputs are off; return where there are none."""
    bundle, compilers = state.bundle, state.setup.compilers
    thresholds = DEFAULT_THRESHOLDS.for_computation_in(against.computed)
    wrong = [error for error in verification.regions if not error.within]
    if wrong:
        rounds = state.findings.history.rounds
        raise RefusedError(refuse_wrong_regions(bundle, compilers, wrong, thresholds, rounds))
    names = find_added_errors(bundle, against, choose_samples(samples, state.loaded.original))
    worst = verification.worst
    if names and worst is not None:
        off = worst.problem or f"is off {worst.error_phrase}"
        reason = f"it is right alone, and with it the network's output '{worst.name}' {off}"
        raise RefusedError(refuse_added_errors(bundle, compilers, names, reason))


def _find_not_executable(plan: Plan, compilers: Mapping[str, RegionCompiler]) -> str:
    """Return why the regions of a plan cannot be run here, empty when they can."""
    for region in plan.regions:
        codegen = compilers[region.target.name].codegen
        if not isinstance(codegen, Executable):
            return f"codegen {codegen.name} cannot run here what it compiles"
    return ""


def _choose_reference(state: Estimated) -> VerificationModels:
    """Return the model to compare a bundle with: the one that it was cut from, before any pass.

    In another precision than the original's that is the partitioned model as plain onnxruntime runs it.
    """
    plan = state.plan
    if plan.lowered is None:
        return VerificationModels(state.loaded.original if state.pass_effects else plan.model)
    whole = f"{plan.model.source} in lower precision"
    samples = partial(model_samples, plan.lowered.original)
    own = replace(plan.model, structure=plan.proto, heavy=None, source=whole, make_samples=samples)
    return VerificationModels(own, plan.lowered.original, plan.lowered.dtype or "")


def _verify_each_region(state: Estimated, largest_errors: Thresholds) -> None:
    """Raise RefusedError for all regions that are off by more than is allowed, each by itself."""
    plan, bundle = state.plan, state.bundle
    if not has_runtime():
        raise MissingRuntimeError(INSTALL_HINT)
    problem = _find_not_executable(plan, state.setup.compilers)
    if problem:
        raise InputError(f"the gate cannot compare regions: {problem}")
    report_step("verify each region")
    if plan.lowered is not None:
        largest_errors = largest_errors.for_computation_in(plan.lowered.dtype or "")
    try:
        given = state.loaded.samples[0].inputs if state.loaded.samples else None
        errors = verify_regions(bundle, plan.model, given, largest_errors)
    except (NotVerifiableError, RegionNotHereError) as error:
        raise InputError(f"the gate cannot compare regions: {error}") from error
    except InputError as error:
        raise _as_refusal(error, bundle, str(error)) from error
    wrong = [error for error in errors if not error.within]
    if wrong:
        rounds = state.findings.history.rounds
        raise RefusedError(
            refuse_wrong_regions(bundle, state.setup.compilers, wrong, largest_errors, rounds)
        )


def _as_refusal(error: InputError, bundle: Bundle, message: str) -> InputError:
    """Return the error to raise: RefusedError where a region could not be loaded or run."""
    failure: BaseException | None = error
    while failure is not None and not isinstance(failure, RegionFailedError):
        failure = failure.__cause__
    if failure is None:
        return InputError(message)
    # The regions that share its artifact fail with it.
    own = bundle.identical_regions.get(failure.region, failure.region)
    refusals = [
        Refusal(entry.target, entry.codegen, entry.name, failure.reason, failed=failure.defect)
        for entry in bundle.manifest.regions
        if own in (entry.name, entry.same_as)
    ]
    return RefusedError(refusals, message)


# Recovery of regions that compute wrong: other options, then without an operation, then on the
# host.

# Rounds of planning in which the operation at fault is searched for; later ones give up whole regions,
# so that a compiler that is wrong everywhere costs a few rounds and no more.
_BISECTED_ROUNDS = 8


def refuse_wrong_regions(
    bundle: Bundle,
    compilers: Mapping[str, RegionCompiler],
    wrong: Iterable[RegionError],
    thresholds: Thresholds,
    rounds: int,
) -> list[Refusal]:
    """Return the refusals by which the next plan does without what computes wrong in some regions.

    A region gets the codegen's next options. Where these are used up, the operation at fault is left
    out, and without one, or after some `rounds` of planning, the whole region. Regions that share an
    artifact share its fate.
    """
    regions = {each.name: each for one in bundle.variants for _, each, _ in one.regions()}
    found: dict[str, Refusal] = {}
    for error in wrong:
        if error.name in found:  # as one that is identical to it
            continue
        entry = next(each for each in bundle.manifest.regions if each.name == error.name)
        refusal = _refuse(bundle, compilers[entry.target], entry, error, thresholds, rounds)
        twins = [regions[name] for name in _list_twins(bundle, entry) if name in regions]
        for each in (refusal, *spread_refusal(refusal, regions[entry.name], twins)):
            found.setdefault(each.region, each)
    return [*found.values()]


def refuse_added_errors(
    bundle: Bundle, compilers: Mapping[str, RegionCompiler], names: Iterable[str], reason: str
) -> list[Refusal]:
    """Return the refusals of regions that are right alone, and whose errors add up in the network."""
    entries = {entry.name: entry for entry in bundle.manifest.regions}
    return [
        Refusal(
            entries[name].target,
            entries[name].codegen,
            name,
            reason,
            failed=True,
            options=_find_next_options(compilers[entries[name].target], entries[name]),
        )
        for name in names
    ]


def _refuse(  # noqa: PLR0913, PLR0917 - what is refused, and by which limits
    bundle: Bundle,
    compiler: RegionCompiler,
    entry: RegionEntry,
    error: RegionError,
    thresholds: Thresholds,
    rounds: int,
) -> Refusal:
    """Return the refusal of a region that computes wrong."""
    whole = Refusal(
        entry.target,
        entry.codegen,
        entry.name,
        f"computed wrong: {error.description}",
        failed=_is_defect(error),
        options=_find_next_options(compiler, entry),
    )
    if whole.options is not None or error.problem or rounds >= _BISECTED_ROUNDS:
        return whole
    report_step(f"find the operation at fault in {entry.name}")
    try:
        fault = bisect_region(
            bundle,
            entry.name,
            thresholds=thresholds,
            own_inputs=error.wrong_inputs,
            special=error.special,
            find_alike=True,
        )
    except InputError:  # it is right when it is compiled again, or a part of it cannot be compiled
        return whole
    nodes = (fault.operation, *fault.alike)
    return replace(whole, reason=_describe_fault(fault), nodes=nodes)


def _find_next_options(compiler: RegionCompiler, entry: RegionEntry) -> Mapping[str, str] | None:
    """Return the options that change when a region is compiled next, None where no others are left."""
    attempts = [compiler, *compiler.recoveries]
    tried = [dict(each.options) == dict(entry.codegen_options) for each in attempts]
    following = attempts[tried.index(True) + 1 :] if True in tried else ()
    if not following:
        return None
    now = entry.codegen_options
    return {name: text for name, text in following[0].options.items() if now.get(name) != text}


def _list_twins(bundle: Bundle, entry: RegionEntry) -> Iterator[str]:
    """Yield the other regions, of all variants, that have the artifact of one."""
    own = entry.same_as or entry.name
    for each in bundle.manifest.regions:
        if own in (each.name, each.same_as) and each.name != entry.name:
            yield each.name


def _is_defect(error: RegionError) -> bool:
    """Return whether a region is off by more than is allowed where a user sets no limits of his own."""
    if error.problem or error.layer_problem:
        return True
    return any(_is_off_by_default(each) for each in error.outputs if not each.within)


def _is_off_by_default(error: OutputError) -> bool:
    limit, measure = DEFAULT_THRESHOLDS.limit_for(error.dtype, error.measure == "units")
    return not replace(error, tolerance=limit, measure=measure).within


def _describe_fault(fault: Fault) -> str:
    """Describe the operation that is wrong, and its error."""
    worst, layers = fault.worst, fault.trial.layers
    size = worst.problem or f"off {worst.error_phrase.partition(',')[0]}"
    if layers is not None and layers.wrong:
        size = str(layers.wrong[0])
    more = f" and {len(fault.alike)} more" if fault.alike else ""
    others = [f"'{name}'" for name in fault.operations if name != fault.operation]
    joint = f" together with {', '.join(others)}" if others else ""
    return f"{fault.op} '{fault.operation}'{more} computed wrong{joint} ({size})"
