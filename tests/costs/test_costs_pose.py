"""From units to the partitioner's numbers, by hand."""

from math import inf

import numpy as np
from helpers.support import prepared

from byoc.costs import CostSettings, GraphProblem, HostLink, PlacementDevice, Roofline, build_problem
from byoc.errors import YES, refuse
from byoc.patterns import Mark, group_units, join_units, parse_pattern

HOST = Roofline(kind="roofline", name="host", peak={"default": 10.0}, bandwidth=100.0, overhead=1.0)
DEVICE = Roofline(
    kind="roofline",
    name="device",
    peak={"float32": 100.0},
    bandwidth=1000.0,
    overhead=0.5,
    launch=7.0,
    link=HostLink(bandwidth=40.0, latency=2.0),
)
TAKEN = Mark(YES, "ops[0]")
THREE = """
g (float[10] x, float[10] z) => (float[10] y, float[10] r) {
  a = Add (x, z)
  r = Relu (a)
  y = Tanh (r)
}
"""


def posed(
    text: str, *patterns: str, refused: tuple[int, ...] = (), connected: bool = True
) -> GraphProblem:
    index = prepared(text).index
    marks = [Mark(refuse("no")) if i in refused else TAKEN for i in range(len(index.nodes))]
    units = group_units(index, [parse_pattern(f"p{i}", text) for i, text in enumerate(patterns)], marks)
    settings = CostSettings(HOST, [PlacementDevice("device", DEVICE, connected)])
    return build_problem(index, join_units(index, [units], [marks]), settings)


def consumers(result: GraphProblem) -> dict[str, list[int]]:
    problem = result.problem
    bounds = zip(problem.consumer_start, problem.consumer_start[1:], strict=False)
    rows = [problem.consumers[start:stop].tolist() for start, stop in bounds]
    return dict(zip(result.tensors, rows, strict=True))


def test_three_nodes_by_hand() -> None:
    """10 floats are 40 bytes; Tanh is refused and counts one operation for each of 10 elements."""
    result = posed(THREE, refused=(2,))
    problem = result.problem
    assert problem.seconds.tolist() == [
        [1 + max(10 / 10, 120 / 100), 0.5 + max(10 / 100, 120 / 1000)],
        [1 + max(10 / 10, 80 / 100), 0.5 + max(10 / 100, 80 / 1000)],
        [1 + max(10 / 10, 80 / 100), inf],
    ]
    assert consumers(result) == {"x": [0], "z": [0], "a": [1], "r": [2], "y": []}
    assert problem.producer.tolist() == [-1, -1, 0, 1, 2]
    assert problem.is_output.tolist() == [False, False, False, True, True]
    assert problem.to_device.tolist() == problem.to_host.tolist() == [[2 + 40 / 40]] * 5
    assert problem.launch.tolist() == [7.0]
    assert problem.connected.tolist() == [True]
    assert result.operations.tolist() == [10, 10, 10]
    assert result.operations.dtype == np.float64
    assert result.estimated == 0


def test_a_composite_runs_as_one_on_the_device_and_node_by_node_on_the_host() -> None:
    """What is between its nodes is no tensor of the problem, and moves no bytes on the device."""
    result = posed(THREE, "a = Add(x, z)\ny = Relu(a)")
    assert consumers(result) == {"x": [0], "z": [0], "r": [1], "y": []}
    assert result.problem.seconds[0].tolist() == [
        (1 + max(1.0, 1.2)) + (1 + max(1.0, 0.8)),
        0.5 + max(20 / 100, 120 / 1000),
    ]
    assert result.operations.tolist() == [20, 10]


def test_connected_or_not() -> None:
    assert posed(THREE, connected=False).problem.connected.tolist() == [False]


