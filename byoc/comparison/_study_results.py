"""The results of a study: rows, files of them in CSV or Parquet, and the journal of what is done."""

import csv
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isnan
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from byoc.comparison._case_solver import FAILED, OK, STATUSES, Outcome
from byoc.comparison._study_file import StudyCase, format_value
from byoc.errors import InputError, escape_unprintable
from byoc.support import (
    check_output,
    describe_missing_file,
    install_command,
    read_limited,
    write_atomically,
    write_text,
)

# The rows of a study: what was asked of each case, its outcome, and what follows from all of them.

StudyRow = dict[str, Any]

# Relative. Costs that are added up in another order differ by less, and so do bounds of `exact`.
TOLERANCE = 1e-9

ASKED_COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("model", "rules", "cost_model", "host_cost_model", "parameters"), str),
    **{"link": float, "strategy": str, "options": str, "seed": int, "time_limit": float},
    **{"limits": str, "no_passes": str, "objective": str, "repetition": int},
}
"""The columns that say what a case is. Mappings are texts: `launch=1e-05, link.latency=0`."""

FOUND_COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("status", "reason", "measure"), str),
    **dict.fromkeys(("value", "bound", "best_bound", "gap", "best_value", "ratio"), float),
    **dict.fromkeys(("seconds", "execution_seconds", "transfer_seconds", "launch_seconds"), float),
    **dict.fromkeys(("host_only_seconds", "joules"), float),
    **{"regions": int, "offloaded": float, "bytes_moved": float, "constant_bytes": int},
    **dict.fromkeys(("regret_mean", "regret_worst"), float),
    "notes": str,
}
"""The columns that solving gives."""

RUN_COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("solver_seconds", "case_seconds"), float),
    **dict.fromkeys(("machine", "date", "command"), str),
}
"""The columns that differ from run to run: seconds of the strategy, and of the whole case; on which
machine and when it was solved, and the command of the study that had it solved."""

ORIGIN_COLUMNS: Mapping[str, type] = dict.fromkeys(
    (
        *("byoc_version", "onnx_version", "onnxruntime_version", "scipy_version"),
        *("model_digest", "rules_digest", "costs_digest", "strategy_digest", "key"),
    ),
    str,
)
"""The columns that say what the numbers are computed from."""

COLUMNS: Mapping[str, type] = {**ASKED_COLUMNS, **FOUND_COLUMNS, **RUN_COLUMNS, **ORIGIN_COLUMNS}
"""All columns of a study and their types, except those of strategies' own measures."""

MEASURE_PREFIX = "own_"
"""The prefix of the columns of strategies' own measures."""


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    **{name: (int, float) if kind is float else kind for name, kind in COLUMNS.items()},
    **{"notes": list, "measures": dict, "comparable": bool},
}


def check_outcome(outcome: Any) -> Outcome:
    """Return an outcome that was read from a file. Raises ValueError where it makes no row."""
    if not isinstance(outcome, dict) or outcome.get("status") not in STATUSES:
        raise ValueError("it has no status")
    for name, kind in _TYPES.items():
        value = outcome.get(name)
        is_nan = isinstance(value, float) and isnan(value)
        if value is not None and (is_nan or not isinstance(value, kind)):
            raise ValueError(f"its {name} is wrong")
    if outcome["status"] == OK and outcome.get("value") is None:
        raise ValueError("it has no value")
    if not all(isinstance(text, str) for text in outcome.get("notes") or ()):
        raise ValueError("its notes are no texts")
    if not all(isinstance(number, (int, float)) for number in (outcome.get("measures") or {}).values()):
        raise ValueError("its measures are no numbers")
    return outcome


def make_rows(cases: Sequence[StudyCase], outcomes: Mapping[str, Outcome]) -> list[StudyRow]:
    """Return a row for each case that has an outcome, by the keys of the cases, in their order."""
    done = [(case, outcomes[case.key]) for case in cases if case.key in outcomes]
    measures = dict.fromkeys(name for _, outcome in done for name in outcome.get("measures", {}))
    rows = [_make_row(case, outcome, measures) for case, outcome in done]
    problems: dict[tuple[str, str], list[tuple[StudyRow, bool]]] = defaultdict(list)
    for (case, outcome), row in zip(done, rows, strict=True):
        if row["value"] is not None:
            comparable = outcome.get("comparable", True)
            problems[case.problem_key, row["measure"]].append((row, comparable))
    for same in problems.values():
        _compare_rows([row for row, _ in same], [comparable for _, comparable in same])
    return rows


def _make_row(case: StudyCase, outcome: Outcome, measure_names: Iterable[str]) -> StudyRow:
    """Return the row of a case, without the columns that depend on other rows.

    `measure_names` are those of all strategies of the study.
    """
    row: StudyRow = dict.fromkeys(COLUMNS)
    row |= {
        "model": case.model,
        "rules": "+".join(case.rules),
        "cost_model": _format_choice(case.cost_model),
        "host_cost_model": case.host_cost_model or "",
        "parameters": format_pairs({**case.cost_options, **case.parameters}),
        "link": case.link,
        "strategy": case.strategy,
        "options": format_pairs(case.strategy_options),
        "seed": case.seed,
        "time_limit": case.time_limit,
        "limits": format_pairs(case.limits),
        "no_passes": "+".join(case.planning.get("no_passes", ())),
        "objective": case.objective,
        "repetition": case.repetition,
    }
    found = {**FOUND_COLUMNS, **RUN_COLUMNS, **ORIGIN_COLUMNS}
    row |= {name: outcome[name] for name in found if name in outcome}
    digests = {f"{what}_digest": digest for what, digest in case.digests.items()}
    row |= {name: digest for name, digest in digests.items() if name in COLUMNS}
    row["key"] = case.key
    row["reason"], row["notes"] = outcome.get("reason") or "", outcome.get("notes") or []
    measures = outcome.get("measures", {})
    return row | {f"{MEASURE_PREFIX}{name}": measures.get(name) for name in measure_names}


