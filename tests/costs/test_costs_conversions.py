"""What conversions at the border cost, by hand, and what they do to a placement."""

from dataclasses import dataclass
from math import inf

import numpy as np
import pytest
from helpers.support import parse, prepared

from byoc.boundary.convert import BoundaryFormat
from byoc.costs import (
    CostModel,
    CostSettings,
    CostTable,
    Fallback,
    GraphProblem,
    HostLink,
    Measurement,
    PlacementDevice,
    Policy,
    Price,
    Roofline,
    Task,
    Unknown,
    build_problem,
    load_device_costs,
    load_host_costs,
    price_graph,
    with_link,
)
from byoc.errors import YES, refuse
from byoc.model import QUANTIZE, GraphIndex, mark_inserted, parse_layout, prepare_model
from byoc.patterns import Mark, group_units, join_units
from byoc.placement import count_transferred_bytes, evaluate
from byoc.placement.strategies import Exhaustive

HOST = Roofline(kind="roofline", name="host", peak={"default": 10.0}, bandwidth=100.0, overhead=1.0)
DEVICE = Roofline(
    kind="roofline",
    name="device",
    peak={"default": 100.0},
    bandwidth=1000.0,
    overhead=0.5,
    launch=7.0,
    link=HostLink(bandwidth=40.0, latency=2.0),
)
NHWC = BoundaryFormat(parse_layout("NHWC"))
TAKEN, QUANTIZED = Mark(YES, "ops[0]"), Mark(YES, "ops[1]", accepts_plain=False, accepts_quantized=True)

# Images of 8 floats, 32 bytes; `f` and `y` have no layout.
NET = """
g (float[1,2,2,2] x) => (float[1,8] y) {
  a = MaxPool <kernel_shape = [1, 1]> (x)
  b = Relu (a)
  f = Flatten (b)
  y = Tanh (f)
}
"""
QDQ = """
g (float[1,2,2,2] x) => (float[1,2,2,2] y) <float s = {0.5}, int8 z = {0}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  p = MaxPool <kernel_shape = [1, 1]> (d)
  pq = QuantizeLinear (p, s, z)
  y = DequantizeLinear (pq, s, z)
}
"""
# Seconds: bytes over the link; a Transpose of 8 floats; and of 8 bytes.
OVER, TURNED, TURNED_INT8 = 2 + 32 / 40, 1 + 64 / 100, 1 + 16 / 100
# QuantizeLinear: 5 operations an element, 32 bytes and 5 of the scale come in, 8 go out; back it is 2.
TO_INT8, TO_FLOAT = 1 + max(40 / 10, 45 / 100), 1 + max(16 / 10, 45 / 100)


def graph(text: str, *, ours: bool = False) -> GraphIndex:
    proto = parse(text)
    for node in proto.graph.node:
        if ours and "Linear" in node.op_type:
            mark_inserted(node, QUANTIZE)
    return prepare_model(proto, "test").index


def posed(
    index: GraphIndex,
    *wants: BoundaryFormat,
    costs: CostModel = DEVICE,
    host: CostModel = HOST,
    refused: tuple[str, ...] = (),
    unknown: Policy = Policy.estimate,
) -> GraphProblem:
    """Pose for a device of each of the wants; QDQ groups form around all but what is refused."""
    marks = [
        Mark(refuse("no"))
        if node.op_type in refused
        else Mark(refuse("no"))
        if "Linear" in node.op_type
        else QUANTIZED
        if any("Linear" in other.op_type for other in index.nodes)
        else TAKEN
        for node in index.nodes
    ]
    units = group_units(index, [], marks)
    devices = [PlacementDevice(f"device{i}", costs, wants=each) for i, each in enumerate(wants)]
    joined = join_units(index, [units] * len(wants), [marks] * len(wants))
    return build_problem(index, joined, CostSettings(host, devices, unknown))


def transfers(result: GraphProblem, device: int = 0) -> dict[str, tuple[float, float]]:
    """Return for each tensor the seconds there and back."""
    there, back = result.problem.to_device[:, device], result.problem.to_host[:, device]
    return dict(zip(result.tensors, zip(there.tolist(), back.tolist(), strict=True), strict=True))


