"""Operations and bytes, counted by hand."""

import pytest
from counting import Sizes, count_work
from helpers.support import parse, prepared
from onnx import helper

from byoc.costs import Work, build_tasks
from byoc.model import GraphIndex, TensorType, prepare_model
from byoc.zoo import load_structure


def works(text: str, opset: int = 17) -> list[Work]:
    index = prepared(text, opset=opset).index
    sizes = Sizes(index.types)
    return [count_work(index, sizes, (i,)) for i in range(len(index.nodes))]


@pytest.mark.parametrize(
    ("text", "operations", "size"),
    [
        # 1*6*3*3 outputs, each 2*3*3 multiply-adds per group of 2 channels; 100 + 108 + 54 floats.
        (
            "(float[1,4,5,5] x, float[6,2,3,3] w) => (float[1,6,3,3] y) { y = Conv <group = 2> (x, w) }",
            54 * 2 * 18,
            4 * (100 + 108 + 54),
        ),
        # One addition more for each output, and 6 floats more to read.
        (
            "(float[1,4,5,5] x, float[6,2,3,3] w, float[6] b) => (float[1,6,3,3] y)"
            " { y = Conv <group = 2> (x, w, b) }",
            54 * (2 * 18 + 1),
            4 * (100 + 108 + 6 + 54),
        ),
        # Depthwise: each output sees one channel.
        (
            "(float[1,4,5,5] x, float[4,1,3,3] w) => (float[1,4,3,3] y) { y = Conv <group = 4> (x, w) }",
            36 * 2 * 9,
            4 * (100 + 36 + 36),
        ),
        # One axis, batch of 2.
        (
            "(float[2,3,8] x, float[5,3,2] w) => (float[2,5,7] y) { y = Conv (x, w) }",
            70 * 2 * 6,
            4 * (48 + 30 + 70),
        ),
        (
            "(float[2,3] a, float[3,4] b) => (float[2,4] y) { y = Gemm (a, b) }",
            8 * 6,
            4 * (6 + 12 + 8),
        ),
        # A is K x M when transposed.
        (
            "(float[3,2] a, float[3,4] b, float[4] c) => (float[2,4] y)"
            " { y = Gemm <transA = 1> (a, b, c) }",
            8 * 7,
            4 * (6 + 12 + 4 + 8),
        ),
        (
            "(float[2,3] a, float[4,3] b) => (float[2,4] y) { y = Gemm <transB = 1> (a, b) }",
            8 * 6,
            4 * (6 + 12 + 8),
        ),
        (
            "(float[5,2,3] a, float[3,4] b) => (float[5,2,4] y) { y = MatMul (a, b) }",
            40 * 6,
            4 * (30 + 12 + 40),
        ),
        ("(float[3] a, float[3] b) => (float y) { y = MatMul (a, b) }", 6, 4 * (3 + 3 + 1)),
        (
            "(float[1,2,6,6] x) => (float[1,2,2,2] y)"
            " { y = MaxPool <kernel_shape = [3, 3], strides = [3, 3]> (x) }",
            8 * 9,
            4 * (72 + 8),
        ),
        (
            "(float[1,2,6,6] x) => (float[1,2,5,4] y) { y = AveragePool <kernel_shape = [2, 3]> (x) }",
            40 * 6,
            4 * (72 + 40),
        ),
        (
            "(float[1,2,6,6] x) => (float[1,2,1,1] y) { y = GlobalAveragePool (x) }",
            72,
            4 * (72 + 2),
        ),
        ("(float[1,2,6,6] x) => (float[1,2,1,1] y) { y = GlobalMaxPool (x) }", 72, 4 * (72 + 2)),
        # 5 squares and their 5 additions, then scale, add, power, divide.
        ("(float[1,8,2,2] x) => (float[1,8,2,2] y) { y = LRN <size = 5> (x) }", 32 * 14, 4 * 64),
        (
            "(float[1,3,2,2] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[1,3,2,2] y)"
            " { y = BatchNormalization (x, s, b, m, v) }",
            12 * 2,
            4 * (12 + 12 + 12),
        ),
        ("(float[2,5] x) => (float[2,5] y) { y = Softmax (x) }", 50, 80),
        ("(float[2,5] x) => (float[2,5] y) { y = Relu (x) }", 10, 80),
        ("(float[2,5] x) => (float[2,5] y) { y = LeakyRelu (x) }", 20, 80),
        ("(float[2,5] x) => (float[2,5] y) { y = Clip (x) }", 20, 80),
        ("(float[2,5] x) => (float[2,5] y) { y = Sigmoid (x) }", 40, 80),
        ("(float[2,5] x) => (float[2,5] y) { y = Tanh (x) }", 10, 80),
        # Broadcast: one operation for each element of the result.
        ("(float[2,5] x, float[5] z) => (float[2,5] y) { y = Add (x, z) }", 10, 4 * 25),
        ("(float[2,5] x, float[5] z) => (float[2,5] y) { y = Sub (x, z) }", 10, 4 * 25),
        ("(float[2,1] x, float[5] z) => (float[2,5] y) { y = Mul (x, z) }", 10, 4 * 17),
        ("(float[2,5] x, float z) => (float[2,5] y) { y = Div (x, z) }", 10, 4 * 21),
        # The same tensor twice is read once.
        ("(float[2,5] x) => (float[2,5] y) { y = Mul (x, x) }", 10, 80),
        ("(float[2,5] x, float[5] z) => (float[2,5] y) { y = Sum (x, z, x) }", 20, 4 * 25),
        ("(float[2,5] x) => (float[2,5] y) { y = Sum (x) }", 0, 80),
        (
            "(float[2,5] x, float[3,5] z) => (float[5,5] y) { y = Concat <axis = 0> (x, z) }",
            0,
            4 * (10 + 15 + 25),
        ),
        ("(float[2,5] x) => (float[5,2] y) { y = Transpose (x) }", 0, 80),
        ("(float[2,5] x) => (float16[2,5] y) { y = Cast <to = 10> (x) }", 0, 40 + 20),
        ("(float[8,5] x, int64[3] i) => (float[3,5] y) { y = Gather (x, i) }", 0, 60 + 24 + 60),
        # What is taken out of a table counts, however large the table.
        (
            "(float[8,5] x, int64[1] f, int64[1] t) => (float[2,5] y) { y = Slice (x, f, t) }",
            0,
            40 + 8 + 8 + 40,
        ),
        ("(float[2,5] x) => (int64[2] y) { y = Shape (x) }", 0, 16),
        ("(float[2,5] x) => (float[2] y) { y = ReduceMean <axes = [1], keepdims = 0> (x) }", 10, 48),
        ("(float[2,5] x, float[5] z) => (float[2,5] y) { y = Max (x, z) }", 10, 4 * 25),
        ("(float[2,5] x) => (float[2,5] y) { y = Erf (x) }", 10, 80),
        # Each of 2 x 9 inputs meets 3 x 4 weights.
        (
            "(float[1,2,3,3] x, float[2,3,2,2] w) => (float[1,3,4,4] y) { y = ConvTranspose (x, w) }",
            2 * 18 * 12,
            4 * (18 + 24 + 48),
        ),
        (
            "(uint8[1,4,5,5] x, float s, uint8 z, uint8[6,4,3,3] w, int32[6] b)"
            " => (uint8[1,6,3,3] y) { y = QLinearConv (x, s, z, w, s, z, s, z, b) }",
            54 * (2 * 36 + 1),
            100 + 4 + 1 + 216 + 24 + 54,
        ),
        (
            "(uint8[2,3] a, uint8[3,4] b) => (int32[2,4] y) { y = MatMulInteger (a, b) }",
            48,
            6 + 12 + 32,
        ),
        ("(float[2,5] x, float s, int8 z) => (int8[2,5] y) { y = QuantizeLinear (x, s, z) }", 50, 55),
        ("(float[2,5] x) => (float[1,5] y, float[1,5] z) { y, z = Split <axis = 0> (x) }", 0, 80),
        ("(int8[4,4] x, int8[4,4] z) => (int8[4,4] y) { y = Add (x, z) }", 16, 48),
    ],
)
def test_by_hand(text: str, operations: int, size: int) -> None:
    assert works(f"g {text}") == [Work(operations, size, estimated=False)]


