"""Short data types: schemas and constants in them, and the choice of the nodes that compute in them.

Formal parameters that share a type variable have one type. No operator but Cast is treated by name.
Constants are rounded to nearest, ties to even (IEEE 754). Values beyond the range become the largest
finite number, not infinity: attention masks hold the lowest float32 and would produce NaN. Infinities,
NaN and subnormal numbers are kept.
"""

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import FunctionProto, GraphProto, NodeProto, TensorProto, TypeProto, helper

from byoc._dataclasses import dataclass
from byoc.model import (
    DTYPE_NUMBERS,
    DTYPES,
    infer_body_input_types,
    is_onnx,
    list_bodies,
    read_raw_bytes,
    read_tensor_types,
    read_type,
    resolve_attributes,
    set_attribute,
)
from byoc.model.schemas import OperatorSchema, get_schema

FLOAT16, BFLOAT16 = "float16", "bfloat16"

_LARGEST = {FLOAT16: 0x7BFF, BFLOAT16: 0x7F7F}
_INFINITY = {FLOAT16: 0x7C00, BFLOAT16: 0x7F80}
_SIGN = 0x8000  # the sign's bit, of 16
_QUIET = 0x0040  # the bit of bfloat16 that makes a NaN quiet


def round_values(values: NDArray[np.float32], dtype: str) -> tuple[NDArray[np.uint16], int]:
    """Return float32 values in `dtype`, as uint16 bit patterns of the same shape.

    The second result is the number of finite values that were beyond the range.
    """
    if dtype == FLOAT16:
        with np.errstate(over="ignore", under="ignore"):
            bits = values.astype(np.float16).view(np.uint16)
    else:
        bits = _round_to_bfloat16(values)
    beyond = ((bits & ~np.uint16(_SIGN)) == _INFINITY[dtype]) & np.isfinite(values)
    bits = np.where(beyond, (bits & np.uint16(_SIGN)) | np.uint16(_LARGEST[dtype]), bits)
    return bits.astype(np.uint16), int(beyond.sum())


def _round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper half of each float32, rounded by its lower half."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    carry = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    nearest = ((bits + carry) >> np.uint32(16)).astype(np.uint16)
    quiet = (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(_QUIET)
    return np.where(np.isnan(values), quiet, nearest)


def round_tensor(
    tensor: TensorProto, name: str, dtype: str, folder: Path | None = None
) -> tuple[TensorProto, int]:
    """Return a stored float32 tensor rounded to `dtype`, and the number of values beyond its range.

    `folder` is the directory of external data; the result holds its own data. Raises InputError if the
    data is missing.
    """
    values = np.frombuffer(read_raw_bytes(tensor, folder), "<f4")
    bits, beyond = round_values(values, dtype)
    result = TensorProto(name=name, data_type=DTYPE_NUMBERS[dtype], dims=tensor.dims)
    result.doc_string = tensor.doc_string
    result.raw_data = bits.astype("<u2").tobytes()
    return result, beyond


FLOAT = "float32"
Dtypes = Mapping[str, str]
"""Tensors to their data types; those that are not known, or are no tensors, are left out."""

_FIXED = {f"tensor({name})": name for name in DTYPE_NUMBERS} | {"tensor(float)": FLOAT}
_FIXED["tensor(double)"] = "float64"


@dataclass(frozen=True)
class OperatorSchemas:
    """Operator schemas at the versions that a model imports; `opsets` are those versions by domain."""

    opsets: Mapping[str, int]

    def find(self, node: NodeProto) -> OperatorSchema | None:
        """Return the schema of a node's operator, or None if there is none."""
        domain = "" if is_onnx(node) else node.domain
        return get_schema(node.op_type, domain, self.opsets.get(domain, 1))

    def input_types(self, node: NodeProto) -> list[str]:
        """Return the type or type variable of each input, empty without a schema."""
        schema = self.find(node)
        formals = schema.list_input_formals(len(node.input)) if schema else []
        return [formal.type_str for formal in formals] or [""] * len(node.input)

    def output_types(self, node: NodeProto) -> list[str]:
        """Return the type or type variable of each output, empty without a schema."""
        schema = self.find(node)
        formals = schema.list_output_formals(len(node.output)) if schema else []
        return [formal.type_str for formal in formals] or [""] * len(node.output)

    def allows(self, node: NodeProto, type_str: str, dtype: str) -> bool:
        """Return whether tensors of a type variable may have a data type.

        For an operator without a schema all may: the rule file says that the accelerator has it.
        """
        schema = self.find(node)
        return schema is None or dtype in schema.get_allowed_dtypes(type_str)

    def has_only_tensors(self, node: NodeProto) -> bool:
        """Return whether all parameters of a node are tensors, none a sequence or a map."""
        schema = self.find(node)
        if schema is None:
            return True
        parameters = (schema.inputs, len(node.input)), (schema.outputs, len(node.output))
        formals = (formal for formals_of_side, count in parameters for formal in formals_of_side[:count])
        return all(formal.dtypes for formal in formals)

    def infer_outputs(self, node: NodeProto, known: Dtypes) -> dict[str, str]:
        """Return the data types of a node's outputs by ONNX's inference; empty if that fails."""
        schema = self.find(node)
        if schema is None or schema.onnx_schema is None:
            return {}
        kinds = {
            name: helper.make_tensor_type_proto(DTYPE_NUMBERS[dtype], None)
            for name, dtype in known.items()
        }
        imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema.onnx_schema, node, kinds, opset_imports=imports
            )
        except (KeyError, RuntimeError, onnx.shape_inference.InferenceError):
            return {}
        return _tensor_dtypes(found)

    def infer_output(self, node: NodeProto, position: int, known: Dtypes) -> str | None:
        """Return the data type of an output of a node, or None if it is not known."""
        schema = self.find(node)
        if schema is None:
            return next((known[name] for name in node.input if name in known), None)
        type_str = self.output_types(node)[position]
        same = zip(self.input_types(node), node.input, strict=True)
        return (
            _FIXED.get(type_str)
            or next((known[name] for t, name in same if t == type_str and name in known), None)
            or self.infer_outputs(node, _inference_inputs(node, known)).get(node.output[position])
        )

    def shorten_output(
        self, node: NodeProto, output: str, known: Dtypes, dtype: str
    ) -> tuple[NodeProto, str] | None:
        """Return a node changed to make an output in `dtype`, and the output's resulting data type.

        Applies to outputs whose type follows from an attribute instead of an input: a Cast's `to`, or a
        tensor such as a ConstantOfShape's `value`. None for operators that make numbers from nothing but
        an extent: their float32 results are more precise, and onnxruntime does not have all of them in
        float16. `known` has the types of the inputs as they would be.
        """
        schema = self.find(node)
        known = _inference_inputs(node, known)
        for changed in _changed_copies(node, schema, dtype) if schema is not None else ():
            if self.infer_outputs(changed, known).get(output) == dtype:
                return changed, dtype
        found = self.infer_outputs(node, known).get(output)
        return (node, found) if found is not None and found != dtype else None


