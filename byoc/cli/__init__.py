"""The command line: a thin skin over the functions of `byoc`, one module a verb.

Exit codes say whose fault it was: 0 none, 1 the input's (model, rules, options, bundle), 2 usage, 3
byoc's own. Results go to standard output, everything else to standard error. With BYOC_DEBUG=1 in the
environment every error comes with its traceback.
"""

import os
import signal
import sys
import traceback
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from byoc.cli import (
    calibrate,
    compare,
    costs,
    explain,
    inspect,
    installed,
    new_codegen,
    pack,
    partition,
    place,
    plan_memory,
    profile,
    rules,
    run,
    verify,
    zoo,
)
from byoc.errors import InputError, MissingRuntimeError

app = typer.Typer(
    name="byoc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("partition")(partition.partition)
app.command("explain")(explain.explain)
app.command("run")(run.run)
app.command("verify")(verify.verify)
app.command("inspect")(inspect.inspect)
app.command("pack")(pack.pack)
app.command("compare")(compare.compare)
app.command("calibrate")(calibrate.calibrate)
app.command("profile")(profile.profile)
app.command("compare-costs")(costs.compare_costs)
app.command("place")(place.place)
app.command("plan-memory")(plan_memory.plan_memory)
app.add_typer(zoo.app, name="zoo")
app.add_typer(rules.app, name="rules")
app.command("cost-models")(installed.cost_models)
app.command("codegens")(installed.codegens)
app.command("strategies")(installed.strategies)
app.command("new-codegen")(new_codegen.new_codegen)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"byoc {version('onnx-byoc')}")
        raise typer.Exit


@app.callback()
def byoc(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""


def main() -> None:
    """Run the command line and exit with the code that says whose fault it was."""
    for stream in (sys.stdout, sys.stderr):  # a name or a unit that the terminal cannot show is no error
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for number in (signal.SIGTERM, signal.SIGHUP):  # leave by the way that cleans up
        signal.signal(number, lambda caught, _: sys.exit(128 + caught))
    try:
        app()
    except (InputError, MissingRuntimeError) as error:
        if os.environ.get("BYOC_DEBUG"):
            traceback.print_exc()
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'the results'}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        print("byoc: this is a defect of byoc; please report it with the lines above", file=sys.stderr)  # noqa: T201
        sys.exit(3)


def _fail(message: str) -> NoReturn:
    for line in message.splitlines():
        print(f"byoc: {line}", file=sys.stderr)  # noqa: T201
    sys.exit(1)