@pytest.mark.parametrize(
    "node",
    [
        "y = Reshape (x, s)",
        "y = Flatten (x)",
        "y = Identity (x)",
        "y = Dropout (x)",
        "y = Squeeze (x)",
        "y = Unsqueeze (x, t)",
    ],
)
def test_views_cost_nothing(node: str) -> None:
    text = f"g (float[2,5] x) => (float[?] y) <int64[1] s = {{-1}}, int64[1] t = {{0}}> {{ {node} }}"
    (found,) = works(text.replace("float[?] y", "float[A] y" if "Resh" in node else "float y"))
    assert (found.operations, found.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("inputs", "text", "free"),
    [
        ("", "y = Dropout (x, r)", True),
        ("", "y = Dropout (x, r, off)", True),
        ("", "y = Dropout (x, r, on)", False),
        (", bool t", "y = Dropout (x, r, t)", False),
        ("", "y, mask = Dropout (x, r)\n z = Not (mask)", False),
    ],
)
def test_dropout_is_a_view_while_it_does_not_train(inputs: str, text: str, free: bool) -> None:
    more = ", bool[2,5] z" if "Not" in text else ""
    model = f"""g (float[2,5] x{inputs}) => (float[2,5] y{more})
        <float r = {{0.5}}, bool on = {{1}}, bool off = {{0}}> {{ {text} }}"""
    assert (works(model)[0].bytes == 0) is free


