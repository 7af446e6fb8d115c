"""Sums of products, done one by one on tiny shapes as the operators' documentation says."""

from itertools import product

import pytest
from counting import count

from byoc.costs import Work


def test_conv() -> None:
    """Groups, strides and a bias: each output sums over its group's channels and the window."""
    operations = 0
    for _n, _m, _h, _w in product(range(2), range(6), range(3), range(2)):
        for _c, _i, _j in product(range(4 // 2), range(3), range(2)):
            operations += 2
        operations += 1  # the bias
    work = count("Conv", ("2x4x7x5", "6x2x3x2", "6"), ("2x6x3x2",), group=2, strides=[2, 3])
    assert work.operations == operations
    fused = count(
        "com.microsoft.FusedConv",
        ("2x4x7x5", "6x2x3x2", "6", "2x6x3x2"),
        ("2x6x3x2",),
        group=2,
        activation="Relu",
    )
    assert fused.operations == operations + 2 * 72  # the sum with Z, and Relu


def test_conv_transpose() -> None:
    """Each input element is multiplied with the kernels of its group, and added to what is there."""
    operations = sum(2 for _ in product(range(4), range(3 * 3), range(5 // 1), range(2 * 2)))
    work = count("ConvTranspose", ("1x4x3x3", "4x5x2x2"), ("1x5x4x4",))
    assert work.operations == operations


def test_deform_conv() -> None:
    """A convolution, whose every tap is a bilinear sample: 4 products and sums, then the mask."""
    operations = 0
    for _m, _h, _w in product(range(3), range(2), range(2)):
        operations += sum(2 for _ in product(range(2), range(2), range(2)))
    for _c, _tap, _position in product(range(2), range(4), range(4)):
        operations += 4 * 2 + 1
    shapes = ("1x2x3x3", "3x2x2x2", "1x8x2x2", "", "1x4x2x2")
    assert count("DeformConv", shapes, ("1x3x2x2",)).operations == operations


@pytest.mark.parametrize(
    ("equation", "shapes", "output", "operations"),
    [
        ("ij,jk->ik", ("3x4", "4x5"), "3x5", 2 * 3 * 4 * 5),
        ("bhqd,bhkd->bhqk", ("2x3x4x5", "2x3x6x5"), "2x3x4x6", 2 * 2 * 3 * 4 * 6 * 5),
        ("...ij,...jk->...ik", ("7x2x3", "7x3x4"), "7x2x4", 2 * 7 * 2 * 3 * 4),
        ("...ij,jk", ("7x2x3", "3x4"), "7x2x4", 2 * 7 * 2 * 3 * 4),
        ("i,j->ij", ("3", "4"), "3x4", 12),
        ("i,i->", ("5", "5"), "", 10),
        ("ii->i", ("4x4",), "4", 0),
        ("ij->ji", ("3x4",), "4x3", 0),
        ("ij->i", ("3x4",), "3", 12),
        ("ij,jk,kl->il", ("2x3", "3x4", "4x5"), "2x5", 2 * 2 * 3 * 4 + 2 * 2 * 4 * 5),
        ("ij,kj->ik", ("2x3", "4x3"), "2x4", 2 * 2 * 3 * 4),
        ("ij,jk->i", ("2x3", "3x4"), "2", 3 * 4 + 2 * 2 * 3),  # k is summed over first
    ],
)
def test_einsum(equation: str, shapes: tuple[str, ...], output: str, operations: int) -> None:
    assert count("Einsum", shapes, (output or "float32",), equation=equation).operations == operations


def count_cell(gates: int, inputs: int, hidden: int, biased: bool, functions: int) -> int:
    """Count a step of a recurrent cell: each unit's gates, then its functions and products of states."""
    operations = 0
    for _unit in range(hidden):
        for _gate in range(gates):
            operations += sum(2 for _ in range(inputs))
            operations += sum(2 for _ in range(hidden))
            operations += 2 * biased  # Wb and Rb
        operations += functions
    return operations


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("op", "gates", "functions"),
    [
        # Three sigmoids of 4, two tanh; f * c, i * g, their sum; o * tanh(c).
        ("LSTM", 4, 3 * 4 + 2 + 3 + 1),
        # Two sigmoids, tanh; r * h (its product with R); 1 - z, two products, their sum.
        ("GRU", 3, 2 * 4 + 1 + 1 + 4),
        ("RNN", 1, 1),
    ],
)
def test_recurrent(op: str, gates: int, functions: int, biased: bool) -> None:
    steps, batch, inputs, hidden = 5, 2, 3, 4
    cell = count_cell(gates, inputs, hidden, biased, functions)
    shapes = [
        f"{steps}x{batch}x{inputs}",
        f"2x{gates * hidden}x{inputs}",
        f"2x{gates * hidden}x{hidden}",
    ]
    shapes += [f"2x{2 * gates * hidden}"] if biased else []
    outputs = (f"{steps}x2x{batch}x{hidden}",)
    work = count(op, shapes, outputs, direction="bidirectional", hidden_size=hidden)
    assert work.operations == 2 * steps * batch * cell
    one = [shape.replace("2x", "1x", 1) if i else shape for i, shape in enumerate(shapes)]
    alone = count(op, one, (f"{steps}x1x{batch}x{hidden}",), hidden_size=hidden)
    assert alone.operations == steps * batch * cell


def test_matrix_products() -> None:
    operations = sum(2 for _ in product(range(2), range(3), range(4), range(5)))
    assert count("MatMul", ("2x3x5", "5x4"), ("2x3x4",)).operations == operations
    shapes = ("2x5x3", "4x5")
    fused = count("com.microsoft.FusedMatMul", shapes, ("2x3x4",), transA=1, transB=1, alpha=0.5)
    assert fused.operations == operations + 24  # the scale
    gemm = count("Gemm", ("5x6", "5x4", "4"), ("6x4",), transA=1)
    assert gemm.operations == 6 * 4 * (2 * 5 + 1)
    scaled = count("Gemm", ("5x6", "5x4", "4"), ("6x4",), transA=1, alpha=0.5)
    assert scaled.operations == 6 * 4 * (2 * 5 + 2)


@pytest.mark.parametrize(("bits", "zero_points"), [(4, True), (4, False), (8, True), (2, True)])
def test_a_packed_weight_counts_its_products_and_its_own_bytes(bits: int, zero_points: bool) -> None:
    """2 M N K operations; packed weights, and a scale and perhaps a zero point for each block."""
    m, n, k, block = 3, 8, 64, 32
    operations = sum(2 for _ in product(range(m), range(n), range(k)))
    blocks = k // block
    packed = -(-blocks * bits // 8)
    shapes = [f"float16 1x{m}x{k}", f"uint8 {n}x{blocks}x{block * bits // 8}", f"float16 {n * blocks}"]
    shapes += [f"uint8 {n * packed}"] if zero_points else []
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    work = count("com.microsoft.MatMulNBits", shapes, (f"float16 1x{m}x{n}",), **attributes)
    weights = k * n * bits // 8 + 2 * n * blocks + (n * packed if zero_points else 0)
    assert work == Work(operations, 2 * m * k + weights + 2 * m * n)


def test_a_mixture_counts_the_experts_that_its_tokens_take() -> None:
    """Each of 6 tokens takes 2 of 8 experts: gate and up, SiLU and product, down, weighted sum."""
    tokens, experts, chosen, hidden, inner = 6, 8, 2, 16, 4
    operations = 0
    for _token in range(tokens):
        operations += 6 * experts  # softmax, and a comparison with each
        for _expert in range(chosen):
            operations += 2 * sum(2 for _ in product(range(hidden), range(inner)))
            operations += inner * (5 + 1)
            operations += sum(2 for _ in product(range(inner), range(hidden)))
            operations += 2 * hidden
    shapes = (f"{tokens}x{hidden}", f"{tokens}x{experts}", f"{experts}x{2 * inner}x{hidden}", "")
    shapes += (f"{experts}x{hidden}x{inner}",)
    work = count(
        "com.microsoft.MoE",
        shapes,
        (f"{tokens}x{hidden}",),
        k=chosen,
        swiglu_fusion=1,
        activation_type="swiglu",
    )
    assert work.operations == operations
    # One token reads 2 of the 8 experts.
    one = tuple(
        shape.replace(f"{tokens}x", "1x", 1) if i < 2 else shape for i, shape in enumerate(shapes)
    )
    read = count("com.microsoft.MoE", one, (f"1x{hidden}",), k=chosen, swiglu_fusion=1).bytes
    assert read == 4 * (hidden + experts + chosen * 3 * hidden * inner + hidden)


def test_quantized_products() -> None:
    """Products as those of floats; what quantizes A on the way: extremes, division, rounding, bounds."""
    dynamic = count(
        "com.microsoft.DynamicQuantizeMatMul", ("2x8", "int8 8x3", "3", "int8 3", "3"), ("2x3",)
    )
    assert dynamic.operations == 2 * 3 * (2 * 8 + 1 + 1) + 16 * 7
    shapes = ("uint8 2x8", "float32", "uint8", "int8 8x3", "float32", "int8", "float32", "uint8")
    assert count("QLinearMatMul", shapes, ("uint8 2x3",)).operations == 2 * 3 * 2 * 8
