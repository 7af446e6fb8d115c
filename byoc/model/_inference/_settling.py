"""Types of all tensors of a model, node by node: extents that follow from values and symbolic extents.

ONNX's inference goes first, and follows values through a few operators only. Where it leaves an extent
open, one pass in topological order settles what follows from the file: rules that calculate with
symbolic extents, values of small tensors, bodies of control flow, functions. What a file states is used
where nothing is inferred; it never replaces what is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto

from byoc._dataclasses import dataclass
from byoc.model._inference._contrib_rules import infer_contrib_types
from byoc.model._inference._elementwise_shapes import ELEMENTWISE_RULES, ML_RULES, Types, merge_dims
from byoc.model._inference._extents import max_dims
from byoc.model._inference._moved_values import Array, Rule
from byoc.model._inference._movement_shapes import CUTTING_RULES, MOVEMENT_RULES
from byoc.model._inference._scope_values import (
    describe_node,
    find_value,
    follow_sequence,
    infer_by_onnx,
    infer_from_sequence,
    read_values,
    record_made_inside,
    type_by_values,
)
from byoc.model._inference._scopes import (
    InferenceContext,
    TensorScope,
    VisitError,
    complete_type,
    contradicts,
    is_fixed,
)
from byoc.model._inference._window_shapes import MATRIX_RULES, POOLS, WINDOW_RULES
from byoc.model._node_kinds import NodeRecords, get_stated_attributes
from byoc.model._tensor_data import Dim, TensorType, read_type
from byoc.model._vendor_operators import infer_vendor_types
from byoc.model._walk import get_input, is_onnx, list_bodies, walk_graphs
from byoc.model.schemas import get_schema

# Types of If, Loop and Scan, settled in their bodies.

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
    count = count_loop_trips(scope, number, body)
    stacked = _list_output_types(body)[1 + len(carried) :]
    return [*carried, *(_insert_axis(kind, count, 0) for kind in stacked)]


def count_loop_trips(scope: TensorScope, number: int, body: TensorScope) -> Dim:
    """Return the trip count of a Loop, None where it is not known that its condition stays true.

    `body` is the scope of its body.
    """
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


SHAPE_RULES: Mapping[str, Rule] = {
    **ELEMENTWISE_RULES,
    **MOVEMENT_RULES,
    **CUTTING_RULES,
    **WINDOW_RULES,
    **MATRIX_RULES,
    **ML_RULES,
}
"""Operators of ONNX's domains to the rules that type them."""

