"""`byoc calibrate`: measure the ranges of tensors, and write them as YAML."""

from __future__ import annotations

from typing import Annotated

import typer

import byoc
from byoc import quantization
from byoc.cli._common import FormatOption, OutputFormat, print_json, reserve_stdout, show_status
from byoc.cli._option_flags import take_options
from byoc.console import print_errors, print_line
from byoc.reporting import format_count
from byoc.support import keywords_of


@take_options(quantization.CalibrationOptions)
def calibrate(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: quantization.CalibrationOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Measure the ranges of a model's tensors on data.

    The model runs on every sample; the file gives the range of each tensor."""
    with show_status() as show, reserve_stdout():
        show("load")
        ranges = byoc.calibrate(model, **keywords_of(options, quantization.CalibrationOptions))
    print_errors(ranges.notes)
    if form is OutputFormat.json:
        print_json(_make_document(ranges))
    else:
        told = format_count(len(ranges.tensors), "tensor")
        seen = format_count(ranges.samples, "sample")
        channels = f" and of the channels of {len(ranges.channels)}" if ranges.channels else ""
        print_line(
            f"{options.output}: ranges of {told}{channels}, by {ranges.method}, on {seen} of "
            f"{ranges.source}"
        )


def _make_document(ranges: byoc.Ranges) -> dict[str, object]:
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
            if isinstance(entry, quantization.Range)
        },
        "channels": {
            name: {"low": each.low.tolist(), "high": each.high.tolist()}
            for name, each in ranges.channels.items()
        },
    }
