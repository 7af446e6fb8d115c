"""The HTML file: data, styles and scripts in one, with a policy that lets nothing else run or load.

The data is packed (gzip, base64), so that no name of a model can end the HTML element around it. The
scripts put names into the page as text alone.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from gzip import GzipFile
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from byoc._dataclasses import asdict, dataclass, field, replace
from byoc.bundle import Bundle, DecidedGraph, DecisionDocument, RegionEntry, Report, open_bundle
from byoc.codegen import escape_line, parse_strict_json
from byoc.errors import InputError, escape_unprintable
from byoc.memory.arena import find_lowest_gap
from byoc.planning import Plan
from byoc.reporting import (
    format_conditions,
    format_promises,
    list_output_qualities,
    list_quality_warnings,
    make_decision_document,
)
from byoc.reporting.page._overlay import Overlay, draw_constants, read_overlay
from byoc.runtime import OPERATOR_CATEGORY
from byoc.support import StrictModel, read_limited

# Traces that `byoc run --trace` wrote, read for the page's timeline.

_MAX_TRACE_BYTES = 1 << 26
_MOST_EVENTS = 20_000  # of a trace in the page; the longest are kept

_Microseconds = Annotated[float, Field(ge=0, le=1e18)]  # sums of more could be infinite
_Count = Annotated[int, Field(ge=0)]
_Number = Annotated[float, Field(ge=0, le=1e18)]
_MOST_OPERATORS = 2_000  # of a stage in the page


class _Arguments(StrictModel):
    device: str = "host"
    bytes_in: _Count = Field(0, alias="bytes in")
    bytes_out: _Count = Field(0, alias="bytes out")
    bytes_held: _Count = Field(0, alias="bytes held")
    peak_bytes: _Count = Field(0, alias="peak bytes")
    variant: str = ""
    padded: str = ""
    stage: str = ""
    nodes: tuple[str, ...] = ()
    seconds: _Number = 0.0
    cycles: _Number = 0.0


class _Event(StrictModel):
    """A complete event of Chrome's trace event format; times are in microseconds."""

    name: str
    cat: str
    ph: str
    ts: _Microseconds
    dur: _Microseconds
    pid: int
    tid: int
    args: _Arguments


@dataclass(frozen=True, slots=True)
class PictureEvent:
    """A stage of a run in the timeline: its number in `rows`, and its start and length in seconds."""

    name: str
    device: str
    row: int
    start: float
    seconds: float
    bytes_read: int
    bytes_made: int
    bytes_held: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PictureOperator:
    """An operator inside of a stage, with the model's nodes in it; `cycles` are 0 where not counted."""

    name: str
    nodes: tuple[str, ...]
    seconds: float
    cycles: float


