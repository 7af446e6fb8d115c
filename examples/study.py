"""A study: how much better than simple strategies is byoc's, as the link to the accelerator changes?

    python examples/study.py FOLDER
    python examples/study.py FOLDER zoo:resnet50 my.onnx

Writes `results.csv`, a table, and a figure of each kind into the folder; the same call again solves
nothing twice. Seconds are those that the cost models predict; nothing is compiled or run.
"""

import sys
from pathlib import Path

import byoc
from byoc.comparison import plot_study, tabulate_study

MODELS = ("zoo:squeezenet", "zoo:shufflenet", "zoo:bvlc_alexnet")
STRATEGIES = ("host-only", "all-supported", "min-cut", "launch-aware")
LINKS = (0.1, 1.0, 10.0)  # GB/s


def main() -> None:
    """Print milliseconds by strategy, a line for each model and link, and the files written."""
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/study.py FOLDER [MODEL...]")
    folder, models = Path(sys.argv[1]), sys.argv[2:] or MODELS
    folder.mkdir(parents=True, exist_ok=True)
    study = {"models": list(models), "rules": "dla", "links": LINKS, "strategies": STRATEGIES}
    rows = byoc.study(study, folder / "results.csv").rows
    print(f"{'model':18} {'GB/s':>5} " + " ".join(f"{name:>14}" for name in STRATEGIES))
    for start in range(0, len(rows), len(STRATEGIES)):
        line = rows[start : start + len(STRATEGIES)]
        model, link = line[0]["model"], line[0]["link"]
        cells = [row["reason"] or f"{row['seconds'] * 1e3:.2f} ms" for row in line]
        print(f"{model:18} {link:5} " + " ".join(f"{cell:>14}" for cell in cells))
    (folder / "table.md").write_text(tabulate_study(folder / "results.csv"))
    figures = plot_study(folder / "results.csv", folder / "figures")
    print(f"written: results.csv, table.md, {', '.join(figure.name for figure in figures)}")


if __name__ == "__main__":
    main()
