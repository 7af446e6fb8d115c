"""A bundle for Model Explorer: its graphs with byoc's decisions, and numbers of nodes as overlays.

Model Explorer is a viewer of graphs by Google (`pip install ai-edge-model-explorer`). It reads graphs
and node data from JSON without an extension; the formats are those of the classes in its
`graph_builder.py` and `node_data_builder.py`, and fields that are left out have their defaults there.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from byoc.bundle import (
    Bundle,
    DecidedBoundary,
    DecidedGraph,
    DecidedRange,
    DecisionDocument,
    Report,
    open_bundle,
)
from byoc.console import format_decibels, format_quantity, format_share
from byoc.reporting.page._overlay import Overlay, read_overlay
from byoc.reporting.page._page_file import read_bundle_decisions

GRAPH_FILE = "graph.json"
"""The name of the file with the graphs; all others are overlays."""

_MAIN = "main graph"
_COLOURS = ("#bbdefb", "#c8e6c9", "#ffe0b2", "#e1bee7", "#b2ebf2", "#f8bbd0")  # text on them is black
_HOST_COLOUR = "#e8eaed"
_PALE, _STRONG = "#fff3e0", "#d84315"
_TITLES = {
    "device": "device",
    "seconds": "predicted seconds of a run",
    "bytes": "bytes that a node makes",
    "decibels": "signal to noise against the float model (dB)",
    "unused": "share of the integers that the data does not need",
}


def make_explorer_files(
    bundle: Bundle | str | Path, overlay: str | Path | None = None
) -> dict[str, str]:
    """Return the files that show a `bundle`, or the one at a path, in Model Explorer: name -> JSON.

    `graph.json` has the graphs, with a namespace for each region and each composite; a body of control
    flow is a graph of its own. The others are overlays: `device.json`, `seconds.json`, `bytes.json`,
    and where they are known `decibels.json` (of the nodes that make outputs) and `unused.json` (of
    tensors in integers). `overlay` is a CSV file as that of `byoc.make_page`; it becomes `overlay.json`.

    Raises InputError when one of them cannot be read, or the bundle holds no decisions.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    decisions, report = read_bundle_decisions(opened), opened.variant.report
    numbers = None if overlay is None else read_overlay(Path(overlay), decisions)
    graphs = [_ExplorerGraph(decisions, number, report) for number in range(len(decisions.graphs))]
    documents: dict[str, Any] = {
        GRAPH_FILE: {"label": report.model, "graphs": [each.make_document() for each in graphs]}
    }
    overlays = {
        name: (title, {graph.id: getattr(graph, f"list_{name}")() for graph in graphs})
        for name, title in _TITLES.items()
    }
    if numbers is not None:
        overlays["overlay"] = numbers.title, {graph.id: graph.list_numbers(numbers) for graph in graphs}
    for name, (title, found) in overlays.items():
        # Of decibels few are bad.
        ends = (_STRONG, _PALE) if name == "decibels" else (_PALE, _STRONG)
        gradient = [{"stop": stop, "bgColor": colour} for stop, colour in enumerate(ends)]
        results = {graph: dict(filter(_is_finite, rows)) for graph, rows in found.items()}
        data = {
            graph: {"name": title, "results": each, "gradient": gradient}
            for graph, each in results.items()
            if each
        }
        if data:
            documents[f"{name}.json"] = data
    return {name: json.dumps(each, indent=1, allow_nan=False) for name, each in documents.items()}


_Values = Iterator[tuple[str, dict[str, Any]]]
"""Ids of nodes, each with its value as `NodeDataResult` has it."""


