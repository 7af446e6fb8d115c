"""The stages from the plan to the bundle: write, compile, verify, estimate gains, pack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from byoc.bundle import (
    Bundle,
    Consent,
    PaddingEntry,
    RegionCompiler,
    RegionEntry,
    VariantEntry,
    build_manifest,
    compile_bundle,
    describe_padding,
    describe_variant,
    sign_bundle,
    write_context_model,
    write_decisions,
    write_genai_files,
    write_manifest,
    write_models,
)
from byoc.codegen import Executable, Refusal, RefusedError
from byoc.errors import InputError, MissingRuntimeError
from byoc.onnxrt import INSTALL_HINT, has_runtime
from byoc.planning import Plan, estimate_gains, find_break_evens
from byoc.reporting import make_decision_document, make_report
from byoc.runtime import RegionFailedError, RegionNotHereError
from byoc.samples import model_samples
from byoc.stages._calibration_samples import attach_samples, read_user_samples
from byoc.stages._region_estimates import add_estimate_notes, estimate_regions
from byoc.stages._rewriting import RegionRewriter
from byoc.stages._state import State
from byoc.support import Note, report_step, resolve_path
from byoc.verification import (
    NotVerifiableError,
    NotVerified,
    RegionError,
    Thresholds,
    Verification,
    VerificationModels,
    require_passed,
    verify_regions,
    verify_samples,
)

# Of the data that ranges were measured on so many samples are verified on.
_DATA_SAMPLES = 4


@dataclass(frozen=True)
class Write:
    """Write weights and models into the folder; rewrite the regions by passes.

    Raises RefusedError for the regions at which a pass fails.
    """

    def run(self, state: State) -> State:
        """Fill in `regions`; add the passes to the `plan`."""
        targets, verify = state.plan.targets, state.options.verify
        rewrite = RegionRewriter(state.passes, targets, state.weights, verify)
        regions = rewrite(write_models(state.plan, state.folder, state.weights))
        plan = state.plan
        if rewrite.found:
            plan = replace(plan, passes=(*plan.passes, *rewrite.effects))
        shared = state.weights.originals.describe()
        if shared:
            plan = replace(plan, notes=(*plan.notes, Note("note", shared)))
        return replace(state, regions=regions, plan=plan)


@dataclass(frozen=True)
class Compile:
    """Compile the regions of all variants, and write what else a bundle holds into the folder.

    Raises RefusedError for the regions that codegens refuse; with `strict`, CompileError for the first.
    """

    def run_jointly(self, states: Sequence[State]) -> list[State]:
        """Fill in `bundle`, whose manifest has no verification yet."""
        folder, options, compilers = states[0].folder, states[0].options, states[0].compilers
        with TemporaryDirectory(prefix="byoc-") as samples:
            regions = [
                region
                for state in states
                for region in attach_samples(state.regions, state, Path(samples))
            ]
            entries = compile_bundle(folder, regions, compilers, options.strict, options.jobs)
        variants = [_describe_variant(state, entries) for state in states]
        if options.emit is not None:
            codegens = {name: compiler.codegen for name, compiler in compilers.items()}
            for variant in variants:
                write_context_model(folder, variant, entries, codegens)
        for state, variant in zip(states, variants, strict=True):
            contracts = {entry.name: entry.boundary_contracts for entry in variant.regions}
            write_decisions(folder, make_decision_document(state.plan, contracts), state.variant)
        if states[0].genai is not None:
            assert states[0].output is not None
            write_genai_files(folder, states[0].genai, resolve_path(states[0].output))
        plan, originals = states[0].plan, states[0].weights.originals
        bundle = Bundle(
            folder,
            build_manifest(folder, plan, variants, originals.references),
            codegens=states[0].codegens,
            consent=Consent(trust=True),
            just_compiled=True,
        )
        return [replace(state, bundle=bundle.choose(state.variant.name)) for state in states]


def _describe_variant(state: State, entries: Sequence[RegionEntry]) -> VariantEntry:
    """Return the manifest's entry for a variant, which is not verified yet."""
    own = {region.name for region in state.regions}
    report = make_report(state.plan, NotVerified("the bundle is not complete yet"))
    return describe_variant(state.plan, tuple(e for e in entries if e.name in own), report)


@dataclass(frozen=True)
class Estimate:
    """Ask the compilers, as far as they can say, what the compiled regions take."""

    def run(self, state: State) -> State:
        """Fill in `estimates`, and the plan's notes on them."""
        found = estimate_regions(state.bundle, state.compilers)
        asked = state.options.ask in {"costs", "both"}
        plan = add_estimate_notes(state.plan, found, asked)
        return replace(state, plan=plan, estimates=found.by_region)


@dataclass(frozen=True)
class Verify:
    """Compare each region with onnxruntime where there is a gate, then the bundle with the original.

    Raises RefusedError for regions that are not loaded or run, or are off by more than the gate lets
    pass; InputError when an output is off, or a region cannot be run here and there is a gate.
    """

    def run(self, state: State) -> State:
        """Fill in `verification`."""
        largest_errors = state.options.largest_errors
        if largest_errors is not None:
            _verify_each_region(state, largest_errors)
        return replace(state, verification=_verify(state))


