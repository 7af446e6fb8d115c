"""A study: how much better than simple strategies is byoc's, as the link to the accelerator changes?

    python examples/study.py
    python examples/study.py zoo:resnet50 my.onnx

Seconds are those that the cost models predict; nothing is compiled or run.
"""

import sys

import byoc

MODELS = ("zoo:squeezenet", "zoo:shufflenet", "zoo:bvlc_alexnet")
STRATEGIES = ("host-only", "all-supported", "min-cut", "launch-aware")
LINKS = (0.1, 1.0, 10.0)  # GB/s


def main() -> None:
    """Print milliseconds by strategy, a line for each model and link."""
    models = sys.argv[1:] or MODELS
    rows = byoc.compare(models, "dla", strategies=STRATEGIES, links=LINKS, jobs=1)
    print(f"{'model':18} {'GB/s':>5} " + " ".join(f"{name:>14}" for name in STRATEGIES))
    for start in range(0, len(rows), len(STRATEGIES)):
        line = rows[start : start + len(STRATEGIES)]
        model, link = line[0]["model"], line[0]["link"]
        cells = [row["error"] or f"{row['objective'] * 1e3:.2f} ms" for row in line]
        print(f"{model:18} {link:5} " + " ".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
