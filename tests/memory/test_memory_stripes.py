"""Striped planning on networks small enough to count by hand, and what is refused."""

import pytest
from checkers.stripes_check import check
from support import prepared

from byoc.memory.model.rows import RowModel, row_model
from byoc.memory.stripes import ALL, SAME, Layer, Network, Rows, StripedPlan, Tensor, stripe


def planned(
    tensors: list[Tensor], layers: list[Layer], outputs: list[str], alignment: int = 1
) -> StripedPlan:
    plan = stripe(tensors, layers, ["x"], outputs, alignment)
    check(tensors, layers, ["x"], outputs, plan)
    return plan


def test_a_pooling_behind_a_convolution_needs_a_window_of_two_rows() -> None:
    tensors = [Tensor("x", 56, 896), Tensor("y", 56, 3584), Tensor("z", 28, 1792)]
    layers = [
        Layer("conv", (("x", Rows(extent=3, before=1)),), ("y",)),
        Layer("pool", (("y", Rows(extent=2, stride=2)),), ("z",)),
    ]
    plan = planned(tensors, layers, ["z"])
    assert plan.places["y"].window == 2
    assert plan.size < tensors[0].size + tensors[2].size  # z lies over rows of x that are dead


def test_result_of_half_the_rows_lies_over_its_operand() -> None:
    """Two rows of 10 bytes die for each row that is made: a new one has room from the second on."""
    tensors = [Tensor("x", 8, 10), Tensor("y", 4, 10)]
    layers = [Layer("pool", (("x", Rows(2, 2)),), ("y",))]
    plan = planned(tensors, layers, ["y"])
    assert plan.size == 90
    assert plan.places["x"].offset == 10
    assert plan.places["y"].offset == 0


def test_bands_are_joined_where_nothing_overlaps() -> None:
    tensors = [Tensor("x", 8, 10), Tensor("y", 1, 10)]
    plan = planned(tensors, [Layer("sum", (("x", SAME),), ("y",), "reduction")], ["x", "y"])
    assert [(band.first_row, band.rows) for band in plan.bands] == [(0, 8)]


def test_window_of_a_kernel_with_a_stride_and_dilation() -> None:
    """Rows 2r-1, 2r+1 and 2r+3 are read: five rows live, and a sixth is never there with them."""
    tensors = [Tensor("x", 32, 4), Tensor("y", 32, 100), Tensor("z", 16, 4)]
    layers = [Layer("a", (("x", SAME),), ("y",)), Layer("b", (("y", Rows(5, 2, 1)),), ("z",))]
    assert planned(tensors, layers, ["z"]).places["y"].window == 5


def test_shortcuts_of_a_chain_of_residual_blocks_share_their_rows() -> None:
    """Each block reads a row ahead: one more row of the shortcut lives for each block, not two."""
    tensors = [Tensor("x", 32, 8)]
    layers = [Layer("begin", (("x", SAME),), ("y0",))]
    for block in range(3):
        tensors += [Tensor(f"y{block}", 32, 100), Tensor(f"c{block}", 32, 100)]
        layers += [
            Layer(f"conv{block}", ((f"y{block}", Rows(3, 1, 1)),), (f"c{block}",)),
            Layer(
                f"add{block}",
                ((f"c{block}", SAME), (f"y{block}", SAME)),
                (f"y{block + 1}",),
                over=(f"c{block}", f"y{block}"),
            ),
        ]
    tensors += [Tensor("y3", 32, 100), Tensor("z", 32, 8)]
    layers.append(Layer("end", (("y3", SAME),), ("z",)))
    plan = planned(tensors, layers, ["z"])
    assert len(plan.groups) == 1
    # conv reads row r - 1 when row r - 1 of the sum is made, so the sum lies over the convolution there
    assert plan.size < 32 * 8 + 3 * 4 * 100


def test_shortcut_that_is_read_again_later_is_not_written_over() -> None:
    tensors = [Tensor("x", 8, 8), Tensor("y", 8, 8), Tensor("z", 8, 8)]
    layers = [
        Layer("add", (("x", SAME),), ("y",), over=("x",)),
        Layer("conv", (("y", SAME), ("x", Rows(3, 1, 1))), ("z",)),
    ]
    plan = planned(tensors, layers, ["z"])
    assert plan.places["x"] != plan.places["y"]


def test_reduction_eats_rows_as_they_come() -> None:
    tensors = [Tensor("x", 8, 4), Tensor("y", 8, 100), Tensor("s", 1, 10), Tensor("z", 1, 1)]
    layers = [
        Layer("conv", (("x", SAME),), ("y",)),
        Layer("mean", (("y", SAME),), ("s",), "reduction", scratch=10),
        Layer("fc", (("s", ALL),), ("z",), "whole"),
    ]
    plan = planned(tensors, layers, ["z"])
    assert plan.places["y"].window == 1
    assert plan.size == 7 * 4 + 100 + 10 + 10  # the first row of x is dead when the sum begins


