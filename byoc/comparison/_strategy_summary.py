"""Summary of a comparison: for each strategy the geometric mean of its ratios to the best."""

from collections.abc import Sequence
from math import exp, fsum, log
from typing import Any

from byoc.comparison._compare import StrategyRow

_CaseKey = tuple[str, float | None, str]


def summarize_strategies(rows: Sequence[StrategyRow]) -> list[dict[str, Any]]:
    """Return a row for each strategy: cases, errors, mean and worst ratio, largest gap, seconds.

    A case is a model at a link. Ratios are to the best objective that any strategy found for the case by
    the same measure; a strategy counts the cases that it solved. `measure` names what its objectives
    are, null where it solved none.
    """
    best: dict[_CaseKey, float] = {}
    for row in rows:
        if row["objective"] is not None:
            case = _key_case(row)
            best[case] = min(best.get(case, row["objective"]), row["objective"])
    return [_summarize(name, rows, best) for name in dict.fromkeys(row["strategy"] for row in rows)]


def _key_case(row: StrategyRow) -> _CaseKey:
    return row["model"], row["link"], row["measure"]


def _summarize(
    strategy: str, rows: Sequence[StrategyRow], best: dict[_CaseKey, float]
) -> dict[str, Any]:
    own = [row for row in rows if row["strategy"] == strategy]
    solved = [row for row in own if row["objective"] is not None]
    pairs = [(row["objective"], best[_key_case(row)]) for row in solved]
    ratios = [value / least if least else 1.0 for value, least in pairs]
    gaps = [row["gap"] for row in solved if row["gap"] is not None]
    return {
        "strategy": strategy,
        "measure": " and ".join(dict.fromkeys(row["measure"] for row in solved)) or None,
        "cases": len(solved),
        "errors": sum(row["error"] is not None for row in own),
        "mean_ratio": exp(fsum(map(log, ratios)) / len(ratios)) if ratios else None,
        "worst_ratio": max(ratios, default=None),
        "largest_gap": max(gaps, default=None),
        "seconds": fsum(row["seconds"] for row in solved),
    }
