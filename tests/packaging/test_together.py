"""Models that are placed together: one problem, one package, rates that are kept or said not to be."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, Ran, parse
from onnx.reference import ReferenceEvaluator

import byoc
from byoc.errors import InputError
from byoc.placement import Conditions, ListScheduler, PlacedNetwork

Cli = Callable[..., Ran]

COSTS = """
kind: roofline
name: toy
peak: {default: 1.0e+6}
bandwidth: .inf
link: {bandwidth: .inf, latency: 1.0e-6}
"""
SIZE = 1000  # elements of a tensor, of which an operator takes a millisecond on an accelerator


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two models, and the rules of two accelerators of equal speed."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(VANILLA, "one.yaml")
    for name in ("npu", "gpu"):
        Path(f"{name}.yaml").write_text(
            f"extends: one.yaml\ntarget: {name}\ncost_model: {name}-costs.yaml\n"
        )
        Path(f"{name}-costs.yaml").write_text(COSTS)
    Path("host.yaml").write_text(
        "{kind: roofline, name: slow, peak: {default: 1.0e+5}, bandwidth: .inf}"
    )
    for name, body in (("a", "b = Relu(x) y = Add(b, b)"), ("b", "y = Relu(x)")):
        onnx.save(parse(f"m (float[1, {SIZE}] x) => (float[1, {SIZE}] y) {{ {body} }}"), f"{name}.onnx")
    return tmp_path


WITH = {"rules": ["npu.yaml", "gpu.yaml"], "host_cost_model": "host.yaml", "time_limit": 0.2}
AT = (
    "--rules",
    "npu.yaml",
    "--rules",
    "gpu.yaml",
    "--host-cost-model",
    "host.yaml",
    "--time-limit",
    "0.2",
)


def test_a_dimension_is_given_to_the_models_that_have_it(here: Path) -> None:
    onnx.save(parse("m (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }"), "c.onnx")
    made = byoc.partition_together(["a.onnx", "c.onnx"], dims={"batch": 3}, output="app.byoc", **WITH)
    assert [
        result.plan.model.structure.graph.input[0].type.tensor_type.shape.dim[0].dim_value
        for result in made.results.values()
    ] == [1, 3]
    assert byoc.load("app.byoc/c")(np.ones((3, 4), np.float32))["y"].shape == (3, 4)
    with pytest.raises(InputError, match=r"^no model has an open dimension named 'bach' \(did .* batch"):
        byoc.partition_together(["a.onnx", "c.onnx"], dims={"bach": 3}, **WITH)


def test_a_model_has_sizes_of_its_own_and_no_other_option(here: Path) -> None:
    onnx.save(parse("m (float[batch, 4] x) => (float[batch, 4] y) { y = Relu(x) }"), "c.onnx")
    own = {"model": "c.onnx", "dims": {"batch": 3}}
    made = byoc.partition_together({"a": "a.onnx", "c": own}, **WITH)
    kind = made.results["c"].plan.model.structure.graph.input[0].type.tensor_type
    assert [each.dim_value for each in kind.shape.dim] == [3, 4]
    with pytest.raises(InputError, match=r"^model c: no option 'strict' of its own: models that are "):
        byoc.partition_together({"a": "a.onnx", "c": own | {"strict": True}}, **WITH)


def test_a_relation_to_dimensions_that_a_model_lacks_is_its_size(here: Path) -> None:
    onnx.save(parse("m (float[total, 4] x) => (float[total, 4] y) { y = Relu(x) }"), "c.onnx")
    both = "(float[total, 4] x, float[past, 4] p, float[seq, 4] s) => (float[total, 4] y)"
    onnx.save(parse(f"m {both} {{ t = Concat<axis = 0>(p, s) y = Add(x, t) }}"), "d.onnx")
    dims = {"total": "past+seq", "past": 1, "seq": 2}
    made = byoc.partition_together(["c.onnx", "d.onnx"], dims=dims, **WITH)
    for result in made.results.values():
        extent = result.plan.model.structure.graph.input[0].type.tensor_type.shape.dim[0]
        assert extent.dim_value == 3


def test_each_goes_to_an_accelerator_of_its_own(here: Path) -> None:
    made = byoc.partition_together(["a.onnx", "b.onnx"], output="app.byoc", **WITH)
    devices = {
        name: {region.target.name for region in result.plan.root.regions}
        for name, result in made.results.items()
    }
    assert devices["a"] | devices["b"] == {"npu", "gpu"}
    assert made.makespan == pytest.approx(2e-3, rel=0.01)
    assert made.bound is not None
    assert made.bound <= made.makespan
    assert made.ends["b"] == pytest.approx(1e-3, rel=0.01)
    assert made.in_turn == pytest.approx(3e-3, rel=0.01)
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)[None]
    for name in "ab":
        expected = ReferenceEvaluator(f"{name}.onnx").run(None, {"x": x})[0]
        np.testing.assert_array_equal(byoc.load(f"app.byoc/{name}")(x)["y"], expected)


def test_accelerators_that_slow_one_another_or_share_an_engine(here: Path) -> None:
    """Two models of one operator each: side by side in 1.8 ms, or one after the other in 2 ms."""
    models = {"one": "b.onnx", "two": "b.onnx"}
    for name, other in (("npu", "gpu"), ("gpu", "npu")):
        with Path(f"{name}-costs.yaml").open("a") as file:
            file.write(f"interference: {{{other}: 1.8, another: 9}}\n")
    made = byoc.partition_together(models, **WITH)
    assert made.makespan == pytest.approx(1.8e-3, rel=0.01)
    assert any("added up" in note for note in made.notes)
    for name in ("npu", "gpu"):
        Path(f"{name}-costs.yaml").write_text(COSTS + "engine: array\n")
    made = byoc.partition_together(models, **WITH)
    assert made.makespan == pytest.approx(2e-3, rel=0.01)


def test_an_accelerator_on_the_cores_of_the_host(here: Path) -> None:
    """The host's 10 ms hide the accelerator's millisecond, but not on the host's own engine."""
    onnx.save(parse(f"m (float[1, {SIZE}] x) => (float[1, {SIZE}] y) {{ y = Sinh(x) }}"), "c.onnx")
    for engine, milliseconds in (("", 10), ("engine: host\n", 11)):
        Path("npu-costs.yaml").write_text(COSTS + engine)
        made = byoc.partition_together(["b.onnx", "c.onnx"], **WITH | {"rules": ["npu.yaml"]})
        assert made.makespan == pytest.approx(milliseconds * 1e-3, rel=0.01)