def test_images_pay_a_transpose_either_way_and_nothing_else_does() -> None:
    found = transfers(posed(graph(NET), NHWC))
    turned = pytest.approx(OVER + TURNED)
    assert found == {
        **dict.fromkeys(("x", "a", "b"), (turned, turned)),
        **dict.fromkeys(("f", "y"), (OVER, OVER)),
    }


def test_each_device_has_wants_of_its_own() -> None:
    result = posed(graph(NET), BoundaryFormat(), NHWC, BoundaryFormat(parse_layout("NCHW4c")))
    assert transfers(result, 0)["a"] == (OVER, OVER)
    assert transfers(result, 1)["a"] == pytest.approx((OVER + TURNED, OVER + TURNED))
    # 2 channels in a block of 4: 64 bytes cross; Pad and Transpose there, Transpose and Slice back.
    padded = 2 + 64 / 40 + (1 + (32 + 64) / 100) + (1 + (64 + 64) / 100)
    assert transfers(result, 2)["a"] == pytest.approx((padded, padded))
    assert result.sizes.tolist() == [[32, 32, 64]] * 3 + [[32] * 3] * 2
    assert result.sizes.dtype == np.int64


def test_a_tensor_is_converted_once_however_many_read_it_and_not_between_regions() -> None:
    index = graph("""
        g (float[1,2,2,2] x) => (float[1,2,2,2] y) {
          a = MaxPool <kernel_shape = [1, 1]> (x)
          b = Relu (a)
          c = Neg (a)
          y = Add (b, c)
        }""")
    problem = posed(index, NHWC).problem
    on_device = np.ones(4, np.int64)
    apart = evaluate(problem, on_device, np.arange(4))
    together = evaluate(problem, on_device, np.zeros(4, np.int64))
    assert apart.transfer == together.transfer == pytest.approx(2 * (OVER + TURNED))  # x, y
    readers = evaluate(problem, np.array([0, 1, 1, 0]), np.array([-1, 0, 1, -1]))
    assert readers.transfer == pytest.approx(3 * (OVER + TURNED))  # a there, b and c back


def test_a_total_by_hand() -> None:
    """MaxPool and Relu on the device: x goes there, b comes back."""
    result = posed(graph(NET), NHWC, refused=("Tanh",))
    cost = evaluate(result.problem, np.array([1, 1, 0, 0]), np.array([0, 0, -1, -1]))
    assert cost.transfer == pytest.approx(2 * (OVER + TURNED))
    tanh = 1 + max(8 / 10, 64 / 100)
    assert cost.total == pytest.approx(2 * (0.5 + 8 / 100) + tanh + 7 + 2 * (OVER + TURNED))
    assert count_transferred_bytes(result.problem, np.array([1, 1, 0, 0]), result.sizes) == 64


def test_shapes_that_are_asked_for_are_not_converted() -> None:
    index = graph("""
        g (float[1,2,2,2] x) => (float[1,2,2,2] y, int64[4] s) {
          y = MaxPool <kernel_shape = [1, 1]> (x)
          s = Shape (y)
        }""")
    assert transfers(posed(index, NHWC))["y:shape"] == (2 + 32 / 40, 2 + 32 / 40)


def test_float16_crosses_as_half_the_bytes_and_costs_casts() -> None:
    by_host = transfers(posed(graph(NET), BoundaryFormat(compute="float16")))["f"]
    cast = 1 + (32 + 16) / 100
    assert by_host == pytest.approx((2 + 16 / 40 + cast, 2 + 16 / 40 + cast))
    by_device = transfers(posed(graph(NET), BoundaryFormat(None, "device", "float16")))["f"]
    cast = 0.5 + (32 + 16) / 1000
    assert by_device == pytest.approx((OVER + cast, OVER + cast))


def test_quantizing_costs_nothing_on_the_host_and_where_a_tensor_crosses_what_it_takes() -> None:
    result = posed(graph(QDQ, ours=True), BoundaryFormat())
    assert consumers_of(result) == {"x": 1, "q": 1, "pq": 1, "y": 0}
    assert result.problem.seconds[:, 0].tolist() == [0.0, 1 + max(8 / 10, 64 / 100), 0.0]
    found = transfers(result)
    assert found["x"] == found["y"] == (OVER, OVER)
    int8 = 2 + 8 / 40
    assert found["q"] == found["pq"] == pytest.approx((int8 + TO_INT8, int8 + TO_FLOAT))
    assert result.operations.tolist() == [0, 8, 0]
    # On the device the group costs what it did: 2 x 8 + 8 + 5 x 8 operations.
    assert result.problem.seconds[1, 1] == 0.5 + max(64 / 100, (8 + 8 + 10) / 1000)


