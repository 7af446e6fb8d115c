"""Emitting a plan: the bundle is written, verified where it stands, and only then put in its place."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from byoc.bundle.compile import Compiler
from byoc.bundle.epcontext import write_context_model
from byoc.bundle.read import Bundle
from byoc.bundle.staging import staged
from byoc.bundle.write import MODEL, make_manifest, write_bundle, write_manifest
from byoc.codegen import Executable
from byoc.codegen.refusal import Refusal, RefusedError
from byoc.errors import InputError, MissingRuntimeError
from byoc.plan import Plan
from byoc.report.document import document
from byoc.runtime.onnxrt import HOW_TO_GET_IT, has_runtime
from byoc.runtime.regions import RegionFailedError
from byoc.verify.compare import RegionError, Verification, require
from byoc.verify.regions import verify_regions
from byoc.verify.run import Against, NotVerifiableError
from byoc.verify.run import verify as verify_bundle
from byoc.verify.thresholds import Thresholds


def emit(  # noqa: PLR0913, PLR0917 - what is emitted, and how
    plan: Plan,
    output: Path,
    compilers: Mapping[str, Compiler],
    verify: bool,
    progress: Callable[[str], None],
    strict: bool = True,
    gate: Thresholds | None = None,
    contexts: bool = False,
) -> Verification | str:
    """Write a plan's bundle to `output`, and return its verification or why there was none.

    `compilers` has one for each target by name. With `contexts` the model with EPContext nodes is
    put in, too.

    Raises RefusedError when regions are not compiled, loaded or run, or are off by more than `gate`,
    each alone; where `strict`, CompileError for the first that is not compiled. Raises InputError when
    an output is off, or a region cannot be run here and there is a gate. `output` is then untouched.
    """
    with staged(output) as folder:
        try:
            regions = write_bundle(plan, folder, compilers, progress, strict)
            if contexts:
                codegens = {name: compiler.codegen for name, compiler in compilers.items()}
                write_context_model(folder, MODEL, regions, codegens)
            manifest = make_manifest(folder, plan, regions)
            bundle = Bundle(folder, manifest)
            if gate is not None:
                _pass(plan, bundle, compilers, gate, progress)
            outcome = _outcome(plan, bundle, compilers, verify, progress)
        except RefusedError:
            for compiler in compilers.values() if not strict else ():
                compiler.made.keep()
            raise
        manifest = manifest.model_copy(update={"report": document(plan, outcome)})
        write_manifest(folder, manifest)
    return outcome


def _outcome(
    plan: Plan,
    bundle: Bundle,
    compilers: Mapping[str, Compiler],
    verify: bool,
    progress: Callable[[str], None],
) -> Verification | str:
    """Return the verification, which has passed, or why there is none."""
    if not verify:
        return "verification was turned off"
    if not has_runtime():
        return HOW_TO_GET_IT
    unable = _unable(plan, compilers)
    if unable:
        return unable
    progress("verify")
    try:
        found = _against(plan)
        verification = verify_bundle(
            bundle, found.model, original=found.original, computed=found.computed
        )
        require(verification)
    except NotVerifiableError as error:
        return str(error)
    except InputError as error:
        told = f"{error} (nothing was written; --no-verify writes it all the same)"
        raise _failure(error, bundle, told) from error
    return verification


def _unable(plan: Plan, compilers: Mapping[str, Compiler]) -> str:
    """Return why the regions of a plan cannot be run here, empty when they can."""
    for region in plan.regions:
        codegen = compilers[region.target.name].codegen
        if not isinstance(codegen, Executable):
            return f"codegen {codegen.name} cannot run here what it compiles"
    return ""


def _pass(
    plan: Plan,
    bundle: Bundle,
    compilers: Mapping[str, Compiler],
    gate: Thresholds,
    progress: Callable[[str], None],
) -> None:
    """Raise RefusedError for all regions that are off by more than what is allowed, each alone."""
    if not has_runtime():
        raise MissingRuntimeError(HOW_TO_GET_IT)
    unable = _unable(plan, compilers)
    if unable:
        raise InputError(f"the gate cannot compare regions: {unable}")
    progress("verify each region")
    if plan.lowered is not None:
        gate = gate.lowered(plan.lowered.dtype or "")
    try:
        errors = verify_regions(bundle, plan.model, None, gate)
    except NotVerifiableError as error:
        raise InputError(f"the gate cannot compare regions: {error}") from error
    except InputError as error:
        raise _failure(error, bundle, str(error)) from error
    off = {error.name: _why(error) for error in errors if not error.within}
    if off:
        raise RefusedError(
            [
                Refusal(entry.target, entry.codegen, entry.name, off[entry.name])
                for entry in bundle.manifest.regions
                if entry.name in off
            ]
        )


def _why(error: RegionError) -> str:
    worst = error.worst
    if worst is None or error.problem:
        return error.problem
    return f"its output '{worst.name}' {worst.problem or f'is off {worst.told}'}"


def _failure(error: InputError, bundle: Bundle, told: str) -> InputError:
    """Return what is raised for an error: RefusedError where it is a region's that is loaded or run."""
    failed = _failed_region(error)
    return InputError(told) if failed is None else RefusedError(_refusals(failed, bundle), told)


def _failed_region(error: BaseException | None) -> RegionFailedError | None:
    """Return what an error says of a region that cannot be loaded or run, None when it is another's."""
    while error is not None and not isinstance(error, RegionFailedError):
        error = error.__cause__
    return error


def _refusals(failed: RegionFailedError, bundle: Bundle) -> list[Refusal]:
    """Return that a region failed, and with it those that its artifact serves, too."""
    own = bundle.twins.get(failed.region, failed.region)
    return [
        Refusal(entry.target, entry.codegen, entry.name, failed.reason)
        for entry in bundle.manifest.regions
        if own in (entry.name, entry.same_as)
    ]


def _against(plan: Plan) -> Against:
    """Return what a bundle is compared with: the model that it was cut from.

    In another precision than the original's that is the partitioned model as plain onnxruntime runs it.
    """
    if plan.lowered is None:
        return Against(plan.model)
    whole = f"{plan.model.source} in lower precision"
    own = replace(plan.model, proto=plan.proto, source=whole)
    return Against(own, plan.lowered.original, plan.lowered.dtype or "")
