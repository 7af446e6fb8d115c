"""Types of If, Loop and Scan, settled in their bodies."""

from collections.abc import Callable, Mapping, Sequence

from byoc.model._node_attributes import get_stated_attributes
from byoc.model._tensor_types import Dim, TensorType
from byoc.model._walk import get_input
from byoc.model.inference._elementwise_shapes import Types, merge_dims
from byoc.model.inference._extents import max_dims
from byoc.model.inference._scope_values import find_value, record_made_inside
from byoc.model.inference._scopes import TensorScope
from byoc.model.inference._type_merging import complete_type, contradicts

Settle = Callable[[TensorScope], None]

# So often the types that a Loop carries are tried, before their shapes are given up.
_MAX_ROUNDS = 4


def _settle_if(scope: TensorScope, number: int, settle: Settle) -> Types:
    node = scope.nodes[number]
    inner = [scope.enter_body(number, name) for name in ("then_branch", "else_branch")]
    branches = [branch for branch in inner if branch is not None]
    if len(branches) < 2:
        return []
    for branch in branches:
        settle(branch)
    scope.bodies[number] = branches
    condition = find_value(scope, get_input(node, 0))
    if condition is None or condition.size != 1 or condition.dtype == object:
        then, other = map(_list_output_types, branches)
        for name, a, b in zip(node.output, then, other, strict=False):
            if a is not None and b is not None and a.shape is not None and b.shape is not None:
                scope.varying.update([name] if len(a.shape) != len(b.shape) else [])
        return [_generalize(a, b) for a, b in zip(then, other, strict=False)]
    taken = branches[0 if condition.ravel()[0] else 1]
    assert taken.graph is not None
    record_made_inside(scope, number, taken, (value.name for value in taken.graph.output))
    return _list_output_types(taken)


def _list_output_types(body: TensorScope) -> list[TensorType | None]:
    assert body.graph is not None
    return [body.find_type(value.name) for value in body.graph.output]


def _generalize(a: TensorType | None, b: TensorType | None) -> TensorType | None:
    """Return a type that both of two have, as far as they agree."""
    if a is None or b is None or a.dtype != b.dtype:
        return None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype, None)
    pairs = zip(a.shape, b.shape, strict=True)
    return TensorType(a.dtype, tuple(one if one == other else None for one, other in pairs))


def _enter(scope: TensorScope, number: int, given: Sequence[TensorType | None]) -> TensorScope:
    """Return a new scope of a Loop's or Scan's body whose inputs have the given types."""
    body = scope.enter_body(number, "body")
    assert body is not None and body.graph is not None
    for value, kind in zip(body.graph.input, given, strict=False):
        if kind is not None and kind != body.types.get(value.name):
            if (before := body.types.get(value.name)) is not None and contradicts(kind, before):
                body.corrected.add(value.name)
            body.types[value.name] = kind
            body.changed.add(value.name)
    return body


def _list_stated_inputs(scope: TensorScope, number: int) -> list[TensorType | None]:
    """Return the types that the file states for the inputs of a Loop's or Scan's body."""
    body = scope.enter_body(number, "body")
    if body is None or body.graph is None:
        return []
    return [body.stated.get(value.name) for value in body.graph.input]


def _settle_loop(scope: TensorScope, number: int, settle: Settle) -> Types:
    """Return the types of a Loop: of what it carries as far as it stays, and of what it stacks."""
    node = scope.nodes[number]
    stated = _list_stated_inputs(scope, number)
    if len(stated) < len(node.input):
        return []
    fixed = [stated[0] or TensorType("int64", ()), stated[1] or TensorType("bool", ())]
    carried = [
        complete_type(scope.find_type(name) if name else None, kind)
        for name, kind in zip(node.input[2:], stated[2:], strict=False)
    ]
    body = scope
    for left in reversed(range(_MAX_ROUNDS)):
        body = _enter(scope, number, [*fixed, *carried])
        settle(body)
        after = _list_output_types(body)[1 : 1 + len(carried)]
        kept = [_generalize(a, b) for a, b in zip(carried, after, strict=False)]
        if kept == carried:
            break
        carried = kept if left > 1 else [kind and TensorType(kind.dtype, None) for kind in kept]
    scope.bodies[number] = [body]
    count = _count_trips(scope, number, body)
    stacked = _list_output_types(body)[1 + len(carried) :]
    return [*carried, *(_insert_axis(kind, count, 0) for kind in stacked)]


