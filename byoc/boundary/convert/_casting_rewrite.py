"""Rewriting of nodes to compute in the short type, with Casts between tensors that differ."""

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from byoc._dataclasses import dataclass, field
from byoc.boundary.convert._short_dtypes import (
    FLOAT,
    Dtypes,
    ShortTypeChooser,
    infer_body_dtypes,
    round_tensor,
)
from byoc.model import (
    CAST,
    DTYPE_NUMBERS,
    DTYPES,
    build_node,
    is_onnx,
    list_bodies,
    list_tensor_names,
    make_unique_name,
    mark_inserted,
    set_attribute,
)

# Tensors in several data types while nodes are rewritten, and the rewritten functions of
# composites.

Naming = Callable[[str, str, str], str]
"""Returns a new name like the first one, for the content of the second tensor in a data type."""


@dataclass(eq=False)
class CastValue:
    """A tensor: its original data type, and its current names by data type.

    `make` makes it in another data type when that is first read, and returns the new name.
    """

    dtype: str | None
    names: dict[str | None, str]
    make: Callable[[str], str]
    is_constant: bool = False

    def read(self, dtype: str | None) -> str:
        """Return the tensor's name in a data type, or in one that it has if none is given."""
        if dtype is None:
            dtype = next(iter(self.names), self.dtype)
        if dtype not in self.names:
            assert dtype is not None
            self.names[dtype] = self.make(dtype)
        return self.names[dtype]


@dataclass(eq=False)
class CastFrame:
    """The tensors of a function or body and its nodes so far; `outer` is the frame around a body.

    With `renames` a tensor that changes its data type is renamed.
    """

    naming: Naming
    outer: "CastFrame | None" = None
    renames: bool = False
    nodes: list[NodeProto] = field(default_factory=list)
    values: dict[str, CastValue] = field(default_factory=dict)

    def add(self, name: str, dtype: str | None, names: dict[str | None, str]) -> None:
        """Add a tensor with its original data type and its names by current data type."""
        self.values[name] = CastValue(dtype, names, partial(self._cast, name))

    def find(self, name: str) -> CastValue | None:
        """Return a tensor by its original name, from this frame or those around it."""
        frame: CastFrame | None = self
        while frame is not None and name not in frame.values:
            frame = frame.outer
        return None if frame is None else frame.values[name]

    def read(self, name: str, dtype: str | None) -> str:
        """Return a tensor's name in a data type, casting it if necessary."""
        value = self.find(name)
        return name if value is None else value.read(dtype)

    def _cast(self, name: str, dtype: str) -> str:
        """Insert a Cast where a tensor is made, so that one serves all bodies; return its output.

        That has the original name if it is free.
        """
        value = self.values[name]
        source = next(iter(value.names.values()))
        free = self.renames and dtype == value.dtype and name not in value.names.values()
        result = name if free else self.naming(f"{name}_{dtype}", name, dtype)
        self.nodes.append(make_cast(source, result, dtype))
        return result

    def define(self, name: str, dtype: str | None, now: str | None) -> str:
        """Register a tensor with its original and current data type; return its name."""
        new = name
        if name and now is not None and now != dtype and self.renames:
            new = self.naming(f"{name}_{now}", name, now)
        self.add(name, dtype, {now: new})
        return new

    def current_dtypes(self) -> dict[str, str]:
        """Return the current data types of the frame's own tensors by their current names."""
        own = {name: dtype for value in self.values.values() for dtype, name in value.names.items()}
        return {name: dtype for name, dtype in own.items() if dtype is not None}


def make_cast(source: str, result: str, dtype: str) -> NodeProto:
    """Return a Cast marked as inserted by byoc."""
    return mark_inserted(build_node("Cast", [source], [result], result, to=DTYPE_NUMBERS[dtype]), CAST)


FunctionKey = tuple[str, str]


