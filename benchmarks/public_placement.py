"""The public placement benchmark, each instance in the objective that it asks for.

`python benchmarks/public_placement.py FOLDER [--greedy BINARY] [--dp BINARY] [--seconds N]`

FOLDER is a checkout of github.com/msr-fiddle/dnn-partitioning (Tarnawski et al., NeurIPS 2020), whose
files are no part of byoc: its README says that `latency-inputs` are for the least latency, and
`throughput-inputs` for the least maximal load. The binaries are its own programs, built by
`g++ -O2 latency-greedy/greedy.cpp -o greedy` and `g++ -O2 throughput-dp/dp.cpp -o dp`; both evaluate
splits, too (`greedy -computeLatency`, `dp -expert`). Times are in the unit of the files.
"""

import argparse
import json
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
