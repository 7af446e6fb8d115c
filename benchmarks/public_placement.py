"""The public placement benchmark, each instance in the objective that it asks for.

`python benchmarks/public_placement.py FOLDER [--greedy BINARY] [--dp BINARY] [--seconds N]`

FOLDER is a checkout of github.com/msr-fiddle/dnn-partitioning (Tarnawski et al., NeurIPS 2020), whose
files are no part of byoc: its README says that `latency-inputs` are for the least latency, and
`throughput-inputs` for the least maximal load. The binaries are its own programs, built by
`g++ -O2 latency-greedy/greedy.cpp -o greedy` and `g++ -O2 throughput-dp/dp.cpp -o dp`; both evaluate
splits, too (`greedy -computeLatency`, `dp -expert`). Times are in the unit of the files.

FOLDER may also be a checkout of github.com/xinyuyao/Doppler (Yao et al., DOPPLER, ICLR 2026), whose
graphs have operations of nodes and bytes of their results, in its simulator the seconds of each: devices
that compute one node at a time, and transfers that wait for nothing. Byoc's makespan is compared with
the best of 50 list schedules. Its order of jobs counts there; `fifo` are both where each device runs
what came first, as that simulator does. The paper's own times are milliseconds of GPUs, which these
figures do not say.
"""

import argparse
import heapq
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import byoc

Instance = dict[str, Any]
Split = dict[str, list[dict[str, Any]]]
"""`cpus` and `fpgas`, each with its `nodes`, as the benchmark's programs write it."""

_UNIT = 1e-3
"""Seconds of byoc for a unit of the files."""


@dataclass(frozen=True)
class Answer:
    """What a program of the benchmark found."""

    value: float | None
    """None if it gave none within its time."""
    seconds: float
    """of processor time"""


def main(arguments: Sequence[str]) -> int:
    """Print a row for each instance; return 1 if byoc is worse than another, or counts differently."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--greedy", type=Path, help="the benchmark's greedy")
    parser.add_argument("--dp", type=Path, help="the benchmark's dynamic program")
    parser.add_argument("--seconds", type=int, default=300, help="of processor time for each of them")
    parser.add_argument("--only", default="", help="a part of the paths of the instances to solve")
    given = parser.parse_args(arguments)
    if (given.folder / "compute_graph").is_dir():
        return compare_dataflow_graphs(given.folder / "compute_graph", given.only)
    heads = ("instance", "byoc", "bound", "gap %", "s", "evaluated", "greedy", "s", "dp", "s")
    print(f"{heads[0]:62}" + "".join(f"{head:>11}" for head in heads[1:]))
    wrong, gaps = 0, []
    for path, objective in find_instances(given.folder):
        if given.only not in str(path):
            continue
        row, faults = compare(path, objective, given)
        gaps.append(row[2])
        cells = "".join("          -" if each is None else f"{each:11.3f}" for each in row)
        print(f"{path.relative_to(given.folder)!s:62}{cells}", flush=True)
        for fault in faults:
            print(f"  {fault}")
        wrong += len(faults)
    small = sum(gap is not None and gap <= 1 for gap in gaps)
    print(f"{small} of {len(gaps)} within 1 % of the bound")
    return 1 if wrong else 0


def find_instances(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each instance of a checkout, and its objective."""
    for objective in ("latency", "throughput"):
        for path in sorted(folder.glob(f"{objective}-inputs/*/*.json")):
            yield path, objective


def compare(
    path: Path, objective: str, given: argparse.Namespace
) -> tuple[list[float | None], list[str]]:
    """Return the cells of an instance's row, and sentences on what must not be."""
    start = time.process_time()
    document = byoc.place(path, objective=objective)
    seconds = time.process_time() - start
    instance = json.loads(path.read_text())
    split = make_split(document)
    value = document["objective_seconds"] / _UNIT
    evaluated = evaluate(instance, split, objective)
    bound, gap = document["bound_seconds"], document["gap"]
    row = [value, bound and bound / _UNIT, None if gap is None else gap * 100, seconds, evaluated]
    faults = list(find_excesses(instance, split))
    if abs(evaluated - value) > 1e-6 * value:
        faults.append(f"byoc counts {value}, and this benchmark {evaluated}")
    judge = given.greedy if objective == "latency" else given.dp
    theirs = evaluate_by(judge, objective, path, split, given.seconds) if judge else None
    if theirs is not None and abs(theirs - value) > 1e-5 * value + 1e-3:
        faults.append(f"byoc counts {value}, and {judge.name} {theirs}")
    for program in (given.greedy if objective == "latency" else None, given.dp):
        found = run_program(program, path, objective, given, instance) if program else None
        row += [found.value, found.seconds] if found else [None, None]
        if found and found.value is not None and found.value < value * (1 - 1e-6):
            faults.append(f"{program.name} is better: {found.value}")
    return row, faults


