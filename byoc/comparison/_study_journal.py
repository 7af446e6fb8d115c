"""The journal of a study: the outcomes of cases that are done, kept through any end of the program."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from byoc.comparison._case_solver import Outcome
from byoc.comparison._study_rows import check_outcome
from byoc.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FORMAT = {"byoc_study": 1}


class StudyJournal:
    """A file of JSON lines, one for each case that is done: its key and its outcome.

    A line is on the disk before the next case counts as done. A last line that was broken off is
    removed. Two programs cannot write the same journal.
    """

    def __init__(self, path: Path) -> None:
        """Open the journal, which is made where there is none.

        Raises InputError for a file that is no journal, cannot be written, or is being written.
        """
        self.path = path
        if path.is_symlink():  # the user named the results beside it, and not what the link leads to
            raise InputError(f"{path}: cannot be written: it is a link")
        try:
            self._file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
        try:
            self._lock()
            self.outcomes = self._read()
        except BaseException:
            self._close()
            raise

    def append(self, key: str, outcome: Mapping[str, Any]) -> None:
        """Write the outcome of a case. Raises InputError where the disk takes no more."""
        self.outcomes[key] = dict(outcome)
        self._write({"key": key, "outcome": outcome})

    def __enter__(self) -> Self:
        """Return the journal."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._close()

    def _close(self) -> None:
        with suppress(OSError):  # of a line that was not written, which was an error by then
            self._file.close()

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{self.path}: another study is writing it") from None

    def _read(self) -> dict[str, Outcome]:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        if not lines:
            if content and not json.dumps(_FORMAT).encode().startswith(content):
                raise InputError(f"{self.path}: not the journal of a study")
            self._file.truncate(0)
            self._write(_FORMAT)
            return {}
        found: dict[str, Outcome] = {}
        for number, line in enumerate(lines):
            try:
                entry = json.loads(line)
                if number:
                    found[entry["key"]] = check_outcome(entry["outcome"])
                elif entry != _FORMAT:
                    raise ValueError
            except (ValueError, LookupError, TypeError, RecursionError):
                raise InputError(
                    f"{self.path}:{number + 1}: not a line of the journal of a study"
                ) from None
        self._file.truncate(whole)
        return found

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from None