# The inputs whose values a rule reads; those of a reduction are its axes.
_VALUE_INPUTS: Mapping[str, tuple[int, ...]] = {
    **{name: (1,) for name in SHAPE_RULES if name.startswith("Reduce")},
    **dict.fromkeys(["Expand", "OneHot", "Reshape", "Split", "Squeeze", "Tile", "TopK"], (1,)),
    **dict.fromkeys(["Compress", "Unsqueeze", "Upsample"], (1,)),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "MaxUnpool": (2,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
}
MAX_VISITS = 500_000
"""Nested loops and calls can expand to more nodes than there is time to visit."""

_DOUBTFUL = frozenset({*POOLS, "ConvTranspose", "NonZero", "Resize", "STFT", "Upsample"})
# Their outputs are as large as their values say.
_TYPED_BY_VALUE = frozenset({"Compress", "NonZero", "Unique"})


@dataclass(frozen=True)
class SettledTypes:
    """The result of settling types.

    `varying` are the tensors of the main graph whose rank differs from run to run; `complete` says that
    ONNX's inference had found all types, `uses_stated` that some are what the file states. `scope` has
    the types and values of the main graph, None where all types were fixed at once.
    """

    varying: frozenset[str]
    complete: bool
    uses_stated: bool
    scope: TensorScope | None = None

    def list_changed(self) -> dict[str, TypeProto]:
        """Return the types of the main graph that were completed."""
        if self.scope is None:
            return {}
        return dict(self.scope.write_changed())


def settle_types(
    typed: ModelProto,
    model: ModelProto,
    records: NodeRecords,
    types: Mapping[str, TypeProto],
    stated: Mapping[str, TypeProto],
) -> SettledTypes:
    """Complete the types of a model in place, in bodies, too.

    `typed` is the model as ONNX's inference typed it from its inputs, `model` the same with what the
    file states of other tensors. Of their main graphs, `types` and `stated` are the types that are there
    (`get_stated_types`); `records` are those of the nodes.
    """
    doubtful = _find_doubtful_functions(model.functions)
    if not records.has_bodies and not doubtful and _are_all_fixed(typed.graph, records, types):
        return SettledTypes(frozenset(), complete=True, uses_stated=False)
    names = [dim.dim_param for value in model.graph.input for dim in _list_dims(value.type)]
    context = InferenceContext.read(model, filter(None, names), MAX_VISITS)
    context.doubtful = doubtful
    opsets = read_opsets(model.opset_import)
    scope = TensorScope.of_graph(context, typed.graph, model.graph, opsets, types=types)
    scope.known_stated = stated
    bodies: Sequence[GraphProto] = ()
    if records.has_bodies:  # inference has added types to them, which are in the records of their nodes
        bodies = list(walk_graphs(typed.graph))[1:]
    else:
        scope.known_records = records
    scopes = (scope, *(TensorScope.of_graph(context, body, body, {}) for body in bodies))
    known = all(each.is_settled(name) for each in scopes for name in each.producers)
    settled = known and not any(map(_list_doubtful, scopes))
    if not settled:
        try:
            settle_nodes(scope)
        except VisitError:
            context.visits_left = 0  # what is settled so far is right
    scope.write_types()
    complete = settled and not scope.changed
    return SettledTypes(frozenset(scope.varying), complete, context.uses_stated, scope)


def _are_all_fixed(graph: GraphProto, records: NodeRecords, types: Mapping[str, TypeProto]) -> bool:
    """Return whether a graph without bodies states extents of all tensors, and all are beyond doubt."""
    distinct = {id(proto): proto for proto in types.values()}  # tensors share them
    if not all(kind is not None and is_fixed(kind) for kind in map(read_type, distinct.values())):
        return False
    named = {"", *types}
    ends = [value.name for value in (*graph.output, *graph.input)]
    if not named.issuperset(ends) or not all(map(named.issuperset, records.outputs)):
        return False
    return not any(_is_doubtful(node) for node in records.list_distinct(graph.node))


def read_opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the versions of operator sets; ONNX's main domain is the empty text."""
    return {"" if each.domain == "ai.onnx" else each.domain: each.version for each in imports}


def _list_dims(kind: TypeProto) -> Iterable[onnx.TensorShapeProto.Dimension]:
    return kind.tensor_type.shape.dim if kind.HasField("tensor_type") else ()


def settle_nodes(scope: TensorScope) -> None:
    """Settle the types of what a scope's nodes make, in their order.

    Raises VisitError when it takes too many visits of nodes.
    """
    functions, doubtful = scope.context.functions, _list_doubtful(scope)
    for number, kind in enumerate(scope.kinds):
        scope.context.count_visit()
        if kind.has_bodies:
            rule = BODY_RULES.get(kind.op_type)
            types = rule(scope, number, settle_nodes) if rule is not None else ()
            scope.complete_types(number, types)
            continue
        function = _find_function(scope, number) if functions else None
        follow_sequence(scope, number)
        if scope.reads_corrected(number):
            scope.forget_types(number)
        if function is not None and (number in doubtful or scope.is_wanted(number)):
            scope.complete_types(number, _settle_call(scope, number, function))
        elif scope.is_open(number) or number in doubtful:
            scope.complete_types(number, _infer_types(scope, number))


def _list_doubtful(scope: TensorScope) -> set[int]:
    """Return the nodes that are doubtful, and the calls of functions that have such nodes, by number."""
    numbers = (i for i, kind in enumerate(scope.kinds) if kind.op_type in _DOUBTFUL)
    found = {number for number in numbers if _is_doubtful(scope.nodes[number])}
    if scope.context.doubtful:
        keys = map(_get_key, scope.nodes)
        found |= {number for number, key in enumerate(keys) if key in scope.context.doubtful}
    return found


def _find_doubtful_functions(functions: Iterable[FunctionProto]) -> frozenset[tuple[str, str, str]]:
    """Return the keys of functions with doubtful nodes, or with calls of such functions."""
    nodes = {(each.domain, each.name, each.overload): each.node for each in functions}
    found = {key for key, inside in nodes.items() if any(map(_is_doubtful, inside))}
    added = len(found)
    while added:
        callers = {key for key, inside in nodes.items() if not found.isdisjoint(map(_get_key, inside))}
        added = len(callers - found)
        found |= callers
    return frozenset(found)


def _get_key(node: NodeProto) -> tuple[str, str, str]:
    """Return the key of the function that a node calls, if it calls one."""
    return node.domain, node.op_type, node.overload


def _is_doubtful(node: NodeProto) -> bool:
    """Return whether ONNX's inference may find other extents for a node than onnxruntime makes.

    So it is with pools whose last window begins in the padding, with windows that are dilated or have
    output padding and are padded automatically, with images that are scaled, which is rounded, with the
    indices of a scalar, and with a spectrum that does not say its sides.
    """
    if node.op_type not in _DOUBTFUL or not is_onnx(node):
        return False
    if node.op_type in POOLS or node.op_type == "ConvTranspose":
        stated = {attribute.name for attribute in node.attribute}
        automatic = "auto_pad" in stated and not stated.isdisjoint(["dilations", "output_padding"])
        return "ceil_mode" in stated or automatic
    if node.op_type == "Resize":
        return not get_input(node, 3)
    return True


def _infer_types(scope: TensorScope, number: int) -> Types:
    """Return the types of a node's outputs by a rule, or else by ONNX's inference of one node."""
    taken = infer_from_sequence(scope, number)
    if any(taken):
        return list(taken)
    name = scope.kinds[number].operator
    rule = SHAPE_RULES.get(name)
    if rule is not None:
        types = infer_node(scope, number, _VALUE_INPUTS.get(name, ()), rule)
        if any(types):
            return type_by_values(scope, number, types) if name in _TYPED_BY_VALUE else types
    return infer_node(scope, number, scope.list_small_inputs(number), None)


def _find_function(scope: TensorScope, number: int) -> FunctionProto | None:
    return scope.context.functions.get(_get_key(scope.nodes[number]))


def _settle_call(scope: TensorScope, number: int, function: FunctionProto) -> Types:
    """Return the types of a call's outputs, settled in the body of the function."""
    node = scope.nodes[number]
    called = dict(zip(function.input, node.input, strict=False))
    small = {node.input[i] for i in scope.list_small_inputs(number)}
    attributes = {
        attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)
    }
    absent = set(function.input) - {formal for formal, name in called.items() if name}
    inner = TensorScope(
        scope.context,
        [_bind_node(each, attributes, absent) for each in function.node],
        read_opsets(function.opset_import),
        {f: kind for f, name in called.items() if name and (kind := scope.find_type(name)) is not None},
        values={f: find_value(scope, name) if name in small else None for f, name in called.items()},
    )
    settle_nodes(inner)
    record_made_inside(scope, number, inner, function.output)
    return [inner.find_type(name) for name in function.output]