@dataclass(frozen=True)
class EstimateGains:
    """Estimate what the placement would gain if accelerators took more."""

    def run(self, state: State) -> State:
        """Fill in the plan's `what_ifs`, `untried` and `break_evens`."""
        if not state.options.what_if:
            return state
        report_step("estimate gains")
        root, devices = state.plan.root, state.settings.devices
        gains, untried = estimate_gains(root)
        found = tuple(find_break_evens(root, devices))
        plan = replace(state.plan, what_ifs=tuple(gains), untried=untried, break_evens=found)
        return replace(state, plan=plan)


@dataclass(frozen=True)
class Pack:
    """Write the reports, the manifest and its signature, the last of the bundle's files."""

    def run_jointly(self, states: Sequence[State]) -> list[State]:
        """Fill in `not_signed`."""
        reports = [
            make_report(state.plan, state.verification, estimates=state.estimates) for state in states
        ]
        manifest = states[0].bundle.manifest
        variants = tuple(
            variant.model_copy(update={"report": report, "padding": _describe_padding(state)})
            for variant, report, state in zip(manifest.variants, reports, states, strict=True)
        )
        folder, sign = states[0].folder, states[0].options.sign
        states[0].weights.originals.remove_references()
        digest = write_manifest(folder, manifest.model_copy(update={"variants": variants}))
        not_signed = sign_bundle(folder, digest, sign)
        return [replace(state, not_signed=not_signed) for state in states]


def _describe_padding(state: State) -> PaddingEntry | None:
    return None if state.padding is None else describe_padding(state.padding)


def _verify(state: State) -> Verification | NotVerified:
    """Return the verification, which has passed, or why there is none."""
    if not state.options.verify:
        return NotVerified("verification was turned off")
    if not has_runtime():
        return NotVerified(INSTALL_HINT, missing=True)
    problem = _find_not_executable(state.plan, state.compilers)
    if problem:
        return NotVerified(problem, missing=True)
    report_step("verify")
    try:
        against = _choose_reference(state)
        samples = read_user_samples(state, _DATA_SAMPLES)
        verification = verify_samples(state.bundle, against, samples, state.original)
        require_passed(verification)
    except NotVerifiableError as error:
        return NotVerified(str(error), missing=True)
    except InputError as error:
        message = f"{error} (nothing was written; --no-verify writes it all the same)"
        raise _as_refusal(error, state.bundle, message) from error
    return verification


def _find_not_executable(plan: Plan, compilers: Mapping[str, RegionCompiler]) -> str:
    """Return why the regions of a plan cannot be run here, empty when they can."""
    for region in plan.regions:
        codegen = compilers[region.target.name].codegen
        if not isinstance(codegen, Executable):
            return f"codegen {codegen.name} cannot run here what it compiles"
    return ""


def _choose_reference(state: State) -> VerificationModels:
    """Return the model to compare a bundle with: the one that it was cut from, before any pass.

    In another precision than the original's that is the partitioned model as plain onnxruntime runs it.
    """
    plan = state.plan
    if plan.lowered is None:
        return VerificationModels(state.original if state.pass_effects else plan.model)
    whole = f"{plan.model.source} in lower precision"
    samples = partial(model_samples, plan.lowered.original)
    own = replace(plan.model, structure=plan.proto, heavy=None, source=whole, make_samples=samples)
    return VerificationModels(own, plan.lowered.original, plan.lowered.dtype or "")


def _verify_each_region(state: State, largest_errors: Thresholds) -> None:
    """Raise RefusedError for all regions that are off by more than is allowed, each by itself."""
    plan, bundle = state.plan, state.bundle
    if not has_runtime():
        raise MissingRuntimeError(INSTALL_HINT)
    problem = _find_not_executable(plan, state.compilers)
    if problem:
        raise InputError(f"the gate cannot compare regions: {problem}")
    report_step("verify each region")
    if plan.lowered is not None:
        largest_errors = largest_errors.for_computation_in(plan.lowered.dtype or "")
    try:
        given = state.samples[0].inputs if state.samples else None
        errors = verify_regions(bundle, plan.model, given, largest_errors)
    except (NotVerifiableError, RegionNotHereError) as error:
        raise InputError(f"the gate cannot compare regions: {error}") from error
    except InputError as error:
        raise _as_refusal(error, bundle, str(error)) from error
    wrong = {error.name: error for error in errors if not error.within}
    if wrong:
        raise RefusedError(
            [
                Refusal(
                    entry.target,
                    entry.codegen,
                    entry.name,
                    _describe_error(wrong[entry.name]),
                    failed=bool(wrong[entry.name].problem),
                )
                for entry in bundle.manifest.regions
                if entry.name in wrong
            ]
        )


def _describe_error(error: RegionError) -> str:
    worst = error.worst
    if worst is None or error.problem:
        return error.problem
    return f"its output '{worst.name}' {worst.problem or f'is off {worst.error_phrase}'}"


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
