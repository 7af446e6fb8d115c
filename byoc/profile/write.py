"""Writing a cost model to a file, with one line for each entry."""

from pathlib import Path
from typing import Any

import yaml

from byoc.costs.file import CostFile
from byoc.textfile import write_text

_ROWS = ("entries", "operators")
_DIGITS = 6


def write_costs(path: Path, costs: CostFile) -> None:
    """Write a cost model to a file, which is replaced as a whole or left as it was."""
    write_text(path, format_costs(costs))


def format_costs(costs: CostFile) -> str:
    """Format a cost model as YAML, fractions to six digits."""
    content = _round_floats(costs.model_dump(mode="python", by_alias=True, exclude_defaults=True))
    kind = content.pop("kind")
    rows = {name: content.pop(name) for name in _ROWS if name in content}
    lines = [_dump({"kind": kind, **content}, flow=None)]
    for name, found in rows.items():
        lines.append(f"{name}:\n")
        if isinstance(found, dict):
            lines += [f"  {_dump({key: value}, flow=True)[1:-2]}\n" for key, value in found.items()]
        else:
            lines += [f"- {_dump(entry, flow=True)}" for entry in found]
    return "".join(lines)


def _dump(content: Any, flow: bool | None) -> str:
    text: str = yaml.safe_dump(
        content, default_flow_style=flow, sort_keys=False, width=10**6, allow_unicode=True
    )
    return text


def _round_floats(value: Any) -> Any:
    if isinstance(value, dict):  # attributes are looked up, and must stay exact
        return {key: item if key == "attributes" else _round_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_round_floats(item) for item in value]
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.{_DIGITS}g}")
