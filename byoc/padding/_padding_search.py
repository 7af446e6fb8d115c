"""The search for what can be padded, with which values, and for batches whose rows are independent."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from byoc.errors import InputError
from byoc.model import Dim, Model, list_open_dims, to_numpy_dtype
from byoc.padding._alignment import ROW_RULES, Alignment, Misalignment
from byoc.padding._padded_graph import (
    ILL_FORMED,
    Assumptions,
    Bit,
    NotAlignedError,
    PaddedGraph,
    PaddedNode,
    Shape,
)
from byoc.padding._padding_rule import (
    EDGE,
    FirstValue,
    PaddedInput,
    PaddingDecision,
    PaddingRule,
    RowSplit,
)
from byoc.padding._value_bounds import find_fill_axis

NONE_EQUAL: Mapping[str, str] = MappingProxyType({})

LoadModel = Callable[[Mapping[str, int | str]], Model]
"""Loads a model with some dimensions as they are given, the others open."""


def decide_padding(load: LoadModel, sizes: Mapping[str, int]) -> PaddingDecision:
    """Decide which dimensions of a variant may be smaller, and how its inputs are padded then.

    `sizes` has the dimensions that are the variant's own. `load` gives the model with some of them
    fixed, or equal to another by its name, and the rest open. All are tried at once first, then with
    those equal that have one size (without a past the total length of a decoder is that of the new
    tokens), at last one after the other, each kept that works with those before it.
    """
    candidates = [name for name, size in sizes.items() if size > 1]
    fixed = {name: size for name, size in sizes.items() if size <= 1}
    if not candidates:
        return PaddingDecision()
    equal = _find_equal(candidates, sizes)
    for relations in ({}, equal) if equal else ({},):
        open_sizes = {name: sizes[name] for name in candidates if name not in relations}
        rule, cause = _find_rule(load, fixed, open_sizes, relations)
        if rule is not None:
            return PaddingDecision(rule)
    kept: dict[str, int] = {}
    best: PaddingRule | None = None
    refusals: dict[str, str] = {}
    for name in candidates if len(candidates) > 1 else ():
        trial = {**kept, name: sizes[name]}
        others = {other: size for other, size in sizes.items() if other not in trial}
        rule, cause = _find_rule(load, others, trial)
        if rule is not None:
            kept, best = trial, rule
        else:
            refusals[name] = str(cause)
    if len(candidates) == 1:
        refusals[candidates[0]] = str(cause)
    return PaddingDecision(best, refusals)


def _find_equal(candidates: list[str], sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the dimensions of a size that an earlier one has, with the name of that one."""
    first: dict[int, str] = {}
    equal = {}
    for name in candidates:
        if first.setdefault(sizes[name], name) != name:
            equal[name] = first[sizes[name]]
    return equal


def _find_rule(
    load: LoadModel,
    fixed: Mapping[str, int],
    sizes: Mapping[str, int],
    equal: Mapping[str, str] = NONE_EQUAL,
) -> tuple[PaddingRule | None, Misalignment | None]:
    """Return the rule for padding some dimensions together, or why there is none."""
    try:
        model = load({**fixed, **equal})
        return _prove(model, sizes, equal)
    except InputError as error:
        return None, Misalignment("", str(error))


def _prove(
    model: Model, sizes: Mapping[str, int], equal: Mapping[str, str]
) -> tuple[PaddingRule | None, Misalignment | None]:
    """Return the rule for padding the open dimensions of a model, or why there is none."""
    left = set(list_open_dims(model.structure)) - sizes.keys()
    if left:
        return None, Misalignment("", f"{min(left)} is open, and has to be given")
    graph = PaddedGraph(model, sizes)
    padded = [name for name in graph.index.inputs if find_fill_axis(graph, name) is not None]
    if not sizes.keys() <= _list_named_dims(graph):
        return None, Misalignment("", "no input has it as an extent of its own")
    found, cause = _search_assumptions(graph, padded)
    if found is None:
        return None, cause
    return replace(_make_rule(found), equal=equal), None


