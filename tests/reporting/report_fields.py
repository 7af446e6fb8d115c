"""The fields of a report, changed as a test asks, and the texts made of it."""

from io import StringIO
from typing import Any

from rich.console import Console

from byoc.bundle import Report
from byoc.reporting import SCREEN, ReportSize, print_report, summarize_report

TENSOR = {"name": "x", "dtype": None, "shape": None, "bytes": None}


REPORT: dict[str, Any] = {
    "model": "m.onnx",
    "targets": ["npu"],
    "strategy": "min-cut",
    "nodes": {"total": 5, "offloaded": 3, "host": 2, "constant": 1},
    "compute": {"operations": 100.0, "offloaded": 0.9999},
    "predicted": {
        "seconds": 0.002,
        "execution": 0.001,
        "transfer": 0.0005,
        "launch": 0.0005,
        "host_only": 0.01,
        "bound": None,
        "objective": "latency",
        "optimized": 0.002,
        "joules": None,
        "host_only_joules": None,
    },
    "regions": [
        {
            "name": "npu_0",
            "device": "npu",
            "nodes": 3,
            "trips": 1.0,
            "graph": "",
            "composites": {},
            "inputs": [TENSOR | {"bytes": 2048}, TENSOR],
            "outputs": [TENSOR | {"bytes": 10}],
            "seconds": 0.002,
            "borders": [],
        }
    ],
    "refusals": [],
    "host_reasons": [],
    "what_if": [],
    "precision": None,
    "notes": [],
    "verification": None,
    "not_verified": "nobody asked",
    "bundle": None,
}


def print_text(size: ReportSize = SCREEN, /, **change: Any) -> list[str]:
    """Return the lines of a report with some fields changed."""
    stream = StringIO()
    print_report(Report.read(REPORT | change), Console(file=stream, width=200, emoji=False), size)
    return [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]


def summarize(**change: Any) -> str:
    """Return the first line of a report with some fields changed."""
    return summarize_report(Report.read(REPORT | change))


def verified(error: float, accuracy: Any) -> dict[str, Any]:
    """Return the field of a verification that passed with an error, a share of the range."""
    found = {"against": "m", "passed": True, "outputs": []}
    return found | {"largest_relative_error": error, "accuracy": accuracy}
