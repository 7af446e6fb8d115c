"""Formulas for the operations of a node: element by element, of images, of sorting, of sums of products.

Each function takes a `CountedNode` and returns a number of operations. They follow the operators'
definitions in the documentation of ONNX and of onnxruntime's contrib operators; `_work` says which
operator uses which, and says the formula in words.
"""

from collections.abc import Callable
from math import ceil, log2, prod

from byoc.costs._work_node import CountedNode, get_axis

Formula = Callable[[CountedNode], int]

GELU, TANH_GELU, SIGMOID, SOFTMAX, QUANTIZE = 5, 8, 4, 5, 5
SILU = SIGMOID + 1
DEQUANTIZE = 2  # operations for an element: subtract the zero point, multiply by the scale
_LINEAR_TAPS, _CUBIC_TAPS = 2, 4
_TAPS = {
    "linear": _LINEAR_TAPS,
    "bilinear": _LINEAR_TAPS,
    "cubic": _CUBIC_TAPS,
    "bicubic": _CUBIC_TAPS,
}
_ACTIVATIONS = {
    **{"Relu": 1, "LeakyRelu": 2, "Clip": 2, "Tanh": 1, "Sigmoid": SIGMOID, "HardSigmoid": 4},
    **{"silu": SILU, "swish": SILU, "relu": 1, "gelu": GELU, "sigmoid": SIGMOID},
}


def per_output(count: int) -> Formula:
    """Return the formula of so many operations for each element of the first output."""
    return lambda node: count * node.count_output()


def per_input(count: int) -> Formula:
    """Return the formula of so many operations for each element of the first input."""
    return lambda node: count * node.count_input()


def per_element_and_input(count: int, *inputs: int) -> Formula:
    """Return the formula of operations for each element of the output, one more for each input given."""
    return lambda node: node.count_output() * (count + sum(map(node.has_input, inputs)))


def count_activation(node: CountedNode, text: str = "activation") -> int:
    """Return the operations that an activation named by an attribute takes for each element."""
    return _ACTIVATIONS.get(node.get_text(text, ""), 0)


def count_sum(node: CountedNode) -> int:
    """Count an operation for each input after the first, and one more for a mean."""
    mean = node.proto.op_type == "Mean"
    return node.count_output() * (max(len(node.proto.input) - 1, 0) + mean)


def count_gelu(node: CountedNode) -> int:
    """Count Gelu, exact or by tanh."""
    tanh = node.get_text("approximate", "none") == "tanh"
    return node.count_output() * (TANH_GELU if tanh else GELU)


def count_swish(node: CountedNode) -> int:
    """Count x * sigmoid(alpha * x), and a product with the second input where there is one."""
    scaled = node.get_float("alpha", 1.0) != 1
    return node.count_output() * (SILU + scaled + node.has_input(1))


def count_normalization(*scales: int) -> Formula:
    """Return the formula of sum, difference, square, sum, division; then a scale, a shift if given."""
    return per_element_and_input(5, *scales)


def count_batch_normalization(node: CountedNode) -> int:
    """Count a scale and a shift, into which inference folds; in training the statistics as well."""
    training = node.get_number("training_mode", 0) != 0 or len(node.proto.output) > 1
    return node.count_output() * (7 if training else 2)


def count_skip_normalization(node: CountedNode) -> int:
    """Count the sum with `skip` and a bias, then LayerNormalization or its simplified form."""
    if node.proto.op_type.startswith("SkipSimplified"):
        return node.count_output() * (1 + 4 + node.has_input(3))
    return node.count_output() * (1 + 6 + node.has_input(3) + node.has_input(4))


def count_group_norm(node: CountedNode) -> int:
    """Count com.microsoft's GroupNorm and SkipGroupNorm with their SiLU."""
    skip = sum(map(node.has_input, (3, 4))) if node.proto.op_type == "SkipGroupNorm" else 0
    silu = SILU if node.get_number("activation", 0) else 0
    return node.count_output() * (7 + skip + silu)


