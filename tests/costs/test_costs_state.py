"""State that an accelerator keeps: what a call sends is what each further call of many sends."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers.support import Ran, prepared
from test_costs_pose import DEVICE, HOST

import byoc as library
from byoc.costs import CostSettings, GraphProblem, HostLink, PlacementDevice, build_problem
from byoc.errors import YES, InputError
from byoc.model import StatePair
from byoc.patterns import Mark, group_units, join_units
from byoc.placement import Placement, Problem

# What each call computes of its input and the state; in `alone` nothing else reads the next state.
BODIES = {
    "alone": "n{0} = Relu (x{0})  s{1} = Add (s{0}, n{0})  y{0} = Tanh (n{0})",
    "read": "n{0} = Relu (x{0})  s{1} = Add (s{0}, n{0})  y{0} = Tanh (s{1})",
    "read twice": "n{0} = Relu (s{0})  s{1} = Add (s{0}, x{0})  y{0} = Sub (n{0}, s{1})",
}
UNITS = 3


def sum_transfers(problem: Problem, labels: tuple[int, ...]) -> float:
    return Placement.from_labels(problem, np.array(labels)).cost.transfer


def pose(body: str, calls: int, keeping: tuple[bool, ...], *, paired: bool) -> GraphProblem:
    """Return the problem of some calls, the state of one fed to the next one."""
    steps = "  ".join(BODIES[body].format(call, call + 1) for call in range(calls))
    inputs = ", ".join(f"float[10] {name}" for name in ("s0", *(f"x{call}" for call in range(calls))))
    ends = [f"s{calls}"] if paired else []
    outputs = ", ".join(f"float[10] {name}" for name in (*(f"y{call}" for call in range(calls)), *ends))
    index = prepared(f"g ({inputs}) => ({outputs}) {{ {steps} }}").index
    marks = [Mark(YES, "ops[0]")] * len(index.nodes)
    units = group_units(index, [], marks)
    slow = DEVICE.model_copy(update={"link": HostLink(bandwidth=13.0, latency=3.0)})
    devices = [
        PlacementDevice(f"device{number}", costs, keeps_state=keeps)
        for number, (costs, keeps) in enumerate(zip((DEVICE, slow), keeping, strict=True))
    ]
    state = [StatePair("s0", f"s{calls}")] if paired else []
    settings = CostSettings(HOST, devices, state=state)
    both = [units] * len(devices)
    return build_problem(index, join_units(index, both, [marks] * len(devices)), settings)


@pytest.mark.parametrize("body", ["alone", "read"])
def test_a_call_costs_what_a_further_one_of_many_costs(body: str) -> None:
    """Unrolled calls have no state: what each sends is in the graph."""
    one = pose(body, 1, (True, True), paired=True).problem
    fewer, more = (pose(body, calls, (False, False), paired=False).problem for calls in (3, 4))
    costs = set()
    for labels in product(range(3), repeat=UNITS):
        each = [sum_transfers(problem, labels * calls) for problem, calls in ((fewer, 3), (more, 4))]
        # The last state of a sequence is nobody's in the unrolled calls.
        found = sum_transfers(one, labels)
        assert found == pytest.approx(each[1] - each[0]), labels
        costs.add(found)
    assert len(costs) > 5


@pytest.mark.parametrize(
    ("body", "keeping", "kept"),
    [
        ("alone", (True, False), {0: True, 1: False}),
        ("alone", (False, False), {0: False, 1: False}),
        # The host may need the state as an output, and gets what it reads of it only once.
        ("read", (True, False), {0: False, 1: False}),
        ("read twice", (True, True), {0: False, 1: False}),
    ],
)
def test_what_is_sent_in_each_call(body: str, keeping: tuple[bool, bool], kept: dict[int, bool]) -> None:
    found, sent = pose(body, 1, keeping, paired=True), pose(body, 1, (False, False), paired=True)
    past, present = found.tensors.index("s0"), found.tensors.index("s1")
    for device, keeps in kept.items():
        for one, other, row in (
            (found.problem.to_device, sent.problem.to_device, past),
            (found.problem.to_host, sent.problem.to_host, present),
            (found.sizes, sent.sizes, past),
        ):
            assert one[row, device] == (0 if keeps else other[row, device])
            assert other[row, device] > 0
    assert found.problem.is_output.tolist() == sent.problem.is_output.tolist()


RULES = """
target: npu
cost_model: npu.yaml
state: {state}
dtype: any
ops: [{{op: '*'}}]
"""
COSTS = """
kind: roofline
name: npu
peak: {default: 4.0e+12}
bandwidth: 1.0e+11
launch: 1.0e-5
link: {bandwidth: 2.0e+9, latency: 1.0e-6}
"""
SIZES = {
    "batch_size": 1,
    "sequence_length": 1,
    "past_sequence_length": 500,
    "total_sequence_length": 501,
}


def test_a_decoder_goes_where_its_cache_stays(tmp_path: Path) -> None:
    (tmp_path / "npu.yaml").write_text(COSTS)
    found = {}
    for state in ("sent", "kept"):
        rules = tmp_path / f"{state}.yaml"
        rules.write_text(RULES.format(state=state))
        found[state] = library.partition("zoo:decoder_int4", rules, dims=SIZES, what_if=False)
    on_device = {
        state: {row for region in result.report.regions for row in region.inputs if "past" in row.name}
        for state, result in found.items()
    }
    assert not on_device["sent"]
    assert len(on_device["kept"]) == 6
    assert {each.bytes for each in on_device["kept"]} == {0}
    seconds = {state: result.report.predicted.seconds for state, result in found.items()}
    assert seconds["kept"] < seconds["sent"]
    (note,) = [note for note in found["kept"].report.notes if "state" in note.text]
    assert note.text.endswith("'past_key_values.0.key' and 5 others, 750 KiB")


def test_state_that_is_told_on_the_command_line(tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    (tmp_path / "npu.yaml").write_text(COSTS)
    (tmp_path / "kept.yaml").write_text(RULES.format(state="kept"))
    (tmp_path / "sent.yaml").write_text(RULES.format(state="sent"))
    pair = {"past_key_values.0.key": "present.0.key"}
    plan = library.partition(
        "zoo:decoder_int4", tmp_path / "kept.yaml", dims=SIZES, state=pair, what_if=False
    ).plan
    assert plan is not None
    assert [each.pair.past for each in plan.root.graph_problem.kept_state] == [*pair]
    for name, state, problem in (
        ("kept", {"past.0": "logits"}, "no input 'past.0'"),
        ("kept", {"input_ids": "logits"}, "cannot take what output 'logits' gave"),
        ("sent", pair, "state is given, and no accelerator keeps it"),
    ):
        with pytest.raises(InputError, match=problem):
            library.partition("zoo:decoder_int4", tmp_path / f"{name}.yaml", dims=SIZES, state=state)
    words = ["--dim", "batch_size=1", "--state", "past_key_values.0.key=present.0.key", "--format=json"]
    ran = byoc("partition", "zoo:decoder_int4", "--rules", tmp_path / "kept.yaml", *words)
    assert ran.code == 0, ran.err
