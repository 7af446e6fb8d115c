"""Clean-up of the DequantizeLinear and QuantizeLinear nodes of byoc's once the placement is known.

Quantization inserts them around everything that an accelerator might take. Operators that remain on the
host return to floating point; at a region's boundary the nodes move to the side that converts.
"""

from collections.abc import Sequence
from copy import deepcopy

from onnx import NodeProto

from byoc.boundary.convert._model_editor import ModelEditor, RegionCall
from byoc.boundary.convert._tensor_transfers import RegionBoundary
from byoc.model import (
    QUANTIZE,
    TENSOR_KEY,
    WEIGHT_KEY,
    EditableGraph,
    drop_named,
    get_metadata,
    get_purpose,
    is_dequantize,
    is_onnx,
    is_qdq_node,
    is_quantize,
)


def tidy_quantization(edit: ModelEditor, boundaries: Sequence[RegionBoundary]) -> None:
    """Keep only the DequantizeLinear and QuantizeLinear of byoc's that regions need; edit in place.

    On the host, a QuantizeLinear of byoc's and the DequantizeLinear after it vanish, so that the float
    before them is read; a DequantizeLinear of a weight is replaced by the float weight; of several equal
    ones that read one tensor, one remains. If the device converts, the host's QuantizeLinear before a
    region moves into it, and into each other region that reads the tensor; so does the DequantizeLinear
    after a region, if nothing else reads the quantized tensor. Stored tensors that are no longer read
    are dropped.
    """
    ours = [node for scope in edit.scopes for node in scope.nodes if _is_own(node)]
    inside = [node for call in edit.calls.values() for node in call.inside.nodes if _is_own(node)]
    if not ours and not inside:
        return
    removable = {get_metadata(node, WEIGHT_KEY) for node in (*ours, *inside)} - {""}
    for node in ours:
        removable.update(node.input[0 if get_metadata(node, WEIGHT_KEY) else 1 :])
    for scope in edit.scopes:
        _tidy_host(edit, scope)
    for border in boundaries:
        if border.format.convert == "device" and border.region in edit.calls:
            _move_into_region(edit, edit.calls[border.region])
    for scope in edit.scopes:
        scope.drop_unread(may_go=_may_go)
    unread = edit.main.drop_unread(
        removable, lambda number, nodes: is_onnx(nodes[0]) and id(nodes[0]) not in edit.main.inner
    )
    drop_named(edit.main.graph.initializer, unread)


def _is_own(node: NodeProto) -> bool:
    return is_qdq_node(node) and get_purpose(node) == QUANTIZE


def _may_go(number: int, nodes: Sequence[NodeProto]) -> bool:
    return _is_own(nodes[0])


def _tidy_host(edit: ModelEditor, scope: EditableGraph) -> None:
    """Remove from a graph the pairs that begin and end on the host, those of weights first.

    What converts between two types there, an Identity, is removed before.
    """
    passed = [
        node for node in scope.nodes if node.op_type == "Identity" and get_purpose(node) == QUANTIZE
    ]
    scope.rename_now({node.output[0]: node.input[0] for node in passed})
    scope.nodes = [node for node in scope.nodes if all(node is not each for each in passed)]
    own = [node for node in scope.nodes if _is_own(node)]
    weights = [node for node in own if get_metadata(node, WEIGHT_KEY)]
    names = {node.output[0]: get_metadata(node, WEIGHT_KEY) for node in weights}
    removed = set(map(id, weights))
    readers: dict[str, list[NodeProto]] = {}
    for node in own:
        if is_dequantize(node) and not get_metadata(node, WEIGHT_KEY):
            readers.setdefault(node.input[0], []).append(node)
    outputs = _graph_outputs(edit)
    made = {name for node in scope.nodes for name in node.output}
    local = scope.own_names()
    for node in own:
        if not is_quantize(node) or get_metadata(node, WEIGHT_KEY):
            continue
        pairs = readers.pop(node.output[0], [])
        results = [pair.output[0] for pair in pairs]
        # The user's own name if that is possible.
        raw, user_name = node.input[0], get_metadata(node, TENSOR_KEY)
        is_free = user_name in results or user_name not in local
        kept = user_name if raw in made and is_free else raw
        if not any(name in outputs and name != kept for name in results):
            names.update((name, kept) for name in (raw, *results) if name != kept)
            removed.update(map(id, pairs))
    for several in readers.values():
        first, *others = _equal_dequantizers(several, outputs)
        names.update((other.output[0], first.output[0]) for other in others)
        removed.update(map(id, others))
    scope.nodes = [node for node in scope.nodes if id(node) not in removed]
    scope.rename_now(names)
    scope.drop_unread(may_go=_may_go)


def _equal_dequantizers(several: Sequence[NodeProto], outputs: frozenset[str]) -> list[NodeProto]:
    """Return equal DequantizeLinear nodes of a tensor, first the one whose name must stay."""
    alike = [node for node in several if list(node.input) == list(several[0].input)]
    return sorted(
        alike, key=lambda n: (n.output[0] not in outputs, n.output[0] != get_metadata(n, TENSOR_KEY))
    )


def _graph_outputs(edit: ModelEditor) -> frozenset[str]:
    """Return the outputs of all graphs and bodies, which must keep their names."""
    return frozenset(name for scope in edit.scopes for name in scope.outputs)


def _move_into_region(edit: ModelEditor, call: RegionCall) -> None:
    """Move the conversions at a region's boundary into the region."""
    makers = {
        name: node
        for scope in reversed([*call.scope.walk_outward()])
        for node in scope.nodes
        for name in node.output
    }
    for position, name in enumerate(list(call.node.input)):
        node = makers.get(name)
        if node is not None and _is_own(node) and is_quantize(node):
            source = node.input[0]
            inner = _inner_name(edit, call, source)
            step = _copy_into(edit, call, node, inner, call.function.input[position])
            call.replace_input(position, source, step, inside=inner)
    readers = call.scope.find_readers()
    outputs = _graph_outputs(edit)
    removed: set[int] = set()
    for position, name in enumerate(list(call.node.output)):
        nodes = readers.get(name, [])
        if len(nodes) != 1 or name in outputs or not _is_own(nodes[0]) or not is_dequantize(nodes[0]):
            continue
        result = nodes[0].output[0]
        inner = _inner_name(edit, call, result)
        step = _copy_into(edit, call, nodes[0], call.function.output[position], inner)
        call.replace_output(position, result, step, inside=inner)
        removed.add(id(nodes[0]))
    call.scope.nodes = [node for node in call.scope.nodes if id(node) not in removed]


def _inner_name(edit: ModelEditor, call: RegionCall, name: str) -> str:
    """Return a name for a tensor inside a region: the same as outside, unless it is taken there."""
    return edit.new_name(name, name) if name in call.inside.own_names() else name


def _copy_into(edit: ModelEditor, call: RegionCall, node: NodeProto, read: str, made: str) -> NodeProto:
    """Return a copy of a node for use inside a region, and pass its scale and zero point in."""
    result = deepcopy(node)
    result.input[0], result.output[0] = read, made
    for position, name in enumerate(node.input[1:], 1):
        result.input[position] = _pass_constant(edit, call, name)
    return result


def _pass_constant(edit: ModelEditor, call: RegionCall, name: str) -> str:
    """Return the name inside a region of a constant from outside, which becomes one of its inputs."""
    inputs = list(call.node.input)
    if name in inputs:
        return call.function.input[inputs.index(name)]
    inner = _inner_name(edit, call, name)
    call.node.input.append(name)
    call.function.input.append(inner)
    return inner