def count_embed_layer_normalization(node: CountedNode) -> int:
    """Count the sum of two or three embeddings, dequantized where they are, and its normalization."""
    quantized = node.proto.op_type.startswith("Q")
    tables = 2 + node.has_input(1)
    return node.count_output() * (tables - 1 + 7 + quantized * DEQUANTIZE * tables)


def count_softmax_loss(node: CountedNode) -> int:
    """Count a softmax over the scores, and a product and a sum for each target."""
    return SOFTMAX * node.count_input() + 2 * node.count_input(1)


def count_lrn(node: CountedNode) -> int:
    """Count squares and their sum over the window; then scale, add, power, divide."""
    return node.count_output() * (2 * node.get_number("size", 1) + 4)


def count_pool(for_each: int) -> Formula:
    """Return the formula of so many operations for each element of each window."""
    return lambda node: for_each * node.count_output() * prod(node.get_numbers("kernel_shape"))


def count_roi_pool(node: CountedNode) -> int:
    """Count a comparison for each element of the image and region, as if a region were all of it."""
    return node.get_extent(1, 0) * prod(node.get_shape(0)[1:])


def count_roi_align(node: CountedNode) -> int:
    """Count a bilinear sample and its sum, `sampling_ratio` squared for each element; 4 if that is 0."""
    ratio = node.get_number("sampling_ratio", 0) or 2
    return 8 * ratio * ratio * node.count_output()


def count_crop_and_resize(node: CountedNode) -> int:
    """Count a bilinear sample for each element."""
    return 0 if node.get_text("mode", "bilinear") == "nearest" else 8 * node.count_output()


def count_resize(node: CountedNode) -> int:
    """Count a product and a sum for each tap: 2 or 4 along each axis that changes, more to antialias."""
    taps = _TAPS.get(node.get_text("mode", "nearest"))
    if taps is None:
        return 0
    total = 1
    for before, after in zip(node.get_shape(0), node.get_output_shape(), strict=False):
        if before != after:
            wide = ceil(before / after) if node.get_number("antialias", 0) and after > 0 else 1
            total *= taps * max(1, wide)
    return 2 * total * node.count_output() if total > 1 else 0


def count_grid_sample(node: CountedNode) -> int:
    """Count the taps as Resize does, and 4 operations for each coordinate of the grid."""
    axes = max(len(node.get_shape(0)) - 2, 0)
    taps = _TAPS.get(node.get_text("mode", "linear"))
    return 4 * node.count_input(1) + (2 * taps**axes * node.count_output() if taps else 0)


def count_affine_grid(node: CountedNode) -> int:
    """Count the product of theta with the position and 1."""
    return 2 * node.get_extent(0, -1) * node.count_output()


def count_fourier(length: int) -> int:
    """Return the operations of a fast Fourier transform: 5 n log2 n (Cooley and Tukey)."""
    return ceil(5 * length * log2(length)) if 1 < length < 2**62 else 0


def count_dft(node: CountedNode) -> int:
    """Count a fast Fourier transform for each line along the axis."""
    shape = node.get_shape(0)
    early = node.opset < 20
    axis = node.get_number("axis", 1) if early else node.get_value(2)
    axis = -2 if axis is None else axis
    extent = get_axis(shape, axis)
    length = node.get_value(1) or extent
    lines = prod(shape[:-1]) // max(extent, 1)
    return lines * count_fourier(length)


def count_stft(node: CountedNode) -> int:
    """Count the product with the window, and a fast Fourier transform, for each frame."""
    frames = prod(node.get_output_shape()[:2])
    length = node.get_extent(2, 0, 0) or node.get_value(3) or node.get_extent(0, 1)
    return frames * ((length if node.has_input(2) else 0) + count_fourier(length))


