"""Clean-up of the DequantizeLinear and QuantizeLinear nodes of byoc's once the placement is known.

Quantization inserts them around everything that an accelerator might take. Operators that remain on the
host return to floating point; at a region's boundary the nodes move to the side that converts.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain

from onnx import NodeProto

from byoc.boundary.border import Border
from byoc.boundary.edit import Call, Editing, Scope
from byoc.boundary.unread import Unread
from byoc.graph.marks import FLOAT, QUANTIZE, TENSOR, mark_of, noted
from byoc.graph.unshare import is_dequantize, is_quantize


def tidy(edit: Editing, borders: Sequence[Border]) -> None:
    """Keep only the DequantizeLinear and QuantizeLinear of byoc's that regions need; edit in place.

    On the host, a QuantizeLinear of byoc's and the DequantizeLinear after it vanish, so that the float
    before them is read; a DequantizeLinear of a weight is replaced by the float weight; of several equal
    ones that read one tensor, one remains. If the device converts, the host's QuantizeLinear before a
    region moves into it, and into each other region that reads the tensor; so does the DequantizeLinear
    after a region, if nothing else reads the quantized tensor. Stored tensors that are no longer read
    are dropped.
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
    """Return the constants that nodes of byoc's read."""
    return [name for node in nodes for name in node.input[0 if noted(node, FLOAT) else 1 :]]


def _host(edit: Editing, scope: Scope) -> None:
    """Remove from a graph the pairs that begin and end on the host, those of weights first."""
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
    """Return equal DequantizeLinear nodes of a tensor, first the one whose name must stay."""
    alike = [node for node in several if list(node.input) == list(several[0].input)]
    return sorted(alike, key=lambda n: (n.output[0] not in given, n.output[0] != noted(n, TENSOR)))


def _given_out(edit: Editing) -> frozenset[str]:
    """Return the outputs of all graphs and bodies, which must keep their names."""
    protos = (scope.proto for scope in edit.scopes)
    return frozenset(
        value.name for proto in protos for value in proto.output if not isinstance(value, str)
    )


def _rename(scope: Scope, names: Mapping[str, str]) -> None:
    """Rename tensors that nodes of a graph and of its bodies read and make."""
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
    """Remove QuantizeLinear and DequantizeLinear nodes of byoc's whose output is not read."""
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
    """Move the conversions at a region's boundary into the region."""
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
    """Return a name for a tensor inside a region: the same as outside, unless it is taken there."""
    return edit.fresh(name, name) if name in call.inside.own() else name


def _copy(edit: Editing, call: Call, node: NodeProto, read: str, made: str) -> NodeProto:
    """Return a copy of a node for use inside a region, and pass its scale and zero point in."""
    result = deepcopy(node)
    result.input[0], result.output[0] = read, made
    for position, name in enumerate(node.input[1:], 1):
        result.input[position] = _constant(edit, call, name)
    return result


def _constant(edit: Editing, call: Call, name: str) -> str:
    """Return the name inside a region of a constant from outside, which becomes one of its inputs."""
    inputs = list(call.node.input)
    if name in inputs:
        return call.function.input[inputs.index(name)]
    inner = _free(edit, call, name)
    call.node.input.append(name)
    call.function.input.append(inner)
    return inner
