"""A batch of independent rows as calls of one row, or of some, each: the proof, and the arrays.

That a batch may be padded, by the graph's structure alone, shows that the first row's results do not
depend on the rows behind it. (A sum over zeros that padding adds rests on values, and is refused.) It is
no proof for the others: a CumSum over the batch, or a difference from the first row, may be padded, too.
So each node on the way has to treat the rows alike as well: if they change places, so do its results.
Then any row can be the first one, and each row's results are those of a call with that row alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from byoc.errors import InputError
from byoc.padding._alignment import ROW_RULES
from byoc.padding._padded_graph import ILL_FORMED, NotAlignedError, PaddedGraph, PaddedNode, Shape
from byoc.padding._padding_search import LoadModel, decide_padding

if TYPE_CHECKING:
    from byoc.model import Dim

MOST_ROWS = 256
"""The largest batch that is split; the proof is for all up to it."""


@dataclass(frozen=True)
class RowSplit:
    """The split of a batch into rows: its dimension, and the axes of that length in inputs and outputs.

    Inputs that are not in `inputs` are the same in each call. `most` is the largest batch, `size` the
    rows of a call: the last one has rows that are there twice, and are cut.
    """

    dim: str
    most: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    size: int = 1

    @property
    def how(self) -> str:
        """The calls of a batch in words: `row by row`, or `in calls of 4`."""
        return "row by row" if self.size == 1 else f"in calls of {self.size}"

    @property
    def range(self) -> str:
        """The batches that are split: `batch 2 to 256`."""
        return f"{self.dim} {self.size + 1} to {self.most}"

    def describe(self) -> str:
        """Return the batches that are split, and how: `batch 2 to 256 row by row`."""
        return f"{self.range} {self.how}"

    def count_rows(self, arrays: Mapping[str, Any]) -> int:
        """Return the number of rows of inputs, 0 where they disagree or are no arrays of such axes."""
        counts = set()
        for name, axis in self.inputs.items():
            shape = getattr(arrays.get(name), "shape", ())
            counts.add(shape[axis] if axis < len(shape) else 0)
        return int(counts.pop()) if len(counts) == 1 else 0

    def list_rows(self, arrays: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the inputs of each call, as contiguous arrays."""
        count = self.count_rows(arrays)
        for first in range(0, count, self.size):
            rows = np.minimum(np.arange(first, first + self.size), count - 1)
            yield {
                name: np.ascontiguousarray(np.take(value, rows, self.inputs[name]))
                if name in self.inputs
                else value
                for name, value in arrays.items()
            }

    def join(self, calls: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
        """Return the outputs of all calls as those of one of `count` rows.

        Raises InputError for an output of another number of rows than a call has.
        """
        joined = {}
        for name, axis in self.outputs.items():
            rows = [np.asarray(call[name]) for call in calls]
            if any(row.ndim <= axis or row.shape[axis] != self.size for row in rows):
                what = "one row" if self.size == 1 else f"{self.size} rows"
                raise InputError(f"output '{name}' is {list(rows[0].shape)}, not {what} on axis {axis}")
            whole = np.concatenate(rows, axis)
            joined[name] = (
                whole if len(rows) * self.size == count else whole.take(np.arange(count), axis)
            )
        return joined


def find_row_split(load: LoadModel, dim: str) -> RowSplit | str:
    """Return the split of a batch called `dim`, or the reason why its rows may depend on one another.

    `load` gives the model with that dimension open, and no other.
    """
    decision = decide_padding(load, {dim: MOST_ROWS})
    if decision.rule is None:
        return decision.refusals.get(dim, "it is no dimension of an input")
    if decision.rule.reads_values:
        return "its proof rests on values"
    graph = PaddedGraph(load({}), {dim: MOST_ROWS})
    try:
        for number in range(len(graph.index.nodes)):
            _require_symmetry(graph, number)
        inputs, outputs = (
            {name: axis for name in names for axis in _find_axes(graph, name)}
            for names in (graph.index.inputs, graph.index.outputs)
        )
        missing = next((name for name in graph.index.outputs if name not in outputs), None)
    except NotAlignedError as error:
        return str(error)
    if missing is not None:
        return f"output '{missing}' has no axis that is {dim} long"
    return RowSplit(dim, MOST_ROWS, inputs, outputs)


def _find_axes(graph: PaddedGraph, name: str) -> list[int]:
    """Return the axis of the rows in an input or output, none where it has none."""
    shape = graph.get_shape(name)
    if shape is None:
        raise NotAlignedError(f"the extents of '{name}' are not known")
    axes = [axis for axis, dim in enumerate(shape) if graph.is_padded(dim)]
    if len(axes) > 1 or any(shape[axis] not in graph.sizes for axis in axes):
        raise NotAlignedError(f"'{name}' is {list(shape)}, which has not one axis of rows")
    return axes


def _require_symmetry(graph: PaddedGraph, number: int) -> None:
    """Raise NotAlignedError unless a node's results change places where the rows that it reads do."""
    view = PaddedNode(graph, number)
    name = view.node.name or (view.node.output or [""])[0]
    if graph.index.bodies.get(number):
        raise NotAlignedError(f"{view.operator} '{name}': it has a body")
    names = [each for each in (*view.node.input, *view.node.output) if each]
    shapes = [graph.get_shape(each) for each in names]
    if not any(shape is None or any(map(graph.is_padded, shape)) for shape in shapes):
        return
    try:
        if any(dim for shape in shapes for dim in shape or (None,) if not _is_plain(graph, dim)):
            raise NotAlignedError("an axis is neither as long as the batch nor independent of it")
        rule = _SYMMETRIES.get(view.operator)
        if rule is None or None in shapes:
            raise NotAlignedError("nothing is known of what it does with rows")
        rule(view)
    except NotAlignedError as error:
        raise NotAlignedError(f"{view.operator} '{name}': {error}") from None
    except ILL_FORMED:
        raise NotAlignedError(f"{view.operator} '{name}': it is not as ONNX has it") from None


def _is_plain(graph: PaddedGraph, dim: Dim) -> bool:
    return isinstance(dim, int) or dim in graph.sizes


def _accept(view: PaddedNode) -> None:
    """Accept an operator to which every axis is as every other, at each index alike."""


def _keep_first(view: PaddedNode) -> None:
    """Check a Conv or the like: rows are the first axis of what it reads, and of nothing else."""
    if view.list_padded(0) not in ([], [0]):
        raise NotAlignedError("rows are not its first axis")
    if any(view.get_input(at) and view.list_padded(at) for at in range(1, len(view.node.input))):
        raise NotAlignedError("rows are not in its first input alone")


def _keep_place(view: PaddedNode) -> None:
    """Check a Reshape: what stands up to the axis of rows stays."""
    before, after = view.get_shape(0), view.get_output_shape()
    axes = [[a for a, dim in enumerate(shape) if isinstance(dim, str)] for shape in (before, after)]
    if axes[0] != axes[1] or len(axes[0]) != 1 or not _begin_alike(before, after, axes[0][0]):
        raise NotAlignedError("it mixes rows with what stands before them")


def _begin_alike(before: Shape, after: Shape, axis: int) -> bool:
    return before[: axis + 1] == after[: axis + 1]


def _leave_axis(view: PaddedNode) -> None:
    """Check a Concat, Split, Softmax or the like: it goes along another axis than rows."""
    rank = len(view.get_output_shape())
    axis = int(view.attributes.get("axis", 0)) % rank
    for at in range(len(view.node.input)):
        if view.get_input(at) and axis in view.list_padded(at):
            raise NotAlignedError(f"it goes along axis {axis}, that of rows")
    if any(view.graph.is_padded(view.get_output_shape(at)[axis]) for at in range(len(view.node.output))):
        raise NotAlignedError(f"it goes along axis {axis}, that of rows")


def _cut_others(view: PaddedNode) -> None:
    """Check a Slice: it cuts other axes than that of rows."""
    rank, axes = len(view.get_shape(0)), view.read_axes(3)
    cut = {axis % rank for axis in (range(rank) if axes is None else axes)}
    if cut & {*view.list_padded(0)}:
        raise NotAlignedError("it cuts the axis of rows")
    made = {axis for axis, dim in enumerate(view.get_output_shape()) if view.graph.is_padded(dim)}
    if made - {
        *view.list_padded(0)
    }:  # a table that is cut to the batch has an entry of its own for each
        raise NotAlignedError("it takes as many entries of a table as there are rows")


def _look_up(view: PaddedNode) -> None:
    """Check a Gather: it takes entries along another axis than that of rows."""
    axis = int(view.attributes.get("axis", 0)) % len(view.get_shape(0))
    if axis in view.list_padded(0):
        raise NotAlignedError(f"it takes entries of axis {axis}, that of rows")


def _sum_others(view: PaddedNode) -> None:
    """Check a CumSum: it sums along another axis than that of rows."""
    rank, axes = len(view.get_shape(0)), view.read_axes(1)
    if axes is None or {axis % rank for axis in axes} & {*view.list_padded(0)}:
        raise NotAlignedError("it sums along the axis of rows")


def _recur(view: PaddedNode) -> None:
    """Check an RNN, GRU or LSTM: rows are the sequences of its batch, and in no weights."""
    if view.list_padded(0) not in ([], [1]):
        raise NotAlignedError("rows are not its batch")
    others = (1, 2, 3, *range(7, len(view.node.input)))
    if any(view.get_input(at) and view.list_padded(at) for at in others):
        raise NotAlignedError("its weights have an axis of rows")


# Operators whose results change places as the rows do; those that mix rows end the proof of padding.
_ALIKE = (
    *(name for name in ROW_RULES if "Rotary" not in name and not name.startswith("com.microsoft.Skip")),
    *("MatMul", "Gemm", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Shape", "Size"),
    *("ConstantOfShape", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceProd", "ReduceLogSum", "ReduceLogSumExp"),
    *("ArgMax", "ArgMin", "TopK"),  # the proof of padding has them go along other axes
)
_FIRST = (
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool"),
    *("GlobalMaxPool", "GlobalLpPool", "InstanceNormalization", "GroupNormalization", "LRN"),
    *("DepthToSpace", "SpaceToDepth"),
)
_SYMMETRIES = {
    **dict.fromkeys(_ALIKE, _accept),
    **dict.fromkeys(_FIRST, _keep_first),
    **dict.fromkeys(("Reshape", "Flatten"), _keep_place),
    **dict.fromkeys(("Concat", "Split"), _leave_axis),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recur),
    "CumSum": _sum_others,
    "Slice": _cut_others,
    "Gather": _look_up,
}