def test_offsets_are_aligned() -> None:
    tensors = [Tensor("x", 7, 10), Tensor("y", 5, 6), Tensor("z", 4, 3)]
    layers = [Layer("a", (("x", Rows(3)),), ("y",), scratch=5), Layer("b", (("y", Rows(2)),), ("z",))]
    plan = planned(tensors, layers, ["z"], alignment=16)
    assert all(place.offset % 16 == 0 for place in plan.places.values())
    assert plan.scratch["a"] % 16 == 0


def test_network_without_layers_holds_its_inputs() -> None:
    tensors = [Tensor("x", 3, 5), Tensor("u", 1, 7)]
    plan = stripe(tensors, [], ["x", "u"], ["x"])
    check(tensors, [], ["x", "u"], ["x"], plan)
    assert (plan.size, plan.bands, plan.groups) == (22, (), ())


@pytest.mark.parametrize(
    ("layers", "outputs", "said"),
    [
        ([Layer("a", (("q", SAME),), ("y",))], [], "'a' reads 'q'"),
        ([Layer("a", (("x", SAME),), ("x",))], [], "there already"),
        ([Layer("a", (("x", SAME),), ())], [], "writes nothing"),
        ([Layer("a", (("x", SAME),), ("y", "z"))], [], "different numbers of rows"),
        ([Layer("a", (("x", SAME),), ("y",), "reduction")], [], "no reduction"),
        ([Layer("a", (("x", SAME),), ("y",)), Layer("a", (("x", SAME),), ("z",))], [], "same name"),
        ([], ["y"], "nothing makes the output 'y'"),
    ],
)
def test_network_that_fits_not_together(layers: list[Layer], outputs: list[str], said: str) -> None:
    tensors = {each.name: each for each in (Tensor("x", 8, 4), Tensor("y", 8, 4), Tensor("z", 4, 4))}
    with pytest.raises(ValueError, match=said):
        Network(tensors, tuple(layers), ("x",), tuple(outputs))


def rows_of(text: str) -> RowModel:
    return row_model(prepared(text).index)


def test_rows_of_convolution_pooling_and_elementwise() -> None:
    model = rows_of(
        """g (float[1, 3, 9, 9] x) => (float[1, 4, 3, 3] z) <float[4, 3, 3, 3] w = {ONES}> {
            c = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(x, w)
            r = Relu(c)
            z = MaxPool<kernel_shape = [3, 3], dilations = [1, 1]>(r)
        }""".replace("ONES", ", ".join(["1"] * 108))
    )
    conv, relu, pool = model.layers
    assert conv.reads == (("x", Rows(3, 2, 1)),)
    assert conv.scratch == (4 + 3) * 5 * 4  # a product of four channels, and three gathered
    assert relu.over == ("c",)
    assert pool.reads == (("r", Rows(3, 1, 0)),)
    assert model.tensors[0] == Tensor("x", 9, 3 * 9 * 4)


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
    assert model.layers[1].reads == (("x", SAME), ("p", ALL))
    assert model.nodes["s"] == (2, 3, 4)
    assert model.storage["f"] == "q"


def test_batches_and_flattened_images_are_not_rows() -> None:
    model = rows_of(
        """g (float[2, 4, 5, 5] x, float[1, 4, 5, 5] y) => (float[2, 4, 5, 5] r, float[1, 100] f) {
            r = Relu(x)
            f = Flatten(y)
        }"""
    )
    assert model.tensors[0] == Tensor("x", 1, 800)
    assert [layer.mode for layer in model.layers] == ["rows", "whole"]


def test_layer_below_padding_alone_is_run_and_lies_in_the_arena() -> None:
    """No row of the result reads the operand: with a stride of 20 both read what is around it."""
    tensors = [Tensor("x", 8, 4), Tensor("y", 8, 4), Tensor("z", 2, 4)]
    layers = [
        Layer("y", (("x", SAME),), ("y",), over=("x",)),
        Layer("z", (("y", Rows(1, 20, 2)),), ("z",)),
    ]
    plan = planned(tensors, layers, ["z"])
    assert sum(band.rows for band in plan.bands if band.layer == "y") == 8
    assert all(p.offset + p.window * p.row_bytes <= plan.size for p in plan.places.values())


def test_last_rows_that_nobody_reads_are_not_computed() -> None:
    tensors = [Tensor("x", 8, 4), Tensor("y", 8, 4), Tensor("z", 3, 4)]
    layers = [Layer("y", (("x", SAME),), ("y",)), Layer("z", (("y", Rows(1, 3)),), ("z",))]
    plan = planned(tensors, layers, ["z"])
    assert sum(band.rows for band in plan.bands if band.layer == "y") == 7


def test_tensor_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor 'x' has no rows"):
        Network({"x": Tensor("x", 0, 4)}, (), ("x",), ())
