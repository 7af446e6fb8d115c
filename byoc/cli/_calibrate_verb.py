"""`byoc calibrate`: measure the ranges of tensors, and write them as YAML."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from byoc.cli._common import (
    DimOption,
    FormatOption,
    OutputFormat,
    print_json,
    read_sizes,
    reserve_stdout,
    show_status,
)
from byoc.quantization import Preprocessing, Range, Ranges
from byoc.quantization import calibrate as run
from byoc.reporting import format_count
from byoc.zoo import load_model


class MethodName(StrEnum):
    """The calibrators."""

    minmax = "minmax"
    percentile = "percentile"
    entropy = "entropy"
    mse = "mse"


class ChannelOrder(StrEnum):
    """The order of an image's channels."""

    rgb = "rgb"
    bgr = "bgr"


def calibrate(  # noqa: PLR0913, PLR0917 - the options of the verb
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="FOLDER|random", help="A folder of .npy, .npz or image files, or made-up samples."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the ranges here.")],
    method: Annotated[MethodName, typer.Option(help="How ranges are chosen.")] = MethodName.minmax,
    percentile: Annotated[
        float | None, typer.Option(help="For the method percentile: 99.99 unless given.")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(help="For the method mse: what is quantized to; 8 unless given.")
    ] = None,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Ranges from -x to x.")] = False,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Use no more samples; of random data, 32 unless given.")
    ] = None,
    tensor: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Calibrate this one; all unless given.")
    ] = None,
    dim: DimOption = None,
    image_mean: Annotated[
        str, typer.Option(metavar="X,X,X", help="Taken from pixels after --image-scale.")
    ] = "0",
    image_std: Annotated[str, typer.Option(metavar="X,X,X", help="Divides what is left.")] = "1",
    image_scale: Annotated[float, typer.Option(help="Divides pixels, which are 0 to 255.")] = 255.0,
    image_color: Annotated[ChannelOrder, typer.Option(help="The order of channels.")] = ChannelOrder.rgb,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Measure the ranges of a model's tensors on data.

    The model runs on every sample; the file gives the range of each tensor."""
    dims = read_sizes(dim, "--dim")
    images = Preprocessing(
        _read_numbers(image_mean, "--image-mean"),
        _read_numbers(image_std, "--image-std"),
        image_scale,
        image_color.value,
    )
    with show_status() as show, reserve_stdout():
        show("load")
        ranges = run(
            load_model(model, dims),
            data,
            output,
            method=method.value,
            symmetric=symmetric,
            percentile=percentile,
            bits=bits,
            samples=samples,
            tensors=tensor,
            images=images,
            progress=show,
        )
    for note in ranges.notes:
        sys.stderr.write(f"byoc: {note}\n")
    if form is OutputFormat.json:
        print_json(_make_document(ranges))
    else:
        told = format_count(len(ranges.tensors), "tensor")
        seen = format_count(ranges.samples, "sample")
        typer.echo(f"{output}: ranges of {told}, by {ranges.method}, on {seen} of {ranges.source}")


def _read_numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"'{text}': numbers with commas are expected", param_hint=option
        ) from None


def _make_document(ranges: Ranges) -> dict[str, object]:
    return {
        "method": ranges.method,
        "options": dict(ranges.options),
        "samples": ranges.samples,
        "data": ranges.source,
        "random": ranges.random,
        "model": ranges.model,
        "notes": list(ranges.notes),
        "tensors": {
            name: {"low": entry.low, "high": entry.high}
            for name, entry in ranges.tensors.items()
            if isinstance(entry, Range)
        },
    }
