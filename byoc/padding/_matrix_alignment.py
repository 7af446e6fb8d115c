"""Rules of alignment for products of matrices, and for attention in one operator."""

from collections.abc import Callable, Collection, Mapping, Sequence

from byoc._dataclasses import dataclass
from byoc.model import Dim
from byoc.model.ranges import Interval
from byoc.padding._padded_graph import (
    UNPADDED,
    NotAlignedError,
    PaddedNode,
    Part,
    Shape,
    Zone,
    map_moved_axes,
    require_shape,
)
from byoc.padding._value_bounds import ValueBounds

# A node as the rules of alignment ask about it.


@dataclass(frozen=True, eq=False)
class AlignmentView(PaddedNode):
    """A node whose inputs are the same, aligned or sized; rules raise NotAlignedError."""

    bounds: ValueBounds
    same: Collection[str]
    sized: Collection[str]

    def require_data(self, *positions: int) -> None:
        """Raise NotAlignedError where one of some inputs, all unless given, is sized."""
        chosen = positions or range(len(self.node.input))
        for position in chosen:
            name = self.get_input(position)
            if name in self.sized:
                raise NotAlignedError(f"the value of '{name}' depends on the size")

    def require_same(self, *positions: int) -> None:
        """Raise NotAlignedError where one of some inputs is not the same in both runs."""
        for position in positions:
            name = self.get_input(position)
            if name and name not in self.same:
                raise NotAlignedError(f"'{name}' is not the same for every size")

    def require_unpadded(self, position: int, axes: Sequence[int], what: str) -> None:
        """Raise NotAlignedError where one of some axes of an input is padded; `what` is done over it."""
        shape = self.get_shape(position)
        for axis in axes:
            if not -len(shape) <= axis < len(shape):
                raise NotAlignedError("it has an axis that its input has not")
            if self.graph.is_padded(shape[axis]):
                raise NotAlignedError(f"{what} axis {axis % len(shape)}, which is {shape[axis]} long")

    def require_equal(self, a: Dim, b: Dim) -> None:
        """Raise NotAlignedError unless two extents are equal at all sizes."""
        if a != b:
            raise NotAlignedError(f"an axis is {a} long here and {b} there")

    def find_bounds(self, position: int, zone: Zone) -> Interval | None:
        """Return the bounds of an input in a zone, None where none are known."""
        self.bounds.used = True
        return self.bounds.find(self.get_input(position), zone)

    def describe_loss(self, position: int, zone: Zone) -> str:
        """Return a sentence on where the bounds of an input were lost, of which none are known."""
        return self.bounds.describe_loss(self.get_input(position), zone)

    def check_broadcast(self, positions: Sequence[int], output: Shape) -> None:
        """Raise NotAlignedError unless inputs are broadcast to an output alike at all sizes.

        Along a padded axis each input has the extent of the output, or 1.
        """
        for position in positions:
            if not self.get_input(position):
                continue
            shape = self.get_shape(position)
            if len(shape) > len(output):
                raise NotAlignedError("it broadcasts to fewer dimensions")
            for dim, other in zip(shape[::-1], output[::-1], strict=False):
                padded = self.graph.is_padded(dim) or self.graph.is_padded(other)
                if padded and dim not in {1, other}:
                    raise NotAlignedError(f"it broadcasts an axis that is {dim} long to {other}")

    def check_outputs(self, names: Sequence[str]) -> None:
        """Raise NotAlignedError unless outputs are known to be no longer in the unpadded run."""
        for name in names:
            if not self.graph.index.is_used(name):
                continue
            for dim in require_shape(self.graph, name):
                if not self.graph.is_largest_padded(dim):
                    raise NotAlignedError(f"'{name}' has an axis of {dim}, which padding may shorten")


AlignmentRule = Callable[[AlignmentView], None]


# Rules of alignment for nodes that move, cut, join and choose elements, or make them of sizes.


def _align_moved(view: AlignmentView) -> None:
    """Check a Transpose, Squeeze, Unsqueeze, Reshape or Flatten, whose other input is of sizes."""
    view.require_data(0)
    axes = map_moved_axes(view)
    if any(axis not in axes.values() for axis in view.list_padded(0)):
        raise NotAlignedError("it moves a padded axis in a way that is not understood")


def _align_expanded(view: AlignmentView) -> None:
    view.require_data(0)
    view.check_broadcast([0], view.get_output_shape())


def _align_tiled(view: AlignmentView) -> None:
    """Check a Tile that does not repeat a padded axis."""
    view.require_data(0)
    for before, after in zip(view.get_shape(0), view.get_output_shape(), strict=True):
        if view.graph.is_padded(before):
            view.require_equal(before, after)


def _align_sliced(view: AlignmentView) -> None:
    """Check a Slice: it starts at indices that do not depend on the size, and goes forward there."""
    view.require_data(0)
    before, after = view.get_shape(0), view.get_output_shape()
    starts, ends = _read_numbers(view, "starts", 1), _read_numbers(view, "ends", 2)
    steps: list[Dim] | None = [1] * len(before)
    if view.get_input(4):
        steps = view.find_elements(4)
    axes = view.read_axes(3)
    if starts is None or ends is None or steps is None:
        raise NotAlignedError("it is not known what it cuts")
    for position, start in enumerate(starts):
        axis = position if axes is None else axes[position] % len(before)
        dim, step = before[axis], steps[position]
        if not isinstance(start, int) or not isinstance(step, int):
            raise NotAlignedError(f"it starts at {start}, by steps of {step}, which depends on the size")
        padded = view.graph.is_padded(dim) or view.graph.is_padded(after[axis])
        if padded and (start < 0 or step < 1):
            raise NotAlignedError(f"it starts at {start} of an axis that is {dim} long, by {step}")


