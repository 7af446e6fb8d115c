"""Tidying the DequantizeLinear and QuantizeLinear of ours once it is known what runs where.

Quantizing put them around all that an accelerator might take. What then stays on the host goes back to
floating point; at a region's border they end up on the side that the target wants.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from onnx import NodeProto

from byoc.boundary.border import Border
from byoc.boundary.edit import Call, Editing, Scope
from byoc.boundary.unread import Unread
from byoc.graph.marks import FLOAT, QUANTIZE, TENSOR, mark_of, noted
from byoc.graph.unshare import is_dequantize, is_quantize


def tidy(edit: Editing, borders: Sequence[Border]) -> None:
    """Leave of our DequantizeLinear and QuantizeLinear what regions need; the model is edited in place.

    On the host, a QuantizeLinear of ours and the DequantizeLinear behind it vanish, what they make being
    the float that went in; a DequantizeLinear of a weight gives way to the float weight; of several that
    read one tensor there remains one. Where the device converts, the host's QuantizeLinear in front of a
    region moves into it, and into each that reads the tensor; so does the DequantizeLinear behind one,
    where nothing else reads the quantized tensor. Stored tensors that then nothing reads are dropped.
    """
    ours = [node for scope in edit.scopes for node in scope.nodes if _is_ours(node)]
    inside = [node for call in edit.calls.values() for node in call.inside.nodes if _is_ours(node)]
    if not ours and not inside:
        return
    unread = Unread(edit, (*(noted(n, FLOAT) for n in (*ours, *inside)), *_stored(ours)))
    for scope in edit.scopes:
        _host(edit, scope)
    for border in borders:
        if border.wants.convert == "device" and border.region in edit.calls:
            _device(edit, edit.calls[border.region])
    for scope in edit.scopes:
        _without_readers(edit, scope)
    unread.drop()


def _is_ours(node: NodeProto) -> bool:
    return mark_of(node) == QUANTIZE


def _stored(nodes: Sequence[NodeProto]) -> Sequence[str]:
    """Return the constants that nodes of ours read."""
    return [name for node in nodes for name in node.input[0 if noted(node, FLOAT) else 1 :]]


def _host(edit: Editing, scope: Scope) -> None:
    """Take out of a graph what both begins and ends on the host, weights first."""
    ours = [node for node in scope.nodes if _is_ours(node)]
    names: dict[str, str] = {}
    gone: set[int] = set()
    given = _given_out(edit)
    made = {name for node in scope.nodes for name in node.output}
    own = scope.own()
    behind: dict[str, list[NodeProto]] = {}
    for node in ours:
        if noted(node, FLOAT):
            names[node.output[0]] = noted(node, FLOAT)
            gone.add(id(node))
        elif is_dequantize(node):
            behind.setdefault(node.input[0], []).append(node)
    for node in ours:
        if not is_quantize(node) or noted(node, FLOAT):
            continue
        pairs = behind.pop(node.output[0], [])
        results = [pair.output[0] for pair in pairs]
        raw, called = node.input[0], noted(node, TENSOR)
        free = called in results or called not in own
        keep = called if raw in made and free else raw  # the user's name comes back
        if any(name in given and name != keep for name in results):
            continue
        if keep != raw:
            names[raw] = keep
        names.update((name, keep) for name in results if name != keep)
        gone.update(map(id, pairs))
    for several in behind.values():
        keep_one, *others = _merged(several, given)
        names.update((other.output[0], keep_one.output[0]) for other in others)
        gone.update(map(id, others))
    scope.nodes = [node for node in scope.nodes if id(node) not in gone]
    _rename(scope, names)
    _without_readers(edit, scope)


def _merged(several: Sequence[NodeProto], given: frozenset[str]) -> list[NodeProto]:
    """Return the DequantizeLinear nodes of a tensor, that first whose name has to stay."""
    alike = [node for node in several if list(node.input) == list(several[0].input)]
    return sorted(alike, key=lambda n: (n.output[0] not in given, n.output[0] != noted(n, TENSOR)))


def _given_out(edit: Editing) -> frozenset[str]:
    """Return what graphs and bodies give out: these names are not ours to change."""
    protos = (scope.proto for scope in edit.scopes)
    return frozenset(
        value.name for proto in protos for value in proto.output if not isinstance(value, str)
    )


def _rename(scope: Scope, names: Mapping[str, str]) -> None:
    """Let nodes of a graph and of its bodies read and make tensors under other names."""
    if not names:
        return
    for node in chain.from_iterable(inner.nodes for inner in scope.walk()):
        for position, name in enumerate(node.input):
            if name in names:
                node.input[position] = _last(names, name)
        for position, name in enumerate(node.output):
            if name in names:
                node.output[position] = _last(names, name)


def _last(names: Mapping[str, str], name: str) -> str:
    while name in names:
        name = names[name]
    return name


def _without_readers(edit: Editing, scope: Scope) -> None:
    """Take out our QuantizeLinear and DequantizeLinear that nothing reads any more."""
    given = _given_out(edit)
    while True:
        readers = scope.readers()
        dead = {
            id(node)
            for node in scope.nodes
            if _is_ours(node) and node.output[0] not in readers and node.output[0] not in given
        }
        if not dead:
            return
        scope.nodes = [node for node in scope.nodes if id(node) not in dead]


def _device(edit: Editing, call: Call) -> None:
    """Move conversions at a region's border into it."""
    makers = {
        name: node for scope in _around(call.scope) for node in scope.nodes for name in node.output
    }
    for position, name in enumerate(list(call.node.input)):
        node = makers.get(name)
        if node is not None and _is_ours(node) and is_quantize(node):
            source = node.input[0]
            inner = _free(edit, call, source)
            step = _copy(edit, call, node, inner, call.function.input[position])
            call.enter(position, source, step, inside=inner)
    readers = call.scope.readers()
    given = _given_out(edit)
    gone: set[int] = set()
    for position, name in enumerate(list(call.node.output)):
        nodes = readers.get(name, [])
        if len(nodes) != 1 or name in given or not _is_ours(nodes[0]) or not is_dequantize(nodes[0]):
            continue
        result = nodes[0].output[0]
        inner = _free(edit, call, result)
        step = _copy(edit, call, nodes[0], call.function.output[position], inner)
        call.leave(position, result, step, inside=inner)
        gone.add(id(nodes[0]))
    call.scope.nodes = [node for node in call.scope.nodes if id(node) not in gone]


def _around(scope: Scope | None) -> list[Scope]:
    """Return a graph and those around it, the outermost first."""
    found: list[Scope] = []
    while scope is not None:
        found.insert(0, scope)
        scope = scope.outer
    return found


def _free(edit: Editing, call: Call, name: str) -> str:
    """Return what a tensor may be called inside a region: the same, unless that is taken there."""
    return edit.fresh(name, name) if name in call.inside.own() else name


def _copy(edit: Editing, call: Call, node: NodeProto, read: str, made: str) -> NodeProto:
    """Return a copy of a node for the inside of a region, its scale and zero point with it."""
    result = NodeProto()
    result.CopyFrom(node)
    result.input[0], result.output[0] = read, made
    for position, name in enumerate(node.input[1:], 1):
        result.input[position] = _constant(edit, call, name)
    return result


def _constant(edit: Editing, call: Call, name: str) -> str:
    """Return what a region calls a constant from around it, which it reads from now on."""
    inputs = list(call.node.input)
    if name in inputs:
        return call.function.input[inputs.index(name)]
    inner = _free(edit, call, name)
    call.node.input.append(name)
    call.function.input.append(inner)
    return inner