def is_fixed(type_str: str) -> bool:
    """Return whether a parameter has one type by its schema rather than a type variable."""
    return type_str in _FIXED


def _inference_inputs(node: NodeProto, known: Dtypes) -> Dtypes:
    """Return the types that a node's inference needs: all known ones for a node with bodies."""
    if list_bodies(node):
        return known
    return {name: known[name] for name in node.input if name in known}


def _changed_copies(node: NodeProto, schema: OperatorSchema, dtype: str) -> Iterator[NodeProto]:
    """Yield copies of a node with one attribute changed that may determine a float32 output."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    for name, formal in schema.attributes.items():
        attribute = attributes.get(name)
        if formal.kind == "TENSOR":
            zero = TensorProto(dims=[1], data_type=TensorProto.FLOAT, raw_data=bytes(4))
            old = attribute.t if attribute is not None else zero
            if old.data_type != TensorProto.FLOAT:
                continue
            new = helper.make_attribute(name, round_tensor(old, old.name, dtype)[0])
        elif (schema.op_type, name) == ("Cast", "to"):
            new = helper.make_attribute(name, DTYPE_NUMBERS[dtype])
        else:
            continue
        changed = deepcopy(node)
        set_attribute(changed, new)
        yield changed


def infer_body_dtypes(node: NodeProto, body: GraphProto, around: Dtypes) -> dict[str, str]:
    """Return the data types stated in a body, and those of its inputs that follow from its node's."""
    kinds = {name: helper.make_tensor_type_proto(DTYPE_NUMBERS[t], None) for name, t in around.items()}
    found = infer_body_input_types(
        node, body, {name: kinds[name] for name in node.input if name in kinds}
    )
    stated = {v.name: v.type for v in (*body.value_info, *body.output, *body.input)}
    found.update((name, kind) for name, kind in stated.items() if read_type(kind) is not None)
    result = _tensor_dtypes(found)
    return result | {tensor.name: DTYPES[tensor.data_type] for tensor in body.initializer}


def _tensor_dtypes(kinds: Mapping[str, TypeProto]) -> dict[str, str]:
    return {name: kind.dtype for name, kind in read_tensor_types(kinds).items()}


# Choice of the nodes that compute in the short type: those whose results are read in it.
#
# The choice proceeds backwards from the outputs: a node that only makes parameters that are float32
# by the schema of their readers, such as a Resize's scales, stays float32 itself, however long the
# chain. So does arithmetic on extents, which would be wrong beyond 2048 in float16.


