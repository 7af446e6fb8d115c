"""What a comparison comes to: for each strategy the geometric mean of how far it is from the best."""

from collections.abc import Sequence
from math import exp, fsum, log
from typing import Any

from byoc.compare.rows import Row


def geometric_means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for each strategy: cases, errors, mean and worst ratio, largest gap, seconds.

    A case is a model at a link. Ratios are to the best objective that any strategy found for the case; a
    strategy counts the cases that it solved.
    """
    best: dict[tuple[str, float | None], float] = {}
    for row in rows:
        if row["objective"] is not None:
            case = row["model"], row["link"]
            best[case] = min(best.get(case, row["objective"]), row["objective"])
    return [_summary(name, rows, best) for name in dict.fromkeys(row["strategy"] for row in rows)]


def _summary(
    strategy: str, rows: Sequence[Row], best: dict[tuple[str, float | None], float]
) -> dict[str, Any]:
    own = [row for row in rows if row["strategy"] == strategy]
    solved = [row for row in own if row["objective"] is not None]
    ratios = [_ratio(row["objective"], best[row["model"], row["link"]]) for row in solved]
    gaps = [row["gap"] for row in solved if row["gap"] is not None]
    return {
        "strategy": strategy,
        "cases": len(solved),
        "errors": len(own) - len(solved),
        "mean_ratio": exp(fsum(map(log, ratios)) / len(ratios)) if ratios else None,
        "worst_ratio": max(ratios, default=None),
        "largest_gap": max(gaps, default=None),
        "seconds": fsum(row["seconds"] for row in solved),
    }


def _ratio(value: float, best: float) -> float:
    return value / best if best else 1.0
