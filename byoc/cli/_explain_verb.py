"""`byoc explain`: why an accelerator refuses nodes, and what would change that."""

from typing import Annotated

import typer

from byoc.cli._common import (
    DimOption,
    FormatOption,
    OutputFormat,
    make_console,
    print_json,
    read_sizes,
    reserve_stdout,
    show_status,
)
from byoc.reporting import explain_model as run
from byoc.reporting import make_explanation_document, print_explanation
from byoc.rules import load_rules
from byoc.zoo import load_model


def explain(  # noqa: PLR0913, PLR0917 - the options of the verb
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    rules: Annotated[
        str, typer.Option(help="A rule file, or the name of an installed one (see byoc rules).")
    ],
    node: Annotated[
        str | None, typer.Option(help="Only this node, by its name or output, with all that was tried.")
    ] = None,
    op: Annotated[
        str | None, typer.Option(help="Only nodes of this operator, with all that was tried.")
    ] = None,
    dim: DimOption = None,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Say why nodes are refused, and what would change that.

    Each refusal names the rule that came nearest and the gain of relaxing it."""
    with show_status() as show, reserve_stdout():
        target = load_rules(rules)
        show("load model")
        loaded = load_model(model, read_sizes(dim, "--dim"))
        show("explain")
        found = make_explanation_document(run(loaded, target, node, op), details=bool(node or op))
    if form is OutputFormat.json:
        print_json(found.to_json())
    else:
        print_explanation(found, make_console())