def consumers_of(result: GraphProblem) -> dict[str, int]:
    return dict(zip(result.tensors, np.diff(result.problem.consumer_start).tolist(), strict=True))


def test_an_int8_image_is_transposed_as_int8() -> None:
    found = transfers(posed(graph(QDQ, ours=True), NHWC))["q"]
    int8 = 2 + 8 / 40 + TURNED_INT8
    assert found == pytest.approx((int8 + TO_INT8, int8 + TO_FLOAT))


def test_a_device_that_quantizes_gets_floats_and_takes_its_time_for_it() -> None:
    found = transfers(posed(graph(QDQ, ours=True), BoundaryFormat(None, "device")))["pq"]
    there, back = 0.5 + max(40 / 100, 45 / 1000), 0.5 + max(16 / 100, 45 / 1000)
    assert found == pytest.approx((OVER + there, OVER + back))


def test_the_users_own_quantization_costs_what_it_did() -> None:
    result = posed(graph(QDQ), BoundaryFormat())
    assert result.problem.seconds[:, 0] == pytest.approx([TO_INT8, TO_FLOAT + 1.8 + TO_INT8, TO_FLOAT])
    assert transfers(result)["q"] == (2 + 8 / 40, 2 + 8 / 40)


def test_a_graph_alone_does_not_pay_for_what_byoc_put_in() -> None:
    price, operations = price_graph(graph(QDQ, ours=True), HOST)
    assert (price.seconds, operations) == (1.8, 8)
    assert price_graph(graph(QDQ), HOST)[0].seconds == pytest.approx(1.8 + 2 * (TO_INT8 + TO_FLOAT))


def test_conversions_change_a_placement() -> None:
    """A Softsign between two host operators is worth its way to the device, but not two Transposes."""
    index = graph(
        """
        g (float[1,2,2,2] x) => (float[1,2,2,2] y) {
          a = MaxPool <kernel_shape = [1, 1]> (x)
          b = Softsign (a)
          y = MaxPool <kernel_shape = [1, 1]> (b)
        }"""
    )
    # On the device 0.5 + 0.24 + 7 and two transfers of 2.8: 13.34 seconds; two Transposes make it 16.62.
    found = {}
    for peak in (1.5, 1.6):  # on the host 1 + 24 / 1.5 = 17 seconds, and 16
        host = HOST.model_copy(update={"peak": {"default": peak}})
        for wants in (BoundaryFormat(), NHWC):
            problem = posed(index, wants, host=host, refused=("MaxPool",)).problem
            found[peak, wants] = Exhaustive().solve(problem).labels.tolist()
    assert found == {
        (1.5, BoundaryFormat()): [0, 1, 0],
        (1.5, NHWC): [0, 1, 0],
        (1.6, BoundaryFormat()): [0, 1, 0],
        (1.6, NHWC): [0, 0, 0],
    }


def test_a_link_that_says_what_conversions_take_is_taken_at_its_word() -> None:
    link = HostLink(bandwidth=40.0, latency=2.0, conversion=16.0)
    costs = DEVICE.model_copy(update={"link": link})
    found = transfers(posed(graph(NET), NHWC, costs=costs))
    assert found["a"] == (OVER + 32 / 16, OVER + 32 / 16)
    assert found["f"] == (OVER, OVER)
    free = DEVICE.model_copy(update={"link": HostLink(bandwidth=40.0, latency=2.0, conversion=inf)})
    assert transfers(posed(graph(NET), NHWC, costs=free))["a"] == (OVER, OVER)
    faster = transfers(posed(graph(NET), NHWC, costs=with_link(costs, 80.0)))
    assert faster["a"] == (2 + 32 / 80 + 32 / 16, 2 + 32 / 80 + 32 / 16)
    quantized = transfers(posed(graph(QDQ, ours=True), BoundaryFormat(), costs=costs))["q"]
    assert quantized == (2 + 8 / 40 + 8 / 16, 2 + 8 / 40 + 8 / 16)