def count_last_axis_fourier(node: CountedNode) -> int:
    """Count com.microsoft's Rfft and Irfft over the last `signal_ndim` axes of the real side."""
    shape = node.get_shape(0) if node.proto.op_type == "Rfft" else node.get_output_shape()
    length = prod(shape[len(shape) - min(node.get_number("signal_ndim", 1), len(shape)) :])
    return prod(shape) // max(length, 1) * count_fourier(length)


def count_top_k(node: CountedNode) -> int:
    """Count a heap of k: a comparison for each element and level of it."""
    kept = max(node.get_output_shape()[node.get_number("axis", -1) :][:1] or (1,))
    return node.count_input() * _count_levels(kept)


def count_sort(node: CountedNode) -> int:
    """Count sorting all elements: n log2 n comparisons."""
    return node.count_input() * _count_levels(node.count_input())


def count_multinomial(node: CountedNode) -> int:
    """Count exponentials, their running sum, its division, and a search for each sample."""
    return 3 * node.count_input() + node.count_output() * (1 + _count_levels(node.get_extent(0, -1)))


def _count_levels(number: int) -> int:
    return max(1, ceil(log2(number))) if number > 1 else 1


def count_suppression(node: CountedNode) -> int:
    """Count sorting each class by score, and 13 operations for each pair of boxes that may be kept."""
    boxes, lists = node.get_extent(1, 2), prod(node.get_shape(1)[:2])
    most = node.get_value(2) if node.has_input(2) else 0
    kept = boxes if most is None else max(min(boxes, most), 0)
    return lists * (boxes * _count_levels(boxes) + 13 * kept * (kept - 1) // 2)


def count_determinant(node: CountedNode) -> int:
    """Count Gaussian elimination, 2/3 n^3, for each matrix; an inverse takes three times that."""
    side = node.get_extent(0, -1)
    inverse = node.proto.op_type == "Inverse"
    return node.count_input() * side * (6 if inverse else 2) // 3


def count_distances(node: CountedNode) -> int:
    """Count difference, square and sum for each component of each pair."""
    return 3 * node.get_extent(0, -1) * node.count_output()


def count_ngrams(node: CountedNode) -> int:
    """Count a look-up for each element, length and skip."""
    lengths = node.get_number("max_gram_length", 1) - node.get_number("min_gram_length", 1) + 1
    return node.count_input() * max(lengths, 1) * (node.get_number("max_skip_count", 0) + 1)


def count_scatter(node: CountedNode) -> int:
    """Count an operation for each update where updates are reduced, none where they replace."""
    return 0 if node.get_text("reduction", "none") == "none" else node.count_input(2)


def count_optimizer(for_each: int, states: int) -> Formula:
    """Return the formula of a training step, whose outputs are each tensor and its states."""
    return lambda node: for_each * sum(map(node.count_output, range(len(node.proto.output)))) // states


def count_linear_model(node: CountedNode) -> int:
    """Count the products of each row with all coefficients, and the intercepts."""
    rows = node.get_extent(0, 0)
    return rows * (2 * node.count_attribute("coefficients") + node.count_attribute("intercepts"))


def count_support_vectors(node: CountedNode) -> int:
    """Count the products of each row with all support vectors, the kernel, and the coefficients."""
    vectors = node.count_attribute("support_vectors")
    features = max(node.get_extent(0, -1), 1)
    kernels = vectors // features
    linear = node.get_text("kernel_type", "LINEAR") == "LINEAR"
    more = (0 if linear else 3) * kernels + 2 * node.count_attribute("coefficients")
    return node.get_extent(0, 0) * (2 * vectors + more)


def count_trees(node: CountedNode) -> int:
    """Count a comparison for each level of each tree, taken as balanced, and a sum for each tree."""
    trees = node.attributes.get("nodes_treeids")
    roots = len(set(trees)) if isinstance(trees, list) else node.count_attribute("tree_roots")
    size = node.count_attribute("nodes_modes") // max(roots, 1)
    return node.get_extent(0, 0) * roots * (_count_levels(size + 1) + 1)


# Formulas for the operations of sums of products: convolutions, matrix products, Einsum, LSTM.


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