def test_constants_are_neither_units_nor_tensors() -> None:
    result = posed("""
        g (float[10] x) => (float[10] y) <float[10] w = {0,1,2,3,4,5,6,7,8,9}> {
          k = Neg (w)
          a = Add (x, k)
          y = Mul (a, w)
        }""")
    assert consumers(result) == {"x": [0], "a": [1], "y": []}
    assert result.problem.units == 2
    assert result.problem.seconds[0, 0] == 1 + max(1.0, 1.2)  # the weight is read all the same


def test_a_tensor_with_two_readers_and_one_that_nobody_reads() -> None:
    result = posed("""
        g (float[10] x, float[10] unused) => (float[10] y, float[10] x2) {
          a = Relu (x)
          b = Neg (a)
          dead = Abs (a)
          y = Add (b, a)
          x2 = Identity (x)
        }""")
    assert consumers(result) == {"x": [0, 4], "a": [1, 2, 3], "b": [3], "y": [], "x2": []}
    assert result.problem.seconds[4].tolist() == [0.0, 0.0]  # a view


def test_what_a_body_captures_goes_to_its_node() -> None:
    result = posed("""
        g (float[10] x, bool c) => (float[10] y) {
          a = Relu (x)
          y = If <then_branch = t () => (float[10] u) { u = Neg (a) },
                  else_branch = e () => (float[10] v) { v = Neg (x) }> (c)
        }""")
    assert consumers(result) == {"x": [0, 1], "c": [1], "a": [1], "y": []}
    assert result.estimated == 1


def test_unknown_shapes_are_counted() -> None:
    text = "g (float[N] x, float[10] z) => (float[N] y, float[10] r) { y = Relu (x)\n r = Relu (z) }"
    result = posed(text)
    assert result.estimated == 1
    assert result.operations.tolist() == [1, 10]
    assert result.problem.to_device.ravel().tolist() == [2.1, 3.0, 2.1, 3.0]


def test_asking_for_a_shape_pulls_no_data_across() -> None:
    """The shape of 8 x 10 floats is two numbers of 8 bytes; it still comes after what makes `a`."""
    result = posed("""
        g (float[8, 10] x) => (int64[2] s, float[8, 10] y, int64 n) {
          a = Relu (x)
          s = Shape (a)
          y = Tanh (a)
          n = Size (x)
        }""")
    assert consumers(result) == {
        "x": [0],
        "x:shape": [3],
        "a": [2],
        "a:shape": [1],
        "s": [],
        "y": [],
        "n": [],
    }
    assert result.problem.to_host.ravel().tolist() == [
        *(2 + 320 / 40, 2 + 16 / 40),
        *(2 + 320 / 40, 2 + 16 / 40),
        *(2 + 16 / 40, 2 + 320 / 40, 2 + 8 / 40),
    ]
    assert result.problem.seconds[1].tolist() == [1 + 16 / 100, 0.5 + 16 / 1000]  # 16 bytes come out


def test_a_tensor_that_only_shapes_are_asked_of_and_that_is_wanted_crosses_whole() -> None:
    result = posed("g (float[4] x) => (float[4] a, int64[1] s) { a = Relu (x)\n s = Shape (a) }")
    assert consumers(result) == {"x": [0], "a": [], "a:shape": [1], "s": []}
    assert result.problem.is_output.tolist() == [False, True, False, True]


def test_nothing_to_place() -> None:
    result = posed("g (float[10] x) => (float[10] y) <float[1] w = {1}> { y = Neg (w) }")
    assert result.problem.units == 0
    assert result.tensors == ()


def test_the_dtype_is_that_of_the_result() -> None:
    device = DEVICE.model_copy(update={"peak": {"float32": 100.0, "int8": 400.0}})
    index = prepared("g (int8[10] x) => (int8[10] y) { y = Add (x, x) }").index
    units = group_units(index, [], [TAKEN])
    joined = join_units(index, [units], [[TAKEN]])
    settings = CostSettings(HOST, [PlacementDevice("device", device)])
    seconds = build_problem(index, joined, settings).problem.seconds
    assert seconds[0, 1] == 0.5 + max(10 / 400, 20 / 1000)