def test_another_link_leaves_conversions_to_the_host() -> None:
    turned = 2 + 32 / 80 + TURNED
    costs = with_link(Fallback(DEVICE, HOST), 80.0)
    assert transfers(posed(graph(NET), NHWC, costs=costs))["a"] == pytest.approx((turned, turned))


@dataclass(frozen=True)
class Theirs:
    """A cost model from outside, whose transfers have what conversions take."""

    name: str = "theirs"

    def execution(self, task: Task) -> Price | Unknown:
        return Price(0.5)

    def transfer(self, size: int, converted: int = 0) -> Price:
        return Price(1.0 + size / 32 + converted / 8)

    def launching(self) -> Price:
        return Price(7.0)


class Asking(Theirs):
    """One that leaves them to the host."""

    def converting(self) -> bool:
        return False


def test_a_model_from_outside_prices_conversions_unless_it_says_that_it_does_not() -> None:
    assert transfers(posed(graph(NET), NHWC, costs=Theirs()))["a"] == (1 + 1 + 4, 1 + 1 + 4)
    assert transfers(posed(graph(NET), NHWC, costs=with_link(Theirs(), 16.0)))["a"][0] == 1 + 2 + 4
    turned = pytest.approx(1 + 1 + TURNED)
    assert transfers(posed(graph(NET), NHWC, costs=Asking()))["a"] == (turned, turned)
    assert transfers(posed(graph(NET), NHWC, costs=with_link(Asking(), 32.0)))["a"][1] == turned


def test_a_table_knows_a_transpose_by_its_permutation() -> None:
    rows = [
        Measurement(
            op="Transpose",
            types="float32[1, 2, 2, 2] -> float32[1, 2, 2, 2]",
            attributes={"perm": perm},
            seconds=seconds,
        )
        for perm, seconds in (([0, 2, 3, 1], 3.0), ([0, 3, 1, 2], 5.0))
    ]
    host = CostTable(kind="table", name="host", entries=tuple(rows))
    found = transfers(posed(graph(NET), NHWC, host=host))
    assert found["a"] == (OVER + 3.0, OVER + 5.0)


def test_conversions_that_nobody_knows_are_estimated_whatever_the_policy() -> None:
    """The user's model has no Transpose: a table of its operators is all that there can be."""
    index = graph("g (float[1,2,2,2] x) => (float[1,2,1,1] y) { y = GlobalMaxPool (x) }")
    types = "float32[1, 2, 2, 2] -> float32[1, 2, 1, 1]"
    row = Measurement(op="GlobalMaxPool", types=types, seconds=40.0, bytes=40)
    host = CostTable(kind="table", name="host", entries=(row,))
    result = posed(index, NHWC, host=host, unknown=Policy.refuse)
    assert result.problem.seconds[0, 0] == 40.0
    assert transfers(result)["x"] == (pytest.approx(OVER + 64.0),) * 2  # as the line has it, 1 s a byte
    assert result.estimated == 0


def test_joules_of_conversions_are_the_hosts() -> None:
    energy = {"energy": {"byte": 2.0, "moved": 3.0}}
    host, costs = (
        Roofline.model_validate(each.model_dump(exclude_unset=True) | energy) for each in (HOST, DEVICE)
    )
    result = posed(graph(NET), NHWC, host=host, costs=costs)
    assert result.energy is not None
    of = dict(zip(result.tensors, result.energy.to_device[:, 0].tolist(), strict=True))
    assert (of["a"], of["f"]) == (3 * 32 + 2 * 64, 3 * 32)
    assert posed(graph(NET), NHWC, costs=costs).energy is None


def test_the_built_in_accelerator_pays_for_nhwc() -> None:
    """x of 1 x 64 x 56 x 56 floats: 802,816 bytes at 2 GB/s, and through the host's memory twice."""
    text = "g (float[1,64,56,56] x) => (float[1,64,56,56] y) { y = MaxPool <kernel_shape = [1, 1]> (x) }"
    host, costs = load_host_costs("host"), load_device_costs("dla")
    found = transfers(posed(prepared(text).index, NHWC, host=host, costs=costs))["x"]
    size = 4 * 64 * 56 * 56
    expected = 5e-6 + size / 2e9 + 2e-6 + 2 * size / 20e9
    assert found == pytest.approx((expected, expected))
