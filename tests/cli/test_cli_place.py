"""`byoc place`: what it prints and writes, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import Ran

from byoc.errors import InputError
from byoc.placement import Placement, Problem
from byoc.placement.strategies import HostOnly
from byoc.planning import parse_instance, solve_instance

Cli = Callable[..., Ran]
Golden = Callable[[str, str], None]

QUICKLY = ("--strategy-option", "time_limit=0.5")
"""Enough for problems of few units."""


def node(number: int, host: float, device: float, size: float = 10.0, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "supportedOnFpga": True,
        "cpuLatency": host,
        "fpgaLatency": device,
        "isBackwardNode": False,
        "size": size,
    } | more


DIAMOND = {
    "maxSizePerFPGA": 35.0,
    "maxFPGAs": 2,
    "maxCPUs": 8,
    "nodes": [
        node(10, 8.0, 1.0),
        node(11, 16.0, 2.0),
        node(12, 12.0, 2.0, colorClass=1),
        node(13, 4.0, 1.0, colorClass=1),
        node(14, 6.0, 1.0, supportedOnFpga=False),
    ],
    "edges": [
        {"sourceId": 10, "destId": 11, "cost": 0.5},
        {"sourceId": 10, "destId": 12, "cost": 0.5},
        {"sourceId": 11, "destId": 14, "cost": 0.25},
        {"sourceId": 12, "destId": 13, "cost": 1.0},
        {"sourceId": 13, "destId": 14, "cost": 0.75},
    ],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    Path("i.json").write_text(json.dumps(DIAMOND), encoding="utf-8")
    return tmp_path


def placed(byoc: Cli, objective: str, strategy: str) -> str:
    """Return the JSON of a placement."""
    options = QUICKLY if strategy == "throughput" else ()
    asked = ("--objective", objective, "--strategy", strategy, *options, "--format", "json")
    ran = byoc("place", "i.json", *asked)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def shuffled(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    parts: dict[str, list[Any]] = {"nodes": DIAMOND["nodes"], "edges": DIAMOND["edges"]}  # type: ignore[dict-item]
    return DIAMOND | {key: [part[i] for i in rng.permutation(len(part))] for key, part in parts.items()}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("objective", "strategy"),
    [("total", "tree-dp"), ("latency", "makespan"), ("throughput", "throughput")],
)
def test_what_is_printed(objective: str, strategy: str, byoc: Cli, golden: Golden) -> None:
    ran = byoc("place", "i.json", "--objective", objective, "--strategy", strategy)
    assert (ran.code, ran.err) == (0, "")
    golden(f"cli_place_{strategy}.txt", ran.out)


@pytest.mark.usefixtures("here")
def test_an_instance_of_inference_does_not_say_what_it_asks_for(byoc: Cli) -> None:
    ran = byoc("place", "i.json")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "byoc: i.json: an instance of inference does not say what it asks for: choose the objective "
        "latency, throughput or total\n"
    )
    ran = byoc("place", "i.json", "--objective", "thruput")
    assert ran.err.startswith("byoc: objective thruput: no such objective (did you mean throughput?)")


@pytest.mark.usefixtures("here")
def test_an_instance_of_training_asks_for_throughput(byoc: Cli) -> None:
    nodes = [DIAMOND["nodes"][0], DIAMOND["nodes"][1] | {"isBackwardNode": True}]
    edges = [{"sourceId": 10, "destId": 11, "cost": 0.5}]
    Path("i.json").write_text(json.dumps(DIAMOND | {"nodes": nodes, "edges": edges}), encoding="utf-8")
    document = json.loads(byoc("place", "i.json", *QUICKLY, "--format", "json").out)
    assert (document["objective"], document["strategy"]) == ("throughput", "throughput")
    # One accelerator each: 1 and what it sends, 2 and what it receives.
    assert document["objective_seconds"] == pytest.approx(0.0025)
    ran = byoc("place", "i.json", "--objective", "latency")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("byoc: i.json: nodes[1].isBackwardNode: the latency is that of inference")


@pytest.mark.usefixtures("here")
def test_cores_are_devices_of_a_pipeline(byoc: Cli) -> None:
    """Without accelerators: 8, 16, 16 and 6 ms on two cores, where transfers cost nothing."""
    two = DIAMOND | {"maxFPGAs": 0, "maxCPUs": 2}
    Path("i.json").write_text(json.dumps(two), encoding="utf-8")
    document = json.loads(placed(byoc, "throughput", "throughput"))
    assert document["objective_seconds"] == pytest.approx(0.024)
    assert [row["kind"] for row in document["devices"]] == ["core", "core"]
    ran = byoc("place", "i.json", "--objective", "throughput", *QUICKLY, "-o", "p.json")
    assert [line.split()[:2] for line in ran.out.splitlines()[7:9]] == [["host", "3"], ["core", "1"]]
    written = json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert (len(written["cpus"]), written["fpgas"]) == (2, [])
    Path("i.json").write_text(json.dumps(DIAMOND | {"maxCPUs": 0}), encoding="utf-8")
    ran = byoc("place", "i.json", "--objective", "throughput")
    assert (ran.code, ran.err) == (1, "byoc: i.json: maxCPUs is 0, and node 14 runs on no accelerator\n")


@pytest.mark.usefixtures("here")
def test_another_strategy_is_measured_by_the_objective(byoc: Cli) -> None:
    document = json.loads(placed(byoc, "throughput", "faster-ops"))
    # The host takes 6 ms; the accelerators 3 and 0.75, 3 and 1.25.
    assert document["objective_seconds"] == pytest.approx(0.006)
    assert (document["objective"], document["bound_seconds"]) == ("throughput", None)
    assert "strategy faster-ops does not minimise the throughput" in document["notes"]


@pytest.mark.usefixtures("here")
def test_json_adds_up(byoc: Cli) -> None:
    ran = byoc("place", "i.json", "--objective", "total", "--strategy", "faster-ops", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    host, first, second = document["devices"]
    # Three of four fit on the first accelerator, by twos and in order: the class of two goes on.
    assert [device["nodes"] for device in document["devices"]] == [[14], [10, 11], [12, 13]]
    assert (host["execution_seconds"], host["transfer_seconds"], host["bytes"]) == (0.006, 0, 0)
    assert first["execution_seconds"] == 0.003
    assert first["transfer_seconds"] == pytest.approx(0.0005 + 0.00025)
    assert second["transfer_seconds"] == pytest.approx(0.0005 + 0.00075)
    assert (first["bytes"], second["bytes"]) == (20, 20)
    total = sum(d["execution_seconds"] + d["transfer_seconds"] for d in document["devices"])
    assert document["objective_seconds"] == pytest.approx(total)
    assert document["objective"] == "total"
    assert (document["bound_seconds"], document["gap"]) == (None, None)
    assert document["regions"] == first["regions"] + second["regions"] == 2


@pytest.mark.usefixtures("here")
def test_the_bound_and_its_gap(byoc: Cli) -> None:
    document = json.loads(placed(byoc, "latency", "makespan"))
    assert document["objective"] == "latency"
    assert 0 < document["bound_seconds"] <= document["objective_seconds"]
    assert document["gap"] == pytest.approx(
        1 - document["bound_seconds"] / document["objective_seconds"]
    )


@pytest.mark.usefixtures("here")
def test_the_placement_is_written_as_their_programs_do(byoc: Cli) -> None:
    ran = byoc("place", "i.json", "--objective", "total", "--strategy", "faster-ops", "-o", "p.json")
    assert ran.code == 0
    written = json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert [device["nodes"] for device in written["fpgas"]] == [[10, 11], [12, 13]]
    assert written["cpus"] == [{"load": 6.0, "nodes": [14]}]
    assert written["fpgas"][0]["load"] == pytest.approx(3.75)


@pytest.mark.parametrize(
    "strategy",
    ["host-only", "all-supported", "faster-ops", "faster-ops-transfer", "tree-dp", "throughput"],
)
@pytest.mark.usefixtures("here")
def test_the_order_in_the_file_plays_no_part(strategy: str, byoc: Cli) -> None:
    expected = byoc(
        "place", "i.json", "--objective", "total", "--strategy", strategy, "--format", "json"
    ).out
    for seed in range(3):
        Path("i.json").write_text(json.dumps(shuffled(seed)), encoding="utf-8")
        assert (
            byoc(
                "place", "i.json", "--objective", "total", "--strategy", strategy, "--format", "json"
            ).out
            == expected
        )


@pytest.mark.usefixtures("here")
def test_what_is_refused(byoc: Cli) -> None:
    ran = byoc("place", "none.json")
    assert (ran.code, ran.out, ran.err) == (1, "", "byoc: none.json: no such file\n")
    Path("bad.json").write_text('{"nodes": [], "edges": [], "maxFPGAs": -1}', encoding="utf-8")
    ran = byoc("place", "bad.json")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines() == [
        "byoc: bad.json: maxSizePerFPGA: must be given",
        "byoc: bad.json: maxFPGAs: must be at least 0",
        "byoc: bad.json: maxCPUs: must be given",
    ]
    ran = byoc("place", "i.json", "--objective", "total", "--strategy", "tree-pd")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("byoc: tree-pd: no such strategy (did you mean tree-dp?); installed: ")
    ran = byoc("place", "i.json", "--objective", "total", "--strategy", "tree-dp", "-o", "no/p.json")
    assert (ran.code, ran.out, ran.err) == (
        1,
        "",
        "byoc: no/p.json: cannot be written: there is no folder 'no'\n",
    )


@dataclass(frozen=True)
class Vendors:
    """A strategy from outside that does what it is told to."""

    name: str
    answer: Callable[[Problem], Any]

    def solve(self, problem: Problem) -> Placement:
        answer: Placement = self.answer(problem)
        return answer


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("strategy", ["launch-aware", "exact", "tree-dp"])
def test_no_accelerator_and_costs_next_to_nothing(strategy: str, byoc: Cli) -> None:
    Path("i.json").write_text(json.dumps(DIAMOND | {"maxFPGAs": 0}), encoding="utf-8")
    document = json.loads(placed(byoc, "total", strategy))
    assert document["objective_seconds"] == pytest.approx(0.046)
    nodes = [node(i, 1e-300, 1e-310) for i in range(3)]
    edges = [{"sourceId": 0, "destId": 1, "cost": 1e-300}]
    tiny = DIAMOND | {"nodes": nodes, "edges": edges}
    Path("i.json").write_text(json.dumps(tiny), encoding="utf-8")
    document = json.loads(placed(byoc, "total", strategy))
    assert document["objective_seconds"] == pytest.approx(3e-313, rel=1e-6)
    bound = document["bound_seconds"]
    assert bound is None or 0 <= bound <= document["objective_seconds"]


@pytest.mark.usefixtures("here")
def test_more_regions_than_numbers_hold_are_no_limit(byoc: Cli) -> None:
    limited = byoc("place", "i.json", "--objective", "total", "--max-regions", "9" * 30)
    assert limited == byoc("place", "i.json", "--objective", "total")
    assert limited.code == 0


@pytest.mark.usefixtures("here")
def test_idle_cores_take_no_memory(byoc: Cli) -> None:
    Path("i.json").write_text(json.dumps(DIAMOND | {"maxCPUs": 1_000_000}), encoding="utf-8")
    document = json.loads(placed(byoc, "throughput", "host-only"))
    assert [each["kind"] for each in document["devices"]].count("core") == 256


@pytest.mark.usefixtures("here")
def test_too_many_nodes_and_devices_are_refused(byoc: Cli) -> None:
    many = {"nodes": [node(i, 1.0, 1.0) for i in range(3000)], "edges": [], "maxCPUs": 10_000}
    Path("i.json").write_text(json.dumps(DIAMOND | many), encoding="utf-8")
    ran = byoc("place", "i.json", "--objective", "throughput")
    assert (ran.code, ran.out, ran.err) == (
        1,
        "",
        "byoc: i.json: 3000 nodes and 3002 devices: more than 4194304 pairs of both\n",
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("host", [1e-320, 1e-290, 1e200])
@pytest.mark.parametrize("moved", [1e-320, 0.1, 1e200])
def test_loads_at_the_ends_of_the_numbers(host: float, moved: float, byoc: Cli) -> None:
    edges = [{"sourceId": i, "destId": i + 1, "cost": moved} for i in range(3)]
    extreme = {"nodes": [node(i, host, 1e200) for i in range(4)], "edges": edges}
    Path("i.json").write_text(json.dumps(DIAMOND | extreme), encoding="utf-8")
    document = json.loads(placed(byoc, "throughput", "throughput"))
    assert 0 <= document["bound_seconds"] <= document["objective_seconds"] <= 4 * host / 1000


@pytest.mark.usefixtures("here")
def test_a_load_that_is_beyond_all_numbers_is_no_improvement(byoc: Cli) -> None:
    edges = [{"sourceId": i, "destId": i + 1, "cost": 1e-200} for i in range(5)]
    far = {"nodes": [node(i, 1e200, 1e-300) for i in range(6)], "edges": edges, "maxCPUs": 1}
    Path("i.json").write_text(json.dumps(DIAMOND | far | {"maxSizePerFPGA": 1e9}), encoding="utf-8")
    document = json.loads(placed(byoc, "throughput", "throughput"))
    assert document["objective_seconds"] == pytest.approx(6e-303)


@pytest.mark.usefixtures("here")
def test_a_node_that_no_memory_holds_needs_a_core(byoc: Cli) -> None:
    large = [node(10, 8.0, 1.0, 36.0, supportedOnFpga=True), node(11, 8.0, 1.0)]
    alone = {"nodes": large, "edges": [], "maxCPUs": 0}
    Path("i.json").write_text(json.dumps(DIAMOND | alone), encoding="utf-8")
    ran = byoc("place", "i.json", "--objective", "throughput")
    assert (ran.code, ran.out, ran.err) == (
        1,
        "",
        "byoc: i.json: maxCPUs is 0, and node 10 fits no accelerator: its colour class has 36 bytes, and"
        " maxSizePerFPGA is 35\n",
    )


@pytest.mark.usefixtures("here")
def test_no_more_is_read_of_a_file_than_is_allowed(byoc: Cli) -> None:
    ran = byoc("place", "/dev/zero")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"byoc: /dev/zero: cannot be read: it has more than {1 << 28} bytes\n"


def test_a_strategy_from_outside_is_held_to_its_word() -> None:
    instance = parse_instance(json.dumps(DIAMOND).encode(), Path("i.json"), "total")
    with pytest.raises(
        InputError, match=r"strategy mine: failed with ZeroDivisionError.* \(test_cli_place.py:\d+\)$"
    ):
        solve_instance(instance, Vendors("mine", lambda _: 1 // 0), "i.json")
    with pytest.raises(InputError, match="strategy mine: it gave a int instead of a Placement"):
        solve_instance(instance, Vendors("mine", lambda _: 1), "i.json")

    def leaves(_: Problem) -> Placement:
        raise SystemExit(0)

    with pytest.raises(
        InputError, match=r"strategy mine: failed with SystemExit: 0 \(test_cli_place.py:\d+\)$"
    ):
        solve_instance(instance, Vendors("mine", leaves), "i.json")
    with pytest.raises(InputError, match="strategy mine: its notes are not a tuple of texts"):
        solve_instance(
            instance, Vendors("mine", lambda p: replace(HostOnly().solve(p), notes=None)), "i.json"
        )  # type: ignore[arg-type]

    def everything_on_one(problem: Problem) -> Placement:
        return Placement.from_labels(problem, np.array([1, 1, 1, 0], np.int64))

    with pytest.raises(InputError, match="device 1 holds 40 bytes, and 35 is its capacity"):
        solve_instance(instance, Vendors("mine", everything_on_one), "i.json")
    document = solve_instance(
        instance, Vendors("mine", lambda p: Placement.from_labels(p, np.zeros(4, np.int64))), "i"
    )
    assert "it was not told how much memory a device has" in document["notes"]
    assert document["objective_seconds"] == pytest.approx(0.046)


@pytest.mark.usefixtures("here")
def test_a_strategy_takes_options(byoc: Cli) -> None:
    """An option changes the answer; one that the strategy lacks is refused with those that it has."""
    asks = ("place", "i.json", "--objective", "total", "--format", "json", "--strategy-option")
    free = json.loads(byoc(*asks, "rounds=3").out)
    bound = json.loads(byoc(*asks, "launch-aware:margin=0.99").out)
    assert bound["objective_seconds"] > free["objective_seconds"]
    wrong = byoc(*asks, "round=3")
    assert wrong.code == 1
    assert "round" in wrong.err
    assert "time_limit" in wrong.err
