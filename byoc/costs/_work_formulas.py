"""Formulas for the operations of a node, element by element, of images, of sorting, of classic models.

Each function takes a `CountedNode` and returns a number of operations. They follow the operators'
definitions in the documentation of ONNX and of onnxruntime's contrib operators; `_work_table` says which
operator uses which, and says the formula in words.
"""

from collections.abc import Callable
from math import ceil, log2, prod

from byoc.costs._work_node import CountedNode, get_axis

Formula = Callable[[CountedNode], int]

GELU, TANH_GELU, SIGMOID, SOFTMAX, QUANTIZE = 5, 8, 4, 5, 5
SILU = SIGMOID + 1
DEQUANTIZE = 2
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
