"""The effect of a pass: the nodes before and after it by operator, and how it was verified."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from onnx import ModelProto, TensorProto

from byoc.model import get_operator_name, walk_nodes


@dataclass(frozen=True)
class PassEffect:
    """The effect of a pass on the model, or on the regions of one target.

    `distribution` is the package it comes from, with its version. `nodes_before` and `nodes_after` count
    nodes by operator, those in bodies and functions included; `rewritten` is how many nodes changed and
    kept their operator, where the pass counts them. `changed` is the number of regions (or
    models) that it changed, of `applied`. `compared` is the number of samples on which the original and
    the rewritten form were compared, `equal` says that all outputs had the same bits, and
    `largest_error` is the largest as a share of the output's range. `not_compared` says why nothing was
    compared.
    """

    name: str
    distribution: str
    scope: str
    target: str = ""
    options: dict[str, str] = field(default_factory=dict)
    nodes_before: dict[str, int] = field(default_factory=dict)
    nodes_after: dict[str, int] = field(default_factory=dict)
    rewritten: int = 0
    applied: int = 1
    changed: int = 0
    compared: int = 0
    equal: bool = False
    largest_error: float = 0.0
    not_compared: str = ""


def count_operators(model: ModelProto) -> dict[str, int]:
    """Count the nodes of a model by operator, those in bodies and functions included, sorted by name.

    An operator of another domain than ONNX's is named with its domain.
    """
    inside = (function.node for function in model.functions)
    found = Counter(map(get_operator_name, walk_nodes(chain(model.graph.node, *inside))))
    return dict(sorted(found.items()))


def is_changed(before: ModelProto, after: ModelProto) -> bool:
    """Return whether a pass changed anything but metadata; content of files is not compared."""
    for one, other in (
        (before.graph.node, after.graph.node),
        (before.graph.input, after.graph.input),
        (before.graph.output, after.graph.output),
        (before.functions, after.functions),
        (before.opset_import, after.opset_import),
    ):
        if list(one) != list(other):
            return True
    stored = {tensor.name: tensor for tensor in before.graph.initializer}
    return len(stored) != len(after.graph.initializer) or any(
        tensor.name not in stored or _is_other(stored[tensor.name], tensor)
        for tensor in after.graph.initializer
    )


def _is_other(before: TensorProto, after: TensorProto) -> bool:
    if before.data_location == TensorProto.EXTERNAL:
        return (before.data_type, before.dims) != (after.data_type, after.dims)
    return before != after


def merge_effects(effects: Iterable[PassEffect]) -> tuple[PassEffect, ...]:
    """Merge the effects of each pass on the regions of a target into one, in the order of the first."""
    found: dict[tuple[str, str], list[PassEffect]] = {}
    for each in effects:
        found.setdefault((each.name, each.target), []).append(each)
    return tuple(_merge(group) for group in found.values())


def _merge(group: list[PassEffect]) -> PassEffect:
    first = group[0]
    return PassEffect(
        name=first.name,
        distribution=first.distribution,
        scope=first.scope,
        target=first.target,
        options=first.options,
        nodes_before=_add(each.nodes_before for each in group),
        nodes_after=_add(each.nodes_after for each in group),
        rewritten=sum(each.rewritten for each in group),
        applied=sum(each.applied for each in group),
        changed=sum(each.changed for each in group),
        compared=sum(each.compared for each in group),
        equal=all(each.equal for each in group),
        largest_error=max(each.largest_error for each in group),
        not_compared=next((each.not_compared for each in group if each.not_compared), ""),
    )


def _add(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