def _read_numbers(view: AlignmentView, attribute: str, position: int) -> list[Dim] | None:
    """Return numbers that an attribute or, in later versions, an input gives; None where not known."""
    if attribute in view.attributes:
        return [int(value) for value in view.attributes[attribute]]
    return view.find_elements(position) if view.get_input(position) else None


def _align_split(view: AlignmentView) -> None:
    view.require_data(0)
    view.require_same(1)
    view.require_unpadded(0, [int(view.attributes.get("axis", 0))], "it splits")


def _align_joined(view: AlignmentView) -> None:
    """Check a Concat: along its axis the last input alone may be padded."""
    view.require_data()
    rank = len(view.get_shape(0))
    axis = int(view.attributes["axis"]) % rank
    positions = range(len(view.node.input))
    for position in positions[:-1]:
        dim = view.get_shape(position)[axis]
        if view.graph.is_padded(dim):
            raise NotAlignedError(f"it appends to an axis that is {dim} long, behind what padding adds")
    output = view.get_output_shape()
    for position in positions:
        for other, (dim, whole) in enumerate(zip(view.get_shape(position), output, strict=True)):
            if other != axis:
                view.require_equal(dim, whole)


def _align_gathered(view: AlignmentView) -> None:
    """Check a Gather: along a padded axis no index counts from the end."""
    view.require_data()
    shape = view.get_shape(0)
    axis = int(view.attributes.get("axis", 0)) % len(shape)
    if view.graph.is_padded(shape[axis]):
        _check_indices(view, shape[axis])


def _check_indices(view: AlignmentView, dim: Dim) -> None:
    found = view.find_bounds(1, UNPADDED)
    if found is None or found.low < 0:
        raise NotAlignedError(f"its indices may count from the end of an axis that is {dim} long")


def _align_gathered_elements(view: AlignmentView) -> None:
    view.require_data()
    shape, indices = view.get_shape(0), view.get_shape(1)
    axis = int(view.attributes.get("axis", 0)) % len(shape)
    for other, (dim, own) in enumerate(zip(shape, indices, strict=True)):
        if other != axis and (view.graph.is_padded(dim) or view.graph.is_padded(own)):
            view.require_equal(dim, own)
    if view.graph.is_padded(shape[axis]):
        _check_indices(view, shape[axis])


def _align_gathered_rows(view: AlignmentView) -> None:
    """Check a GatherND; axes that are indexed are not counted from their end if they are padded."""
    view.require_data()
    shape, indices = view.get_shape(0), view.get_shape(1)
    batch, width = int(view.attributes.get("batch_dims", 0)), indices[-1]
    if not isinstance(width, int):
        raise NotAlignedError("it indexes a number of axes that depends on the size")
    for dim, own in zip(shape[:batch], indices[:batch], strict=True):
        view.require_equal(dim, own)
    padded = [dim for dim in shape[batch : batch + width] if view.graph.is_padded(dim)]
    if padded:
        _check_indices(view, padded[0])


def _align_blocks(view: AlignmentView) -> None:
    """Check a GatherBlockQuantized, which takes rows of a constant."""
    view.require_data()
    view.require_same(0, *range(2, len(view.node.input)))


def _align_filled(view: AlignmentView) -> None:
    """Check a ConstantOfShape: the same value everywhere, and only its extents depend on sizes."""
    view.get_output_shape()


def _align_range(view: AlignmentView) -> None:
    """Check a Range from a start and by a step that do not depend on the size."""
    view.require_same(0, 2)
    view.get_output_shape()


def _align_triangle(view: AlignmentView) -> None:
    """Check a Trilu: an element is kept by its indices alone."""
    view.require_data()
    view.require_same(1)


def _align_pad(view: AlignmentView) -> None:
    """Check a Pad with a constant before a padded axis, not behind it."""
    view.require_data()
    view.require_same(*range(1, len(view.node.input)))
    padded, rank = view.list_padded(0), len(view.get_shape(0))
    pads = _read_numbers(view, "pads", 1)
    if pads is None or len(pads) != 2 * rank or view.get_input(3):
        raise NotAlignedError("its pads are not known")
    for axis in padded:
        begin, end = pads[axis], pads[rank + axis]
        if not isinstance(begin, int) or begin < 0 or not isinstance(end, int) or end > 0:
            raise NotAlignedError(f"it pads the end of axis {axis}")
        if view.attributes.get("mode", "constant") != "constant" and (begin or end):
            raise NotAlignedError(f"it repeats elements of axis {axis}")


def _align_one_hot(view: AlignmentView) -> None:
    view.require_data()
    view.require_same(1, 2)
    view.get_output_shape()


_MOVED = ("Transpose", "Squeeze", "Unsqueeze", "Reshape", "Flatten")

MOVEMENT_RULES: Mapping[str, AlignmentRule] = {
    **dict.fromkeys(_MOVED, _align_moved),
    "Concat": _align_joined,
    "ConstantOfShape": _align_filled,
    "Expand": _align_expanded,
    "EyeLike": _align_filled,
    "Gather": _align_gathered,
    "GatherElements": _align_gathered_elements,
    "GatherND": _align_gathered_rows,
    "OneHot": _align_one_hot,
    "Pad": _align_pad,
    "Range": _align_range,
    "Slice": _align_sliced,
    "Split": _align_split,
    "Tile": _align_tiled,
    "Trilu": _align_triangle,
    "com.microsoft.GatherBlockQuantized": _align_blocks,
}
"""Operator, as rule files spell it, to its rule."""


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
