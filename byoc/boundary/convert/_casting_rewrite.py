"""Rewriting of nodes to compute in the short type, with Casts between differing types."""

from collections import ChainMap
from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, TensorProto, numpy_helper

from byoc.boundary.convert._casting_choice import ShortTypeChooser
from byoc.boundary.convert._casting_frame import (
    CastFrame,
    CastValue,
    Naming,
    make_constant_node,
    restore_references,
)
from byoc.boundary.convert._host_casts import HostCasts
from byoc.boundary.convert._short_dtypes import FLOAT, Dtypes, infer_body_dtypes, round_tensor
from byoc.model import (
    DTYPE_NUMBERS,
    DTYPES,
    is_onnx,
    list_tensor_names,
    make_unique_name,
    walk_bodies,
)


class CastRewriter:
    """Rewrites the nodes of a region; `naming` names tensors inside bodies."""

    def __init__(self, chooser: ShortTypeChooser, naming: Naming, outside: HostCasts) -> None:
        """Remember everything that is common to the nodes of a region."""
        self.chooser = chooser
        self.dtype = chooser.dtype
        self.naming = naming
        self.note = outside.note_clipped
        self.variants = outside.variants

    def run(
        self, frame: CastFrame, nodes: Sequence[NodeProto], known: Dtypes, short: Sequence[bool]
    ) -> None:
        """Add copies of nodes to a frame; those that are `short` compute in the short type."""
        for node, narrow in zip(nodes, short, strict=True):
            stored = _constant_tensor(node) if is_onnx(node) else None
            if stored is not None:
                self._add_constant(frame, node, stored)
            elif self.chooser.find_function(node) is not None:
                self._rewrite_call(frame, deepcopy(node), known, narrow)
            else:
                self._rewrite_node(frame, node, known, narrow)

    def _add_constant(self, frame: CastFrame, node: NodeProto, tensor: TensorProto) -> None:
        """Register a Constant, which is inserted when it is read, in each type in which it is read."""
        name = node.output[0]

        def make(dtype: str | None) -> str:
            if dtype != self.dtype:
                frame.nodes.append(node)
                return name
            new = frame.naming(f"{name}_{dtype}", name, dtype)
            short, beyond = round_tensor(tensor, new, dtype)
            self.note(name, beyond)
            frame.nodes.append(make_constant_node(new, short))
            return new

        frame.values[name] = CastValue(frame, FLOAT, {}, make)

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
        for body in walk_bodies(node):
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
        free = schemas.find(node) is not None and not any(True for _ in walk_bodies(node))
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
            frame.values[value.name] = CastValue(frame, inner.get(value.name), {dtype: value.name})
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
        stored = [t for t in body.initializer if t.name not in inputs]
        kept = [t for t in body.initializer if t.name in inputs or t.data_type != TensorProto.FLOAT]

        def maker(tensor: TensorProto) -> Callable[[str | None], str]:
            def make(dtype: str | None) -> str:
                new = tensor
                if dtype == self.dtype:
                    name = frame.naming(f"{tensor.name}_{dtype}", tensor.name, dtype)
                    new, beyond = round_tensor(tensor, name, dtype, self.variants.folder)
                    self.note(tensor.name, beyond)
                body.initializer.append(new)
                return new.name

            return make

        copies = [deepcopy(tensor) for tensor in kept]
        for tensor in stored:
            name = tensor.name
            dtype = DTYPES[tensor.data_type]
            if dtype == FLOAT:
                frame.values[name] = CastValue(frame, dtype, {}, maker(deepcopy(tensor)))
            else:
                frame.values[name] = CastValue(frame, dtype, {dtype: name})
        del body.initializer[:]
        body.initializer.extend(copies)

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
            body.values[formal] = CastValue(body, dtype, {now: formal})
        self.run(body, inside, inner, short)
        made = []
        for name in function.output:
            value = body.find(name)
            has = narrow and (
                value is None or self.dtype in value.names or value.make_constant is not None
            )
            made.append(self._choose_dtype(name, inner, has))
        new = deepcopy(function)
        names = [body.read(name, dtype) for name, dtype in zip(function.output, made, strict=True)]
        del new.node[:], new.output[:]
        new.output.extend(names)
        new.node.extend(body.nodes)
        restore_references(new, function, node)
        for i, (name, formal) in enumerate(zip(list(node.input), function.input, strict=False)):
            node.input[i] = frame.read(name, self._choose_dtype(name, known, formal in read_short))
        for i, (name, dtype) in enumerate(zip(list(node.output), made, strict=False)):
            if name:
                node.output[i] = frame.define(name, known.get(name), dtype or known.get(name))
        node.op_type = self.variants.add(function, new, self.dtype)
        frame.nodes.append(node)


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
