"""Files of results: CSV or Parquet, a row for each case, and reading them back."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from byoc.comparison._study_rows import COLUMNS, MEASURE_PREFIX, StudyRow
from byoc.errors import InputError, escape_unprintable
from byoc.support import check_output, read_limited, write_atomically, write_text

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
        raise InputError(f"{path}: not the results of a study: {why}")
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
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _read_csv(path: Path) -> list[StudyRow]:
    rows = []
    for number, texts in enumerate(read_table(path), 2):
        row: StudyRow = {}
        for name, text in texts.items():
            if name is None or text is None:
                raise InputError(f"{path}:{number}: not as many cells as there are columns")
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
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # pyarrow has errors of its own
        raise InputError(f"{path}: not Parquet: {error}") from None
    return rows


def _import_parquet(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415 - optional
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'onnx-byoc[study]'") from None
    return pyarrow, parquet
