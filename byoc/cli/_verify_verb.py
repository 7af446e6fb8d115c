"""`byoc verify`: compare a bundle with its original on the same inputs, and bisect differences."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from byoc.bundle import Bundle, open_bundle
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    read_pairs,
    reserve_stdout,
    show_status,
)
from byoc.errors import InputError
from byoc.pipeline import find_original
from byoc.reporting import (
    format_share,
    make_error_rows,
    make_fault_document,
    make_full_verification_document,
    make_region_error_document,
)
from byoc.runtime import read_npz, restore_dtype
from byoc.verification import (
    Fault,
    Thresholds,
    Verification,
    VerificationModels,
    bisect_region,
    is_fault,
    make_inputs,
    read_thresholds,
    require_passed,
    rerun_fault,
    verify_bundle,
    write_fault,
)


def verify(  # noqa: PLR0913, PLR0917 - the options of the verb
    bundle: Annotated[Path, typer.Argument(help="A bundle, or a folder that --bisect wrote.")],
    against: Annotated[
        str | None,
        typer.Option(help="The original: a file or zoo:NAME. Found by itself for zoo models."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="The inputs by name, instead of seeded ones.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DTYPE=NUMBER",
            help="The largest error, of the range; quantized=NUMBER in units of the last place.",
        ),
    ] = None,
    snr: Annotated[
        float | None, typer.Option(help="Ask this signal-to-noise ratio (dB) of floats instead.")
    ] = None,
    narrow: Annotated[
        bool, typer.Option("--bisect", help="Narrow each region that is off to the operation at fault.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where --bisect writes; NAME.faults unless given."),
    ] = None,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Check that a bundle computes what its model did."""
    thresholds = read_thresholds(read_pairs(threshold or [], "--threshold"), snr)
    if is_fault(bundle):
        _repeat_fault(bundle, form)
        return
    faults: dict[str, tuple[Fault, Path] | str] = {}
    folder = output or Path(f"{bundle.absolute().name}.faults")
    here = Path.cwd()  # a codegen's code may change it
    with show_status() as show, reserve_stdout():
        show("verify")
        opened = open_bundle(bundle)
        found = find_original(opened, against)
        given = make_inputs(found.model, seed) if inputs is None else _read_inputs(inputs, found)
        verification = verify_bundle(
            opened, found.model, given, found.original, found.computed, thresholds, regions=True
        )
        if narrow:
            lowered = thresholds.for_computation_in(found.computed)
            for region in verification.regions:
                if not region.within:
                    place = folder / region.name
                    fault = _narrow_region(opened, region.name, given, lowered, here / place, show)
                    faults[region.name] = fault if isinstance(fault, str) else (fault, place)
    if form is OutputFormat.json:
        told = [_make_fault_document(name, fault) for name, fault in faults.items()]
        print_json(make_full_verification_document(verification) | ({"faults": told} if narrow else {}))
    else:
        _print_verification(verification, str(bundle))
        _print_faults(verification, faults, narrow)
    require_passed(verification)


def _narrow_region(  # noqa: PLR0913, PLR0917 - what `bisect_region` takes, and where to write
    bundle: Bundle,
    region: str,
    inputs: Mapping[str, Any],
    thresholds: Thresholds,
    folder: Path,
    show: Any,
) -> Fault | str:
    """Find a region's fault and write it to a folder; return it, or the reason why none was found."""
    try:
        fault = bisect_region(bundle, region, inputs, thresholds, show)
    except InputError as error:
        return str(error)
    write_fault(fault, folder, thresholds)
    return fault


def _read_inputs(path: Path, against: VerificationModels) -> dict[str, Any]:
    types = against.model.index.types
    return {name: restore_dtype(array, types.get(name)) for name, array in read_npz(path).items()}


def _print_verification(verification: Verification, bundle: str) -> None:
    typer.echo(f"{bundle} against {verification.against}:")
    print_rows(make_error_rows("output", verification.outputs), OutputFormat.text)
    for left in verification.accuracy:
        if left.signal_to_noise == inf:
            typer.echo(f"{left.name}: equal to {verification.original}")
            continue
        typer.echo(
            f"{left.name}: {left.signal_to_noise:.1f} dB of {verification.original} left, "
            f"{format_share(left.same_class)} of the largest elements where they were"
        )
    if verification.not_compared:
        typer.echo(f"Regions are not compared: {verification.not_compared}")
        return
    if verification.boundary:
        typer.echo("Tensors that cross, against the same regions on plain onnxruntime:")
        print_rows(make_error_rows("tensor", verification.boundary), OutputFormat.text)
    reached = [region for region in verification.regions if region.outputs]
    if reached:
        typer.echo("Each region alone, on what reaches it, against its own ONNX on plain onnxruntime:")
        rows = [row for r in reached for row in make_error_rows("output", r.outputs, r.name)]
        print_rows(rows, OutputFormat.text)
    for region in verification.regions:
        if region.problem or not region.runs:
            typer.echo(f"{region.name} {region.problem or 'is not reached by these inputs'}")


def _print_faults(
    verification: Verification, faults: Mapping[str, tuple[Fault, Path] | str], narrow: bool
) -> None:
    for fault in faults.values():
        if isinstance(fault, str):
            typer.echo(fault)
        else:
            typer.echo(f"{fault[0]}. Written to {fault[1]}")
    if narrow and not faults:
        why = "none is compared" if verification.not_compared else "each is within its tolerance"
        typer.echo(f"There is no region to narrow: {why}")


def _make_fault_document(region: str, fault: tuple[Fault, Path] | str) -> dict[str, Any]:
    if isinstance(fault, str):
        return {"region": region, "problem": fault}
    return make_fault_document(fault[0], str(fault[1]))


def _repeat_fault(folder: Path, form: OutputFormat) -> None:
    """Compile and run a fault again that --bisect wrote."""
    with show_status() as show, reserve_stdout():
        show("verify")
        fault, region = rerun_fault(folder)
    if form is OutputFormat.json:
        print_json({"fault": fault.model_dump(mode="json"), "now": make_region_error_document(region)})
    else:
        typer.echo(f"{fault.told}.\nNow:")
        print_rows(make_error_rows("output", region.outputs), OutputFormat.text)
    require_passed(Verification("", (), regions=(region,)))