def make_split(document: Mapping[str, Any]) -> Split:
    """Return byoc's answer as the benchmark's programs write one."""
    split: Split = {"cpus": [], "fpgas": []}
    for device in document["devices"]:
        kind = "cpus" if device["kind"] == "core" else "fpgas"
        split[kind].append({"load": 0, "nodes": device["nodes"]})
    return split


def evaluate(instance: Instance, split: Split, objective: str) -> float:
    """Return the latency or the maximal load of a split, by the benchmark's definition alone."""
    nodes = {node["id"]: node for node in instance["nodes"]}
    cost = {edge["sourceId"]: edge["cost"] for edge in instance["edges"]}
    edges = [(edge["sourceId"], edge["destId"]) for edge in instance["edges"]]
    loads = []
    for device in split["fpgas"]:
        inside = set(device["nodes"])
        moved = {source for source, target in edges if (source in inside) != (target in inside)}
        run = sum(nodes[node]["fpgaLatency"] for node in inside)
        loads.append(run + sum(cost[source] for source in moved))
    if objective == "throughput":
        cores = [sum(nodes[node]["cpuLatency"] for node in device["nodes"]) for device in split["cpus"]]
        return max(loads + cores)
    job = {node: ("cpu", node) for node in nodes}
    for number, device in enumerate(split["fpgas"]):
        job.update(dict.fromkeys(device["nodes"], ("fpga", number)))
    seconds = {
        each: nodes[each[1]]["cpuLatency"] if each[0] == "cpu" else loads[each[1]]
        for each in job.values()
    }
    return find_longest_path({(job[a], job[b]) for a, b in edges if job[a] != job[b]}, seconds)


def find_longest_path(edges: set[tuple[Any, Any]], seconds: Mapping[Any, float]) -> float:
    """Return the length of the longest path; raise ValueError for a circle."""
    before: dict[Any, list[Any]] = {job: [] for job in seconds}
    for source, target in edges:
        before[target].append(source)
    end: dict[Any, float] = {}
    while len(end) < len(seconds):
        ready = [job for job in seconds if job not in end and all(each in end for each in before[job])]
        if not ready:
            raise ValueError("the split is cyclic")
        for job in ready:
            end[job] = seconds[job] + max((end[each] for each in before[job]), default=0.0)
    return max(end.values())


def find_excesses(instance: Instance, split: Split) -> Iterator[str]:
    """Yield what a split has too much of, and nodes that are in no place or in several."""
    size = {node["id"]: node.get("size", 0.0) for node in instance["nodes"]}
    placed = [node for device in (*split["cpus"], *split["fpgas"]) for node in device["nodes"]]
    if sorted(placed) != sorted(size):
        yield "nodes are missing or placed twice"
    if len(split["fpgas"]) > instance["maxFPGAs"]:
        yield "more accelerators than there are"
    for device in split["fpgas"]:
        if sum(size[node] for node in device["nodes"]) > instance["maxSizePerFPGA"] * (1 + 1e-12):
            yield "an accelerator has too many bytes"
    place: dict[int, tuple[str, int]] = {}
    for kind, devices in split.items():
        for number, device in enumerate(devices):
            place.update(dict.fromkeys(device["nodes"], (kind, number)))
    at: dict[Any, Any] = {}
    for node in instance["nodes"]:
        here, color = place[node["id"]], node.get("colorClass", ("own", node["id"]))
        if at.setdefault(color, here) != here:
            yield f"node {node['id']} is away from its colour class"


