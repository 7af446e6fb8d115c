"""`byoc explain`: why an accelerator refuses nodes, and what would change that."""

from typing import Annotated

import typer

from byoc.cli.common import (
    DimOption,
    OutputFormat,
    FormatOption,
    make_console,
    reserve_stdout,
    print_json,
    show_status,
    read_sizes,
)
from byoc.explain import explain_model as run
from byoc.explain.document import make_explanation_document
from byoc.explain.text import print_explanation
from byoc.pipeline import load_model
from byoc.rules.load import load_rules


def explain(  # noqa: PLR0913, PLR0917 - the options of the verb
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    rules: Annotated[str, typer.Option(help="A rule file, or one of byoc rules.")],
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
        print_json(found)
    else:
        print_explanation(found, make_console())