def _format_choice(choice: str | Mapping[str, str] | None) -> str:
    return choice if isinstance(choice, str) else format_pairs(choice or {})


def format_pairs(pairs: Mapping[str, Any]) -> str:
    """Return pairs as the text of a column: `name=value, name=value`."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in pairs.items())


def _compare_rows(rows: Sequence[StudyRow], comparable: Sequence[bool]) -> None:
    """Set the best value, the best bound, the gap and the ratio in the rows of one problem.

    `comparable` says for each row whether its bound holds for the others, too. Where such a bound is
    above a value that was found, one of the two is wrong, and the row with the bound fails.
    """
    best = min(rows, key=lambda row: float(row["value"]))
    bounds = []
    for row, holds in zip(rows, comparable, strict=True):
        if holds and row["bound"] is not None:
            if row["bound"] > best["value"] * (1 + TOLERANCE):
                stated, found = f"{row['bound']:.9g}", f"{best['value']:.9g}"
                wrong = f"its bound, {stated}, is above what {best['strategy']} found, {found}"
                row |= {"status": FAILED, "reason": f"{wrong}: one of them is wrong"}
            else:
                bounds.append(row["bound"])
    for row in rows:
        value = row["value"]
        own = [] if row["bound"] is None or row["status"] == FAILED else [row["bound"]]
        bound = max([*bounds, *own], default=None)
        row["best_bound"] = bound
        row["gap"] = None if bound is None else max(0.0, (value - bound) / value) if value else 0.0
        row["best_value"] = best["value"]
        row["ratio"] = value / best["value"] if best["value"] else 1.0


def is_failure(row: Mapping[str, Any]) -> bool:
    """Return whether a case was not solved, or its bound is wrong."""
    return bool(row["status"] != OK)


_SUFFIXES = (".csv", ".parquet")
_MOST_BYTES = 1 << 30
_NOTES = "; "


def check_results_path(path: Path) -> None:
    """Raise InputError unless results can be written to a path, which says the format by its suffix."""
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path}: results are files that end in {' or '.join(_SUFFIXES)}")
    check_output(path)
    if path.suffix == ".parquet":
        _import_parquet(path)


def write_results(path: Path, rows: Sequence[StudyRow]) -> None:
    """Write rows as CSV or Parquet. Raises InputError where that is not possible."""
    names = list(rows[0]) if rows else list(COLUMNS)
    plain = [row | {"notes": _NOTES.join(row["notes"])} for row in rows]
    if path.suffix == ".parquet":
        arrow, parquet = _import_parquet(path)
        types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
        schema = arrow.schema([(name, types[COLUMNS.get(name, float)]) for name in names])
        table = arrow.Table.from_pylist(plain, schema=schema)
        write_atomically(path, lambda file: parquet.write_table(table, file))
        return
    write_text(path, format_csv(plain, names))


def format_csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return rows as CSV; numbers in as many digits as they have, None as an empty cell.

    CSV has no escapes: what is not printable in names is shown as `\\n`, so that each row is a line.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_format_cell(row[name]) for name in names])
    return text.getvalue()


def _format_cell(value: Any) -> Any:
    if isinstance(value, str):
        return escape_unprintable(value)
    return "" if value is None else value


def read_results(path: Path) -> list[StudyRow]:
    """Read the rows of a study from CSV or Parquet.

    Raises InputError for a file that cannot be read, or lacks columns of a study.
    """
    rows = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    missing = [name for name in ("model", "strategy", "value", "status") if rows and name not in rows[0]]
    if missing or not rows:
        why = f"there is no column {missing[0]}" if missing else "it has no rows"
        writer = "`byoc study STUDY.yaml -o FILE` writes such a file"
        raise InputError(f"{path}: not the results of a study: {why}; {writer}")
    return [dict.fromkeys(COLUMNS) | row for row in rows]


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of any CSV file as texts by column. Raises InputError for one that is none."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, _MOST_BYTES)
        if len(content) > _MOST_BYTES:
            raise InputError(f"{path}: cannot be read: it has more than {_MOST_BYTES} bytes")
        return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig")), strict=True))
    except FileNotFoundError:
        raise InputError(describe_missing_file(path)) from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: cannot be read: it is not text in UTF-8, as CSV is") from None
    except (OSError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _read_csv(path: Path) -> list[StudyRow]:
    rows = []
    for number, texts in enumerate(read_table(path), 2):
        row: StudyRow = {}
        for name, text in texts.items():
            if name is None or text is None:
                raise InputError(
                    f"{path}:{number}: not as many cells as there are columns, so not a CSV file"
                )
            kind = float if name.startswith(MEASURE_PREFIX) else COLUMNS.get(name, str)
            try:
                row[name] = kind(text) if text or kind is str else None
            except ValueError:
                raise InputError(f"{path}:{number}: {name}: '{text}' is not a number") from None
        rows.append(row)
    return rows


def _read_parquet(path: Path) -> list[StudyRow]:
    _, parquet = _import_parquet(path)
    try:
        rows: list[StudyRow] = parquet.read_table(str(path)).to_pylist()
    except FileNotFoundError:
        raise InputError(describe_missing_file(path)) from None
    except Exception as error:  # pyarrow has errors of its own
        raise InputError(f"{path}: not Parquet: {error}") from None
    return rows


def _import_parquet(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415 - optional
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow: {install_command('study')}") from None
    return pyarrow, parquet


# The journal of a study: the outcomes of cases that are done, kept through any end of the program.

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
