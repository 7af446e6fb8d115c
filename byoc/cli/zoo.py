"""`byoc zoo`: what models there are."""

from dataclasses import asdict

from byoc.cli.common import Format, FormatOption, print_rows
from byoc.zoo import entries


def zoo(form: FormatOption = Format.text) -> None:
    """List the models that `zoo:NAME` gives."""
    print_rows([asdict(entry) for entry in entries()], form)