def test_a_model_ends_when_its_output_is_on_the_host(here: Path) -> None:
    Path("npu-costs.yaml").write_text(COSTS.replace("bandwidth: .inf, lat", "bandwidth: 4.0e+6, lat"))
    made = byoc.partition_together(["b.onnx", "a.onnx"], **WITH | {"rules": ["npu.yaml"]})
    assert max(made.ends.values()) == pytest.approx(made.makespan)
    assert made.ends["b"] > 2e-3  # a millisecond each to go in, to be computed and to come back


def test_rates_are_kept_or_the_reason_is_said(here: Path, byoc: Cli) -> None:
    models = ("partition", "a.onnx", "b.onnx", "--together", *AT)
    ran = byoc(*models, "--rate", "a=400", "--rate", "b=800", "--deadline", "b=1.2ms")
    assert ran.code == 0, ran.err
    assert "Together: a round takes 2.00 ms" in ran.out
    assert "b ends after 1.00 ms; slowest response 1.00 ms" in ran.out
    assert "computes for 80.0% of the time" in ran.out
    ran = byoc(*models, "--rate", "a=400", "--rate", "b=10", "--format", "json")
    document = json.loads(ran.out)
    assert document["response_seconds"]["a"] == pytest.approx(2e-3, rel=0.01)
    assert set(document["models"]) == {"a", "b"}
    for flags, sentence in (
        (
            ("--rate", "a=600", "--rate", "b=10"),
            "no placement keeps the deadline of network a: alone on",
        ),
        (("--rate", "a=400"), "model b has no rate: rates and deadlines need one of each model"),
        (("--rate", "c=4"), "rate c: there is no such model; there are a, b"),
        (("--rate", "a=often", "--rate", "b=1"), "rate a: often is not a number from 1e-06 to 1e+09"),
        (("--rate", "a=1", "--rate", "b=1", "--deadline", "a=5"), "deadline a=5: expected a number"),
        (("--rate", "a=1", "--rate", "b=1000.007"), "choose rates with a smaller common multiple"),
        (("--objective", "energy"), "models are placed together for the time of a round"),
        (("--perturb", "0.5"), "costs are perturbed (--perturb) for a single model"),
        (("--html", "x.html"), "--html: it is of a single model"),
        (("--measure-clock", "wall"), "--measure-clock: it is of a single model"),
    ):
        ran = byoc(*models, *flags, "-o", "app.byoc")
        assert ran.code in {1, 2}
        assert sentence in " ".join(ran.err.split()), ran.err
        assert not Path("app.byoc").exists()
    ran = byoc("partition", "a.onnx", "b.onnx", *AT)
    assert "several models are placed as one problem with --together" in " ".join(ran.err.split())
    ran = byoc("partition", "a.onnx", "--rate", "a=1", *AT)
    assert "it is of models that are placed --together" in " ".join(ran.err.split())


