"""Regions that compute in float16: their tasks are of that dtype, and half the bytes."""

from support import prepared

from byoc.costs.roofline import Roofline
from byoc.costs.task import tasks

TEXT = """
g (float[2, 64] x, int64[2] i, float[64, 32] w) => (float[2, 32] y) {
  a = Gather(x, i)
  y = MatMul(a, w)
}
"""
DEVICE = Roofline.model_validate(
    {"kind": "roofline", "name": "d", "peak": {"float32": 1e9, "float16": 4e9}, "bandwidth": 1e12,
     "launch": 0.0, "link": {"bandwidth": 1e9, "latency": 0.0}}
)  # fmt: skip


def test_tasks_are_of_the_type_that_is_computed_in() -> None:
    index = prepared(TEXT).index
    own, short = tasks(index), tasks(index, "float16")
    assert str(short[0]) == "Gather on float16[2, 64], int64[2] -> float16[2, 64]"
    assert (own[1].dtype, short[1].dtype) == ("float32", "float16")
    assert own[1].work.bytes == 2 * short[1].work.bytes == 4 * (2 * 64 + 64 * 32 + 2 * 32)
    assert own[1].work.operations == short[1].work.operations
    assert own[0].work.bytes - short[0].work.bytes == 2 * (2 * 64 + 2 * 64)  # the indices stay
    seconds = [DEVICE.seconds(each[1].work, each[1].dtype) for each in (own, short)]
    assert seconds[0] == 4 * seconds[1]
    assert short.composite("both", (0, 1)).types == (
        "float16[2, 64], int64[2], float16[64, 32] -> float16[2, 32]"
    )
