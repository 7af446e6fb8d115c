"""The search for what can be padded: which dimensions, with which values behind the inputs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.model import Dim, Model, evaluate_dim, list_open_dims, subtract_dims, to_numpy_dtype
from byoc.padding._alignment import Alignment, Misalignment
from byoc.padding._padded_graph import Assumptions, Bit, PaddedGraph
from byoc.padding._value_bounds import find_fill_axis

if TYPE_CHECKING:
    from byoc.padding._row_split import RowSplit


# Padding of arrays by a rule, and cutting of what comes out.

# The rule by which inputs are padded to the sizes of a variant, and its outputs cut.

EDGE: Literal["edge"] = "edge"
"""The value of a padded input that repeats the last entry along each padded axis."""


@dataclass(frozen=True)
class FirstValue:
    """A condition on an input: at index 0 of an axis it has this value everywhere."""

    axis: int
    value: Literal[0, 1]


@dataclass(frozen=True)
class PaddedInput:
    """The padding of an input: its unpadded shape, and the value of padding, a number or `edge`.

    The extents are numbers and expressions of the rule's dimensions. The number is filled in along the
    last padded axis; along any other, and where it is `edge`, the last entries are repeated. `first` is
    what the caller's array has to have at index 0 of an axis, None where anything will do.

    `room` is how many entries the caller's array lacks at the end of its last padded axis: the model
    writes there. One that is `made` is no array of a caller's, but ones of that shape.
    """

    shape: tuple[Dim, ...]
    value: Literal["edge", 0, 1] = EDGE
    first: FirstValue | None = None
    room: int = 0
    made: bool = False

    @property
    def own_shape(self) -> tuple[Dim, ...]:
        """The shape of the caller's array."""
        if not self.room:
            return self.shape
        axis = max(axis for axis, dim in enumerate(self.shape) if isinstance(dim, str))
        return tuple(
            subtract_dims(dim, self.room) if i == axis else dim for i, dim in enumerate(self.shape)
        )


@dataclass(frozen=True)
class PaddingRule:
    """The dimensions that may be smaller than a variant has them, and what is done then.

    `dims` has the largest size of each, that of the variant; the smallest is 1, and 0 where the model
    writes to a cache. `equal` has dimensions that are to be of the size of another, with the name of
    that one or an expression of it. Inputs that are not in `inputs`, and outputs that are not in
    `outputs`, are the same for all sizes. An output is cut to its shape here. `reads_values` says that
    the proof rests on what values are, not only on which elements each is computed from: it holds for
    the model's own dtypes alone.
    """

    dims: Mapping[str, int]
    inputs: Mapping[str, PaddedInput]
    outputs: Mapping[str, tuple[Dim, ...]]
    equal: Mapping[str, str] = field(default_factory=dict)
    reads_values: bool = False

    @property
    def is_static(self) -> bool:
        """Whether it is that of a model which writes to a cache of a fixed length."""
        return any(each.made for each in self.inputs.values())

    @property
    def least(self) -> int:
        """The smallest size of a dimension."""
        return 0 if self.is_static else 1

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes of the dimensions together with those that follow from them."""
        return {**sizes, **{name: evaluate_dim(other, sizes) or 0 for name, other in self.equal.items()}}

    def list_trial_sizes(self) -> list[dict[str, int]]:
        """Return sizes to verify the rule at: all at 1, and all at half of the largest.

        Where the model writes to a cache, none and the largest are among them, since it is another model
        than the caller's.
        """
        found: list[dict[str, int]] = []
        halves = {n: max(s // 2, 1) for n, s in self.dims.items()}
        trials = [dict.fromkeys(self.dims, 1), halves]
        if self.is_static:
            trials = [dict.fromkeys(self.dims, 0), *trials, dict(self.dims)]
        for sizes in trials:
            if sizes not in found and (self.is_static or sizes != dict(self.dims)):
                found.append(sizes)
        return found


@dataclass(frozen=True)
class PaddingDecision:
    """The rule of a variant, None where nothing can be padded, and why other dimensions cannot.

    `split` is how a batch that is larger than the variant's is run, None where it is not.
    """

    rule: PaddingRule | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)
    split: "RowSplit | None" = None

    def describe(self) -> str:
        """Return it as people read it: `seq 1 to 16; not batch: REASON`. Empty where nothing is open."""
        told = (
            []
            if self.rule is None
            else [f"{n} {self.rule.least} to {size}" for n, size in self.rule.dims.items()]
        )
        parts = [", ".join(told)] if told else []
        return "; ".join([*parts, *(f"not {name}: {why}" for name, why in self.refusals.items())])


Arrays = Mapping[str, Any]


def find_unpadded_sizes(rule: PaddingRule, inputs: Arrays) -> dict[str, int]:
    """Return the sizes of a rule's dimensions that inputs have.

    Raises InputError where an input has another rank, an extent that contradicts another or is beyond
    the largest, and where it is not at index 0 what the rule needs.
    """
    sizes: dict[str, int] = {}
    given = {name: each for name, each in rule.inputs.items() if name in inputs and not each.made}
    shapes = {name: np.shape(inputs[name]) for name in given}
    own_shapes = {name: each.own_shape for name, each in given.items()}
    for name, shape in shapes.items():
        expected = own_shapes[name]
        if len(shape) != len(expected):
            raise InputError(f"input '{name}' has {len(shape)} dimensions, not {len(expected)}")
        for dim, extent in zip(expected, shape, strict=True):
            if isinstance(dim, str) and dim in rule.dims and sizes.setdefault(dim, extent) != extent:
                raise InputError(f"input '{name}' has {dim}={extent}, another has {sizes[dim]}")
    for name, largest in rule.dims.items():
        if name not in sizes:
            raise InputError(f"no input says what {name} is")
        if not rule.least <= sizes[name] <= largest:
            raise InputError(f"{name} is {sizes[name]}, and may be {rule.least} to {largest}")
    for name, shape in shapes.items():
        own = tuple(evaluate_dim(dim, sizes) for dim in own_shapes[name])
        if shape != own:
            raise InputError(f"input '{name}' is {list(shape)}, not {list(own)}")
        _check_first(name, inputs[name], rule.inputs[name])
    return sizes


def _check_first(name: str, value: Any, padded: PaddedInput) -> None:
    first = padded.first
    if first is None:
        return
    if not bool(np.all(np.take(value, 0, first.axis) == first.value)):
        raise InputError(
            f"input '{name}' is padded only where it is {first.value:g} at index 0 of axis {first.axis}"
        )


def pad_inputs(rule: PaddingRule, inputs: Arrays, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return inputs at the largest sizes of a rule, with those that are made for it; others as they are.

    Along the last padded axis they are continued with the rule's value, along any other with their last
    entries. `sizes` are those that `find_unpadded_sizes` finds.
    """
    padded = dict(inputs)
    for name, each in rule.inputs.items():
        if each.made:
            shape = [evaluate_dim(dim, sizes) or 0 for dim in each.shape]
            padded[name] = _pad_array(np.ones(shape, bool), each, rule.dims)
        elif name in inputs:
            padded[name] = _pad_array(np.asarray(inputs[name]), each, rule.dims)
    return padded


