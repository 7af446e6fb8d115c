"""Costs, by hand and against the slow evaluator."""

from math import inf

import numpy as np
import pytest
from helpers.placement_oracle import SlowCost, chain, ints, labelled, thorough
from hypothesis import given

from byoc.placement import Cost, Placement, Problem, evaluate


def test_by_hand() -> None:
    """Tensors: 0 the graph input, to unit 0; 1 a hub, from unit 0 to 1, 2 and 3; 2 a graph output
    of unit 0 that unit 3 reads too; 3 from unit 1 and 4 from 2, both to 3; 5 from 3, an output.
    """
    problem = Problem.build(
        seconds=[[1, 10], [2, 20], [4, 40], [8, 80]],
        producer=[-1, 0, 0, 1, 2, 3],
        consumers=[[0], [1, 2, 3, 1], [3], [3], [3], []],
        is_output=[False, False, True, False, False, True],
        to_device=[[100], [200], [300], [400], [500], [600]],
        to_host=[[0.1], [0.2], [0.3], [0.4], [0.5], [0.6]],
        launch=[1000],
    )
    expected = {
        (0, 0, 0, 0): Cost(15, 0, 0),
        # Input down; hub up once for two readers; the output up once, for the graph and unit 3.
        (1, 0, 0, 0): Cost(24, 100 + 0.2 + 0.3, 1000),
        # The hub down once for two readers; both results up.
        (0, 1, 1, 0): Cost(69, 200 + 0.4 + 0.5, 1000),
        # The hub stays for unit 1, and goes up once for 2 and 3.
        (1, 1, 0, 0): Cost(42, 100 + 0.2 + 0.3 + 0.4, 1000),
        # 3 comes after a host unit that comes after 0: two launches.
        (1, 0, 0, 1): Cost(96, 100 + 0.2 + 0.3 + 400 + 500 + 0.6, 2000),
        (1, 1, 1, 1): Cost(150, 100 + 0.3 + 0.6, 1000),
    }
    for labels, cost in expected.items():
        found = evaluate(problem, ints(*labels), Placement.from_labels(problem, ints(*labels)).regions)
        assert found.execution == cost.execution
        assert found.transfer == pytest.approx(cost.transfer, rel=1e-15)
        assert found.launch == cost.launch
        assert found.total == pytest.approx(cost.total, rel=1e-15)


def test_from_one_accelerator_to_others_by_way_of_the_host() -> None:
    problem = Problem.build(
        seconds=np.zeros((4, 4)),
        producer=[0],
        consumers=[[1, 2, 3]],
        is_output=[False],
        to_device=[[1, 10, 100]],
        to_host=[[2, 20, 200]],
        launch=[0, 0, 0],
    )
    transfers = {(1, 2, 2, 2): 12, (1, 1, 2, 3): 112, (3, 0, 1, 3): 201, (2, 2, 2, 2): 0}
    for labels, seconds in transfers.items():
        found = evaluate(problem, ints(*labels), Placement.from_labels(problem, ints(*labels)).regions)
        assert found.transfer == seconds


def test_a_refused_unit_and_a_tensor_that_cannot_travel_cost_infinity() -> None:
    problem = chain([1, 1], [inf, 1], up=inf)
    assert evaluate(problem, ints(0, 0), ints(-1, -1)).total == 2
    assert evaluate(problem, ints(1, 0), ints(0, -1)).execution == inf
    assert evaluate(problem, ints(0, 1), ints(-1, 0)).transfer == inf


@thorough
@given(labelled())
def test_equals_the_slow_evaluator(case: tuple[Problem, np.ndarray]) -> None:
    problem, labels = case
    regions = Placement.from_labels(problem, labels).regions
    cost = evaluate(problem, labels, regions)
    slow = SlowCost(problem)(tuple(labels.tolist()))
    assert cost.execution + cost.transfer == pytest.approx(slow, rel=1e-12)
    devices = {(region, device) for region, device in zip(regions, labels, strict=True) if device}
    assert cost.launch == pytest.approx(sum(problem.launch[d - 1] for _, d in devices), rel=1e-12)


@pytest.mark.parametrize(
    ("labels", "regions", "sentence"),
    [
        (ints(0, 0), ints(-1, -1), "one number for each of 3 units"),
        (ints(0, -1, 0), ints(-1, -1, -1), "one of 2 accelerators"),
        (ints(0, 3, 0), ints(-1, 0, -1), "one of 2 accelerators"),
        (ints(0, 1, 1), ints(0, 0, 0), "exactly if"),
        (ints(0, 1, 1), ints(-1, -1, 0), "exactly if"),
        (ints(0, 1, 2), ints(-1, 0, 0), "more than one device"),
    ],
)
def test_labels_and_regions_must_fit(labels: np.ndarray, regions: np.ndarray, sentence: str) -> None:
    problem = Problem.build(
        seconds=np.ones((3, 3)),
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, 2)),
        to_host=np.ones((0, 2)),
        launch=[0, 0],
    )
    with pytest.raises(ValueError, match=sentence):
        evaluate(problem, labels, regions)
