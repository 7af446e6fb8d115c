"""`byoc rules`: list rule files; check them; print their schema and the library of composites."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import byoc
import byoc.rules
from byoc import comparison, patterns, reporting
from byoc.cli._common import (
    DIFFERENT,
    NOT_VERIFIED,
    FormatOption,
    OutputFormat,
    PanelCommand,
    TableRow,
    VerboseOption,
    make_file_rows,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.console import format_count, make_console, print_line, print_lines
from byoc.errors import InputError
from byoc.support import ANNOTATIONS, keywords_of

# `byoc explain`: why an accelerator refuses nodes, and what would change that.


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


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def rules(context: typer.Context, form: FormatOption = OutputFormat.text) -> None:
    """List rule files, check one, or help to write one."""
    if context.invoked_subcommand:
        return

    def describe(path: Path) -> TableRow:
        described = byoc.load_rules(str(path)).rules
        return {
            "target": described.target,
            "description": described.description,
            "codegen": described.codegen,
            "cost_model": described.cost_model,
            "operators": len({op for rule in described.ops for op in rule.op}),
            "composites": len(described.composites),
            "generations": _list_generations(described.generations, described.generation, form),
        }

    with reserve_stdout():
        rows = list(make_file_rows(ANNOTATIONS, describe))
    print_rows(rows, form)


def _list_generations(names: Iterable[str], default: str, form: OutputFormat) -> list[str] | str:
    """Return the generations of a file, the default one first; in tables as a text."""
    sorted_names = sorted(names, key=lambda name: name != default)
    return sorted_names if form is OutputFormat.json else ", ".join(sorted_names)


@app.command("check", cls=PanelCommand)
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Rule files, or names of some.")],
    form: FormatOption = OutputFormat.text,
) -> None:
    """List every mistake in rule files, each with its location."""
    with reserve_stdout():
        rows = [asdict(found) for found in byoc.check_rules(files)]
    if form is OutputFormat.json:
        print_json(rows)
    else:
        _print_problems(rows)
    if any(row["problems"] for row in rows):
        raise typer.Exit(1)


def _print_problems(rows: Sequence[TableRow]) -> None:
    """Print the mistakes; one in a file that several extend is printed once."""
    told: set[str] = set()
    for row in rows:
        new = [problem for problem in row["problems"] if problem not in told]
        told.update(new)
        if row["problems"] and not new:
            print_line(f"{row['file']}: builds on what is wrong above")
        else:
            print_lines(new or [_describe_success(row)])


def _describe_success(row: TableRow) -> str:
    operators, composites = row["operators"], row["composites"]
    return (
        f"{row['file']}: ok, {operators} operator{'s' * (operators != 1)}, "
        f"{composites} composite{'s' * (composites != 1)}"
        + f", {len(row['generations'])} generations"
        * bool(row["generations"])
    )


@app.command("ask", cls=PanelCommand)
def ask(  # noqa: PLR0913, PLR0917 - a parameter is an option
    file: Annotated[str, typer.Argument(metavar="FILE", help="A rule file, or the name of one.")],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models to ask about.")],
    codegen: Annotated[
        str, typer.Option("--codegen", metavar="NAME", help="Ask this one, not that of the rule file.")
    ] = "",
    options: Annotated[
        list[str] | None,
        typer.Option("--codegen-option", metavar="NAME=VALUE", help="An option of the codegen."),
    ] = None,
    compiles: Annotated[
        bool, typer.Option("--compile", help="Compile each node, even if the codegen has a `check`.")
    ] = False,
    runs: Annotated[
        bool, typer.Option("--run", help="Run what both take, and compare its values with ONNX's.")
    ] = False,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Hold a rule file to the compiler: which nodes of models each of them takes.

    With --run also what those compute that both take: each kind is compiled and run on realistic values
    and on ends of types, NaN and infinities, as far as the rule file's `arithmetic` promises. The exit
    code is 6 where the two differ or a kind computes wrong, else 4 where a kind could not be run."""
    with show_status(), reserve_stdout():
        given = dict(_split_option(each) for each in options or ())
        found = byoc.compare_rules(
            file, models, codegen=codegen, codegen_options=given, compiles=compiles, runs=runs
        )
    if form is OutputFormat.json:
        print_json({"agrees": found.agrees, **asdict(found)})
    else:
        _print_comparison(found)
    if not found.agrees:
        raise typer.Exit(DIFFERENT)
    if found.not_run:
        raise typer.Exit(NOT_VERIFIED)


def _split_option(text: str) -> tuple[str, str]:
    """Return the name and the value of an option. Raises InputError."""
    name, mark, value = text.partition("=")
    if not mark:
        raise InputError(f"--codegen-option {text}: it is no NAME=VALUE")
    return name, value