def test_an_operator_that_is_not_counted_is_an_estimate() -> None:
    """One operation for each element of the output, and the bytes all the same."""
    model = parse("g (float[2,5] x) => (float[2,5] y) { y = acme.Odd (x) }")
    model.opset_import.append(helper.make_opsetid("acme", 1))
    index = prepare_model(model, "test").index
    assert count_work(index, Sizes(index.types), (0,)) == Work(10, 80, estimated=True)


def test_an_unknown_extent_counts_as_one() -> None:
    assert works("g (float[N,5] x) => (float[N,5] y) { y = Relu (x) }") == [
        Work(5, 2 * 20, estimated=True)
    ]
    text = "g (float[N,4,5,5] x, float[6,4,3,3] w) => (float[N,6,3,3] y) { y = Conv (x, w) }"
    assert works(text) == [Work(54 * 2 * 36, 4 * (100 + 216 + 54), estimated=True)]


def test_an_unknown_rank_counts_as_a_page() -> None:
    model = parse("g (float[2] x) => (float[2] y) { a = Odd (x)\n y = Odd (a) }")
    for node in model.graph.node:
        node.domain = "acme"
    model.opset_import.append(helper.make_opsetid("acme", 1))
    index = prepare_model(model, "test").index
    assert count_work(index, Sizes(index.types), (0,)) == Work(1, 8 + 4096, estimated=True)
    assert count_work(index, Sizes(index.types, fallback=100), (1,)) == Work(2, 100 + 8, estimated=True)


def test_sizes() -> None:
    sizes = Sizes(
        {
            "known": TensorType("float16", (2, 3)),
            "partly": TensorType("int4", (None, 3, "N")),
            "rankless": TensorType("float32", None),
        },
        fallback=64,
    )
    names = ("known", "partly", "rankless", "untyped")
    assert [sizes.is_known(name) for name in names] == [True, False, False, False]
    assert [sizes.get_shape(name) for name in names] == [(2, 3), (1, 3, 1), (), ()]
    assert [sizes.get_bytes(name) for name in names] == [12, 2, 64, 64]


