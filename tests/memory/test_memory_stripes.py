"""Striped planning on networks small enough to count by hand, and what is refused."""

import pytest
from checkers.stripes_check import check
from helpers.support import prepared

from byoc.memory.reading import RowwiseModel, read_row_model
from byoc.memory.stripes import ALL_ROWS, SAME_ROW, OperandRows, RowLayer, RowTensor, StripedPlan, stripe


def planned(
    tensors: list[RowTensor], layers: list[RowLayer], outputs: list[str], alignment: int = 1
) -> StripedPlan:
    plan = stripe(tensors, layers, ["x"], outputs, alignment)
    check(tensors, layers, ["x"], outputs, plan)
    return plan


def test_a_pooling_behind_a_convolution_needs_a_window_of_two_rows() -> None:
    tensors = [RowTensor("x", 56, 896), RowTensor("y", 56, 3584), RowTensor("z", 28, 1792)]
    layers = [
        RowLayer("conv", (("x", OperandRows(extent=3, before=1)),), ("y",)),
        RowLayer("pool", (("y", OperandRows(extent=2, stride=2)),), ("z",)),
    ]
    plan = planned(tensors, layers, ["z"])
    assert plan.places["y"].window == 2
    assert plan.size < tensors[0].size + tensors[2].size  # z lies over rows of x that are dead


def test_result_of_half_the_rows_lies_over_its_operand() -> None:
    """Two rows of 10 bytes die for each row that is made: a new one has room from the second on."""
    tensors = [RowTensor("x", 8, 10), RowTensor("y", 4, 10)]
    layers = [RowLayer("pool", (("x", OperandRows(2, 2)),), ("y",))]
    plan = planned(tensors, layers, ["y"])
    assert plan.size == 90
    assert plan.places["x"].offset == 10
    assert plan.places["y"].offset == 0


def test_bands_are_joined_where_nothing_overlaps() -> None:
    tensors = [RowTensor("x", 8, 10), RowTensor("y", 1, 10)]
    plan = planned(tensors, [RowLayer("sum", (("x", SAME_ROW),), ("y",), "reduction")], ["x", "y"])
    assert [(band.first_row, band.rows) for band in plan.bands] == [(0, 8)]


def test_window_of_a_kernel_with_a_stride_and_dilation() -> None:
    """Rows 2r-1, 2r+1 and 2r+3 are read: five rows live, and a sixth is never there with them."""
    tensors = [RowTensor("x", 32, 4), RowTensor("y", 32, 100), RowTensor("z", 16, 4)]
    layers = [
        RowLayer("a", (("x", SAME_ROW),), ("y",)),
        RowLayer("b", (("y", OperandRows(5, 2, 1)),), ("z",)),
    ]
    assert planned(tensors, layers, ["z"]).places["y"].window == 5


def test_shortcuts_of_a_chain_of_residual_blocks_share_their_rows() -> None:
    """Each block reads a row ahead: one more row of the shortcut lives for each block, not two."""
    tensors = [RowTensor("x", 32, 8)]
    layers = [RowLayer("begin", (("x", SAME_ROW),), ("y0",))]
    for block in range(3):
        tensors += [RowTensor(f"y{block}", 32, 100), RowTensor(f"c{block}", 32, 100)]
        layers += [
            RowLayer(f"conv{block}", ((f"y{block}", OperandRows(3, 1, 1)),), (f"c{block}",)),
            RowLayer(
                f"add{block}",
                ((f"c{block}", SAME_ROW), (f"y{block}", SAME_ROW)),
                (f"y{block + 1}",),
                may_overwrite=(f"c{block}", f"y{block}"),
            ),
        ]
    tensors += [RowTensor("y3", 32, 100), RowTensor("z", 32, 8)]
    layers.append(RowLayer("end", (("y3", SAME_ROW),), ("z",)))
    plan = planned(tensors, layers, ["z"])
    assert len(plan.groups) == 1
    # conv reads row r - 1 when row r - 1 of the sum is made, so the sum lies over the convolution there
    assert plan.size < 32 * 8 + 3 * 4 * 100


def test_shortcut_that_is_read_again_later_is_not_written_over() -> None:
    tensors = [RowTensor("x", 8, 8), RowTensor("y", 8, 8), RowTensor("z", 8, 8)]
    layers = [
        RowLayer("add", (("x", SAME_ROW),), ("y",), may_overwrite=("x",)),
        RowLayer("conv", (("y", SAME_ROW), ("x", OperandRows(3, 1, 1))), ("z",)),
    ]
    plan = planned(tensors, layers, ["z"])
    assert plan.places["x"] != plan.places["y"]


def test_reduction_eats_rows_as_they_come() -> None:
    tensors = [RowTensor("x", 8, 4), RowTensor("y", 8, 100), RowTensor("s", 1, 10), RowTensor("z", 1, 1)]
    layers = [
        RowLayer("conv", (("x", SAME_ROW),), ("y",)),
        RowLayer("mean", (("y", SAME_ROW),), ("s",), "reduction", scratch=10),
        RowLayer("fc", (("s", ALL_ROWS),), ("z",), "whole"),
    ]
    plan = planned(tensors, layers, ["z"])
    assert plan.places["y"].window == 1
    assert plan.size == 7 * 4 + 100 + 10 + 10  # the first row of x is dead when the sum begins


def test_offsets_are_aligned() -> None:
    tensors = [RowTensor("x", 7, 10), RowTensor("y", 5, 6), RowTensor("z", 4, 3)]
    layers = [
        RowLayer("a", (("x", OperandRows(3)),), ("y",), scratch=5),
        RowLayer("b", (("y", OperandRows(2)),), ("z",)),
    ]
    plan = planned(tensors, layers, ["z"], alignment=16)
    assert all(place.offset % 16 == 0 for place in plan.places.values())
    assert plan.scratch["a"] % 16 == 0