def _bind_node(node: NodeProto, given: Mapping[str, AttributeProto], absent: set[str]) -> NodeProto:
    """Return a node of a function with a call's attributes, without the inputs that it leaves out."""
    bodies = list_bodies(node)
    referring = any(attribute.ref_attr_name for attribute in node.attribute)
    if not bodies and not referring and absent.isdisjoint(node.input):
        return node
    result = deepcopy(node)
    result.input[:] = ["" if name in absent else name for name in node.input]
    del result.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            result.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            result.attribute.append(given[attribute.ref_attr_name])
            result.attribute[-1].name = attribute.name
    for body in list_bodies(result):
        inner = [_bind_node(each, given, absent) for each in body.node]
        del body.node[:]
        body.node.extend(inner)
    return result


# Inference of one node: by a rule of ours, else by ONNX, else by the rules of other operators.

_LEFT_OUT = "left out"


def infer_node(scope: TensorScope, number: int, positions: Sequence[int], rule: Rule | None) -> Types:
    """Infer the types of a node's outputs by a rule; where there is none, by ONNX's own inference.

    Where that finds nothing, the rules of other operators than ONNX's follow. The values of inputs
    at some positions are wanted. Nodes that are alike are inferred once: of one kind and operator
    set, with equal types and values, and with the same inputs and outputs left out.
    """
    values = read_values(scope, number, positions)
    if any(value is not None and value.dtype == object for value in values):
        return _infer(scope, number, values, rule)
    key = (
        rule,
        scope.kinds[number],
        scope.imports,
        tuple([scope.find_type(name) if name else _LEFT_OUT for name in scope.inputs[number]]),
        tuple([value if value is None else _describe_value(value) for value in values]),
        tuple(map(bool, scope.outputs[number])),
    )
    found = scope.context.inferred.get(key)
    if found is None:
        found = scope.context.inferred[key] = _infer(scope, number, values, rule)
    return found


def _infer(
    scope: TensorScope, number: int, values: tuple[Array | None, ...], rule: Rule | None
) -> Types:
    known = describe_node(scope, number, values)
    if rule is not None:
        return rule(known)
    schema = get_schema(known.proto.op_type, known.proto.domain, known.opset)
    types: Types = []
    if schema is not None and schema.onnx_schema is not None:
        types = infer_by_onnx(known, schema.onnx_schema, scope.opsets, scope.context.ir_version)
    name = scope.kinds[number].operator
    types = types or infer_vendor_types(name, known.types, known.attributes)
    return types or infer_contrib_types(known)


def _describe_value(value: Array) -> tuple[str, tuple[int, ...], bytes]:
    """Return the dtype, shape and bytes of a value, which are equal for equal values alone."""
    return value.dtype.str, value.shape, value.tobytes()
