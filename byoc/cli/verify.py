"""`byoc verify`: compare a bundle with its original on the same inputs, and bisect differences."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from byoc.bundle.read import Bundle, open_bundle
from byoc.cli.common import Format, FormatOption, own_stdout, pairs, print_json, print_rows, progress
from byoc.errors import InputError
from byoc.pipeline import original_of
from byoc.report.units import share
from byoc.report.verification import error_rows, fault_document, full_document, region_document
from byoc.runtime.arrays import read_npz, recovered
from byoc.verify.bisect import Fault, bisect
from byoc.verify.compare import Verification, require
from byoc.verify.fault import is_fault, see_again, write_fault
from byoc.verify.run import Against, inputs_for
from byoc.verify.run import verify as verify_bundle
from byoc.verify.thresholds import Thresholds, read_thresholds


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
    form: FormatOption = Format.text,
) -> None:
    """Check that a bundle computes what its model did."""
    thresholds = read_thresholds(pairs(threshold or [], "--threshold"), snr)
    if is_fault(bundle):
        _again(bundle, form)
        return
    faults: dict[str, tuple[Fault, Path] | str] = {}
    folder = output or Path(f"{bundle.absolute().name}.faults")
    here = Path.cwd()  # a codegen's code may change it
    with progress() as show, own_stdout():
        show("verify")
        opened = open_bundle(bundle)
        found = original_of(opened, against)
        given = inputs_for(found.model, seed) if inputs is None else _read(inputs, found)
        verification = verify_bundle(
            opened, found.model, given, found.original, found.computed, thresholds, regions=True
        )
        if narrow:
            lowered = thresholds.lowered(found.computed)
            for region in verification.regions:
                if not region.within:
                    place = folder / region.name
                    fault = _narrowed(opened, region.name, given, lowered, here / place, show)
                    faults[region.name] = fault if isinstance(fault, str) else (fault, place)
    if form is Format.json:
        told = [_fault_document(name, fault) for name, fault in faults.items()]
        print_json(full_document(verification) | ({"faults": told} if narrow else {}))
    else:
        _print(verification, str(bundle))
        _print_faults(verification, faults, narrow)
    require(verification)


def _narrowed(  # noqa: PLR0913, PLR0917 - what `bisect` takes, and where to write
    bundle: Bundle,
    region: str,
    inputs: Mapping[str, Any],
    thresholds: Thresholds,
    folder: Path,
    show: Any,
) -> Fault | str:
    """Find a region's fault and write it to a folder; return it, or the reason why none was found."""
    try:
        fault = bisect(bundle, region, inputs, thresholds, show)
    except InputError as error:
        return str(error)
    write_fault(fault, folder, thresholds)
    return fault


def _read(path: Path, against: Against) -> dict[str, Any]:
    types = against.model.index.types
    return {name: recovered(array, types.get(name)) for name, array in read_npz(path).items()}


def _print(verification: Verification, bundle: str) -> None:
    typer.echo(f"{bundle} against {verification.against}:")
    print_rows(error_rows("output", verification.outputs), Format.text)
    for left in verification.accuracy:
        if left.signal_to_noise == inf:
            typer.echo(f"{left.name}: equal to {verification.original}")
            continue
        typer.echo(
            f"{left.name}: {left.signal_to_noise:.1f} dB of {verification.original} left, "
            f"{share(left.same_class)} of the largest elements where they were"
        )
    if verification.not_compared:
        typer.echo(f"Regions are not compared: {verification.not_compared}")
        return
    if verification.boundary:
        typer.echo("Tensors that cross, against the same regions on plain onnxruntime:")
        print_rows(error_rows("tensor", verification.boundary), Format.text)
    reached = [region for region in verification.regions if region.outputs]
    if reached:
        typer.echo("Each region alone, on what reaches it, against its own ONNX on plain onnxruntime:")
        rows = [row for r in reached for row in error_rows("output", r.outputs, r.name)]
        print_rows(rows, Format.text)
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


def _fault_document(region: str, fault: tuple[Fault, Path] | str) -> dict[str, Any]:
    if isinstance(fault, str):
        return {"region": region, "problem": fault}
    return fault_document(fault[0], str(fault[1]))


def _again(folder: Path, form: Format) -> None:
    """Compile and run a fault again that --bisect wrote."""
    with progress() as show, own_stdout():
        show("verify")
        fault, region = see_again(folder)
    if form is Format.json:
        print_json({"fault": fault.model_dump(mode="json"), "now": region_document(region)})
    else:
        typer.echo(f"{fault.told}.\nNow:")
        print_rows(error_rows("output", region.outputs), Format.text)
    require(Verification("", (), regions=(region,)))
