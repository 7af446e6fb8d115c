"""`byoc rules`: what rule files there are."""

from byoc.cli.common import Format, FormatOption, print_rows
from byoc.plugins import ANNOTATIONS, files
from byoc.rules.load import load_rules


def rules(form: FormatOption = Format.text) -> None:
    """List the built-in rule files, and what each describes."""
    rows = []
    for name in files(ANNOTATIONS):
        described = load_rules(name).rules
        operators = {op for rule in described.ops for op in rule.op}
        rows.append(
            {
                "name": name,
                "target": described.target,
                "description": described.description,
                "codegen": described.codegen,
                "cost_model": described.cost_model,
                "operators": len(operators),
                "composites": len(described.composites),
            }
        )
    print_rows(rows, form)