@dataclass(frozen=True, eq=False)
class ShortTypeChooser:
    """Chooses nodes of functions and bodies, by the schemas and the known data types.

    `functions` are the model's own by domain and name; `dtype` is float16 or bfloat16.
    """

    schemas: OperatorSchemas
    functions: Mapping[tuple[str, str], FunctionProto]
    dtype: str

    def find_function(self, node: NodeProto) -> FunctionProto | None:
        """Return the model's function that a node calls, or None."""
        return self.functions.get((node.domain, node.op_type))

    def infer_dtypes(self, nodes: Sequence[NodeProto], arguments: Dtypes) -> dict[str, str]:
        """Return the data types of all tensors of nodes in order, as far as they can be inferred."""
        result = dict(arguments)
        for node in nodes:
            if all(name in result for name in node.output if name):
                continue
            function = self.find_function(node)
            if function is not None:
                inner = self.expand_call(node, function, result)[1]
                made = [inner.get(name) for name in function.output]
            else:
                made = [
                    self.schemas.infer_output(node, i, result) if name else None
                    for i, name in enumerate(node.output)
                ]
            for name, dtype in zip(node.output, made, strict=False):
                if name and dtype is not None:
                    result.setdefault(name, dtype)
        return result

    def expand_call(
        self, call: NodeProto, function: FunctionProto, known: Dtypes
    ) -> tuple[list[NodeProto], dict[str, str]]:
        """Return the nodes of a function with the attributes of a call, and the data types in it."""
        nodes = [resolve_attributes(node, call) for node in function.node]
        pairs = zip(function.input, call.input, strict=False)
        arguments = {formal: known[name] for formal, name in pairs if name in known}
        return nodes, self.infer_dtypes(nodes, arguments)

    def choose(
        self,
        nodes: Sequence[NodeProto],
        known: Dtypes,
        wanted: Collection[str],
        exact: Set[str] = frozenset(),
    ) -> tuple[list[bool], set[str]]:
        """Return whether each node computes in the short type, and the tensors that are then read in it.

        `wanted` are tensors that are read in it from outside; nodes that make only tensors in `exact` do
        not compute in it. The nodes are in order.
        """
        short = set(wanted)
        result = [False] * len(nodes)
        for i in reversed(range(len(nodes))):
            node = nodes[i]
            made = {name for name in node.output if known.get(name) == FLOAT}
            if (made and made.isdisjoint(short)) or all(name in exact for name in node.output if name):
                continue
            result[i] = self.schemas.has_only_tensors(node) and self._bodies_allow_short(node)
            short.update(self._data_inputs(node, known))
        return result, short

    def _data_inputs(self, node: NodeProto, known: Dtypes) -> Iterator[str]:
        """Yield the data inputs of a node, including those of the nodes inside it.

        An input with a type variable counts as data, even if its operator supports float32 alone; an
        input with one fixed type by the schema is a parameter and does not.
        """
        function = self.find_function(node)
        if function is not None:
            nodes, inner = self.expand_call(node, function, known)
            _, short = self.choose(nodes, inner, [n for n in function.output if inner.get(n) == FLOAT])
            pairs = zip(function.input, node.input, strict=False)
            yield from (name for formal, name in pairs if formal in short)
            return
        for name, type_str in zip(node.input, self.schemas.input_types(node), strict=True):
            if known.get(name) == FLOAT and not is_fixed(type_str):
                yield name
        for body in list_bodies(node):
            inside = infer_body_dtypes(node, body, known)
            own = self.infer_dtypes(list(body.node), ChainMap(inside, dict(known)))
            outputs = [value.name for value in body.output if own.get(value.name) == FLOAT]
            _, short = self.choose(list(body.node), own, outputs)
            yield from short

    def _bodies_allow_short(self, node: NodeProto) -> bool:
        """Return whether the short type may enter and leave a node's bodies; true without bodies."""
        kinds = {*self.schemas.output_types(node)} if list_bodies(node) else ()
        return all(self.schemas.allows(node, kind, self.dtype) for kind in kinds)


def find_extent_arithmetic(
    nodes: Sequence[NodeProto], constants: Collection[str], small: Set[str]
) -> set[str]:
    """Return the `small` tensors that are computed from extents, and perhaps from constants.

    The extents themselves, which a Shape makes of data of any type, are left out.
    """
    fixed, extents, found = set(constants), set[str](), set[str]()
    for node in nodes:
        reads = [name for name in node.input if name]
        if list_bodies(node) or not is_onnx(node):
            continue
        if node.op_type in ("Shape", "Size"):
            extents.update(node.output)
        elif fixed.issuperset(reads):
            fixed.update(node.output)
        elif all(name in fixed or name in extents or name in found for name in reads):
            found.update(small & set(node.output))
    return found
