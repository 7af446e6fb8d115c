"""The search for what can be padded: which dimensions, with which values behind the inputs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from byoc.errors import InputError
from byoc.model import Dim, Model, list_open_dims, to_numpy_dtype
from byoc.padding._alignment import Alignment, Misalignment
from byoc.padding._array_padding import EDGE, FirstValue, PaddedInput, PaddingDecision, PaddingRule
from byoc.padding._padded_graph import Assumptions, Bit, PaddedGraph
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