def test_network_without_layers_holds_its_inputs() -> None:
    tensors = [RowTensor("x", 3, 5), RowTensor("u", 1, 7)]
    plan = stripe(tensors, [], ["x", "u"], ["x"])
    check(tensors, [], ["x", "u"], ["x"], plan)
    assert (plan.size, plan.bands, plan.groups) == (22, (), ())


@pytest.mark.parametrize(
    ("layers", "outputs", "said"),
    [
        ([RowLayer("a", (("q", SAME_ROW),), ("y",))], [], "'a' reads 'q'"),
        ([RowLayer("a", (("x", SAME_ROW),), ("x",))], [], "there already"),
        ([RowLayer("a", (("x", SAME_ROW),), ())], [], "writes nothing"),
        ([RowLayer("a", (("x", SAME_ROW),), ("y", "z"))], [], "different numbers of rows"),
        ([RowLayer("a", (("x", SAME_ROW),), ("y",), "reduction")], [], "no reduction"),
        (
            [RowLayer("a", (("x", SAME_ROW),), ("y",)), RowLayer("a", (("x", SAME_ROW),), ("z",))],
            [],
            "same name",
        ),
        ([], ["y"], "nothing makes the output 'y'"),
        ([RowLayer("a", (("q", SAME_ROW),), ("z",), "reduction")], [], "'a' reads 'q'"),
        ([RowLayer("a", (("x", SAME_ROW),), ("q",))], [], "writes 'q', which is no tensor"),
    ],
)
def test_network_that_fits_not_together(layers: list[RowLayer], outputs: list[str], said: str) -> None:
    tensors = (RowTensor("x", 8, 4), RowTensor("y", 8, 4), RowTensor("z", 4, 4))
    with pytest.raises(ValueError, match=said):
        stripe(tensors, layers, ("x",), outputs)


def rows_of(text: str) -> RowwiseModel:
    return read_row_model(prepared(text).index)


def test_rows_of_convolution_pooling_and_elementwise() -> None:
    model = rows_of(
        """g (float[1, 3, 9, 9] x) => (float[1, 4, 3, 3] z) <float[4, 3, 3, 3] w = {ONES}> {
            c = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(x, w)
            r = Relu(c)
            z = MaxPool<kernel_shape = [3, 3], dilations = [1, 1]>(r)
        }""".replace("ONES", ", ".join(["1"] * 108))
    )
    conv, relu, pool = model.layers
    assert conv.reads == (("x", OperandRows(3, 2, 1)),)
    assert conv.scratch == (4 + 3) * 5 * 4  # a product of four channels, and three gathered
    assert relu.may_overwrite == ("c",)
    assert pool.reads == (("r", OperandRows(3, 1, 0)),)
    assert model.tensors[0] == RowTensor("x", 9, 3 * 9 * 4)


def test_views_gates_and_shuffles() -> None:
    model = rows_of(
        """g (float[1, 4, 5, 5] x) => (float[1, 2] z)
        <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8},
         int64[5] split = {1, 2, 2, 5, 5}, int64[4] whole = {1, 4, 5, 5}> {
            p = GlobalAveragePool(x)
            y = Mul(x, p)
            a = Reshape(y, split)
            b = Transpose<perm = [0, 2, 1, 3, 4]>(a)
            s = Reshape(b, whole)
            q = GlobalMaxPool(s)
            f = Flatten(q)
            z = MatMul(f, w)
        }"""
    )
    assert [layer.mode for layer in model.layers] == ["reduction", "rows", "rows", "reduction", "whole"]
    assert model.layers[1].reads == (("x", SAME_ROW), ("p", ALL_ROWS))
    assert model.nodes["s"] == (2, 3, 4)
    assert model.storage_of["f"] == "q"


def test_batches_and_flattened_images_are_not_rows() -> None:
    model = rows_of(
        """g (float[2, 4, 5, 5] x, float[1, 4, 5, 5] y) => (float[2, 4, 5, 5] r, float[1, 100] f) {
            r = Relu(x)
            f = Flatten(y)
        }"""
    )
    assert model.tensors[0] == RowTensor("x", 1, 800)
    assert [layer.mode for layer in model.layers] == ["rows", "whole"]


def test_layer_below_padding_alone_is_run_and_lies_in_the_arena() -> None:
    """No row of the result reads the operand: with a stride of 20 both read what is around it."""
    tensors = [RowTensor("x", 8, 4), RowTensor("y", 8, 4), RowTensor("z", 2, 4)]
    layers = [
        RowLayer("y", (("x", SAME_ROW),), ("y",), may_overwrite=("x",)),
        RowLayer("z", (("y", OperandRows(1, 20, 2)),), ("z",)),
    ]
    plan = planned(tensors, layers, ["z"])
    assert sum(band.rows for band in plan.bands if band.layer == "y") == 8
    assert all(p.offset + p.window * p.row_bytes <= plan.size for p in plan.places.values())


def test_last_rows_that_nobody_reads_are_not_computed() -> None:
    tensors = [RowTensor("x", 8, 4), RowTensor("y", 8, 4), RowTensor("z", 3, 4)]
    layers = [
        RowLayer("y", (("x", SAME_ROW),), ("y",)),
        RowLayer("z", (("y", OperandRows(1, 3)),), ("z",)),
    ]
    plan = planned(tensors, layers, ["z"])
    assert sum(band.rows for band in plan.bands if band.layer == "y") == 7


def test_tensor_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor 'x' has no rows"):
        stripe([RowTensor("x", 0, 4)], (), ("x",), ())
    with pytest.raises(ValueError, match="the input 'q' is no tensor"):
        stripe([RowTensor("x", 8, 4)], (), ("q",), ())
