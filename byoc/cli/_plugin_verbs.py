"""`byoc codegens`, `strategies`, `cost-models`, `passes`: list plug-ins; `new-codegen`: begin one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

import byoc
import byoc.passes
from byoc import codegen, costs
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    PanelCommand,
    TableRow,
    make_file_rows,
    print_json,
    print_rows,
    reserve_stdout,
)
from byoc.console import print_line, print_lines
from byoc.errors import InputError
from byoc.support import (
    CODEGENS,
    COST_MODELS,
    COSTS,
    PASSES,
    STRATEGIES,
    get_distribution,
    get_first_sentence,
    list_installed,
    list_plugin_options,
    load_plugin,
    trust,
)


class CodegenStyle(Enum):
    """The styles of `byoc new-codegen`."""

    emitter = "emitter"
    tool = "tool"
    library = "library"


def codegens(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one in full.")] = None,
    form: FormatOption = OutputFormat.text,
) -> None:
    """List the installed codegens, or show one and its options.

    "executable" says that the codegen can run its artifacts; that may need a package that is missing.
    The other abilities of a codegen: "oracle" asks the real compiler which nodes it takes, "measured"
    times a region on the device, "estimate" says what its compiler thinks that one takes,
    "trace" shows the tensors inside of regions, "profile" what each operator there takes, "fit" says
    whether a region would load here, "stamped" whether an artifact fits this machine, "keyed" what a
    cached one depends on, "together" compiles all regions in one call, "weights" gives an artifact other
    weights without compiling, "recovery" names safer options for what was computed wrong, "context"
    serves --emit epcontext, and "driver" runs artifacts without Python, from C.
    """
    if name is not None:
        _print_codegen(name, form)
        return
    found = codegen.describe_codegens(trust.list_codegens())

    def describe(called: str) -> TableRow:
        described = found[called]
        if isinstance(described, InputError):
            raise described
        return {"executable": "executable" in described.abilities}

    rows = _list_plugins(CODEGENS, {"executable": None}, describe, _list_interpreters())
    print_rows(rows, form)


def _list_interpreters() -> dict[str, str]:
    """Return the origin of each codegen in the user's settings, by name."""
    return {
        name: f"{each.module} in {each.python}" for name, each in trust.read_settings().codegens.items()
    }


def _list_plugins(
    group: str,
    empty: TableRow,
    describe: Callable[[str], TableRow],
    also: Mapping[str, str] = MappingProxyType({}),
) -> list[TableRow]:
    """Return a row for each plug-in of a group, and for those that come from elsewhere.

    One that cannot be loaded has `empty` values.
    """
    rows = []
    origins = {name: get_distribution(point) for name, point in list_installed(group).items()}
    for name, origin in sorted({**also, **origins}.items()):
        row: TableRow = {"name": name, "from": origin, **empty, "problem": ""}
        try:
            with reserve_stdout():
                row |= describe(name)
        except InputError as error:
            row["problem"] = error.lines[0]
        rows.append(row)
    return rows


def _print_codegen(name: str, form: OutputFormat) -> None:
    with reserve_stdout():
        found = codegen.describe_codegens([name])[name]
    if isinstance(found, InputError):
        raise found
    point, options = list_installed(CODEGENS).get(name), found.options
    interpreter = _list_interpreters().get(name)
    dist = None if point is None else point.dist
    shown: TableRow = {
        "name": name,
        "description": found.summary,
        "distribution": dist.name if dist else None,
        "version": dist.version if dist else None,
        "interpreter": interpreter,
        "api": found.api,
        "native": found.native,
        "abilities": list(found.abilities),
        "options": None if options is None else [_make_option_row(option) for option in options],
    }
    if form is OutputFormat.json:
        print_json(shown)
        return
    print_line(name + f": {shown['description']}" * bool(shown["description"]))
    origin = f"{interpreter} ({found.interpreter})" if point is None else get_distribution(point)
    print_line(f"from: {origin}, interface version {shown['api']}")
    print_line(f"abilities: {', '.join(shown['abilities']) or 'none but to compile'}")
    if shown["native"]:
        print_line("native: yes, it executes what is in a bundle, which has to be trusted")
    if not options:
        print_line("options: none" if options is not None else "options: any, it reads them itself")
        return
    print_line("options:")
    rows = [_make_option_row(option) for option in options]
    print_rows(list(map(_mark_options, rows)), form)


def _describe_options(found: Any) -> list[TableRow]:
    """Return a row for each option that a strategy or a cost model takes."""
    return [_make_option_row(option) for option in list_plugin_options(type(found))]


def _name_options(rows: Iterable[TableRow]) -> list[TableRow]:
    """Return rows as the table shows them: options by their names."""
    return [
        {**row, "options": ", ".join(option["option"] for option in row.get("options") or ())}
        for row in rows
    ]


def _make_option_row(option: codegen.OptionDescription) -> TableRow:
    return {
        "option": option.name,
        "takes": option.kind,
        "default": option.default,
        "help": option.help,
        "at_load": option.at_load,
        "executes": option.executes,
    }


def _mark_options(row: TableRow) -> TableRow:
    """Return a row of an option with its marks as people read them; a mark of none has no column."""
    words = {True: "yes", False: ""}
    return {name: words[value] if isinstance(value, bool) else value for name, value in row.items()}