def _count_trips(scope: TensorScope, number: int, body: TensorScope) -> Dim:
    """Return the trip count of a Loop, None unless its condition stays true."""
    node = scope.nodes[number]
    limit = find_value(scope, get_input(node, 0)) if get_input(node, 0) else None
    if limit is None or limit.size != 1 or body.graph is None:
        return None
    stays = body.graph.output[0].name
    passed = body.graph.input[1].name
    while stays in body.producers and body.nodes[body.producers[stays]].op_type == "Identity":
        stays = body.nodes[body.producers[stays]].input[0]
    begins = not get_input(node, 1) or _is_true(scope, node.input[1])
    goes_on = stays == passed or _is_true(body, stays)
    return max_dims(limit.ravel().tolist()[0], 0) if begins and goes_on else None


def _is_true(scope: TensorScope, name: str) -> bool:
    value = find_value(scope, name)
    return value is not None and value.size == 1 and value.ravel().tolist()[0] is True


def _insert_axis(kind: TensorType | None, dim: Dim, axis: int) -> TensorType | None:
    """Return the type of tensors stacked along an axis."""
    if kind is None or kind.shape is None or not -len(kind.shape) - 1 <= axis <= len(kind.shape):
        return kind and TensorType(kind.dtype, None)
    axis %= len(kind.shape) + 1
    return TensorType(kind.dtype, (*kind.shape[:axis], dim, *kind.shape[axis:]))


def _settle_scan(scope: TensorScope, number: int, settle: Settle) -> Types:
    """Return the types of a Scan: its states keep theirs, its outputs are stacked along an axis."""
    node = scope.nodes[number]
    attributes = get_stated_attributes(node)
    stated = _list_stated_inputs(scope, number)
    count = attributes.get("num_scan_inputs", 0)
    if not 1 <= count <= len(node.input) <= len(stated):
        return []
    if scope.get_opset(node) < _OPSET_WITHOUT_BATCH:
        return []
    states = len(node.input) - count
    kinds = [scope.find_type(name) for name in node.input]
    steps: Dim = None
    given: list[TensorType | None] = kinds[:states]
    axes = attributes.get("scan_input_axes", [0] * count)
    for kind, axis in zip(kinds[states:], axes, strict=False):
        if kind is None or kind.shape is None or not -len(kind.shape) <= axis < len(kind.shape):
            given.append(kind and TensorType(kind.dtype, None))
            continue
        rest = list(kind.shape)
        steps = merge_dims(steps, rest.pop(axis))
        given.append(TensorType(kind.dtype, tuple(rest)))
    body = _enter(scope, number, list(map(complete_type, given, stated)))
    settle(body)
    scope.bodies[number] = [body]
    made = _list_output_types(body)
    stacked = made[states:]
    axes = attributes.get("scan_output_axes", [0] * len(stacked))
    last = [_generalize(a, b) for a, b in zip(given, made[:states], strict=False)]
    return [*last, *(_insert_axis(kind, steps, axis) for kind, axis in zip(stacked, axes, strict=False))]


# Before it, a Scan ran once for each element of a batch.
_OPSET_WITHOUT_BATCH = 9

BODY_RULES: Mapping[str, Callable[[TensorScope, int, Settle], Types]] = {
    "If": _settle_if,
    "Loop": _settle_loop,
    "Scan": _settle_scan,
}
"""Operators with bodies to what types their outputs, given what settles a scope."""
