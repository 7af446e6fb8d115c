"""Rules of alignment for products of matrices, and for attention in one operator."""

from collections.abc import Mapping

from byoc.padding._alignment_view import AlignmentRule, AlignmentView
from byoc.padding._padded_graph import NotAlignedError, Shape
from byoc.padding._zones import Part, Zone


def check_sum(view: AlignmentView, a: tuple[int, int], b: tuple[int, int]) -> None:
    """Raise NotAlignedError unless padding adds nothing to sums of products over an axis of two inputs.

    `a` and `b` are positions of inputs and axes of theirs. Along a padded one, one input has to be 0 in
    what padding adds, and the other finite.
    """
    dims = [view.get_shape(position)[axis] for position, axis in (a, b)]
    if not any(map(view.graph.is_padded, dims)):
        return
    view.require_equal(*dims)
    found = [view.find_bounds(position, Zone.of({axis: Part.rest})) for position, axis in (a, b)]
    first, second = found
    if first is not None and second is not None and first.is_finite and second.is_finite:
        if first.is_zero or second.is_zero:
            return
        what = "neither factor is proven to be 0 there"
    else:
        what = "a factor is not proven to be finite there"
    raise NotAlignedError(f"it sums products over {dims[0]} elements, and {what}", by_value=True)


def _align_matmul(view: AlignmentView) -> None:
    view.require_data()
    shapes = view.get_shape(0), view.get_shape(1)
    if not all(shapes):
        raise NotAlignedError("it multiplies scalars")
    ranks = [len(shape) for shape in shapes]
    summed = (ranks[0] - 1, max(ranks[1] - 2, 0))
    check_sum(view, (0, summed[0]), (1, summed[1]))
    check_stacks(view, shapes)


def check_stacks(view: AlignmentView, shapes: tuple[Shape, Shape]) -> None:
    """Raise NotAlignedError unless the axes before the matrices are broadcast alike at all sizes."""
    stacks = [shape[:-2][::-1] for shape in shapes]
    for dim, other in zip(*stacks, strict=False):
        if dim != other and 1 not in {dim, other}:
            raise NotAlignedError(f"it broadcasts an axis that is {dim} long to {other}")


def _align_gemm(view: AlignmentView) -> None:
    view.require_data()
    sides = (
        1 if not view.attributes.get("transA", 0) else 0,
        0 if not view.attributes.get("transB", 0) else 1,
    )
    check_sum(view, (0, sides[0]), (1, sides[1]))
    if view.get_input(2):
        view.check_broadcast([2], view.get_output_shape())


def _align_integer_matmul(view: AlignmentView) -> None:
    """Check a MatMulInteger or QLinearMatMul: nothing padded is summed, zero points have no axes."""
    view.require_data()
    second = 3 if view.operator == "QLinearMatMul" else 1
    others = [p for p in range(len(view.node.input)) if p not in {0, second}]
    view.require_same(*others)
    for position in others:
        if view.get_input(position) and any(map(view.graph.is_padded, view.get_shape(position))):
            raise NotAlignedError("its parameters are padded")
    shapes = view.get_shape(0), view.get_shape(second)
    view.require_unpadded(0, [-1], "it sums over")
    if len(shapes[1]) > 1:
        view.require_unpadded(second, [-2], "it sums over")
    check_stacks(view, shapes)


def _align_block_matmul(view: AlignmentView) -> None:
    """Check a MatMulNBits: rows times a constant."""
    view.require_data()
    view.require_same(*range(1, len(view.node.input)))
    view.require_unpadded(0, [-1], "it sums over")


def _align_einsum(view: AlignmentView) -> None:
    """Check an Einsum that sums over nothing padded."""
    view.require_data()
    equation = str(view.attributes.get("equation", "")).replace(" ", "")
    if "." in equation or "->" not in equation:
        raise NotAlignedError("its equation is not understood")
    before, after = equation.split("->")
    extents: dict[str, object] = {}
    for position, letters in enumerate(before.split(",")):
        shape = view.get_shape(position)
        if len(letters) != len(shape) or len(set(letters)) < len(letters):
            raise NotAlignedError("its equation is not understood")
        for letter, dim in zip(letters, shape, strict=True):
            if extents.setdefault(letter, dim) != dim:
                raise NotAlignedError(f"an axis is {extents[letter]} long here and {dim} there")
            if letter not in after and view.graph.is_padded(dim):
                raise NotAlignedError(f"it sums over {dim} elements")


