"""`byoc codegens`: what compiles regions here."""

from byoc.cli.common import Format, FormatOption, print_rows
from byoc.codegen import Executable, find_codegen
from byoc.errors import InputError
from byoc.plugins import CODEGENS, distribution, installed


def codegens(form: FormatOption = Format.text) -> None:
    """List the installed codegens, where each came from, and whether it can run what it compiles."""
    rows = []
    for name, point in installed(CODEGENS).items():
        try:
            runs = "yes" if isinstance(find_codegen(name), Executable) else "no"
        except InputError as error:
            runs = str(error)
        rows.append({"name": name, "from": distribution(point), "runs_here": runs})
    print_rows(rows, form)
