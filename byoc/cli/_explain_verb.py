"""`byoc explain`: why an accelerator refuses nodes, and what would change that."""

from __future__ import annotations

from typing import Annotated

import typer

import byoc
from byoc import reporting
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    VerboseOption,
    print_json,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.console import make_console
from byoc.support import keywords_of


@take_options(reporting.ExplainOptions, first=("rules", "node", "op"))
def explain(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: reporting.ExplainOptions,
    verbose: VerboseOption = False,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Say why nodes are refused, and what would change that.

    Each refusal names the rule that came nearest and the gain of relaxing it."""
    with show_status(), reserve_stdout():
        explanation = byoc.explain(model, **keywords_of(options, reporting.ExplainOptions))
        details = options.node is not None or options.op is not None
        found = reporting.make_explanation_document(explanation, details=details)
    if form is OutputFormat.json:
        print_json(found.to_json())
    else:
        reporting.print_explanation(found, make_console(), verbose=verbose)
