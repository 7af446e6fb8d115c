"""Composites that round less than their operators one by one, and take longer: where to have them.

An accelerator may compute a function of a convolution's sums before it rounds them, in more time. A
rule file says so of a composite (`finer`). Those come first that lower the rounding noise most for
their time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from byoc.model import GraphIndex, Model, copy_without, set_metadata
from byoc.patterns import Match, find_matches
from byoc.quantization._candidates import FINER_KEY
from byoc.quantization._channel_statistics import CHANNELS, measure_channels
from byoc.quantization._ranges import EIGHT_BIT_STEPS, Range
from byoc.rules import Target

_TINY = 1e-30


@dataclass(frozen=True, eq=False)
class FinerComposite:
    """A place where a model could have a finer composite, and the rounding noise that it would spare.

    `noise` is that of 8 bits in what the last node of the match makes, as a share of its signal, and
    `elements` is the number of elements of that tensor.
    """

    match: Match
    noise: float
    elements: int


def find_finer_composites(
    model: Model, targets: Sequence[Target], samples: Sequence[Mapping[str, Any]]
) -> list[FinerComposite]:
    """Return the places where a float model could have finer composites; none shares a node.

    Ranges and signals are measured on the samples.
    """
    index, matches = model.index, _match_finer(model.index, targets)
    if not matches:
        return []
    names = sorted({_find_result(index, match) for match in matches})
    statistics = measure_channels(model, names, samples, "functions")
    places = []
    for match in matches:
        seen = statistics[_find_result(index, match)]
        step = Range(float(seen.low.min()), float(seen.high.max())).width / EIGHT_BIT_STEPS
        signal = max(float((seen.power - seen.mean**2).mean()), _TINY)
        shape = index.get_shape(_find_result(index, match)) or ()
        elements = math.prod(extent for extent in shape if isinstance(extent, int))
        places.append(FinerComposite(match, step**2 / 12 / signal, max(elements, 1)))
    return places


def _match_finer(index: GraphIndex, targets: Sequence[Target]) -> list[Match]:
    """Return the matches of finer composites whose results have channels; none shares a node."""
    patterns = [each for target in targets for each in target.patterns if each.finer]
    free = frozenset(range(len(index.nodes))) - index.constant_nodes
    taken: set[int] = set()
    found: list[Match] = []
    for match in find_matches(index, patterns, free) if patterns else ():
        nodes = set(match.nodes.values())
        if taken.isdisjoint(nodes) and (index.get_rank(_find_result(index, match)) or 0) > CHANNELS:
            taken |= nodes
            found.append(match)
    return found


def choose_finer(
    model: Model, places: Sequence[FinerComposite], predict: Callable[[Model], float], most: float
) -> tuple[Model, int]:
    """Return a model marked with the finer composites that are worth their time most, and their number.

    `predict` returns the seconds of a model so marked. All that are chosen take at most a share `most`
    of the seconds without any. How long one takes grows with the elements that it makes.
    """
    order = sorted(places, key=lambda each: -each.noise / each.elements)
    limit = (1 + most) * predict(model)
    count, too_many = 0, len(order) + 1  # the first `count` are within the limit
    while count + 1 < too_many:
        middle = (count + too_many) // 2
        if predict(mark_finer(model, order[:middle])) <= limit:
            count = middle
        else:
            too_many = middle
    return mark_finer(model, order[:count]), count


def mark_finer(model: Model, places: Sequence[FinerComposite]) -> Model:
    """Return a float model whose last nodes of some finer composites are marked."""
    if not places:
        return model
    proto = copy_without(model.structure)
    for place in places:
        set_metadata(proto.graph.node[place.match.root], FINER_KEY, place.match.pattern.name)
    return replace(model, structure=proto)


def _find_result(index: GraphIndex, match: Match) -> str:
    return index.nodes[match.root].output[0]