def make_padded_shapes(rule: PaddingRule, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return arrays of the dtypes and shapes that padding gives inputs, which take no memory."""
    dtypes = {name: np.asarray(value).dtype for name, value in inputs.items() if name in rule.inputs}
    dtypes |= {name: np.dtype(bool) for name, each in rule.inputs.items() if each.made}
    shapes = {
        name: [evaluate_dim(dim, rule.dims) or 0 for dim in rule.inputs[name].shape] for name in dtypes
    }
    return {name: np.broadcast_to(np.zeros((), dtypes[name]), shapes[name]) for name in dtypes}


def _pad_array(array: NDArray[Any], padded: PaddedInput, sizes: Mapping[str, int]) -> NDArray[Any]:
    shape = [evaluate_dim(dim, sizes) for dim in padded.shape]
    missing = [(0, (whole or 0) - extent) for whole, extent in zip(shape, array.shape, strict=True)]
    open_axes = [axis for axis, dim in enumerate(padded.shape) if isinstance(dim, str)]
    if padded.value != EDGE and open_axes:
        last = open_axes[-1]
        widths = [(0, 0)] * array.ndim
        widths[last], missing[last] = missing[last], (0, 0)
        fill = np.array(padded.value).astype(array.dtype)
        array = np.pad(array, widths, constant_values=fill)
    return (
        np.pad(array, missing, mode="edge")
        if array.size
        else np.zeros([e or 0 for e in shape], array.dtype)
    )


def cut_outputs(rule: PaddingRule, outputs: Arrays, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return outputs without what padding added, by the sizes that the inputs have.

    Raises InputError where an output is not as long as the rule says.
    """
    found = dict(outputs)
    for name, dims in rule.outputs.items():
        if name not in outputs:
            continue
        array = np.asarray(outputs[name])
        shape = [evaluate_dim(dim, sizes) for dim in dims]
        if len(shape) != array.ndim or any(
            extent is None or not 0 <= extent <= whole
            for extent, whole in zip(shape, array.shape, strict=True)
        ):
            raise InputError(f"output '{name}' is {list(array.shape)}, too short for {shape}")
        found[name] = np.ascontiguousarray(array[tuple(slice(extent) for extent in shape)])
    return found


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
