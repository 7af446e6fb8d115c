"""What cost models are asked about: equal nodes share a task, which is written the same each time."""

import numpy as np
from helpers.support import prepared

from byoc.costs import Roofline, Task, Work, build_tasks
from byoc.model import TensorType

CONVS = """
g (float[1,4,8,8] x, float[2,2] z) => (float[1,4,8,8] y, float[2,2] w)
  <float[4,4,3,3] k, float[4] b> {
  a = Conv <pads = [1, 1, 1, 1]> (x, k)
  c = Conv <pads = [1, 1, 1, 1], strides = [1, 1], group = 1> (a, k)
  d = Conv <pads = [1, 1, 1, 1]> (c, k, b)
  e = Relu (d)
  y = Relu (e)
  m = Mul (z, z)
  w = Mul (m, z)
}
"""

GATHER = """
g (float[2, 64] x, int64[2] i, float[64, 32] w) => (float[2, 32] y) {
  a = Gather(x, i)
  y = MatMul(a, w)
}
"""
HALF = Roofline.model_validate(
    {"kind": "roofline", "name": "d", "peak": {"float32": 1e9, "float16": 4e9}, "bandwidth": 1e12,
     "launch": 0.0, "link": {"bandwidth": 1e9, "latency": 0.0}}
)  # fmt: skip


def test_equal_nodes_share_a_task() -> None:
    text = CONVS.replace("<float[4,4,3,3] k, float[4] b>", "").replace(
        "(float[1,4,8,8] x,", "(float[1,4,8,8] x, float[4,4,3,3] k, float[4] b,"
    )
    tasks = build_tasks(prepared(text).index)
    assert [int(number) for number in tasks.task_of_node] == [0, 1, 2, 3, 3, 4, 5]
    first, written_out, biased, relu, square, product = tasks.distinct
    assert first.key == written_out.key != biased.key  # defaults count as left out
    assert first.types == "float32[1, 4, 8, 8], float32[4, 4, 3, 3] -> float32[1, 4, 8, 8]"
    assert first.attributes["pads"] == [1, 1, 1, 1]
    assert "group" not in written_out.attributes
    assert (square.work.bytes, product.work.bytes) == (32, 48)  # the same tensor twice is read once
    assert tasks.operations.tolist() == [
        *(256 * 2 * 36, 256 * 2 * 36, 256 * (2 * 36 + 1)),
        *(256, 256, 4, 4),
    ]
    assert tasks.bytes[3] == 2 * 4 * 256
    assert str(relu) == "Relu on float32[1, 4, 8, 8] -> float32[1, 4, 8, 8]"


def test_constants_are_no_tasks_and_what_is_left_out_is_marked() -> None:
    tasks = build_tasks(
        prepared("""
        g (float[2,5] x) => (float[2,5] y, float[1,5] p) <float[1] one = {1.0}> {
          top = Neg (one)
          y = Clip (x, , top)
          p, q = Split <axis = 0> (x)
        }""").index
    )
    assert tasks.task_of_node.tolist() == [-1, 0, 1]
    assert [task.types for task in tasks.distinct] == [
        "float32[2, 5], -, float32[1] -> float32[2, 5]",
        "float32[2, 5] -> float32[1, 5], -",
    ]
    assert tasks.operations.tolist() == [0, 20, 0]


def test_the_key_of_numbers_is_that_of_their_value() -> None:
    one, other = (Task("LeakyRelu", Work(1, 1), attributes={"alpha": alpha}) for alpha in (1, 1.0))
    assert one.key == other.key
    assert one.key != Task("LeakyRelu", Work(1, 1), attributes={"alpha": 1.5}).key


def test_other_domains_and_unknown_shapes() -> None:
    tasks = build_tasks(prepared("g (float[N] x) => (float[N] y) { y = Relu (x) }").index)
    (task,) = tasks.distinct
    assert not task.sized
    assert task.types == "float32[N] -> float32[N]"


def test_a_composite_is_a_task_of_its_own() -> None:
    index = prepared("""
        g (float[1,4,4,4] x, float[8,4,1,1] w) => (float[1,8,4,4] y) {
          c = Conv <strides = [1, 1]> (x, w)
          y = Relu (c)
        }""").index
    tasks = build_tasks(index)
    found = tasks.make_composite_task("conv_relu", (0, 1))
    assert found.op == "conv_relu"
    assert found.types == "float32[1, 4, 4, 4], float32[8, 4, 1, 1] -> float32[1, 8, 4, 4]"
    assert {name.partition(".")[0] for name in found.attributes} == {"0"}
    assert found.work == Work(128 * 8 + 128, 4 * (64 + 32 + 128))
    assert found.parts == (tasks[0], tasks[1])
    assert found.sized
    assert not found.view


def test_a_node_with_bodies_is_known_by_no_table() -> None:
    tasks = build_tasks(
        prepared("""
        g (float[2] x, bool c) => (float[2] y, float[2] z) {
          y = If <then_branch = t () => (float[2] u) { u = Neg (x) },
                  else_branch = e () => (float[2] v) { v = Abs (x) }> (c)
          z = If <then_branch = t () => (float[2] u) { u = Neg (x) },
                  else_branch = e () => (float[2] v) { v = Abs (x) }> (c)
        }""").index
    )
    assert tasks.task_of_node.tolist() == [0, 1]
    assert not any(task.sized for task in tasks.distinct)


def test_a_type_of_unknown_rank() -> None:
    assert Task("Odd", Work(1, 1), inputs=(TensorType("int8", None), None)).types == "int8[...], - ->"
    assert np.isfinite(Task("Odd", Work(1, 1)).work.bytes)


def test_regions_that_compute_in_float16_have_tasks_of_half_the_bytes() -> None:
    index = prepared(GATHER).index
    own, short = build_tasks(index), build_tasks(index, "float16")
    assert str(short[0]) == "Gather on float16[2, 64], int64[2] -> float16[2, 64]"
    assert (own[1].dtype, short[1].dtype) == ("float32", "float16")
    assert own[1].work.bytes == 2 * short[1].work.bytes == 4 * (2 * 64 + 64 * 32 + 2 * 32)
    assert own[1].work.operations == short[1].work.operations
    assert own[0].work.bytes - short[0].work.bytes == 2 * (2 * 64 + 2 * 64)  # the indices stay
    seconds = [HALF.seconds(each[1].work, each[1].dtype) for each in (own, short)]
    assert seconds[0] == 4 * seconds[1]
    assert short.make_composite_task("both", (0, 1)).types == (
        "float16[2, 64], int64[2], float16[64, 32] -> float16[2, 32]"
    )