def _list_named_dims(graph: PaddedGraph) -> set[Dim]:
    """Return the extents of inputs, by which their sizes are known when a call is made."""
    return {dim for name in graph.index.inputs for dim in graph.get_shape(name) or ()}


def _search_assumptions(
    graph: PaddedGraph, padded: list[str]
) -> tuple[Alignment | None, Misalignment | None]:
    """Return an alignment of all outputs, with as few assumptions as it needs, or why there is none."""
    told: Misalignment | None = None
    is_final = False
    for assumptions in _list_assumptions(graph, padded):
        found = Alignment(graph, assumptions)
        cause = found.find_cause()
        if cause is None:
            return _drop_assumptions(found), None
        if not is_final:  # masks of what is left out are rare, so that what they lack says little
            told, is_final = cause, bool(assumptions.firsts)
        if not cause.by_value:
            return None, cause
    return None, told


def _list_assumptions(graph: PaddedGraph, padded: list[str]) -> Iterator[Assumptions]:
    """Yield assumptions on inputs: none, zeros as padding, masks that begin with a one."""
    yield Assumptions()
    kinds = {name: to_numpy_dtype(graph.get_dtype(name)).kind for name in padded}
    zeros: dict[str, Bit] = {name: 0 for name, kind in kinds.items() if kind in "biuf"}
    masks = [name for name in zeros if kinds[name] in "biu"]
    yield Assumptions(zeros)
    if masks:
        yield Assumptions(zeros, dict.fromkeys(masks, 1))
    for name in masks:  # a mask of what is left out
        others: dict[str, Bit] = {other: 1 for other in masks if other != name}
        yield Assumptions({**zeros, name: 1}, {**others, name: 0})


def _drop_assumptions(found: Alignment) -> Alignment:
    """Return an alignment of all outputs without the assumptions that it does not need."""
    given = found.assumptions
    parts = [
        (part, name)
        for name in given.fills
        for part in ("firsts", "fills")
        if part == "fills" or name in given.firsts
    ]
    return _drop_parts(found, parts) if parts else found


def _drop_parts(found: Alignment, parts: list[tuple[str, str]]) -> Alignment:
    """Return an alignment without some assumptions: without all where that holds, else half by half.

    A decoder has two caches a layer, which mostly need the same.
    """
    names = {part: {name for each, name in parts if each == part} for part in ("firsts", "fills")}
    kept = found.assumptions
    fills = {name: value for name, value in kept.fills.items() if name not in names["fills"]}
    firsts = {n: v for n, v in kept.firsts.items() if n not in names["firsts"] | names["fills"]}
    trial = Alignment(found.graph, Assumptions(fills, firsts))
    if trial.find_cause() is None:
        return trial
    if len(parts) == 1:
        return found
    half = len(parts) // 2
    return _drop_parts(_drop_parts(found, parts[:half]), parts[half:])


def _make_rule(found: Alignment) -> PaddingRule:
    """Return the rule of an alignment of all outputs."""
    graph, given = found.graph, found.assumptions
    inputs = {}
    for name in graph.index.inputs:
        shape, axis = graph.get_shape(name), find_fill_axis(graph, name)
        if shape is None or axis is None:
            continue
        first = FirstValue(axis, given.firsts[name]) if name in given.firsts else None
        inputs[name] = PaddedInput(shape, given.fills.get(name, EDGE), first)
    outputs = {}
    for name in graph.index.outputs:
        shape = graph.get_shape(name)
        if name not in found.same and shape is not None and any(map(graph.is_padded, shape)):
            outputs[name] = shape
    return PaddingRule(dict(graph.sizes), inputs, outputs, reads_values=found.bounds.used)


# A batch of independent rows as calls of one row, or of some, each: the proof.
#
# That a batch may be padded, by the graph's structure alone, shows that the first row's results do not
# depend on the rows behind it. (A sum over zeros that padding adds rests on values, and is refused.) It
# is no proof for the others: a CumSum over the batch, or a difference from the first row, may be padded,
# too. So each node on the way has to treat the rows alike as well: if they change places, so do its
# results. Then any row can be the first one, and each row's results are those of a call with that row
# alone.

MOST_ROWS = 256
"""The largest batch that is split; the proof is for all up to it."""


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
