"""The command line: a thin skin over the functions of `byoc`, one module a verb.

Exit codes say whose fault it was: 0 none, 1 the input's (model, rules, options, bundle), 2 usage, 3
byoc's own. Results go to standard output, everything else to standard error.
"""

import os
import sys
import traceback

import typer

from byoc.cli import codegens, inspect, partition, rules, verify, zoo
from byoc.errors import InputError, MissingRuntimeError

app = typer.Typer(
    name="byoc",
    help="Bring your own codegen: cut an ONNX model between a host CPU and accelerators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("partition")(partition.partition)
app.command("verify")(verify.verify)
app.command("inspect")(inspect.inspect)
app.command("zoo")(zoo.zoo)
app.command("codegens")(codegens.codegens)
app.command("rules")(rules.rules)


def main() -> None:
    """Run the command line and exit with the code that says whose fault it was."""
    try:
        app()
    except (InputError, MissingRuntimeError) as error:
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
