"""The HTML file: data, styles and scripts in one, with a policy that lets nothing else run or load.

The data is packed (gzip, base64), so that no name of a model can end the HTML element around it. The
scripts put names into the page as text alone.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from gzip import GzipFile
from importlib.resources import files
from io import BytesIO
from string import Template
from typing import Any

import numpy as np

from byoc.bundle import DecidedGraph, DecisionDocument, Report
from byoc.errors import escape_unprintable
from byoc.memory.arena import find_lowest_gap
from byoc.page._trace_file import TracePicture
from byoc.reporting import format_conditions, format_promises

# In the order of loading: each needs those before it.
_LIBRARIES = ("cytoscape/cytoscape.min.js", "dagre/dagre.min.js")
_SCRIPTS = (
    *("tables.js", "hierarchy.js", "folding.js", "layout.js", "looks.js", "graph.js"),
    *("details.js", "lists.js", "charts.js", "overview.js", "search.js"),
)
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)  # a browser would try to load it


@dataclass(frozen=True, eq=False)
class PageParts:
    """The content of a page: the report, the decisions, and whatever else is known.

    `layers` of compiled regions and their `codegens` are by the region's name; `trace` is a traced run.
    `is_compiled` tells a bundle from a plan alone.
    """

    report: Report
    decisions: DecisionDocument
    trace: TracePicture | None = None
    layers: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    codegens: Mapping[str, str] = field(default_factory=dict)
    is_compiled: bool = False


def render_page(parts: PageParts) -> str:
    """Return the page as HTML; the same parts give the same text."""
    scripts = _read_scripts()
    hashes = " ".join(f"'sha256-{_hash_script(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_read_file("assets/page.html")).substitute(
        policy=html.escape(policy, quote=False),
        title=html.escape(f"{escape_unprintable(parts.report.model)} · byoc"),
        style=_read_file("assets/page.css"),
        data=_pack_data(parts),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _pack_data(parts: PageParts) -> str:
    """Return the data of the page: JSON, compressed by gzip, as base64."""
    rest = {
        "report": parts.report.to_json(),
        "promises": [
            *format_promises(parts.report.promises),
            *format_conditions(parts.report.conditions),
        ],
        "trace": None if parts.trace is None else parts.trace.to_json(),
        "layers": {name: list(each) for name, each in parts.layers.items()},
        "codegens": dict(parts.codegens),
        "compiled": parts.is_compiled,
        "memory": make_memory_picture(parts.decisions),
    }
    text = json.dumps(rest, separators=(",", ":"), allow_nan=False).encode()
    packed = BytesIO()
    with GzipFile("", "wb", 6, packed, mtime=0) as file:
        # The document writes its own JSON: it becomes the last key of the object.
        file.write(text[:-1] + b',"decisions":' + parts.decisions.to_json() + b"}")
    return base64.b64encode(packed.getvalue()).decode("ascii")


@cache
def _read_scripts() -> tuple[str, ...]:
    """Return the scripts: each library, and the page's own as one."""
    libraries = [_SOURCE_MAP.sub("", _read_file(f"third_party/{name}")) for name in _LIBRARIES]
    own = "\n".join(_read_file(f"assets/{name}") for name in _SCRIPTS)
    found = (*libraries, f'(() => {{\n"use strict";\n{own}\n}})();')
    for script in found:
        assert "</script" not in script.lower()
    return found


@cache
def _read_file(path: str) -> str:
    """Return the content of a file of this package, given its path there."""
    return files("byoc.page").joinpath(path).read_text(encoding="utf-8")


