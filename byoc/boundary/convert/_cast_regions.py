"""Regions that compute in float16 or bfloat16: casts at their boundary and inside.

A tensor that one such region makes and another one of the same type reads is never cast in between,
whoever casts. Constants are rounded at compile time instead of cast at run time; the float32 original is
dropped if nothing else reads it.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

from onnx import NodeProto, TensorProto, TypeProto, helper

from byoc._dataclasses import dataclass, field
from byoc.boundary.convert._casting_rewrite import (
    CastFrame,
    CastRewriter,
    CastValue,
    FunctionVariants,
    make_cast,
)
from byoc.boundary.convert._short_dtypes import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    OperatorSchemas,
    ShortTypeChooser,
    find_extent_arithmetic,
    round_tensor,
)
from byoc.boundary.convert._tensor_transfers import ModelEditor, RegionBoundary, RegionCall, find_owner
from byoc.errors import InputError
from byoc.model import (
    DTYPE_NUMBERS,
    DTYPES,
    QUANTIZE,
    TENSOR_KEY,
    WEIGHT_KEY,
    EditableGraph,
    drop_named,
    get_metadata,
    get_purpose,
    is_dequantize,
    is_large,
    is_onnx,
    is_qdq_node,
    is_quantize,
    read_tensor_types,
)

# Clean-up of the DequantizeLinear and QuantizeLinear nodes of byoc's once the placement is known.
#
# Quantization inserts them around everything that an accelerator might take. Operators that remain
# on the host return to floating point; at a region's boundary the nodes move to the side that
# converts.


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


_LEAST_OPSET = {FLOAT16: 6, BFLOAT16: 13}
"""The first version of Cast that names its types by number, and the first that has bfloat16."""


def cast_regions(
    edit: ModelEditor, boundaries: Sequence[RegionBoundary], folder: Path | None = None
) -> None:
    """Convert regions to float16 or bfloat16 where their targets want it; the model is edited in place.

    `folder` is the directory of external data. Raises InputError if the model's operator set has no Cast
    to the type, or the data of a constant is missing.
    """
    wants = {b.region: b for b in boundaries if b.format.compute is not None and b.region in edit.calls}
    if not wants:
        return
    for dtype in {border.format.compute or "" for border in wants.values()}:
        if edit.opset < _LEAST_OPSET[dtype]:
            raise InputError(
                f"operator set {edit.opset}, which the model uses, has no Cast to {dtype}: "
                f"convert the model to {_LEAST_OPSET[dtype]} or newer"
            )
    outside = _HostCasts(edit, folder, {name: b.format.compute or "" for name, b in wants.items()})
    for name, call in edit.calls.items():  # a region before those that read what it makes
        if name in wants:
            _ShortRegion(outside, call, wants[name]).cast()
    outside.finish()


TensorKey = tuple[EditableGraph, str]
"""The graph that a tensor is in, and its name there."""


@dataclass(eq=False)
class _HostCasts:
    """The graphs around the regions: the makers and readers of tensors, and their short forms so far.

    `wants` has the type that each region computes in; `values` the tensors at boundaries.
    """

    edit: ModelEditor
    folder: Path | None
    wants: Mapping[str, str]
    values: dict[TensorKey, CastValue] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Collect makers, readers and stored tensors of all graphs."""
        edit = self.edit
        self.variants = FunctionVariants(edit.model, self.folder)
        self.own_names = {scope: scope.own_names() for scope in edit.scopes}
        self.makers: dict[TensorKey, NodeProto] = {}
        self.readers: dict[TensorKey, list[NodeProto | None]] = {}
        for scope in edit.scopes:
            for node in scope.nodes:
                for name in node.output:
                    self.makers[scope, name] = node
                for name in node.input:
                    self.readers.setdefault(self.tensor_key(scope, name), []).append(node)
            for name in scope.outputs:
                self.readers.setdefault(self.tensor_key(scope, name), []).append(None)
        self.stored = {
            (scope, name): tensor
            for scope in edit.scopes
            for name, tensor in _stored_floats(scope).items()
        }
        self.compute = {id(edit.calls[name].node): dtype for name, dtype in self.wants.items()}

    def tensor_key(self, scope: EditableGraph, name: str) -> TensorKey:
        """Return the key of a tensor by its name in a graph."""
        return find_owner(scope, name, self.own_names), name

    def is_read_elsewhere(self, key: TensorKey, dtype: str) -> bool:
        """Return whether a tensor has readers other than regions that compute in a type."""
        nodes = self.readers.get(key, ())
        return any(node is None or self.compute.get(id(node)) != dtype for node in nodes)

    def find(self, scope: EditableGraph, name: str, kind: TypeProto | None = None) -> CastValue:
        """Return a tensor by its name in a graph; `kind` is its type."""
        key = self.tensor_key(scope, name)
        if key not in self.values:
            make = self._round_constant if key in self.stored else self._cast
            self.values[key] = CastValue(FLOAT, {FLOAT: name}, partial(make, key, kind))
        return self.values[key]

    def _round_constant(self, key: TensorKey, kind: TypeProto | None, dtype: str) -> str:
        """Add a rounded constant and return its name."""
        (owner, name), tensor = key, self.stored[key]
        kind = helper.make_tensor_type_proto(DTYPE_NUMBERS[dtype], list(tensor.dims))
        new = self.edit.add_tensor(f"{name}_{dtype}", kind, name)
        made, beyond = round_tensor(tensor, new, dtype, self.folder)
        self.note_clipped(name, beyond)
        # An initializer even for what was a Constant node: half the bytes may be too few for a node
        # to count as a stored tensor (`GraphIndex.stored_tensors`), and a region is handed nothing else.
        owner.graph.initializer.append(made)
        return new

    def _cast(self, key: TensorKey, kind: TypeProto | None, dtype: str) -> str:
        """Insert a Cast where a tensor is made, and return its output."""
        owner, name = key
        new = self.edit.add_tensor(f"{name}_{dtype}", _with_dtype(kind, dtype), name)
        maker = self.makers.get(key)
        if maker is None:
            owner.insert_first(make_cast(name, new, dtype))
        else:
            owner.insert_after(maker, make_cast(name, new, dtype))
        return new

    def note_clipped(self, name: str, beyond: int) -> None:
        """Record how many values of a constant were beyond the range of a type."""
        if beyond:
            self.notes[name] = beyond

    def finish(self) -> None:
        """Drop tensors that are no longer read, and add notes on constants beyond the range."""
        edit = self.edit
        for scope in edit.scopes:
            shortened = {
                key[1]
                for key, value in self.values.items()
                if key[0] is scope and key in self.stored and len(value.names) > 1
            }
            unread = scope.drop_unread(shortened) if shortened else shortened
            drop_named(scope.graph.initializer, unread)
        regions = {(call.function.domain, call.function.name) for call in edit.calls.values()}
        nodes = [node for scope in edit.scopes for node in scope.nodes]
        nodes += [node for call in edit.calls.values() for node in call.inside.nodes]
        self.variants.finish(edit.model, nodes, regions)
        if BFLOAT16 in self.wants.values():
            edit.notes.append(
                "regions compute in bfloat16, for which onnxruntime has few kernels on a CPU: "
                "it may not run the partitioned model"
            )
        dtypes = " or ".join(sorted(set(self.wants.values())))
        for name, beyond in self.notes.items():
            values = "1 value" if beyond == 1 else f"{beyond} values"
            edit.notes.append(f"{values} of '{name}' beyond the range of {dtypes} became its largest")