def _print_comparison(found: comparison.RuleComparison) -> None:
    """Print how often a rule file and a compiler agree, and every kind of nodes at which they do not."""
    accepts, refusals, wrong, not_run = (
        found.false_accepts,
        found.false_refusals,
        found.wrong,
        found.not_run,
    )
    agreed = len(found.kinds) - len(accepts) - len(refusals)  # on whether it is taken
    print_line(
        f"{found.file} and codegen {found.codegen}: "
        f"{format_count(len(found.kinds), 'kind')} of nodes, {agreed} agree, "
        f"{format_count(len(accepts), 'false accept')}, {format_count(len(refusals), 'false refusal')}"
    )
    own_cpu = [kind.op for kind in found.kinds if kind.own_cpu]
    if own_cpu:
        operators = ", ".join(dict.fromkeys(own_cpu))
        print_line(f"the device's own CPU computes {format_count(len(own_cpu), 'kind')}: {operators}")
    right = sum(kind.values == "right" for kind in found.kinds)
    if right or wrong or not_run:
        print_line(
            f"values of {format_count(right + len(wrong) + len(not_run), 'kind')} that both take: "
            f"{right} right, {len(wrong)} wrong, {len(not_run)} not run"
        )
    _print_kinds("False accepts: the rules take them, and the compiler does not", accepts)
    _print_kinds("False refusals: the compiler takes them, and the rules do not", refusals)
    _print_kinds("Wrong values: both take them, and they compute otherwise than ONNX says", wrong)
    _print_kinds("Allowed by `arithmetic`: they compute otherwise than ONNX says", found.allowed)
    _print_kinds("Not run: both take them, and their values are not known", not_run)


def _print_kinds(title: str, kinds: Sequence[comparison.ComparedKind]) -> None:
    """Print kinds of nodes under a title, nothing where there are none."""
    if kinds:
        print_lines(["", title])
    for kind in kinds:
        print_line(f"  {kind.op} '{kind.name}' of {kind.model}" + _count_others(kind.nodes))
        print_line(f"    {kind.compiler or kind.rules or kind.problem}")
        if not kind.false_refusal:
            print_line(f"    it has {', '.join(kind.features) or 'no attributes'}")


def _count_others(nodes: int) -> str:
    return f", and {nodes - 1} like it" if nodes > 1 else ""


@app.command("schema", cls=PanelCommand)
def schema() -> None:
    """Print the JSON Schema of rule files, which editors complete and check them by."""
    print_json(byoc.rules.make_json_schema())


@app.command("composites", cls=PanelCommand)
def composites(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one in full.")] = None,
    form: FormatOption = OutputFormat.text,
) -> None:
    """List the composites that rule files can use by name, or show one of them."""
    with reserve_stdout():
        found = byoc.rules.read_library()
    if name is not None:
        _print_composite(found.get(name), form)
        return
    rows: list[TableRow] = []
    for called, entries in found.entries.items():
        for entry in entries:
            row: TableRow = {"name": called, "description": entry.composite.description}
            if form is OutputFormat.json:
                row |= {"names": _list_names(entry.composite), "file": str(entry.file.path)}
            rows.append(
                {**row, "problem": byoc.rules.format_clash(called, entries) if len(entries) > 1 else ""}
            )
    empty = {"name": "", "description": "", "names": [], "file": ""}
    blank = {key: value for key, value in empty.items() if not rows or key in rows[0]}
    print_rows([*rows, *({**blank, "problem": problem} for problem in found.problems)], form)


def _list_names(composite: byoc.rules.LibraryComposite) -> list[str]:
    """Return the names that conditions can use; none where the pattern is wrong."""
    try:
        found = patterns.parse_pattern(composite.name, composite.pattern)
    except ValueError:
        return []
    written = set(re.findall(r"\w+", "\n".join(composite.pattern)))
    return [name for name in found.names if name in written]


def _print_composite(composite: byoc.rules.LibraryComposite, form: OutputFormat) -> None:
    if form is OutputFormat.json:
        shown = composite.model_dump(mode="json")
        print_json({**shown, "names": _list_names(composite)})
        return
    print_line(f"{composite.name}: {composite.description}")
    for number, text in enumerate(composite.pattern):
        title = "pattern:" if len(composite.pattern) == 1 else f"pattern[{number}]:"
        print_lines([title, *(f"  {line}" for line in text.strip().splitlines())])
    for condition in composite.where:
        print_line(f"where: {condition.expr}" + f"  ({condition.reason})" * bool(condition.reason))
    print_line(f"names: {', '.join(_list_names(composite))}")