class FunctionVariants:
    """The rewritten functions of a model; `folder` is the directory of external data.

    An unchanged function keeps its name; variants have the data type in their names. An original that no
    call uses any more is dropped.
    """

    def __init__(self, model: ModelProto, folder: Path | None) -> None:
        """Remember the names of a model's functions."""
        self.folder = folder
        self._taken: dict[str, set[str]] = {}
        for function in model.functions:
            self._taken.setdefault(function.domain, set()).add(function.name)
        self._made: dict[tuple[FunctionKey, bytes], FunctionProto] = {}

    def add(self, function: FunctionProto, new: FunctionProto, dtype: str) -> str:
        """Add a rewritten function and return the name under which it can be called."""
        body = new.SerializeToString(deterministic=True)
        if body == function.SerializeToString(deterministic=True):
            return function.name
        key = (function.domain, function.name), body
        if key not in self._made:
            new.name = make_unique_name(f"{function.name}_{dtype}", self._taken[function.domain])
            self._made[key] = new
        return self._made[key].name

    def finish(
        self, model: ModelProto, nodes: Sequence[NodeProto], regions: Collection[FunctionKey]
    ) -> None:
        """Add the new functions to the model, and drop the originals that are no longer called.

        `nodes` are those of the graphs and of the `regions`' functions.
        """
        if not self._made:
            return
        model.functions.extend(self._made.values())
        replaced, dropped = {key for key, _ in self._made}, True
        while dropped:  # what is dropped calls nothing any more
            others = [f for f in model.functions if (f.domain, f.name) not in regions]
            called = _called_functions(nodes) | {
                key for f in others for key in _called_functions(f.node)
            }
            keys = [(f.domain, f.name) for f in model.functions]
            dropped = not called.issuperset(replaced.intersection(keys))
            for i in reversed(range(len(keys))):
                if keys[i] in replaced - called:
                    del model.functions[i]


def _called_functions(nodes: Iterable[NodeProto]) -> set[FunctionKey]:
    """Return the domain and operator of nodes and of all nodes in their bodies."""
    found = set[FunctionKey]()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        found.add((node.domain, node.op_type))
        pending.extend(inner for body in list_bodies(node) for inner in body.node)
    return found


def restore_references(new: FunctionProto, function: FunctionProto, call: NodeProto) -> None:
    """Restore a rewritten function's references to the attributes of its call.

    If rewriting changed a value, the call gets the new one. Nodes are matched by their outputs.
    """
    makers = {name: node for node in new.node for name in node.output if name}
    for node in function.node:
        now = next((makers[name] for name in node.output if name in makers), None)
        if now is None:
            continue
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                continue
            own = next((a for a in now.attribute if a.name == attribute.name), None)
            if own is not None:
                value = deepcopy(own)
                value.name = attribute.ref_attr_name
                set_attribute(call, value)
            set_attribute(now, attribute)