@dataclass(eq=False)
class _ShortRegion:
    """A region that is to compute in the short type."""

    host: _HostCasts
    call: RegionCall
    boundary: RegionBoundary

    def __post_init__(self) -> None:
        """Choose the nodes that compute in the short type."""
        call, edit = self.call, self.host.edit
        self.dtype = self.boundary.format.compute or ""
        stated = self.boundary.types

        def new_name(name: str, of: str, dtype: str) -> str:
            return edit.add_tensor(name, _with_dtype(stated.get(of), dtype), of)

        self.frame = CastFrame(new_name, renames=True)
        imports = call.function.opset_import
        opsets = {"" if e.domain == "ai.onnx" else e.domain: e.version for e in imports}
        functions = {(f.domain, f.name): f for f in edit.model.functions}
        self.chooser = ShortTypeChooser(OperatorSchemas(opsets), functions, self.dtype)
        self.nodes = call.inside.nodes
        names = [*call.function.input, *(name for node in self.nodes for name in node.output)]
        types = read_tensor_types({name: stated[name] for name in names if name in stated})
        self.known = self.chooser.infer_dtypes(
            self.nodes, {name: kind.dtype for name, kind in types.items()}
        )
        keys = {name: self.host.tensor_key(call.scope, name) for name in call.function.input}
        self.constants = {name for name, key in keys.items() if key in self.host.stored}
        small = {name for name, kind in types.items() if kind.shape is not None and len(kind.shape) <= 1}
        exact = find_extent_arithmetic(self.nodes, self.constants, small)
        outputs = [name for name in call.function.output if self.known.get(name) == FLOAT]
        self.short, self.asked = self.chooser.choose(self.nodes, self.known, outputs, exact)

    def cast(self) -> None:
        """Rewrite the region and the names of its boundary tensors."""
        edit = self.host.edit
        entering = [self._enter_input(name) for name in self.call.function.input]
        for name in self.call.function.input:
            if name in self.asked and name not in self.constants:
                self.frame.read(name, self.dtype)
        host = self.host
        rewriter = CastRewriter(
            self.chooser, lambda name, of, dtype: edit.new_name(name), host.variants, host.note_clipped
        )
        rewriter.run(self.frame, self.nodes, self.known, self.short)
        leaving = [self._leave_output(name) for name in self.call.function.output]
        self.call.inside.nodes = self.frame.nodes
        for proto in (self.call.node, self.call.function):
            proto.input[:] = [name for names in entering for name in names]
            proto.output[:] = leaving

    def _enter_input(self, name: str) -> list[str]:
        """Register an input; the returned list receives its names at the boundary."""
        value = self.host.find(self.call.scope, name, self.boundary.types.get(name))
        if name in self.constants:
            crossing: list[str] = []

            def make(dtype: str) -> str:
                crossing.append(value.read(dtype))
                return crossing[-1]

            self.frame.values[name] = CastValue(FLOAT, {}, make, is_constant=True)
            return crossing
        dtype = now = self.known.get(name)
        is_short = self.dtype in value.names or self.boundary.format.convert == "host"
        if dtype == FLOAT and name in self.asked and is_short:
            now = self.dtype
        new = value.read(now) if now != dtype else name
        self.frame.add(name, dtype, {now: new})
        return [new]

    def _leave_output(self, name: str) -> str:
        """Return an output's name at the boundary, and add the host's Cast back if the host reads it."""
        scope, value = self.call.scope, self.frame.values[name]
        if self.known.get(name) != FLOAT or self.dtype not in value.names:
            return self.frame.read(name, value.dtype)
        elsewhere = self.host.is_read_elsewhere(self.host.tensor_key(scope, name), self.dtype)
        if self.boundary.format.convert == "device" and elsewhere:
            return self.frame.read(name, FLOAT)
        new = self.host.find(scope, name).names[self.dtype] = value.names[self.dtype]
        if elsewhere:
            scope.insert_after(self.call.node, make_cast(new, name, FLOAT))
        return new


def _with_dtype(kind: TypeProto | None, dtype: str) -> TypeProto:
    """Return the type of a tensor with another data type."""
    result = TypeProto() if kind is None else deepcopy(kind)
    result.tensor_type.elem_type = DTYPE_NUMBERS[dtype]
    return result


def _stored_floats(scope: EditableGraph) -> dict[str, TensorProto]:
    """Return the stored float32 tensors of a graph that no caller can override."""
    inputs = {value.name for value in scope.graph.input}
    found = {t.name: t for t in scope.graph.initializer if t.name not in inputs}
    found |= {
        node.output[0]: attribute.t
        for node in scope.nodes
        if node.op_type == "Constant" and is_onnx(node)
        for attribute in node.attribute
        if attribute.name == "value" and is_large(attribute.t)
    }
    return {name: t for name, t in found.items() if DTYPES.get(t.data_type) == FLOAT}