def run_program(
    program: Path, path: Path, objective: str, given: argparse.Namespace, instance: Instance
) -> Answer:
    """Return the objective that a program of the benchmark finds, and its time."""
    output, _, seconds = run_within(given.seconds, [str(program)], path)
    try:
        split = json.loads(output)
    except ValueError:
        return Answer(None, seconds)
    used = {kind: [{"nodes": each["nodes"]} for each in split[kind]] for kind in ("cpus", "fpgas")}
    try:
        return Answer(evaluate(instance, used, objective), seconds)
    except ValueError:  # sets that are not contiguous for the latency
        return Answer(None, seconds)


def evaluate_by(program: Path, objective: str, path: Path, split: Split, limit: int) -> float | None:
    """Return the value of a split by a program of the benchmark; None if it takes too long."""
    option = "-computeLatency" if objective == "latency" else "-expert"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(split, file)
        file.flush()
        output, errors, _ = run_within(limit, [str(program), option, file.name], path)
    found = re.search(r"(?:given split is|of the split): ([\d.e+]+)", output + errors)
    return float(found[1]) if found else None


def run_within(limit: int, command: Sequence[str], path: Path) -> tuple[str, str, float]:
    """Run a program on an instance within so many seconds of processor time; return them, too."""

    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with path.open() as file:
        done = subprocess.run(
            command, stdin=file, capture_output=True, text=True, check=False, preexec_fn=restrict
        )
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return done.stdout, done.stderr, seconds


# DOPPLER's graphs.

_GRAPHS = ("chain_mm", "ffnn", "transformer_block", "full_transformer", "8gpu")
_SCHEDULES = 50
_FAR = 1000
"""Times as slow as a device is the host, which there is not in these graphs."""
_SCALE = 1e-12
"""Seconds of byoc for a unit of these files."""


@dataclass(frozen=True)
class DataflowGraph:
    """Nodes in topological order: the work of each, what its result takes to move, and its readers."""

    work: list[int]
    moving: list[int]
    readers: list[list[int]]
    writers: list[list[int]]


def read_dataflow_graph(text: str) -> DataflowGraph:
    """Return the graph of a file: nodes with inputs, the inputs, edges' ends, then a node in each line.

    Raises ValueError for an edge that does not go from a smaller to a larger number.
    """
    lines = [[int(number) for number in re.findall(r"\d+", line)] for line in text.splitlines()]
    (total,), inputs, sources, targets, *rest = lines
    nodes = rest[: total - len(inputs)]
    readers: list[list[int]] = [[] for _ in nodes]
    writers: list[list[int]] = [[] for _ in nodes]
    for source, target in sorted(set(zip(sources, targets, strict=True))):
        if not source < target < len(nodes):
            raise ValueError(f"an edge from {source} to {target}")
        readers[source].append(target)
        writers[target].append(source)
    return DataflowGraph([node[0] for node in nodes], [node[1] for node in nodes], readers, writers)


def make_problem(graph: DataflowGraph, devices: int) -> dict[str, Any]:
    """Return a problem of equal devices, each node launched by itself, the host out of reach."""
    # Averages over devices, by which byoc ranks units, stay in proportion to work and to transfers.
    slow, far = _FAR * _SCALE, (devices + _FAR) / (1 + devices) * _SCALE
    between = [(a, b) for a in range(1, 1 + devices) for b in range(1, 1 + devices) if a != b]
    return {
        "format": "byoc-placement-problem",
        "devices": [{"name": f"d{each}", "launch": 0.0, "max_nodes": 1} for each in range(devices)],
        "units": [
            {"name": f"{node:04}", "costs": [work * slow, *[work * _SCALE] * devices]}
            for node, work in enumerate(graph.work)
        ],
        "tensors": [
            {
                "producer": node,
                "consumers": readers,
                "to_device": [graph.moving[node] * far] * devices,
                "to_host": [graph.moving[node] * far] * devices,
                "direct": [
                    {"origin": a, "to": b, "seconds": graph.moving[node] * _SCALE} for a, b in between
                ],
            }
            for node, readers in enumerate(graph.readers)
            if readers
        ],
    }