def strategies(form: FormatOption = OutputFormat.text) -> None:
    """List the installed placement strategies."""

    def describe(name: str) -> TableRow:
        strategy = load_plugin(STRATEGIES, name)
        honours = sorted(getattr(strategy, "honours", ()))
        return {
            "description": get_first_sentence(type(strategy)),
            "honours": honours,
            "options": _describe_options(strategy),
        }

    rows = _list_plugins(STRATEGIES, {"description": "", "honours": [], "options": []}, describe)
    if form is OutputFormat.text:
        for row in rows:
            del row["honours"]
        rows = _name_options(rows)
    print_rows(rows, form)


def passes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one in full.")] = None,
    form: FormatOption = OutputFormat.text,
) -> None:
    """List the installed passes, or show one and its options.

    Passes rewrite models and regions: those of scope "model" the model before it is annotated, those of
    scope "region" each region before its codegen gets it. "runs" says which need not be asked for:
    always, or by what rule files say. --no-pass leaves those out."""
    if name is not None:
        _print_pass(name, form)
        return

    def describe(name: str) -> TableRow:
        found = byoc.passes.load_pass(name)
        return {
            "scope": found.scope,
            "runs": byoc.passes.describe_clean_pass(name) or "asked for",
            "description": get_first_sentence(type(found.implementation)),
            "options": _describe_options(found.implementation),
        }

    empty: TableRow = {"scope": "", "runs": "", "description": "", "options": []}
    rows = _list_plugins(PASSES, empty, describe)
    print_rows(_name_options(rows) if form is OutputFormat.text else rows, form)


def _print_pass(name: str, form: OutputFormat) -> None:
    with reserve_stdout():
        found = byoc.passes.load_pass(name)
    kind = type(found.implementation)
    shown: TableRow = {
        "name": name,
        "description": get_first_sentence(kind),
        "from": found.distribution,
        "scope": found.scope,
        "runs": byoc.passes.describe_clean_pass(name) or "asked for",
        "options": _describe_options(found.implementation),
    }
    if form is OutputFormat.json:
        print_json(shown)
        return
    print_line(name + f": {shown['description']}" * bool(shown["description"]))
    print_line(f"from: {shown['from']}")
    print_line(f"scope: {shown['scope']}")
    print_line(f"runs: {shown['runs']}")
    if not shown["options"]:
        print_line("options: none")
        return
    print_line("options:")
    print_rows(list(map(_mark_options, shown["options"])), form)


cost_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@cost_app.callback(invoke_without_command=True)
def cost_models(context: typer.Context, form: FormatOption = OutputFormat.text) -> None:
    """List the installed cost models, or check cost files.

    Both files and plug-ins are listed."""
    if context.invoked_subcommand:
        return

    def describe(path: Path) -> TableRow:
        found = costs.read_cost_file(path)
        return {"kind": getattr(found, "kind", ""), "description": found.description, "options": []}

    def describe_plugin(name: str) -> TableRow:
        found = costs.load_cost_model(name)
        description = str(getattr(found, "description", ""))
        return {"description": description, "options": _describe_options(found)}

    empty: TableRow = {"kind": "plug-in", "description": "", "options": []}
    rows = [*make_file_rows(COST_MODELS, describe), *_list_plugins(COSTS, empty, describe_plugin)]
    print_rows(_name_options(rows) if form is OutputFormat.text else rows, form)


@cost_app.command("check", cls=PanelCommand)
def check_cost_models(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Cost files, or names of some.")],
    form: FormatOption = OutputFormat.text,
) -> None:
    """List every mistake in cost files, each with its location.

    A file that states no link is right for the host alone, and is said to be so."""
    rows: list[TableRow] = []
    for file in files:
        try:
            found = costs.load_cost_model(file)
            link = not isinstance(found, costs.CostFile) or found.link is not None
            rows.append({"file": file, "link": link, "problems": []})
        except InputError as error:
            rows.append({"file": file, "link": False, "problems": list(error.lines)})
    if form is OutputFormat.json:
        print_json(rows)
    else:
        for row in rows:
            use = "" if row["link"] else ", for the host: it has no link"
            print_lines(row["problems"] or [f"{row['file']}: ok{use}"])
    if any(row["problems"] for row in rows):
        raise typer.Exit(1)


def new_codegen(
    name: Annotated[str, typer.Argument(help="What users will call it, such as acme or my-npu.")],
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="DIR", help="Write to this folder, new or not, instead of ./NAME."
        ),
    ] = None,
    style: Annotated[
        CodegenStyle,
        typer.Option(
            "--style",
            help="emitter: it writes code itself. tool: it drives a compiler. library: it calls one in "
            "Python.",
        ),
    ] = CodegenStyle.emitter,
    other_python: Annotated[
        bool,
        typer.Option(
            "--other-python", help="With --style library: it lives in an interpreter of its own."
        ),
    ] = False,
) -> None:
    """Write a complete package for a codegen of your own.

    It has a codegen, a rule file, a cost model and tests, and works as it is. Files that are there are
    never overwritten."""
    folder = Path(name) if into is None else into
    for path in byoc.new_codegen(name, folder, style=style.value, other_python=other_python):
        print_line(folder / path)
    # Without a dot pip takes it for a project's name.
    place = folder if folder.is_absolute() or str(folder) == "." else f"./{folder}"
    settings = f"  put {place}/settings.yaml into your settings, with the path of its Python (README.md)"
    print_lines(
        [
            "",
            "Next:",
            f"  pip install -e '{place}[test]'",
            *([settings] if other_python else []),
            f"  BYOC_CONFORMANCE=fast pytest {folder}",
            f"  byoc partition zoo:squeezenet --rules {name}.yaml -o squeezenet.byoc",
        ]
    )
