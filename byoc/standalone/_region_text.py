"""The regions of a bundle in a program: when they run, what passes between them, and their text in C."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from byoc._dataclasses import dataclass, field
from byoc.boundary.contracts import TensorContract
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, count_bits
from byoc.standalone._program_graph import (
    DrivenRegion,
    ProgramGraph,
    fill_template,
    quote,
    read_source,
)
from byoc.standalone._program_steps import ProgramStep, ProgramSteps

if TYPE_CHECKING:
    from byoc.standalone._source_text import ProgramWeights

# When regions run. A region is begun before a step and waited for before another one; between them the
# host computes, and other regions run.

Span = tuple[int, int]
Range = tuple[int, int]


@dataclass(frozen=True)
class RegionCalls:
    """The order in which the regions of a program run: one after another, unless there are `spans`.

    `spans` maps the place of each region among the steps to the steps before which it is begun and
    before which its end is waited for. `links` numbers the tensors that pass only from regions to
    regions of one driver, and so may stay in a buffer of it.
    """

    spans: Mapping[int, Span] = field(default_factory=dict)
    links: Mapping[str, int] = field(default_factory=dict)

    def list_begun(self, step: int) -> Iterator[int]:
        """Yield the places of the regions that are begun before a step."""
        return (place for place, (begin, _) in self.spans.items() if begin == step)

    def list_ended(self, step: int) -> Iterator[int]:
        """Yield the places of the regions whose end is waited for before a step."""
        return (place for place, (_, end) in self.spans.items() if end == step)


def list_crossing(graph: ProgramGraph, step: ProgramStep) -> tuple[list[str], list[str]]:
    """Return the tensors that a region's step reads and makes, in the order of the manifest."""
    node = graph.index.nodes[step.nodes[0]]
    return [name for name in node.input if not graph.is_constant(name)], list(node.output)


def plan_region_calls(graph: ProgramGraph, steps: ProgramSteps) -> RegionCalls:
    """Find what can run at the same time in the given order of steps and arena, and the links.

    Regions are run one after another where nothing is gained otherwise.
    """
    regions = [place for place, step in enumerate(steps.steps) if step.region is not None]
    traffic = [_find_traffic(steps, place) for place in range(len(steps.steps))]
    spans = {place: (place, place + 1) for place in regions}
    for place in regions:
        for move in ((0, 1), (-1, 0)):  # later ends first: they need no reordering
            while True:
                wider = (spans[place][0] + move[0], spans[place][1] + move[1])
                if (
                    wider[0] < 0
                    or wider[1] > len(steps.steps)
                    or not _is_free(place, wider, spans, steps, traffic)
                ):
                    break
                spans[place] = wider
    links = {name: number for number, name in enumerate(_find_links(graph, steps))}
    alone = all(end - begin == 1 for begin, end in spans.values())
    return RegionCalls() if alone and not links else RegionCalls(spans, links)


@dataclass(frozen=True)
class _Traffic:
    """The ranges of the arena that a step reads and writes, its scratch included."""

    reads: tuple[Range, ...]
    writes: tuple[Range, ...]

    def conflicts(self, other: "_Traffic") -> bool:
        """Return whether two steps cannot run at the same time."""
        return _overlap(self.writes, (*other.reads, *other.writes)) or _overlap(self.reads, other.writes)


def _overlap(ones: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a < d and c < b for a, b in ones for c, d in others)


def _find_traffic(steps: ProgramSteps, place: int) -> _Traffic:
    plan = steps.plan
    number = plan.order[place]
    step = plan.problem.steps[number]

    def locate(buffers: Sequence[int]) -> tuple[Range, ...]:
        return tuple((plan.offsets[b], plan.offsets[b] + plan.problem.sizes[b]) for b in buffers)

    scratch = ((plan.scratch[number], plan.scratch[number] + step.scratch),) if step.scratch else ()
    return _Traffic(locate(step.reads), (*locate(step.writes), *scratch))


def _is_free(
    place: int,
    span: Span,
    spans: Mapping[int, Span],
    steps: ProgramSteps,
    traffic: Sequence[_Traffic],
) -> bool:
    """Return whether a region may be running from one step to another, beside all that runs then."""
    begin, end = span
    for other in range(len(traffic)):
        first, last = spans.get(other, (other, other + 1))
        if other == place or last <= begin or end <= first:
            continue
        is_same = steps.steps[other].region == steps.steps[place].region
        if is_same or traffic[place].conflicts(traffic[other]):
            return False
    return True