@dataclass(frozen=True, eq=False)
class CastRewriter:
    """Rewrites the nodes of a region; `naming` names tensors inside bodies.

    `note` takes a constant's name, and how many of its values were beyond the short type's range.
    """

    chooser: ShortTypeChooser
    naming: Naming
    variants: FunctionVariants
    note: Callable[[str, int], None]

    @property
    def dtype(self) -> str:
        """The short type."""
        return self.chooser.dtype

    def run(
        self, frame: CastFrame, nodes: Sequence[NodeProto], known: Dtypes, short: Sequence[bool]
    ) -> None:
        """Add copies of nodes to a frame; those that are `short` compute in the short type."""
        for node, narrow in zip(nodes, short, strict=True):
            stored = _constant_tensor(node) if is_onnx(node) else None
            if stored is not None:
                name = node.output[0]
                keep = partial(frame.nodes.append, node)
                self._add_constant(frame, name, stored, keep, partial(_append_constant, frame.nodes))
            elif self.chooser.find_function(node) is not None:
                self._rewrite_call(frame, deepcopy(node), known, narrow)
            else:
                self._rewrite_node(frame, node, known, narrow)

    def _add_constant(
        self,
        frame: CastFrame,
        name: str,
        tensor: TensorProto,
        keep: Callable[[], object],
        insert: Callable[[TensorProto], object],
    ) -> None:
        """Register a constant, which is put in when it is read, in each type in which it is read.

        `keep` puts it in as it is, `insert` puts in a rounded one.
        """

        def make(dtype: str) -> str:
            if dtype != self.dtype:
                keep()
                return name
            new = frame.naming(f"{name}_{dtype}", name, dtype)
            short, beyond = round_tensor(tensor, new, dtype, self.variants.folder)
            self.note(name, beyond)
            insert(short)
            return new

        frame.values[name] = CastValue(FLOAT, {}, make, is_constant=True)

    def _rewrite_node(self, frame: CastFrame, source: NodeProto, known: Dtypes, narrow: bool) -> None:
        schemas = self.chooser.schemas
        node = deepcopy(source)
        made = self._short_output_dtypes(node, known) if narrow else None
        narrow = made is not None
        for i, type_str in enumerate(schemas.input_types(source)):
            takes = narrow and schemas.allows(source, type_str, self.dtype)
            node.input[i] = frame.read(
                source.input[i], self._choose_dtype(source.input[i], known, takes)
            )
        for body in list_bodies(node):
            self._rewrite_body(frame, source, body, known, narrow)
        for i, name in enumerate(source.output):
            if name:
                dtype = known.get(name)
                node.output[i] = frame.define(name, dtype, made[i] if made is not None else dtype)
        frame.nodes.append(node)

    def _short_output_dtypes(self, node: NodeProto, known: Dtypes) -> list[str | None] | None:
        """Return a node's output types with short inputs, or None if the node cannot have these.

        An attribute of the node that determines an output type is changed.
        """
        schemas = self.chooser.schemas
        reads = list(zip(node.input, schemas.input_types(node), strict=True))
        would_be = {
            name: self._choose_dtype(name, known, schemas.allows(node, type_str, self.dtype))
            for name, type_str in reads
        }
        types = {name: dtype for name, dtype in would_be.items() if dtype is not None}
        bound = {type_str for name, type_str in reads if known.get(name) == FLOAT}
        free = schemas.find(node) is not None and not list_bodies(node)
        result = []
        for name, type_str in zip(node.output, schemas.output_types(node), strict=True):
            dtype = known.get(name)
            if name and dtype == FLOAT and schemas.allows(node, type_str, self.dtype):
                dtype = self.dtype
                if free and type_str not in bound:
                    found = schemas.shorten_output(node, name, types, self.dtype)
                    if found is None:
                        return None
                    node.CopyFrom(found[0])
                    dtype = found[1]
            result.append(dtype)
        return result

    def _choose_dtype(self, name: str, known: Dtypes, takes: bool) -> str | None:
        dtype = known.get(name)
        return self.dtype if takes and dtype == FLOAT else dtype

    def _rewrite_body(
        self,
        around: CastFrame,
        node: NodeProto,
        body: GraphProto,
        known: Dtypes,
        narrow: bool,
    ) -> None:
        """Rewrite a body in place; its inputs and outputs are short if its node is."""
        frame = CastFrame(self.naming if around.renames else around.naming, around)
        nodes = list(body.node)
        own = infer_body_dtypes(node, body, known)
        inner = self.chooser.infer_dtypes(nodes, ChainMap(own, dict(known)))
        for value in body.input:
            dtype = self._choose_dtype(value.name, inner, narrow)
            frame.add(value.name, inner.get(value.name), {dtype: value.name})
            if dtype == self.dtype and inner.get(value.name) == FLOAT:
                value.type.tensor_type.elem_type = DTYPE_NUMBERS[dtype]
        self._add_initializers(frame, body)
        outputs = [value.name for value in body.output if inner.get(value.name) == FLOAT]
        short = [False] * len(nodes)
        if narrow:
            short, _ = self.chooser.choose(nodes, inner, outputs)
        self.run(frame, nodes, inner, short)
        for value in body.output:
            dtype = self._choose_dtype(value.name, inner, narrow)
            if dtype != inner.get(value.name):
                value.type.tensor_type.elem_type = DTYPE_NUMBERS[self.dtype]
            value.name = frame.read(value.name, dtype)
        now = frame.current_dtypes()
        for value in body.value_info:
            if now.get(value.name) == self.dtype:
                value.type.tensor_type.elem_type = DTYPE_NUMBERS[self.dtype]
        del body.node[:]
        body.node.extend(frame.nodes)

    def _add_initializers(self, frame: CastFrame, body: GraphProto) -> None:
        """Register the initializers of a body; float32 ones are added back in the types read."""
        inputs = {value.name for value in body.input}
        tensors = [deepcopy(tensor) for tensor in body.initializer]
        del body.initializer[:]
        add = body.initializer.append
        for tensor in tensors:
            name, dtype = tensor.name, DTYPES[tensor.data_type]
            if name not in inputs and dtype == FLOAT:
                self._add_constant(frame, name, tensor, partial(add, tensor), add)
                continue
            add(tensor)
            if name not in inputs:
                frame.add(name, dtype, {dtype: name})

    def _rewrite_call(self, frame: CastFrame, node: NodeProto, known: Dtypes, narrow: bool) -> None:
        """Add a call of a model's function, which is rewritten for this call."""
        function = self.chooser.find_function(node)
        assert function is not None
        inside, inner = self.chooser.expand_call(node, function, known)
        outputs = [name for name in function.output if inner.get(name) == FLOAT]
        short, read_short = [False] * len(inside), set[str]()
        if narrow:
            short, read_short = self.chooser.choose(inside, inner, outputs)
        body = CastFrame(_function_naming(function))
        for formal in function.input:
            dtype = inner.get(formal)
            now = self.dtype if dtype == FLOAT and formal in read_short else dtype
            body.add(formal, dtype, {now: formal})
        self.run(body, inside, inner, short)
        made = []
        for name in function.output:
            value = body.find(name)
            has = narrow and (value is None or self.dtype in value.names or value.is_constant)
            made.append(self._choose_dtype(name, inner, has))
        new = deepcopy(function)
        names = [body.read(name, dtype) for name, dtype in zip(function.output, made, strict=True)]
        del new.node[:]
        new.output[:] = names
        new.node.extend(body.nodes)
        restore_references(new, function, node)
        for i, (name, formal) in enumerate(zip(list(node.input), function.input, strict=False)):
            node.input[i] = frame.read(name, self._choose_dtype(name, known, formal in read_short))
        for i, (name, dtype) in enumerate(zip(list(node.output), made, strict=False)):
            if name:
                node.output[i] = frame.define(name, known.get(name), dtype or known.get(name))
        node.op_type = self.variants.add(function, new, self.dtype)
        frame.nodes.append(node)


def _append_constant(nodes: list[NodeProto], tensor: TensorProto) -> None:
    nodes.append(build_node("Constant", [], [tensor.name], tensor.name, value=tensor))


def _function_naming(function: FunctionProto) -> Naming:
    """Return a naming function for a function's new tensors, deterministic for equal rewrites."""
    taken = list_tensor_names(function)
    return lambda name, of, dtype: make_unique_name(name, taken)


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the float32 tensor that a Constant node holds, or None."""
    if node.op_type != "Constant":
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
            return attribute.t
        if attribute.name == "value_float":
            return numpy_helper.from_array(np.array(attribute.f, np.float32))
        if attribute.name == "value_floats":
            return numpy_helper.from_array(np.array(attribute.floats, np.float32))
    return None
