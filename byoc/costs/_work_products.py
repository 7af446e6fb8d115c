"""Formulas for the operations of sums of products: convolutions, matrix products, Einsum, LSTM."""

from math import prod

from byoc.costs._work_formulas import QUANTIZE, SILU, SOFTMAX, Formula, count_activation
from byoc.costs._work_node import CountedNode, get_axis


def count_conv(weight: int, bias: int) -> Formula:
    """Return the formula of a convolution whose weight has the output channels first."""

    def count(node: CountedNode) -> int:
        inner = prod(node.get_shape(weight)[1:])
        return node.count_output() * (2 * inner + (bias >= 0 and node.has_input(bias)))

    return count


def count_fused_conv(node: CountedNode) -> int:
    """Count a convolution, the sum with Z, and the activation."""
    return count_conv(1, 2)(node) + node.count_output() * (node.has_input(3) + count_activation(node))


def count_causal_conv(node: CountedNode) -> int:
    """Count a convolution of each channel by itself, and the activation."""
    taps = node.get_extent(1, -1)
    return node.count_output() * (2 * taps + node.has_input(2) + count_activation(node))


def count_conv_transpose(bias: int) -> Formula:
    """Return the formula of a transposed convolution: each input meets all but its channel of W."""

    def count(node: CountedNode) -> int:
        added = node.count_output() if node.has_input(bias) else 0
        return 2 * node.count_input() * prod(node.get_shape(1)[1:]) + added

    return count


def count_deform_conv(node: CountedNode) -> int:
    """Count a convolution, and a bilinear sample for each tap and input channel, perhaps masked."""
    image, channels = node.get_output_shape(), node.get_extent(0, 1)
    taps = prod(node.get_shape(1)[2:])
    samples = get_axis(image, 0) * channels * taps * prod(image[2:])
    bias = node.count_output() if node.has_input(3) else 0
    products = 2 * node.count_output() * prod(node.get_shape(1)[1:])
    return products + bias + samples * (8 + node.has_input(4))


def count_matmul(bias: int = -1, for_each: int = 0) -> Formula:
    """Return the formula of a matrix product, its bias, and `for_each` operations on each element."""

    def count(node: CountedNode) -> int:
        inner = _count_inner(node)
        return node.count_output() * (2 * inner + for_each + (bias >= 0 and node.has_input(bias)))

    return count


def _count_inner(node: CountedNode) -> int:
    """Return the extent that a matrix product sums over; transBatchA (FusedMatMul) moves the batch."""
    shape = node.get_shape(0)
    if not node.get_number("transA", 0) or len(shape) < 2:
        return get_axis(shape, -1)
    return get_axis(shape, 0 if node.get_number("transBatchA", 0) else -2)


def count_fused_matmul(node: CountedNode) -> int:
    """Count a matrix product, its scale where that is not 1, and the activation."""
    scaled = node.get_float("alpha", 1.0) != 1
    return node.count_output() * (2 * _count_inner(node) + scaled + count_activation(node))


def count_gemm(c: int, for_each: int = 0) -> Formula:
    """Return the formula of Gemm: products, the scale alpha, the sum with C, and the activation."""

    def count(node: CountedNode) -> int:
        inner = node.get_extent(0, 0 if node.get_number("transA", 0) else -1)
        more = (node.get_float("alpha", 1.0) != 1) + node.has_input(c) + for_each
        return node.count_output() * (2 * inner + more + count_activation(node))

    return count


def count_packed_matmul(bias: int = -1) -> Formula:
    """Return the formula of a product with a packed weight of K x N: 2 * M * N * K, and a bias."""

    def count(node: CountedNode) -> int:
        inner = node.get_number("K", 0) or node.get_extent(0, -1)
        return node.count_output() * (2 * inner + (bias >= 0 and node.has_input(bias)))

    return count


def count_dynamic_quantize_matmul(node: CountedNode) -> int:
    """Count quantizing A (its extremes first), the product, the scale, and a bias."""
    quantizing = (2 + QUANTIZE) * node.count_input()
    return quantizing + node.count_output() * (2 * node.get_extent(0, -1) + 1 + node.has_input(4))


def count_projections_mlp(node: CountedNode) -> int:
    """Count MatMulNBitsMlp: a norm if asked for, two products with biases, the gate and its product."""
    inner, norm = node.get_number("K", 0), 4 * node.has_input(2) + node.has_input(1)
    biases = node.has_input(5) + node.has_input(8)
    activation = count_activation(node) or SILU
    return norm * node.count_input() + node.count_output() * (4 * inner + biases + activation + 1)


def count_projections_qkv(node: CountedNode) -> int:
    """Count MatMulNBitsQkv: a norm, and the products with three weights and their biases."""
    inner, norm = node.get_number("K", 0), 4 + node.has_input(1)
    outputs = [node.count_output(i) * (2 * inner + node.has_input(3 * i + 5)) for i in range(3)]
    return norm * node.count_input() + sum(outputs)