class _ExplorerGraph:
    """A graph of the decisions as Model Explorer has it.

    The id of a node is its name, with its number where another node has that name.
    """

    def __init__(self, decisions: DecisionDocument, number: int, report: Report) -> None:
        self.decisions, self.number, self.report = decisions, number, report
        self.graph: DecidedGraph = decisions.graphs[number]
        self.id = self.graph.path or _MAIN
        taken: set[str] = set()
        self.ids: list[str] = []
        for node, name in enumerate(self.graph.nodes.names):
            self.ids.append(name if name and name not in taken else f"{name}#{node}")
            taken.add(self.ids[-1])

    @cached_property
    def makers(self) -> Mapping[int, tuple[str, str]]:
        """The id of the node that makes each tensor, and which of its outputs it is."""
        graph = self.graph
        found = {tensor: (f"{self.name(tensor)} (input)", "0") for tensor in graph.inputs}
        for node, outputs in enumerate(graph.nodes.outputs):
            found.update((tensor, (self.ids[node], str(at))) for at, tensor in enumerate(outputs))
        return found

    @cached_property
    def readers(self) -> Mapping[int, list[int]]:
        """The readers of each tensor."""
        found = defaultdict(list)
        for node, inputs in enumerate(self.graph.nodes.inputs):
            for tensor in inputs:
                if tensor >= 0:
                    found[tensor].append(node)
        return dict(found)

    @cached_property
    def nodes_of_units(self) -> Mapping[int, Sequence[int]]:
        """The nodes of each unit."""
        found = defaultdict(list)
        for node, unit in enumerate(self.graph.nodes.units):
            found[unit].append(node)
        return found

    @cached_property
    def inserted(self) -> frozenset[int]:
        """The nodes that byoc added."""
        return frozenset(self.graph.nodes.inserted)

    @cached_property
    def bodies(self) -> Mapping[int, list[str]]:
        """The ids of the graphs of a node's bodies."""
        found = defaultdict(list)
        for each in self.decisions.graphs:
            if each.around[0] == self.number:
                found[each.around[1]].append(each.path)
        return found

    @cached_property
    def ranges(self) -> Mapping[int, list[DecidedRange]]:
        """The ranges of the integers that a unit makes, by its main node."""
        graph, found = self.graph, defaultdict(list)
        makers = {tensor: node for node, made in enumerate(graph.nodes.outputs) for tensor in made}
        for each in graph.ranges:
            maker = makers.get(each.tensor, -1)
            if maker >= 0 and self.operator(maker) == "DequantizeLinear":
                around = [makers.get(tensor, -1) for tensor in graph.nodes.inputs[maker][:1]]
            else:
                around = self.readers.get(each.tensor, [])
            quantize = [n for n in around if n >= 0 and self.operator(n) == "QuantizeLinear"]
            for node in quantize[:1]:
                unit = graph.nodes.units[node]
                found[self._find_main(unit) if unit >= 0 else node].append(each)
        return found

    def name(self, tensor: int) -> str:
        """Return the name of a tensor."""
        return self.graph.tensors.names[tensor]

    def operator(self, node: int) -> str:
        """Return the operator of a node, behind its domain where that is not ONNX's own."""
        kind = self.decisions.operators[self.graph.nodes.operators[node]]
        return f"{kind.domain}.{kind.name}" if kind.domain else kind.name

    def find_device(self, node: int) -> int:
        """Return the device of a node; where it has none that of its reader, or of its body's node."""
        placed = self.find_placed(node)
        return self.device_around if placed is None else self.graph.find_device(placed)

    @cached_property
    def device_around(self) -> int:
        """The device of the node around the body, where that was not placed by itself; else the host."""
        above, around = self.graph.around
        if self.graph.units.kinds or above < 0 or around < 0:
            return 0
        return _ExplorerGraph(self.decisions, above, self.report).find_device(around)

    def find_placed(self, node: int) -> int | None:
        """Return a node if it is placed; else what reads a constant node first, None where none is."""
        seen: set[int] = set()
        while node not in seen and self.graph.nodes.units[node] < 0:
            seen.add(node)  # a bundle of others may have a cycle
            made = self.graph.nodes.outputs[node]
            node = next((self.readers[tensor][0] for tensor in made if tensor in self.readers), node)
        return node if self.graph.nodes.units[node] >= 0 else None

    def describe_type(self, tensor: int) -> str:
        """Return dtype and shape of a tensor, empty where they are not known."""
        kind = self.graph.tensors.types[tensor]
        if kind < 0:
            return ""
        found = self.decisions.types[kind]
        dims = None if found.shape is None else ["?" if dim is None else str(dim) for dim in found.shape]
        return f"{found.dtype}[{'...' if dims is None else ','.join(dims)}]"

    def make_document(self) -> dict[str, Any]:
        """Return the graph as JSON has it (`Graph`)."""
        graph = self.graph
        inputs = [
            {
                "id": self.makers[tensor][0],
                "label": "Input",
                "namespace": "",  # the viewer's code does not bear a node without one
                **self._describe_outputs([tensor]),
            }
            for tensor in graph.inputs
        ]
        outputs = [self._make_output(tensor) for tensor in graph.outputs]
        nodes = [*inputs, *map(self._make_node, range(len(self.ids))), *outputs]
        return {
            "id": self.id,
            "nodes": nodes,
            "groupNodeAttributes": {"": self._describe_graph(), **dict(self._describe_regions())},
            "groupNodeConfigs": [
                {"namespaceRegex": f"^{each.name}$", "backgroundColor": _choose_colour(each.device)}
                for each in graph.regions
            ],
        }

    def _describe_outputs(self, tensors: Sequence[int]) -> dict[str, Any]:
        """Return the names and the types of what a node makes; -1 is an output that is left out."""
        rows = [
            _list_pairs({"tensor_name": self.name(tensor), "tensor_shape": self.describe_type(tensor)})
            if tensor >= 0
            else []
            for tensor in tensors
        ]
        return {"outputsMetadata": [{"id": str(at), "attrs": row} for at, row in enumerate(rows)]}

    def _make_node(self, node: int) -> dict[str, Any]:
        nodes = self.graph.nodes
        edges = [
            {
                "sourceNodeId": self.makers[tensor][0],
                "sourceNodeOutputId": self.makers[tensor][1],
                "targetNodeInputId": str(at),
            }
            for at, tensor in enumerate(nodes.inputs[node])
            if tensor in self.makers and tensor >= 0
        ]
        return {
            "id": self.ids[node],
            "label": self.operator(node),
            "namespace": self._find_namespace(node),
            "attrs": _list_pairs(dict(self._describe_node(node))),
            "incomingEdges": edges,
            "subgraphIds": self.bodies.get(node, []),
            "style": {"backgroundColor": _choose_colour(self.find_device(node))},
            **self._describe_outputs(nodes.outputs[node]),
        }

    def _make_output(self, tensor: int) -> dict[str, Any]:
        maker = self.makers.get(tensor)
        edges = [] if maker is None else [{"sourceNodeId": maker[0], "sourceNodeOutputId": maker[1]}]
        node = {"id": f"{self.name(tensor)} (output)", "label": "Output", "namespace": ""}
        return {**node, "incomingEdges": edges, "attrs": _list_pairs(self._describe_error(tensor))}

    def _find_namespace(self, node: int) -> str:
        """Return region and unit of a node; a slash would begin a further level, and names have some."""
        placed = self.find_placed(node)
        if placed is None:
            return ""
        unit = self.graph.nodes.units[placed]
        own = self.nodes_of_units[unit]
        region = self.graph.units.regions[unit]
        parts = [self.graph.regions[region].name] if region >= 0 else []
        if len(own) > 1:
            composite = self.graph.units.composites[unit]
            kind = (
                self.decisions.composites[composite]
                if composite >= 0
                else self.operator(self._find_main(unit))
            )
            parts.append(f"{kind} {self.ids[self._find_main(unit)]}".replace("/", "."))
        return "/".join(parts)

    def _find_main(self, unit: int) -> int:
        """Return the node that a unit is known by: the first one that byoc did not insert."""
        inserted, own = self.inserted, self.nodes_of_units[unit]
        linear = {"QuantizeLinear", "DequantizeLinear"}
        return next((n for n in own if n not in inserted and self.operator(n) not in linear), own[0])

    def _describe_node(self, node: int) -> Iterator[tuple[str, str]]:
        """Yield the attributes of a node: its place and why, its costs, what the model states."""
        graph, tables, unit = self.graph, self.decisions, self.graph.nodes.units[node]
        yield "device", tables.devices[self.find_device(node)]
        if unit >= 0:
            units = graph.units
            if units.regions[unit] >= 0:
                yield "region", graph.regions[units.regions[unit]].name
            if units.composites[unit] >= 0:
                yield "composite", tables.composites[units.composites[unit]]
            if units.rules[unit]:
                yield "taken by", ", ".join(tables.rules[rule] for rule in units.rules[unit])
            if units.reasons[unit] >= 0:
                reason = tables.reasons[units.reasons[unit]]
                yield "on the host", reason.text
                yield "what would change that", reason.remedy
            for device, column in zip(tables.devices, units.seconds, strict=True):
                seconds = column[unit]
                shown = "not supported" if seconds is None else format_quantity(seconds, "s")
                yield f"predicted on {device}", shown
            yield "operations", f"{units.operations[unit]:.6g}"
        elif not graph.units.kinds:
            yield "placed", "with the node around its body"
        yield from self._describe_stated(node)
        for each in self.ranges.get(node, ()):
            yield f"integers of {self.name(each.tensor)}", _describe_range(each)

    def _describe_stated(self, node: int) -> Iterator[tuple[str, str]]:
        """Yield the stated attributes of a node, and the constants that it reads."""
        graph = self.graph
        attributes = graph.nodes.attributes[node] if graph.nodes.attributes else -1
        for line in self.decisions.attributes[attributes].split("\n") if attributes >= 0 else ():
            name, _, value = line.partition(": ")
            yield name, value
        constant = set(graph.tensors.constant)
        for tensor in graph.nodes.inputs[node]:
            if tensor in constant and tensor not in self.makers:
                yield f"constant {self.name(tensor)}", self.describe_type(tensor)

    def _describe_error(self, tensor: int) -> dict[str, str]:
        """Return the errors of an output, as the verification found them."""
        checked, name = self.report.verification, self.name(tensor)
        if checked is None or self.number:
            return {}
        found: dict[str, str] = {}
        error = next((each.relative for each in checked.outputs if each.name == name), None)
        if error is not None:
            found["largest error, of the range"] = f"{error:.2g}"
        accuracy = checked.accuracy.outputs if checked.accuracy else ()
        for each in accuracy:
            if each.name == name and (each.exact or each.signal_to_noise is not None):
                ratio = "no error" if each.exact else format_decibels(each.signal_to_noise or 0.0)
                found["signal to noise, against the float model"] = ratio
        return found

    def _describe_graph(self) -> dict[str, str]:
        report = self.report
        trips = {} if self.graph.trips in {None, 1.0} else {"runs": f"{self.graph.trips:g}"}
        return {
            "model": report.model,
            "predicted": format_quantity(report.predicted.seconds, "s"),
            "host alone": format_quantity(report.predicted.host_only, "s"),
            "on accelerators": f"{report.nodes.offloaded} of {report.nodes.total} nodes",
            **trips,
        }

    def _describe_regions(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield each region's namespace with what is known of it."""
        reports = {each.name: each for each in self.report.regions}
        for region in self.graph.regions:
            found = reports.get(region.name)
            shown = {
                "device": self.decisions.devices[region.device],
                "predicted": format_quantity(region.seconds, "s"),
                "enters": _sum_bytes([each for each in region.boundary if each.enters]),
                "leaves": _sum_bytes([each for each in region.boundary if not each.enters]),
            }
            if found is not None and found.estimate is not None:
                shown["compiler's estimate"] = format_quantity(found.estimate.seconds, "s")
            uses = {} if found is None else {"memory": found.memory, "SRAM": found.sram}
            for name, use in uses.items():
                if use is not None:
                    limit = f" of {format_quantity(use.limit, 'B')}" if use.limit else ""
                    shown[name] = f"{format_quantity(use.used, 'B')}{limit}"
            yield region.name, shown

    def list_device(self) -> _Values:
        """Yield the device of each node."""
        for node, name in enumerate(self.ids):
            device = self.find_device(node)
            yield name, {"value": self.decisions.devices[device], "bgColor": _choose_colour(device)}

    def list_seconds(self) -> _Values:
        """Yield the seconds of each unit where it is, at its main node; groups show sums."""
        units, trips = self.graph.units, self.graph.trips or 1.0
        for unit, device in enumerate(units.devices):
            seconds = units.seconds[device][unit]
            if seconds is not None:
                yield self.ids[self._find_main(unit)], {"value": seconds * trips}

    def list_bytes(self) -> _Values:
        """Yield the bytes of the tensors that each node makes, where all are known."""
        for node, outputs in enumerate(self.graph.nodes.outputs):
            kinds = [self.graph.tensors.types[tensor] for tensor in outputs if tensor >= 0]
            sizes = [self.decisions.types[kind].bytes if kind >= 0 else None for kind in kinds]
            known = [size for size in sizes if size is not None]
            if known and len(known) == len(sizes):
                yield self.ids[node], {"value": sum(known)}

    def list_decibels(self) -> _Values:
        """Yield the signal-to-noise ratio of each output in lower precision, at its node."""
        checked = self.report.verification
        ratios = (
            {}
            if checked is None or checked.accuracy is None
            else {each.name: each.signal_to_noise for each in checked.accuracy.outputs}
        )
        for tensor in self.graph.outputs if self.number == 0 else ():
            ratio = ratios.get(self.name(tensor))
            if ratio is not None and tensor in self.makers:
                yield self.makers[tensor][0], {"value": ratio}

    def list_unused(self) -> _Values:
        """Yield the share of the integers that the data does not need."""
        for node, found in self.ranges.items():
            yield self.ids[node], {"value": max(each.unused for each in found)}

    def list_numbers(self, overlay: Overlay) -> _Values:
        """Yield the user's numbers, which are by name or by first output."""
        path = f"{self.graph.path}/" if self.graph.path else ""
        for node, name in enumerate(self.graph.nodes.names):
            outputs = [self.name(tensor) for tensor in self.graph.nodes.outputs[node] if tensor >= 0]
            for known in (name, *outputs[:1]):
                if path + known in overlay.values:
                    yield self.ids[node], {"value": overlay.values[path + known]}
                    break


def _is_finite(row: tuple[str, dict[str, Any]]) -> bool:
    """Return whether JSON can represent a value: sums in a bundle of others may be infinite."""
    value = row[1]["value"]
    return not isinstance(value, float) or isfinite(value)


def _list_pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items() if value]


def _choose_colour(device: int) -> str:
    return _COLOURS[(device - 1) % len(_COLOURS)] if device > 0 else _HOST_COLOUR


def _sum_bytes(boundary: Sequence[DecidedBoundary]) -> str:
    known = sum(each.bytes or 0 for each in boundary)
    rest = ", and unknown" if any(each.bytes is None for each in boundary) else ""
    return f"{len(boundary)} ({format_quantity(known, 'B')}{rest})"


def _describe_range(found: DecidedRange) -> str:
    ends = (found.low, found.high, *found.data)
    low, high, least, greatest = (f"{end:.4g}" for end in ends)
    beyond = (
        f", {format_share(found.beyond)} of the data's range saturates" if found.beyond > 1e-6 else ""
    )
    unused = f"{format_share(found.unused)} of the integers unused{beyond}"
    return f"{found.dtype}, {low} to {high}; data {least} to {greatest}; {unused}"