FUSED = """
g (float[1,4,4,4] x, float[1,8,4,4] z) => (float[1,8,4,4] y) <float[8,4,1,1] w> {
  c = Conv (x, w)
  a = Add (c, z)
  r = Relu (a)
  y = Neg (r)
}
"""


def fused_index(text: str = FUSED) -> GraphIndex:
    return prepared(
        text.replace("<float[8,4,1,1] w>", "").replace("] x,", "] x, float[8,4,1,1] w,")
    ).index


def test_what_stays_inside_moves_no_bytes() -> None:
    """x, w and z enter, r leaves; c and a never reach memory. 128 outputs of 4 multiply-adds each."""
    index = fused_index()
    sizes = Sizes(index.types)
    assert count_work(index, sizes, (0, 1, 2)) == Work(128 * 8 + 128 + 128, 4 * (64 + 32 + 128 + 128))
    alone = [count_work(index, sizes, (i,)) for i in range(3)]
    assert sum(part.operations for part in alone) == 128 * 10
    assert sum(part.bytes for part in alone) == 4 * (64 + 32 + 128 + 3 * 128 + 128 + 128)


def test_what_is_also_read_outside_leaves() -> None:
    index = fused_index(FUSED.replace("Neg (r)", "Add (r, c)"))
    assert count_work(index, Sizes(index.types), (0, 1, 2)).bytes == 4 * (64 + 32 + 128 + 128 + 128)


def test_a_graph_output_leaves() -> None:
    index = fused_index(FUSED.replace("] y)", "] y, float[1,8,4,4] a)"))
    assert count_work(index, Sizes(index.types), (0, 1, 2)).bytes == 4 * (64 + 32 + 128 + 128 + 128)


def test_an_output_that_nothing_reads_costs_nothing() -> None:
    text = "g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y, i = MaxPool <kernel_shape = [3, 3]> (x) }"
    assert works(text) == [Work(36, 4 * (16 + 4))]


def test_a_view_among_others_is_free_but_its_ends_are_not() -> None:
    text = "g (float[2,8] x) => (float[16] y) <int64[1] s = {16}> { a = Relu (x)\n y = Reshape (a, s) }"
    index = prepared(text).index
    assert count_work(index, Sizes(index.types), (0, 1)) == Work(16, 4 * 16 + 8 + 4 * 16, constants=8)


def test_captures_are_read() -> None:
    (found,) = works("""
        g (float[2,5] x, bool c) => (float[2,5] y) {
          y = If <then_branch = t () => (float[2,5] u) { u = Neg (x) },
                  else_branch = e () => (float[2,5] v) { v = Abs (x) }> (c)
        }""")
    assert found == Work(10, 1 + 40 + 40, estimated=True)


@pytest.mark.parametrize(
    ("name", "giga_macs"),
    [("resnet50", 4.089), ("squeezenet", 0.349), ("vgg19", 19.632), ("densenet121", 2.834)],
)
def test_published_counts(name: str, giga_macs: float) -> None:
    """Multiply-accumulates of convolutions and matrix products for one image of 224 x 224.

    The figures are torchvision's (`weights.meta["_ops"]` of resnet50 with the stride in the 3 x 3
    convolution, squeezenet1_1, vgg19, densenet121); an operation here is half of one. Everything
    that is not a product adds less than 2 %.
    """
    index = prepare_model(load_structure(name), name).index
    sizes = Sizes(index.types)
    rows = [i for i in range(len(index.nodes)) if i not in index.constant_nodes]
    found = {i: count_work(index, sizes, (i,)) for i in rows}
    products = sum(found[i].operations for i in rows if index.nodes[i].op_type in {"Conv", "Gemm"})
    assert products == pytest.approx(2e9 * giga_macs, rel=0.01)
    assert sum(part.operations for part in found.values()) == pytest.approx(products, rel=0.02)
    assert not any(part.estimated for part in found.values())


def stored(kind: str, name: str, count: int) -> str:
    """Return an initializer of so many ones."""
    return f"{kind}{f'[{count}]' if count > 1 else ''} {name} = {{{', '.join('1' * count)}}}"