def _find_links(graph: ProgramGraph, steps: ProgramSteps) -> Iterator[str]:
    """Yield the tensors that regions of one codegen alone read and make, and that are no views."""
    index, memory = graph.index, steps.memory
    outputs = set(index.outputs)
    for step in steps.steps:
        if step.region is None:
            continue
        codegen = graph.regions[index.nodes[step.nodes[0]].op_type].codegen
        for name in list_crossing(graph, step)[1]:
            row = memory.buffers_of.get(name, ())
            is_own = len(row) == 1 and memory.tensors_of[row[0]] == (name,)
            readers = [i for i, reads in enumerate(index.reads) if name in reads]
            if (
                is_own
                and name not in outputs
                and readers
                and all(
                    graph.is_region(i) and graph.regions[index.nodes[i].op_type].codegen == codegen
                    for i in readers
                )
                and graph.sizes.count_bytes(name)
            ):
                yield name


# The part of `model.c` that opens and runs the regions of a bundle by their drivers.

_OPEN_SPANS = "    memset(opened->are_begun, 0, sizeof opened->are_begun);\n"
_OPEN_LINKS = "    open_links(opened);\n"
_TABLES = {1: "byoc_driver", 2: "byoc_driver_2"}
"""The types of drivers' tables, by the version of the interface."""


_SENTENCE_BYTES = 400  # of a handle, for an error that names versions or a library, or is a driver's


def name_driver_table(codegen: str) -> str:
    """Return the name of a codegen's driver in a program: what C has no letter for is an underscore."""
    return "byoc_driver_" + re.sub(r"[^A-Za-z0-9_]", "_", codegen)


@dataclass(frozen=True)
class RegionText:
    """Pieces of `model.h` (the first three) and of `model.c`."""

    includes: str
    members: str
    functions: str
    definitions: str
    opening: str

    @staticmethod
    def write(  # noqa: PLR0913, PLR0917 - what regions are made of, and what opens them
        graph: ProgramGraph,
        weights: "ProgramWeights",
        calls: RegionCalls,
        abis: Mapping[str, int],
        finds_drivers: bool,
        has_threads: bool,
    ) -> "RegionText":
        """Write the text of all regions; their artifacts are added to the weights, as they are.

        Drivers are linked, or with `finds_drivers` opened where the program runs, unless it is compiled
        with BYOC_LINKED. With `has_threads` what opens a model starts its threads.

        Raises InputError for a boundary tensor of elements of less than a byte.
        """
        threads = {
            "start": "    start_threads(opened);\n" * has_threads,
            "stop": "    stop_threads(opened);\n" * has_threads,
        }
        if not graph.regions:
            return RegionText("", "", "", "", fill_template("open_host.c.in", threads))
        driven = list(graph.regions.values())
        blobs = [list(each.artifact.files.items()) for each in driven]
        flat = [blob for each in blobs for blob in each]
        texts = [list(each.artifact.metadata.items()) for each in driven]
        definitions = fill_template(
            "regions.c.in",
            {
                "find": _write_finding([each.codegen for each in driven], abis, finds_drivers),
                "names": ", ".join(quote(each.region.name) for each in driven),
                "blob_names": ", ".join(quote(name) for name, _ in flat),
                "blob_offsets": ", ".join(str(weights.add_bytes(content)) for _, content in flat),
                "blob_bytes": ", ".join(str(len(content)) for _, content in flat),
                "first_blobs": _count_up(blobs),
                "texts": _list_texts(texts),
                "tensors": _list_tensors("inputs", [each.region.inputs for each in driven])
                + _list_tensors("outputs", [each.region.outputs for each in driven]),
            },
        )
        members = (
            f"    byoc_blob blobs[{len(flat)}];\n    byoc_region_info infos[{len(driven)}];\n"
            f"    byoc_region *regions[{len(driven)}];\n    const byoc_driver *drivers[{len(driven)}];\n"
            f"    char sentence[{_SENTENCE_BYTES}];\n"
        )
        includes = (
            f'\n#include "byoc_driver.h"\n\n#define MODEL_REGIONS {len(driven)}\n'
            f"#define MODEL_BLOBS {len(flat)}\n"
        )
        if calls.spans:
            members += f"    byoc_call calls[{len(driven)}];\n    int are_begun[{len(driven)}];\n"
            members += f"    byoc_buffer *links[{len(calls.links)}];\n" * bool(calls.links)
            definitions += _list_links(graph, calls, driven)
        opening = fill_template(
            "open_regions.c.in",
            threads
            | {
                "links": read_source("links.c.in").decode() if calls.links else "",
                "open_links": _OPEN_SPANS * bool(calls.spans) + _OPEN_LINKS * bool(calls.links),
                "close_links": "    close_links(opened);\n" * bool(calls.links),
                "running": read_source(f"{'submit' if calls.spans else 'run'}_regions.c.in").decode(),
            },
        )
        functions = read_source("regions.h.in").decode()
        return RegionText(includes, members, functions, definitions, opening)