@dataclass(frozen=True, eq=False)
class TracePicture:
    """A timeline of `seconds`, with a row for each device and thread; `why` says what is left out.

    `operators` are those inside of each stage, by its name.
    """

    events: tuple[PictureEvent, ...]
    rows: tuple[str, ...]
    seconds: float
    why: str = ""
    operators: Mapping[str, tuple[PictureOperator, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the data that JSON can represent."""
        return asdict(self)


def read_trace(path: Path) -> TracePicture:
    """Read a trace of `byoc run --trace`. Raises InputError with one sentence for any other file."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, _MAX_TRACE_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_TRACE_BYTES:
        raise InputError(f"{path}: not a trace: it has more than {_MAX_TRACE_BYTES} bytes")
    try:
        read = parse_strict_json(content)
        events = read.get("traceEvents") if isinstance(read, dict) else None
        if not isinstance(events, list):
            raise ValueError("it has no list traceEvents")
        complete = [each for each in events if not isinstance(each, dict) or each.get("ph") != "M"]
        return _make_picture([_Event.model_validate(each) for each in complete])
    except ValidationError as error:
        first = error.errors()[0]
        where = escape_line(".".join(map(str, first["loc"])))
        raise InputError(f"{path}: not a trace of byoc: {where}: {escape_line(first['msg'])}") from None
    except (ValueError, LookupError) as error:
        raise InputError(f"{path}: not a trace of byoc: {escape_line(str(error))}") from None


def _read_operators(events: Sequence[_Event]) -> dict[str, tuple[PictureOperator, ...]]:
    """Return the operators inside of stages: of each stage those of its first run."""
    found: dict[str, dict[tuple[str, tuple[str, ...]], PictureOperator]] = {}
    for event in events:
        own, given = found.setdefault(event.args.stage, {}), event.args
        key = (event.name, given.nodes)
        if len(own) < _MOST_OPERATORS:
            own.setdefault(key, PictureOperator(*key, given.seconds, given.cycles))
    return {stage: tuple(own.values()) for stage, own in found.items()}


def _make_picture(every: list[_Event]) -> TracePicture:
    """Return the timeline of the events, or of the longest 20,000 where there are more."""
    events = [event for event in every if event.cat != OPERATOR_CATEGORY]
    kept = sorted(events, key=lambda event: -event.dur)[:_MOST_EVENTS]
    devices = dict.fromkeys(sorted(((e.args.device != "host"), e.args.device, e.tid) for e in kept))
    threads = [name for _, name, _ in devices]
    rows = tuple(
        f"{name}, thread {thread}" if threads.count(name) > 1 else name for _, name, thread in devices
    )
    number = {key: row for row, key in enumerate(devices)}
    ordered = sorted(kept, key=lambda event: (event.ts, event.tid))
    ends = [event.ts + event.dur for event in events]
    left = len(events) - len(kept)
    return TracePicture(
        events=tuple(
            PictureEvent(
                name=event.name,
                device=event.args.device,
                row=number[(event.args.device != "host", event.args.device, event.tid)],
                start=event.ts / 1e6,
                seconds=event.dur / 1e6,
                bytes_read=event.args.bytes_in,
                bytes_made=event.args.bytes_out,
                bytes_held=event.args.bytes_held,
                peak_bytes=event.args.peak_bytes,
            )
            for event in ordered
        ),
        rows=rows,
        seconds=max(ends, default=0.0) / 1e6,
        why=f"{left} short events are left out." if left else "",
        operators=_read_operators([each for each in every if each.cat == OPERATOR_CATEGORY]),
    )


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

    `layers` of compiled regions and their `codegens` are by the region's name; `trace` is a traced run,
    `constants` are pictures of the model's constants by name (`draw_constants`), `overlay` the user's
    numbers of nodes. `is_compiled` tells a bundle from a plan alone.
    """

    report: Report
    decisions: DecisionDocument
    trace: TracePicture | None = None
    layers: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    codegens: Mapping[str, str] = field(default_factory=dict)
    is_compiled: bool = False
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    overlay: Overlay | None = None


def render_page(parts: PageParts) -> str:
    """Return the page as HTML; the same parts give the same text."""
    scripts = _read_scripts()
    return Template(_read_file("assets/page.html")).substitute(
        policy=html.escape(_make_policy(scripts), quote=False),
        title=html.escape(f"{escape_unprintable(parts.report.model)} · byoc"),
        style=_read_file("assets/page.css"),
        data=_pack_data(parts),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _make_policy(scripts: Sequence[str]) -> str:
    """Return a policy that lets these scripts run, and nothing be loaded."""
    hashes = " ".join(f"'sha256-{_hash_script(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _pack_data(parts: PageParts) -> str:
    """Return the data of the page: JSON, compressed by gzip, as base64."""
    rest = {
        "report": parts.report.to_json(),
        "promises": [
            *format_promises(parts.report.promises),
            *format_conditions(parts.report.conditions),
        ],
        "accuracy": [asdict(each) for each in list_output_qualities(parts.report)],
        "accuracy_warnings": list(list_quality_warnings(parts.report)),
        "trace": None if parts.trace is None else parts.trace.to_json(),
        "layers": {name: list(each) for name, each in parts.layers.items()},
        "codegens": dict(parts.codegens),
        "compiled": parts.is_compiled,
        "memory": make_memory_picture(parts.decisions),
        "constants": dict(parts.constants),
        "overlay": None if parts.overlay is None else asdict(parts.overlay),
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
    return files("byoc.reporting.page").joinpath(path).read_text(encoding="utf-8")


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


# The page of a bundle, from what it holds, or of a plan.

_MOST_LAYERS = 2_000  # of a region in the page
_MAX_LAYER_BYTES = 1 << 24


class _Layer(BaseModel):
    """A layer of a compiled region, as its codegen states it in a JSON file of the artifact."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    name: str
    operation: str = ""
    cycles: Annotated[int, Field(ge=0)]


class _Layers(BaseModel):
    """A JSON file of an artifact that has layers; other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    layers: tuple[_Layer, ...]


def make_page(
    bundle: Bundle | str | Path,
    trace: str | Path | None = None,
    overlay: str | Path | None = None,
) -> str:
    """Return the page of a `bundle`, or of the one at a path, as HTML.

    `trace` is a file that `byoc run --trace` wrote: its timeline is drawn, and measured seconds stand
    beside predicted ones. `overlay` is a CSV file with numbers of nodes, which colour the graph: its
    first column `node` has their names or those of their first outputs, the second one has a title.

    Raises InputError when one of them cannot be read, or the bundle holds no decisions.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    decisions = read_bundle_decisions(opened)
    return render_page(
        replace(
            _describe_bundle(opened, decisions),
            trace=None if trace is None else read_trace(Path(trace)),
            overlay=None if overlay is None else read_overlay(Path(overlay), decisions),
        )
    )


def make_diff_page(old: Bundle, new: Bundle, texts: tuple[str, str], moved: Collection[str]) -> str:
    """Return a page with the pages of two bundles beside one another, in which `moved` nodes stand out.

    `texts` have lines on the differences, the first of which is their summary: one for screens that are
    wide, one for those that are not. Raises InputError where a bundle holds no decisions.
    """
    pages = []
    for bundle in (old, new):
        decisions = read_bundle_decisions(bundle)
        own = {name for each in decisions.list_placed_nodes() for name in (each.name, each.output)}
        overlay = Overlay("moved", dict.fromkeys(sorted(own.intersection(moved)), 1.0), marks=True)
        parts = _describe_bundle(bundle, decisions)
        pages.append(render_page(replace(parts, overlay=overlay if overlay.values else None)))
    summary = texts[0].partition("\n")[0]
    wide, narrow = (text.partition("\n")[2].strip("\n") for text in texts)
    names = [escape_unprintable(str(bundle.display_path)) for bundle in (old, new)]
    shown = {"title": f"{' -> '.join(names)} · byoc", "summary": summary, "wide": wide, "narrow": narrow}
    given = {**shown, "old": names[0], "new": names[1], "before": pages[0], "after": pages[1]}
    return Template(_read_file("assets/diff.html")).substitute(
        policy=html.escape(_make_policy(_read_scripts()), quote=False),
        **{name: html.escape(value) for name, value in given.items()},
    )


def read_bundle_decisions(opened: Bundle) -> DecisionDocument:
    """Return the decisions of a bundle. Raises InputError where it holds none."""
    decisions = opened.decisions()
    if decisions is None:
        raise InputError(
            f"{opened.display_path}: holds no decisions.json.gz, since an older byoc wrote it or it has "
            "too many nodes: partition the model again with --html"
        )
    return decisions


def _describe_bundle(opened: Bundle, decisions: DecisionDocument) -> PageParts:
    return PageParts(
        report=opened.variant.report,
        decisions=decisions,
        layers=dict(_find_layers(opened)),
        is_compiled=True,
        codegens={entry.name: entry.codegen for entry in opened.variant.regions},
        constants=draw_constants(opened.model(), opened.folder),
    )


def make_plan_page(plan: Plan, report: Report) -> str:
    """Return the page of a plan, of which no bundle was written, as HTML.

    It has no layouts and scales of boundary tensors: contracts are known once regions are compiled.
    """
    constants = draw_constants(plan.model.proto, plan.model.folder or Path())
    return render_page(PageParts(report, make_decision_document(plan), constants=constants))


def _find_layers(bundle: Bundle) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield each region whose codegen states the cycles of its layers, with these layers."""
    entries = {entry.name: entry for entry in bundle.manifest.regions}
    known: dict[str, list[Mapping[str, Any]]] = {}
    for entry in bundle.variant.regions:
        own = entries.get(entry.same_as, entry)
        if own.name not in known:
            known[own.name] = _read_layers(bundle, own)
        if known[own.name]:
            yield entry.name, known[own.name]


def _read_layers(bundle: Bundle, entry: RegionEntry) -> list[Mapping[str, Any]]:
    """Return the layers in a region's artifact; none where no file of it states layers with cycles."""
    for path in entry.artifact_files.values():
        if not path.endswith(".json") or bundle.manifest.files[path].bytes > _MAX_LAYER_BYTES:
            continue
        try:
            found = _Layers.model_validate_json((bundle.folder / path).read_bytes())
        except (ValidationError, OSError):
            continue  # a file in another format
        return [layer.model_dump() for layer in found.layers[:_MOST_LAYERS]]
    return []