def count_lora(node: CountedNode) -> int:
    """Count MatMulNBitsQLoRA: the product with W, those with both adapters, and their sum."""
    inner, rank = node.get_number("K", 0), node.get_extent(4, 0)
    tokens = prod(node.get_shape(0)[:-1])
    return node.count_output() * (2 * inner + 2 * rank + 1) + 2 * tokens * inner * rank


def count_mixture_of_experts(node: CountedNode) -> int:
    """Count the products of the k experts that each token takes, their activation, sum and choice."""
    quantized = node.proto.op_type == "QMoE"
    second, third = (5, 8) if quantized else (4, 6)
    tokens, hidden = prod(node.get_shape(0)[:-1]), node.get_extent(0, -1)
    experts = node.get_extent(1, -1)
    stored = node.count_input(second) // max(node.get_extent(second, 0) * hidden, 1)
    bits = node.get_number("fc2_expert_weight_bits", node.get_number("expert_weight_bits", 4))
    inner = stored * 8 // max(bits, 1) if quantized else stored
    gated = node.has_input(third) or node.get_number("swiglu_fusion", 0) != 0
    each = SILU + 1 if gated else count_activation(node, "activation_type")
    expert = 2 * hidden * inner * (3 if gated else 2) + each * inner + 2 * hidden
    return tokens * (node.get_number("k", 1) * expert + (SOFTMAX + 1) * experts)


def count_einsum(node: CountedNode) -> int:
    """Count an Einsum over the real extents of its indices, contracted from left to right.

    Two operands take a product and a sum for each combination of their indices, a product alone where
    nothing is summed over; an index that nobody needs later is summed over as early as possible.
    """
    equation = node.get_text("equation", "").replace(" ", "")
    shapes = [node.get_shape(i) for i in range(len(node.proto.input))]
    operands, result = _read_equation(equation, shapes)
    total, current = 0, dict(operands[0]) if operands else {}
    for number in range(len(operands)):
        later = {index for operand in operands[number + 1 :] for index in operand} | set(result)
        if number:
            other = operands[number]
            alone = [index for index in other if index not in current and index not in later]
            if alone:  # summed over before the product
                total += prod(other.values())
                other = {index: extent for index, extent in other.items() if index not in alone}
            joined = {**current, **{i: max(n, current.get(i, 1)) for i, n in other.items()}}
            summed = any(index not in later for index in joined)
            total += prod(joined.values()) * (2 if summed else 1)
            current = joined
        elif any(index not in later for index in current):
            total += prod(current.values())
        current = {index: extent for index, extent in current.items() if index in later}
    return total


def _read_equation(
    equation: str, shapes: list[tuple[int, ...]]
) -> tuple[list[dict[str, int]], list[str]]:
    """Return the extents of each operand's indices, and the indices of the result.

    The axes of an ellipsis are numbered from the last one.
    """
    left, _, right = equation.partition("->")
    operands: list[dict[str, int]] = []
    for term, shape in zip(left.split(","), shapes, strict=False):
        operand: dict[str, int] = {}
        for name, extent in zip(_name_axes(term, len(shape)), shape, strict=False):
            operand[name] = max(extent, operand.get(name, 1)) if extent else 0
        operands.append(operand)
    known = [name for operand in operands for name in operand]
    dots = sorted({name for name in known if name.startswith(".")})
    if "->" in equation:
        return operands, [*dots, *right.replace(".", "")]
    letters = left.replace(",", "").replace(".", "")
    return operands, [*dots, *(name for name in letters if letters.count(name) == 1)]


def _name_axes(term: str, rank: int) -> list[str]:
    """Return a name for each axis; axes of the ellipsis are numbered from the last one."""
    before, dots, after = term.partition("...")
    covered = max(rank - len(before) - len(after), 0) if dots else 0
    return [*before, *(f".{number}" for number in range(covered, 0, -1)), *after]


def count_recurrent(gates: int, for_each: int, biases: int) -> Formula:
    """Return the formula of LSTM, GRU or RNN: for each direction, step, sequence and hidden unit.

    `gates` products with W and R, `for_each` operations of activations and states, `biases` additions of
    B where it is given. Peepholes (LSTM) add a product and a sum to three gates.
    """

    def count(node: CountedNode) -> int:
        steps = prod(node.get_shape(0)[:2])
        inputs = node.get_extent(0, 2)
        directions = 2 if node.get_text("direction", "forward") == "bidirectional" else 1
        hidden = node.get_number("hidden_size", 0) or max(
            get_axis(node.get_output_shape(i), -1, 0) for i in range(3)
        )
        peepholes = 6 if gates == 4 and node.has_input(7) else 0
        unit = 2 * gates * (inputs + hidden) + for_each + peepholes + biases * node.has_input(3)
        return directions * steps * hidden * unit

    return count


def count_quantized_lstm(node: CountedNode) -> int:
    """Count an LSTM, and quantizing its inputs and states (their extremes first)."""
    steps = prod(node.get_shape(0)[:2])
    states = (2 + QUANTIZE) * steps * (node.get_extent(0, 2) + node.get_number("hidden_size", 0))
    return count_recurrent(4, 18, 8)(node) + states