def _write_finding(codegens: Sequence[str], abis: Mapping[str, int], finds_drivers: bool) -> str:
    """Return the text that finds the driver of each region, and asks it for versions."""
    tables = {name: name_driver_table(name) for name in dict.fromkeys(codegens)}
    linked = fill_template(
        "find_linked.c.in",
        {
            "externs": "".join(
                f"extern const {_TABLES[abis[name]]} {table};\n" for name, table in tables.items()
            ),
            "drivers": ", ".join(
                f"&{tables[name]}{'.base' if abis[name] > 1 else ''}" for name in codegens
            ),
        },
    )
    opened = {
        "linked": linked,
        "codegens": ", ".join(map(quote, codegens)),
        "libraries": ", ".join(quote(tables[name]) for name in codegens),
    }
    found = fill_template("find_drivers.c.in", opened) if finds_drivers else linked
    return read_source("versions.c.in").decode() + found


def _list_links(graph: ProgramGraph, calls: RegionCalls, driven: Sequence[DrivenRegion]) -> str:
    """Return the tables of tensors that pass from region to region: whose driver's, and bytes."""
    makers = {
        name: number
        for number, region in enumerate(graph.regions)
        for node in graph.index.nodes
        if node.op_type == region and node.domain in graph.domains
        for name in node.output
    }
    regions = ", ".join(str(makers[name]) for name in calls.links)
    sizes = ", ".join(str(graph.sizes.count_bytes(name)) for name in calls.links)
    most = max(len(side) for each in driven for side in (each.region.inputs, each.region.outputs))
    found = f"#define MOST_TENSORS {max(most, 1)}\n"
    if not calls.links:
        return found
    return (
        f"{found}#define LINKS {len(calls.links)}\n"
        f"static const size_t link_regions[] = {{{regions}}}; /* the regions that make the tensors */\n"
        f"static const size_t link_bytes[] = {{{sizes}}};\n"
    )


def _count_up(groups: Sequence[Sequence[object]]) -> str:
    total, counts = 0, [0]
    for group in groups:
        total += len(group)
        counts.append(total)
    return ", ".join(map(str, counts))


def _list_texts(texts: Sequence[Sequence[tuple[str, str]]]) -> str:
    rows = "".join(f"    {{{quote(name)}, {quote(text)}}},\n" for each in texts for name, text in each)
    return (
        f"static const byoc_text texts[] = {{\n{rows}    {{NULL, NULL}},\n}};\n"
        f"static const size_t first_texts[] = {{{_count_up(texts)}}};\n"
    )


def _list_tensors(side: str, regions: Sequence[Sequence[TensorContract]]) -> str:
    shapes, rows = [], []
    for number, contract in enumerate(each for contracts in regions for each in contracts):
        kind = contract.type
        if kind.elements is None or count_bits(kind.dtype) % 8:
            raise InputError(f"{contract.name}: {kind} does not cross to a driver")
        extents = ", ".join(map(str, kind.shape or ())) or "1"
        shapes.append(f"static const int64_t region_{side}_shape_{number}[] = {{{extents}}};\n")
        rows.append(
            f"    {{{quote(contract.name)}, {DTYPE_NUMBERS[kind.dtype]}, {len(kind.shape or ())}, "
            f"region_{side}_shape_{number}, {kind.bytes}}},\n"
        )
    end = "    {NULL, 0, 0, NULL, 0},\n"
    return (
        f"{''.join(shapes)}static const byoc_tensor region_{side}[] = {{\n{''.join(rows)}{end}}};\n"
        f"static const size_t first_{side}[] = {{{_count_up(regions)}}};\n"
    )