@pytest.mark.parametrize(("scales", "bias"), [(1, False), (6, False), (6, True)])
def test_a_quantized_group_reads_its_weights_as_they_are_stored(scales: int, bias: bool) -> None:
    weights = stored("int8", "w", 216).replace("[216]", "[6,4,3,3]")
    quantization = f"{stored('float', 's', scales)}, {stored('int8', 'wz', scales)}"
    axis = "<axis = 0>" if scales > 1 else ""
    index = prepared(
        f"""g (uint8[1,4,5,5] q) => (uint8[1,6,3,3] y)
        <{weights}, {stored("int32", "b", 6)}, float t = {{1}}, uint8 z = {{1}}, {quantization}> {{
            x = DequantizeLinear (q, t, z)
            dw = DequantizeLinear {axis} (w, s, wz)
            {"db = DequantizeLinear <axis = 0> (b, s)" if bias else ""}
            c = Conv (x, dw{", db" if bias else ""})
            y = QuantizeLinear (c, t, z)
        }}""",
    ).index
    group = tuple(i for i, node in enumerate(index.nodes) if node.output[0] in ("x", "c", "y"))
    conv = tuple(i for i in group if index.nodes[i].op_type == "Conv")
    sizes = Sizes(index.types)

    # 100 in, 54 out, and their scale and zero point; weights with 5 bytes a channel; 24 bytes of biases.
    biases = 24 + 4 * scales if bias else 0
    assert count_work(index, sizes, group).bytes == 100 + 54 + 5 + 216 + 5 * scales + biases
    assert count_work(index, sizes, conv).bytes == 4 * (100 + 216 + 54 + 6 * bias)


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        ("int8", "weight", "int8"),
        ("weight", "int8", "int8"),
        ("weight", "int16", "int16"),
        ("int8", "int16", "int16"),
        ("int16", "int8", "int16"),
    ],
)
def test_either_operand_of_a_quantized_product_may_have_the_bits_that_count(
    left: str, right: str, dtype: str
) -> None:
    """The weight, of 4 bits, is stored, and its DequantizeLinear is not of the group."""
    made = "int16" if dtype == "int8" else "int8"
    given = ", ".join(
        f"{kind}[4,4] {name}" for kind, name in ((left, "p"), (right, "q")) if kind != "weight"
    )
    weights = f"int4[4,4] {'p' if left == 'weight' else 'q'} = {{{', '.join(['1'] * 16)}}}, "
    index = prepared(
        f"""g ({given}) => ({made}[4,4] y)
        <{weights if "weight" in (left, right) else ""} float t = {{1}}, {made} z = {{0}}> {{
            a = DequantizeLinear (p, t)
            b = DequantizeLinear (q, t)
            c = MatMul (a, b)
            y = QuantizeLinear (c, t, z)
        }}""",
        opset=21,
    ).index
    group = tuple(i for i in range(len(index.nodes)) if i not in index.constant_nodes)
    assert build_tasks(index).make_composite_task("MatMul", group).dtype == dtype


@pytest.mark.parametrize(
    ("read", "made", "dtype"), [("int8", "int16", "int8"), ("int16", "int8", "int16")]
)
def test_a_quantized_product_is_computed_in_the_type_of_what_it_multiplies(
    read: str, made: str, dtype: str
) -> None:
    index = prepared(
        f"""g ({read}[1,4,5,5] q) => ({made}[1,6,5,5] y)
        <{stored("int8", "w", 24).replace("[24]", "[6,4,1,1]")}, float t = {{1}},
         {read} zr = {{0}}, {made} zm = {{0}}> {{
            x = DequantizeLinear (q, t, zr)
            dw = DequantizeLinear (w, t)
            c = Conv (x, dw)
            y = QuantizeLinear (c, t, zm)
        }}""",
        opset=21,
    ).index
    group = tuple(i for i, node in enumerate(index.nodes) if node.output[0] in ("x", "c", "y"))
    assert build_tasks(index).make_composite_task("Conv", group).dtype == dtype
