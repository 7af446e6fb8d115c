"""Emitting a plan: the bundle is written, verified where it stands, and only then put in its place."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from byoc.bundle.compile import Compiler
from byoc.bundle.read import Bundle
from byoc.bundle.staging import staged
from byoc.bundle.write import make_manifest, write_bundle, write_manifest
from byoc.codegen import Executable
from byoc.errors import InputError
from byoc.graph.load import Model
from byoc.plan import Plan
from byoc.report.document import document
from byoc.runtime.onnxrt import HOW_TO_GET_IT, has_runtime
from byoc.verify.compare import Verification, require
from byoc.verify.run import NotVerifiableError
from byoc.verify.run import verify as verify_bundle


def emit(
    plan: Plan,
    output: Path,
    compilers: Mapping[str, Compiler],
    verify: bool,
    progress: Callable[[str], None],
) -> Verification | str:
    """Write a plan's bundle to `output`, and return its verification or why there was none.

    `compilers` has one for each target by name.

    Raises InputError when a region cannot be compiled or an output is off; `output` is then untouched.
    """
    with staged(output) as folder:
        regions = write_bundle(plan, folder, compilers, progress)
        manifest = make_manifest(folder, plan, regions)
        outcome = _outcome(plan, Bundle(folder, manifest), compilers, verify, progress)
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
    for region in plan.regions:
        codegen = compilers[region.target.name].codegen
        if not isinstance(codegen, Executable):
            return f"codegen {codegen.name} cannot run here what it compiles"
    progress("verify")
    try:
        verification = verify_bundle(bundle, *_references(plan))
        require(verification)
    except NotVerifiableError as error:
        return str(error)
    except InputError as error:
        raise InputError(f"{error} (nothing was written; --no-verify writes it all the same)") from error
    return verification


def _references(plan: Plan) -> tuple[Model, None, Model | None, str]:
    """Return what a bundle is verified with: the model it must equal, inputs, the original, a dtype.

    In another precision than the original's that is the partitioned model as plain onnxruntime runs it.
    """
    if plan.lowered is None:
        return plan.model, None, None, ""
    whole = f"{plan.model.source} in lower precision"
    return (
        replace(plan.model, proto=plan.proto, source=whole),
        None,
        plan.lowered.original,
        plan.lowered.dtype or "",
    )
