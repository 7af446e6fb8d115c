"""The graphs around regions that compute in the short type: casts and short constants there."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper

from byoc.boundary.convert._casting_frame import FunctionVariants, make_cast
from byoc.boundary.convert._model_editor import ModelEditor, Scope
from byoc.boundary.convert._short_dtypes import BFLOAT16, round_tensor
from byoc.model import DTYPE_NUMBERS, DTYPES, is_large, is_onnx, list_own_names

TensorKey = tuple[int, str]
"""The graph that a tensor is in, and its name there."""


@dataclass(eq=False)
class HostCasts:
    """The graphs around the regions: the makers and readers of tensors, and their short forms so far.

    `wants` has the type that each region computes in; `short` has the name of a tensor in a type.
    """

    edit: ModelEditor
    folder: Path | None
    wants: Mapping[str, str]
    short_names: dict[tuple[TensorKey, str], str] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Collect makers, readers and stored tensors of all graphs."""
        edit = self.edit
        self.variants = FunctionVariants(edit.model, self.folder)
        self.own = {id(scope): list_own_names(_as_graph(scope)) for scope in edit.scopes}
        self.makers: dict[TensorKey, NodeProto] = {}
        self.readers: dict[TensorKey, list[NodeProto | None]] = {}
        for scope in edit.scopes:
            for node in scope.nodes:
                for name in node.output:
                    self.makers[id(scope), name] = node
                for name in node.input:
                    self.readers.setdefault(self.tensor_key(scope, name), []).append(node)
            for value in _as_graph(scope).output:
                self.readers.setdefault(self.tensor_key(scope, value.name), []).append(None)
        self.stored = {
            (id(scope), name): tensor
            for scope in edit.scopes
            for name, tensor in _stored_floats(scope).items()
        }
        self.compute = {id(edit.calls[name].node): dtype for name, dtype in self.wants.items()}

    def find_owner(self, scope: Scope, name: str) -> Scope:
        """Return the graph that a tensor is in: this one or one around it."""
        at: Scope | None = scope
        while at is not None:
            if name in self.own[id(at)]:
                return at
            at = at.outer
        return scope

    def tensor_key(self, scope: Scope, name: str) -> TensorKey:
        """Return the key of a tensor by its name in a graph."""
        return id(self.find_owner(scope, name)), name

    def is_read_elsewhere(self, key: TensorKey, dtype: str) -> bool:
        """Return whether a tensor has readers other than regions that compute in a type."""
        nodes = self.readers.get(key, ())
        return any(node is None or self.compute.get(id(node)) != dtype for node in nodes)

    def short_constant(self, scope: Scope, name: str, dtype: str) -> str:
        """Return the name of a stored constant in a type; it is rounded once."""
        owner = self.find_owner(scope, name)
        key = (id(owner), name), dtype
        if key not in self.short_names:
            tensor = self.stored[key[0]]
            kind = helper.make_tensor_type_proto(DTYPE_NUMBERS[dtype], list(tensor.dims))
            new = self.short_names[key] = self.edit.add_tensor(f"{name}_{dtype}", kind, name)
            made, beyond = round_tensor(tensor, new, dtype, self.folder)
            self.note_clipped(name, beyond)
            # An initializer even for what was a Constant node: half the bytes may be too few for a node
            # to count as a stored tensor (`GraphIndex.stored_tensors`), and a region is handed nothing
            # else.
            _as_graph(owner).initializer.append(made)
        return self.short_names[key]

    def cast(self, scope: Scope, name: str, dtype: str, kind: TypeProto | None) -> str:
        """Return the name of a tensor in a type: as a region made it, or cast once, where it is made."""
        owner = self.find_owner(scope, name)
        key = (id(owner), name), dtype
        if key not in self.short_names:
            new = self.short_names[key] = self.edit.add_tensor(
                f"{name}_{dtype}", with_dtype(kind, dtype), name
            )
            maker = self.makers.get(key[0])
            if maker is None:
                owner.insert_first(make_cast(name, new, dtype))
            else:
                owner.insert_after(maker, make_cast(name, new, dtype))
        return self.short_names[key]

    def note_clipped(self, name: str, beyond: int) -> None:
        """Record how many values of a constant were beyond the range of a type."""
        if beyond:
            self.notes[name] = beyond

    def finish(self) -> None:
        """Drop tensors that are no longer read, and add notes on constants beyond the range."""
        edit = self.edit
        read = {self.tensor_key(scope, name) for scope in edit.scopes for name in _read_names(scope)}
        for scope in edit.scopes:
            shortened = {
                key for key, _ in self.short_names if key[0] == id(scope) and key in self.stored
            }
            if unread := {name for _, name in shortened - read}:
                _drop_stored(scope, unread)
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


def with_dtype(kind: TypeProto | None, dtype: str) -> TypeProto:
    """Return the type of a tensor with another data type."""
    result = TypeProto() if kind is None else deepcopy(kind)
    result.tensor_type.elem_type = DTYPE_NUMBERS[dtype]
    return result


def _as_graph(scope: Scope) -> GraphProto:
    assert isinstance(scope.proto, GraphProto)
    return scope.proto


def _read_names(scope: Scope) -> list[str]:
    names = [name for node in scope.nodes for name in node.input]
    return names + [value.name for value in _as_graph(scope).output]


def _stored_floats(scope: Scope) -> dict[str, TensorProto]:
    """Return the stored float32 tensors of a graph that no caller can override."""
    graph = _as_graph(scope)
    inputs = {value.name for value in graph.input}
    found = {t.name: t for t in graph.initializer if t.name not in inputs}
    found |= {
        node.output[0]: attribute.t
        for node in scope.nodes
        if node.op_type == "Constant" and is_onnx(node)
        for attribute in node.attribute
        if attribute.name == "value" and is_large(attribute.t)
    }
    return {name: t for name, t in found.items() if DTYPES.get(t.data_type) == "float32"}


def _drop_stored(scope: Scope, names: set[str]) -> None:
    """Drop stored tensors from a graph."""
    graph = _as_graph(scope)
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name in names:
            del graph.initializer[i]
    scope.nodes = [node for node in scope.nodes if not names.intersection(node.output)]
