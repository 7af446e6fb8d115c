"""The command line: a thin skin over the functions of `byoc`, one module a verb.

Exit codes say whose fault it was: 0 none, 1 the input's (model, rules, options, bundle), 2 usage, 3
byoc's own. Results go to standard output, everything else to standard error. With BYOC_DEBUG=1 in the
environment every error comes with its traceback.
"""

import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer

from byoc.cli import inspect, installed, partition, verify, zoo
from byoc.errors import InputError, MissingRuntimeError

app = typer.Typer(
    name="byoc",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("partition")(partition.partition)
app.command("verify")(verify.verify)
app.command("inspect")(inspect.inspect)
app.command("zoo")(zoo.zoo)
app.command("rules")(installed.rules)
app.command("cost-models")(installed.cost_models)
app.command("codegens")(installed.codegens)
app.command("strategies")(installed.strategies)


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
    try:
        app()
    except (InputError, MissingRuntimeError) as error:
        if os.environ.get("BYOC_DEBUG"):
            traceback.print_exc()
        for line in str(error).splitlines():
            print(f"byoc: {line}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe has gone, as with `byoc zoo | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        print("byoc: this is a defect of byoc; please report it with the lines above", file=sys.stderr)  # noqa: T201
        sys.exit(3)