def simulate(graph: DataflowGraph, device_of: Sequence[int], rank: Sequence[float]) -> float:
    """Return when the last node ends: a free device runs what came first, then what ranks highest."""
    waits = [len(each) for each in graph.writers]
    came = [0.0] * len(waits)
    events: list[tuple[float, int, int]] = []  # time, 0 for an end and 1 for an arrival, node
    events += [(0.0, 1, node) for node, waiting in enumerate(waits) if not waiting]
    heapq.heapify(events)
    queues: dict[int, list[tuple[float, float, int]]] = {each: [] for each in device_of}
    busy: set[int] = set()
    now = 0.0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, arrives, node = heapq.heappop(events)
            if arrives:
                heapq.heappush(queues[device_of[node]], (now, -rank[node], node))
                continue
            busy.discard(device_of[node])
            for reader in graph.readers[node]:
                moved = graph.moving[node] * (device_of[reader] != device_of[node])
                came[reader] = max(came[reader], now + moved)
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(events, (came[reader], 1, reader))
        for each in sorted(queues.keys() - busy):
            if queues[each]:
                *_, node = heapq.heappop(queues[each])
                busy.add(each)
                heapq.heappush(events, (now + graph.work[node], 0, node))
    return now


def schedule_by_rank(
    graph: DataflowGraph, devices: int, rank: Sequence[float]
) -> tuple[float, list[int]]:
    """Return when the last node ends, and the devices.

    Of the nodes that are ready the highest is next, where it ends first.
    """
    waits = [len(each) for each in graph.writers]
    ready = [(-rank[node], node) for node, waiting in enumerate(waits) if not waiting]
    heapq.heapify(ready)
    free, end, at = [0.0] * devices, [0.0] * len(waits), [0] * len(waits)
    while ready:
        _, node = heapq.heappop(ready)
        ends = []
        for device in range(devices):
            arrived = [end[one] + graph.moving[one] * (at[one] != device) for one in graph.writers[node]]
            ends.append(max(free[device], *arrived, 0.0) + graph.work[node])
        end[node], at[node] = min((each, device) for device, each in enumerate(ends))
        free[at[node]] = end[node]
        for reader in graph.readers[node]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (-rank[reader], reader))
    return max(end), at


def rank_nodes(graph: DataflowGraph, generator: random.Random) -> list[float]:
    """Return the longest path from each node to the end, its lengths drawn around the true ones."""
    rank = [0.0] * len(graph.work)
    for node in reversed(range(len(rank))):
        after = [graph.moving[node] + rank[reader] for reader in graph.readers[node]]
        rank[node] = generator.uniform(0.5, 1.5) * graph.work[node] + max(after, default=0.0)
    return rank


def compare_dataflow_graphs(folder: Path, only: str) -> int:
    """Print a row for each graph of DOPPLER; return 1 if 50 list schedules have a shorter one."""
    heads = ("byoc", "bound", "best of 50", "fifo", "fifo of 50", "s")
    print(f"{'graph':40}" + "".join(f"{head:>12}" for head in heads))
    worse = 0
    for path in sorted(folder.glob("*.txt")):
        if not path.name.startswith(_GRAPHS) or only not in path.name:
            continue
        devices, graph = 8 if path.name.startswith("8gpu") else 4, read_dataflow_graph(path.read_text())
        start = time.process_time()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(make_problem(graph, devices), file)
            file.flush()
            document = byoc.place(file.name, "makespan", objective="latency")
        seconds = time.process_time() - start
        device_of = [0] * len(graph.work)
        for device in document["devices"]:
            for node in device["nodes"]:
                device_of[int(node)] = device["device"]
        generator = random.Random(0)
        ranks = [rank_nodes(graph, generator) for _ in range(_SCHEDULES)]
        lists = [schedule_by_rank(graph, devices, rank) for rank in ranks]
        best = min(end for end, _ in lists) * _SCALE
        fifo = min(simulate(graph, device_of, rank) for rank in ranks) * _SCALE
        lists_fifo = (
            min(simulate(graph, at, rank) for (_, at), rank in zip(lists, ranks, strict=True)) * _SCALE
        )
        value, bound = document["objective_seconds"], document["bound_seconds"] or 0.0
        cells = (value, bound, best, fifo, lists_fifo, seconds)
        print(f"{path.stem:40}" + "".join(f"{each:12.4f}" for each in cells), flush=True)
        worse += value > best * (1 + 1e-9)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