def _hash_script(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


# The memory of the main graph's activations over the steps of a run, as the page draws it.

_MOST_TENSORS = 400
"""The number of tensors that are drawn, the largest: others are too thin to be seen."""


def make_memory_picture(decisions: DecisionDocument) -> dict[str, Any]:
    """Return the largest activations of the main graph with live ranges and offsets, as JSON.

    Offsets are planned greedily: the largest tensor first, each at the lowest offset that is free
    during its live range (`by-size` of `byoc.memory.arena`). `buffers` has a row for each tensor: its
    number, offset and bytes, the first and the last step of its live range, and its device. `peak` is
    the end of the highest buffer and `total` the sum of all, in bytes; `why` says what is left out.
    """
    graph = decisions.graphs[0]
    found = sorted(_list_live_ranges(graph, decisions), key=lambda row: (-row[1], row[0]))
    steps = len(graph.units.kinds)
    shown, left = found[:_MOST_TENSORS], found[_MOST_TENSORS:]
    ranges = np.array([row[2:4] for row in shown], np.int64).reshape(-1, 2)
    offsets: list[int] = []
    for number, (_, size, first, last, _) in enumerate(shown):
        before = ranges[:number]
        together = np.flatnonzero((before[:, 0] <= last) & (before[:, 1] >= first)).tolist()
        spans = [(offsets[other], offsets[other] + shown[other][1]) for other in together]
        offsets.append(find_lowest_gap(spans, size))
    buffers = [
        [tensor, at, size, first, last, device]
        for at, (tensor, size, first, last, device) in zip(offsets, shown, strict=True)
    ]
    why = f"{len(left)} smaller tensors are left out." if left else ""
    return {
        "buffers": buffers,
        "steps": steps,
        "peak": max((at + row[1] for at, row in zip(offsets, shown, strict=True)), default=0),
        "total": sum(row[1] for row in shown),
        "why": why,
    }


def _list_live_ranges(
    graph: DecidedGraph, decisions: DecisionDocument
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield tensor, bytes, first and last step, and device of each activation of known size.

    Steps are units in topological order. A live range ends with the step of the last read.
    """
    tensors, nodes = graph.tensors, graph.nodes
    first_step, last_step = dict.fromkeys(graph.inputs, 0), dict.fromkeys(graph.inputs, 0)
    device = dict.fromkeys(graph.inputs, 0)
    for unit, inputs, outputs in zip(nodes.units, nodes.inputs, nodes.outputs, strict=True):
        for tensor in inputs if unit >= 0 else ():
            last_step[tensor] = max(unit, last_step.get(tensor, 0))
        for tensor in outputs if unit >= 0 else ():
            first_step[tensor] = unit
            last_step[tensor] = max(unit, last_step.get(tensor, 0))
            device[tensor] = graph.units.devices[unit]
    last_step.update(dict.fromkeys(graph.outputs, len(graph.units.kinds) - 1))
    hidden = {-1, *tensors.constant, *_list_inner_tensors(graph)}
    for tensor, first in first_step.items():
        kind = -1 if tensor in hidden else tensors.types[tensor]
        size = None if kind < 0 else decisions.types[kind].bytes
        if size:
            yield tensor, size, first, last_step[tensor], device[tensor]


def _list_inner_tensors(graph: DecidedGraph) -> Iterator[int]:
    """Yield the tensors inside of units on accelerators, which run as one: nothing stores them."""
    units = graph.nodes.units
    maker: dict[int, int] = {}
    for node, outputs in enumerate(graph.nodes.outputs):
        unit = units[node]
        if unit >= 0 and graph.units.devices[unit]:
            maker.update(dict.fromkeys(outputs, unit))
    for node, inputs in enumerate(graph.nodes.inputs):
        for tensor in inputs:
            if maker.get(tensor, units[node]) != units[node]:
                del maker[tensor]
    yield from maker.keys() - {*graph.outputs, *_list_unread(graph)}


def _list_unread(graph: DecidedGraph) -> set[int]:
    """Return the tensors that nothing reads."""
    read = {tensor for inputs in graph.nodes.inputs for tensor in inputs}
    return {tensor for outputs in graph.nodes.outputs for tensor in outputs} - read