def test_what_is_missed_is_no_success(here: Path, byoc: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(ListScheduler):
        """A scheduler of the regions that form in each model, in which all inferences are late."""

        def check_rates(self, *given: Any) -> Any:
            found = super().check_rates(*given)
            assert found is not None
            return replace(found, responses=(9.0, 9.0))

    models = ("partition", "a.onnx", "b.onnx", "--together", *AT)
    ran = byoc(*models, "--max-regions", "0")
    assert (ran.code, "regions" in ran.err) == (6, True)
    assert len(byoc(*models, "--verbose").out) > len(byoc(*models).out)
    monkeypatch.setattr("byoc.pipeline._together.ListScheduler", Late)
    ran = byoc(*models, "--rate", "a=400", "--rate", "b=800", "-o", "app.byoc")
    assert ran.code == 6
    assert "with the regions that form in each model alone, network b ends 9 s after" in ran.err
    assert Path("app.byoc").exists()


def test_less_energy_within_a_time(here: Path) -> None:
    """The accelerator is fast and takes much; the host takes ten times as long."""
    energy = "energy: {operation: 0.0, byte: 0.0, second: %s, moved: 0.0, launch: 0.0}\n"
    Path("npu-costs.yaml").write_text(COSTS + energy % 100.0)
    Path("host.yaml").write_text(
        "{kind: roofline, name: slow, peak: {default: 1.0e+5}, bandwidth: .inf, "
        "energy: {operation: 0.0, byte: 0.0, second: 1.0, moved: 0.0, launch: 0.0}}"
    )
    given = {"rules": "npu.yaml", "host_cost_model": "host.yaml", "objective": "energy"}
    free = byoc.partition("a.onnx", **given)
    assert free.report.predicted.joules == pytest.approx(0.02)
    made = byoc.partition("a.onnx", within="latency=15ms", **given)
    assert made.report.predicted.joules == pytest.approx(0.11)
    assert made.report.predicted.seconds == pytest.approx(0.011, rel=0.01)
    assert any("latency is 0.011 s, within 0.015 s" in note.text for note in made.report.notes)
    with pytest.raises(InputError, match=r"no placement keeps latency within 0\.001 s: 0\.002\d* s is"):
        byoc.partition("a.onnx", within="latency=1ms", **given)
    for wrong, sentence in (
        ("time=5ms", "within time=5ms: no such cost"),
        ("latency=5", "within latency=5: expected a number above 0 and one of s, ms, us, ns"),
        ("latency=5mJ", "expected a number above 0 and one of s, ms, us, ns"),
    ):
        with pytest.raises(InputError, match=sentence):
            byoc.partition("a.onnx", within=wrong, **given)
    with pytest.raises(InputError, match="perturbed"):
        byoc.partition("a.onnx", within="latency=15ms", perturb=0.5, **given)


def test_a_limit_says_that_bodies_are_placed_without_it(here: Path) -> None:
    """The body of the loop is cheapest on the host in joules, where it takes ten times as long."""
    loop = f"""m (float[1, {SIZE}] x) => (float[1, {SIZE}] y) <int64 n = {{10}}, bool t = {{1}}> {{
        y = Loop(n, t, x) <body = b (int64 i, bool c, float[1, {SIZE}] s)
            => (bool d, float[1, {SIZE}] r) {{ d = Identity(c) r = Relu(s) }}>
    }}"""
    onnx.save(parse(loop), "loop.onnx")
    energy = "energy: {operation: 0.0, byte: 0.0, second: %s, moved: 0.0, launch: 0.0}\n"
    Path("npu-costs.yaml").write_text(COSTS + energy % 100.0)
    Path("host.yaml").write_text(
        "{kind: roofline, name: slow, peak: {default: 1.0e+5}, bandwidth: .inf, "
        "energy: {operation: 0.0, byte: 0.0, second: 1.0, moved: 0.0, launch: 0.0}}"
    )
    said = (
        r"keeps latency with bodies placed for the objective alone within 0\.05 s: 0\.1 s is the least"
    )
    with pytest.raises(InputError, match=said):
        byoc.partition(
            "loop.onnx",
            rules="npu.yaml",
            host_cost_model="host.yaml",
            objective="energy",
            within="latency=50ms",
        )


WEIGHTED = """m (float[1, 100] x) => (float[1, 100] y)
<float[100, 100] v = {%s}, float[100, 100] w = {%s}> { t = Gemm(x, v) y = Gemm(t, w) }
"""
BYTES = 4 * 100 * 100  # of each matrix; a product takes 20 ms on an accelerator and 200 ms on the host


def test_weights_beyond_the_memory_are_loaded_anew(here: Path) -> None:
    """One matrix fits, with 800 bytes of activations; a part of the other one is loaded in each run."""
    ones = ", ".join(["1"] * 10_000)
    onnx.save(parse(WEIGHTED % (ones, ones)), "w.onnx")
    room = BYTES + 1800
    rules = Path("npu.yaml").read_text()
    Path("npu.yaml").write_text(f"{rules}limits: {{memory: {room}}}\n")
    Path("host.yaml").write_text(
        "{kind: roofline, name: slow, peak: {default: 1.0e+5}, bandwidth: .inf, energy: {second: 1.0}}"
    )
    given = {"rules": "npu.yaml", "host_cost_model": "host.yaml"}
    energy = "energy: {second: 1.0, moved: 2.0e-6}\n"
    Path("npu-costs.yaml").write_text(COSTS + energy)
    hard = byoc.partition("w.onnx", **given)
    assert hard.report.predicted.seconds == pytest.approx(0.22, rel=0.01)
    Path("npu-costs.yaml").write_text(COSTS + energy + "reload: 1.0e+6\n")
    for objective in ("latency", "energy"):
        made = byoc.partition("w.onnx", **given, objective=objective)
        (note,) = (each.text for each in made.report.notes if "anew" in each.text)
        words = note.split()
        held, anew = int(words[2]), int(words[8])
        assert held + anew == 2 * BYTES
        assert room - 1600 <= held <= room - 800  # what is left is for activations
        assert made.report.predicted.seconds == pytest.approx(0.04 + anew / 1e6, rel=0.001)
        # 800 bytes are the input and the output, which cross the same link.
        assert made.report.predicted.joules == pytest.approx(0.04 + (800 + anew) * 2e-6)
        (region,) = made.plan.root.regions
        assert region.seconds == pytest.approx(0.04 + anew / 1e6)
        assert region.memory is not None
        assert region.memory.total <= room
    together = byoc.partition_together(["w.onnx", "b.onnx"], **WITH | {"rules": "npu.yaml"})
    assert together.ends["w"] == pytest.approx(0.04 + anew / 1e6, rel=0.05)
    with pytest.raises(InputError, match=r"weights that are loaded anew .* not counted there"):
        byoc.partition("w.onnx", **given, within="energy=1J")
    problem = byoc.build_problem("w.onnx", "npu.yaml", host_cost_model="host.yaml")
    problem.save("p.json")
    found = byoc.place("p.json")
    assert found["objective_seconds"] == pytest.approx(0.04 + (2 * BYTES - room) / 1e6, rel=0.001)
    assert f"accelerator 1 holds {room} bytes of weights and loads" in " ".join(found["notes"])


def test_replicas_take_turns_in_a_pipeline(here: Path) -> None:
    """Two operators of a millisecond each on two replicas: an inference ends every millisecond."""
    given = {"rules": "npu.yaml", "host_cost_model": "host.yaml", "strategy": "throughput"}
    for replicas, milliseconds in ((1, 2), (2, 1), (4, 0.5)):
        Path("npu-costs.yaml").write_text(COSTS + f"replicas: {replicas}\n")
        made = byoc.partition("a.onnx", **given)
        assert made.plan.root.placement.value == pytest.approx(milliseconds * 1e-3, rel=0.01)


def test_a_model_without_nodes_takes_no_time(here: Path) -> None:
    onnx.save(parse(f"m (float[1, {SIZE}] x) => (float[1, {SIZE}] x) {{}}"), "empty.onnx")
    made = byoc.partition_together(["empty.onnx", "b.onnx"], output="app.byoc", **WITH)
    assert made.ends == {"empty": 0.0, "b": pytest.approx(1e-3, rel=0.01)}


def test_a_problem_file_keeps_conditions(here: Path) -> None:
    """Direct links, engines, networks and a budget, written and read again, schedule as they did."""
    problem = byoc.build_problem("a.onnx", "npu.yaml")
    given = {
        "format": "byoc-placement-problem",
        "devices": [{"name": "hi", "launch": 0.0}, {"name": "lo", "launch": 0.0}],
        "units": [
            {"name": name, "costs": [9.0, 1.0, 1.5], "other_costs": [1.0, 4.0, 2.0], "network": number}
            for number, name in enumerate("uv")
        ],
        "tensors": [],
        "engines": [
            {"name": "cpu", "shares": [1.0, 0.0, 0.0]},
            {"name": "array", "shares": [0.0, 1.0, 1.0], "slowed": {"cpu": 2.0}},
        ],
        "networks": [{"name": "x", "period": 10.0}, {"name": "y", "period": 20.0, "deadline": 3.0}],
        "budget": 7.0,
    }
    Path("p.json").write_text(json.dumps(given))
    found = byoc.place("p.json", "makespan", objective="latency")
    assert found["objective_seconds"] == pytest.approx(2.5)  # 8 by the budget with both on hi
    assert any("network y: slowest response" in note for note in found["notes"])
    assert problem.problem.conditions is None
    both = {
        "format": "byoc-placement-problem",
        "devices": [{"name": "hi", "launch": 0.0}, {"name": "lo", "launch": 0.0}],
        "units": [{"name": "u", "costs": [9.0, 5.0, 3.0], "split": 8}],
        "tensors": [],
        "splits": [{"name": "both", "devices": [1, 2]}],
    }
    Path("p.json").write_text(json.dumps(both))
    found = byoc.place("p.json", "makespan", objective="latency")
    assert found["objective_seconds"] == pytest.approx(1.875)
    assert found["devices"][3]["nodes"] == ["u"]
    loads = {"name": "u", "costs": [9.0, 1.0], "memory": [7.0]}
    tight = {"name": "hi", "launch": 0.0, "capacity": 5.0, "reload": 0.05}
    Path("p.json").write_text(json.dumps(both | {"devices": [tight], "units": [loads], "splits": []}))
    found = byoc.place("p.json")
    assert found["objective_seconds"] == pytest.approx(1.1)
    assert found["devices"][1]["bytes"] == 5
    Path("q.json").write_text(json.dumps(both | {"splits": [{"name": "both", "devices": [1, 3]}]}))
    with pytest.raises(InputError, match=r"splits\[0\].devices: a device is one of 2"):
        byoc.place("q.json")
    for change, sentence in (
        (
            {"budget": None},
            "units[0]: it is of the networks or the budget, which the file does not have",
        ),
        ({"networks": []}, "units[0]: it is of the networks or the budget"),
        (
            {"units": [{k: v for k, v in given["units"][0].items() if k != "network"}]},
            "units[0]: it is of none of the networks that the file has",
        ),
        ({"engines": [{"name": "a", "shares": [1.0, 1.0]}]}, "engines[0].shares: expected 3 numbers"),
        ({"engines": [given["engines"][1]]}, "engines[0].slowed: there is no engine 'cpu'"),
        ({"engines": [{"name": "a", "shares": [1.0, 1.0, 0.0]}]}, "each device occupies an engine"),
        (
            {"networks": [{"name": name, "period": 1e-12} for name in "xy"]},
            "x: a period is at least 1e-09",
        ),
        ({"budget": 1.0}, "no placement keeps the other cost within 1"),
    ):
        Path("q.json").write_text(json.dumps(given | change))
        with pytest.raises(InputError) as error:
            byoc.place("q.json", "launch-aware" if "within" in sentence else "makespan")
        assert sentence in str(error.value)


def test_a_saved_problem_with_conditions_is_read_as_it_was(here: Path) -> None:
    found = byoc.build_problem("a.onnx", ["npu.yaml", "gpu.yaml"])
    plain = found.problem
    conditions = Conditions(
        engines=[[1.0, 0.0], [0.0, 1.0], [0.0, 0.5]],
        slowdown=[[1.0, 1.5], [2.0, 1.0]],
        direct=np.full((plain.tensors, 2, 2), 0.25),
        networks=(PlacedNetwork("a", 0.01, 0.005, 2.0),),
        network_of=np.zeros(plain.units, np.int64),
        other=plain,
        most=3.0,
    )
    replaced = type(found)(**{**vars(found), "problem": replace(plain, conditions=conditions)})
    replaced.save("p.json")
    read = json.loads(Path("p.json").read_text())
    assert [each["slowed"] for each in read["engines"]] == [{"engine 1": 1.5}, {"engine 0": 2.0}]
    placed = byoc.place("p.json", "makespan", objective="latency")
    schedule = ListScheduler(replaced.problem).schedule([1, 1], [0, 0])
    assert schedule is not None
    assert placed["objective_seconds"] <= schedule.makespan * (1 + 1e-9)