def _align_group_query_attention(view: AlignmentView) -> None:
    """Check a GroupQueryAttention, by onnxruntime's documentation of the operator.

    Lengths are values, one of each sequence (`seqlens_k`), which are the same: no query reads a key
    behind them, and position i reads none behind itself. Rows may be padded where there is no past, so
    that the first row stands at position 0; the operator tells that from the total length, which has to
    be the number of rows. With one row a cache may be longer: what it has behind the length is not read.
    """
    shape, total = view.get_shape(0), view.find_elements(6)
    view.require_data(0, 1, 2, 3, 4, 5, *range(7, len(view.node.input)))
    view.require_unpadded(0, [2], "it attends in")
    if view.has_output(3):
        raise NotAlignedError("its products of queries and keys are used")
    if any(map(view.graph.is_padded, view.get_shape(5)[1:])) or total is None:
        raise NotAlignedError("its lengths are not understood")
    length = shape[1]
    for position in (1, 2):
        if view.get_input(position):
            view.require_equal(view.get_shape(position)[1], length)
    caches = [view.get_shape(position) for position in (3, 4) if view.get_input(position)]
    _check_extra_inputs(view, shape)
    if view.graph.is_padded(length):
        if total != [length]:
            raise NotAlignedError(
                f"it reads {total[0]} positions for {length} rows; rows are padded only without a past"
            )
        if any(cache[2] != 0 for cache in caches):
            raise NotAlignedError("rows are padded only without a past")
    elif length != 1 and any(map(view.graph.is_padded, [total[0], *(cache[2] for cache in caches)])):
        raise NotAlignedError("a cache is padded only where there is one row")


def _check_extra_inputs(view: AlignmentView, shape: Shape) -> None:
    """Raise NotAlignedError for inputs of a GroupQueryAttention that padding may change."""
    view.require_same(7, 8, 11)
    positions = view.get_input(9)
    if positions:
        for own, other in zip(view.get_shape(9), shape[:2], strict=True):
            view.require_equal(own, other)
    view.require_same(10, *range(12, len(view.node.input)))


def _align_attention(view: AlignmentView) -> None:
    """Check an attention operator of which each position reads none behind itself, without a past.

    Of ONNX's Attention that is `is_causal`, of onnxruntime's MultiHeadAttention `unidirectional`. Where
    sequences are not padded, each of the batch is attended to by itself.
    """
    view.require_data()
    shape = view.get_shape(0)
    for position in (1, 2):
        if view.get_input(position):
            view.require_equal(view.get_shape(position)[0], shape[0])
    padded = {
        (position, axis)
        for position, name in enumerate(view.node.input)
        if name
        for axis in view.list_padded(position)
        if axis > 0
    }
    extra = [p for p in range(3, len(view.node.input)) if view.get_input(p)]
    for position in extra:
        own = view.get_shape(position)
        if own and own[0] != 1:
            view.require_equal(own[0], shape[0])
    if not padded:
        return
    causal = view.attributes.get("is_causal", 0) or view.attributes.get("unidirectional", 0)
    if not causal or extra or len(view.node.input) < 3 or any(map(view.has_output, (1, 2, 3))):
        raise NotAlignedError("it attends to what padding adds")
    ranks = {len(view.get_shape(position)) for position in range(3)}
    if len(ranks) > 1 or not ranks <= {3, 4} or (4 in ranks and view.node.domain):
        raise NotAlignedError("its layout is not understood")
    axis = 1 if ranks == {3} else 2
    for position in range(3):
        view.require_equal(view.get_shape(position)[axis], shape[axis])
        if {a for p, a in padded if p == position} - {axis}:
            raise NotAlignedError("heads are padded")


MATRIX_RULES: Mapping[str, AlignmentRule] = {
    "Attention": _align_attention,
    "Einsum": _align_einsum,
    "Gemm": _align_gemm,
    "MatMul": _align_matmul,
    "MatMulInteger": _align_integer_matmul,
    "QLinearMatMul": _align_integer_matmul,
    "com.microsoft.GroupQueryAttention": _align_group_query_attention,
    "com.microsoft.MatMulNBits": _align_block_matmul,
    "com.microsoft.MultiHeadAttention": _align_attention,
}
"""Operator, as rule files spell it, to its rule."""
