"""The end of verbs that check requirements: sentences, exit code 6, and the file for CI systems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import byoc
from byoc import reporting
from byoc.cli._common import check_outside
from byoc.console import print_errors
from byoc.errors import InputError, MissingRuntimeError
from byoc.support import Panel, check_output

REQUIREMENT_MISSED = 6
"""The exit code for a result that misses what was required of it; that of `diff --exit-code`, too."""

JUnitOption = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="FILE",
        help="Write what was checked to this file as JUnit XML, which CI systems show.",
        rich_help_panel=Panel.REQUIREMENTS,
    ),
]


@dataclass(frozen=True)
class JUnitFile:
    """The JUnit file that a verb writes, if any. `verb` names the case of an error."""

    path: Path | None
    verb: str

    @classmethod
    def prepare(cls, path: Path | None, verb: str, bundle: Path) -> JUnitFile:
        """Return the file by its absolute path.

        Raises InputError when it cannot be written, or would lie in the bundle that is read.
        """
        if path is None:
            return cls(None, verb)
        check_output(path)
        check_outside(path, bundle, "it would change the bundle that is read")
        return cls(path.absolute(), verb)  # a codegen's code may change the working directory

    @contextmanager
    def record_errors(self, suite: str) -> Iterator[None]:
        """Write an error of the block as the one case of a suite, and raise it."""
        try:
            yield
        except (InputError, MissingRuntimeError) as error:
            self.write(
                [
                    reporting.JUnitSuite(
                        suite, (reporting.JUnitCase(self.verb, "error", "; ".join(error.lines)),)
                    )
                ]
            )
            raise

    def write(self, suites: Iterable[reporting.JUnitSuite]) -> None:
        """Write suites, which are made only if there is to be a file."""
        if self.path is not None:
            reporting.write_junit(self.path, list(suites))


def leave_if_missed(reports: Sequence[byoc.Report], requirements: byoc.Requirements) -> None:
    """Print a sentence for each requirement that a report misses, and leave with 6 if there is one."""
    missed = reporting.list_missed(reports, requirements)
    if missed:
        print_errors(missed)
        raise typer.Exit(REQUIREMENT_MISSED)
