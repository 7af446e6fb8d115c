"""The pass that reads operators of integers as the same operators between QDQ nodes.

onnxruntime's quantizer writes a quantized network in one of three forms: operators of floating point
between DequantizeLinear and QuantizeLinear (QDQ), operators of integers (QLinearConv, and those of
com.microsoft, "QOperator"), and products of integers that DynamicQuantizeLinear makes. The second and
the third are defined by the first: QLinearConv, QLinearMatMul and MatMulInteger by ONNX, the others in
onnxruntime's ContribOperators.md. Rules for quantized operators speak of QDQ groups, so all become that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from byoc._dataclasses import dataclass, field, replace
from byoc.model import build_node, find_constant_value, get_stated_attributes, is_onnx
from byoc.passes._cleaning import CleanPass
from byoc.passes._simplify import GraphEdits

# The forms of operators of integers: what each computes in floating point, and between which
# scales.
#
# QLinearConv and QLinearMatMul are defined so by ONNX, the others by onnxruntime's
# ContribOperators.md.


@dataclass(frozen=True)
class Quantity:
    """A quantized tensor with the names of its scale and zero point; `axis` for one scale a channel."""

    tensor: str
    scale: str
    zero_point: str = ""
    axis: int | None = None


@dataclass(frozen=True)
class FloatForm:
    """An operator of floating point on dequantized operands, and what its result is quantized by.

    Operands that are texts are read as they are. Without a `result` the operator's result stays in
    floating point. `bias` is an int32 tensor in the scale of the first two operands.
    """

    op: str
    operands: Sequence[Quantity | str]
    result: Quantity | None = None
    bias: str = ""
    dropped: frozenset[str] = frozenset()


def take_operand(inputs: Sequence[str], start: int, axis: int | None = None) -> Quantity:
    """Return an operand: a tensor, its scale and its zero point, from a position on."""
    tensor, scale, point = [*inputs[start : start + 3], "", ""][:3]
    return Quantity(tensor, scale, point, axis)


def _take_result(inputs: Sequence[str], start: int) -> Quantity:
    """Return the quantization of a result: its scale and zero point, from a position on."""
    scale, point = [*inputs[start : start + 2], ""][:2]
    return Quantity("", scale, point)


def _read_conv(inputs: Sequence[str], attributes: Mapping[str, Any]) -> FloatForm | None:
    x, w = take_operand(inputs, 0), take_operand(inputs, 3, axis=0)
    return FloatForm("Conv", (x, w), _take_result(inputs, 6), "".join(inputs[8:9]))


def _read_matmul(inputs: Sequence[str], attributes: Mapping[str, Any]) -> FloatForm | None:
    a, b = take_operand(inputs, 0), take_operand(inputs, 3, axis=-1)
    return FloatForm("MatMul", (a, b), _take_result(inputs, 6))


def _read_gemm(inputs: Sequence[str], attributes: Mapping[str, Any]) -> FloatForm | None:
    a, b = take_operand(inputs, 0), take_operand(inputs, 3, axis=0 if attributes.get("transB") else 1)
    result = _take_result(inputs, 7) if len(inputs) > 8 else None
    if attributes.get("alpha", 1.0) != 1.0:
        return None
    return FloatForm("Gemm", (a, b), result, "".join(inputs[6:7]))


def _read_binary(op: str) -> Callable[[Sequence[str], Mapping[str, Any]], FloatForm | None]:
    def read(inputs: Sequence[str], attributes: Mapping[str, Any]) -> FloatForm:
        operands = take_operand(inputs, 0), take_operand(inputs, 3)
        return FloatForm(op, operands, _take_result(inputs, 6))

    return read


def _read_unary(op: str) -> Callable[[Sequence[str], Mapping[str, Any]], FloatForm | None]:
    def read(inputs: Sequence[str], attributes: Mapping[str, Any]) -> FloatForm | None:
        if attributes.get("channels_last"):
            return None
        dropped = frozenset({"channels_last", "opset"})
        return FloatForm(op, (take_operand(inputs, 0),), _take_result(inputs, 3), dropped=dropped)

    return read


def _read_concat(inputs: Sequence[str], attributes: Mapping[str, Any]) -> FloatForm | None:
    operands = [take_operand(inputs, i) for i in range(2, len(inputs), 3)]
    return FloatForm("Concat", operands, _take_result(inputs, 0))


FORMS: Mapping[str, Callable[[Sequence[str], Mapping[str, Any]], FloatForm | None]] = {
    "QLinearConv": _read_conv,
    "QLinearMatMul": _read_matmul,
    "QGemm": _read_gemm,
    "QLinearAdd": _read_binary("Add"),
    "QLinearMul": _read_binary("Mul"),
    "QLinearSigmoid": _read_unary("Sigmoid"),
    "QLinearLeakyRelu": _read_unary("LeakyRelu"),
    "QLinearSoftmax": _read_unary("Softmax"),
    "QLinearAveragePool": _read_unary("AveragePool"),
    "QLinearGlobalAveragePool": _read_unary("GlobalAveragePool"),
    "QLinearConcat": _read_concat,
}
"""The reader of each operator's form, by its name; it returns None where attributes allow none."""


_AXIS_OPSET = 13  # ONNX opset with scales by axis
_DYNAMIC_OPSET = 11  # ONNX opset that brought DynamicQuantizeLinear
_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_FLOAT_PRODUCTS = frozenset({"DynamicQuantizeMatMul", "MatMulIntegerToFloat"})
_DYNAMIC_PRODUCTS = frozenset({*_PRODUCTS, "DynamicQuantizeMatMul"})
_KEPT = frozenset({"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class ReadQuantizedOperators(CleanPass):
    """Read operators of integers as operators of floating point between QDQ nodes.

    Results are onnxruntime's within one unit. It runs where a rule file has rules for quantized
    operators and none speaks of the operators of integers. With `dynamic_only`, which runs where a rule
    file wants `real_products`, these are the products of what DynamicQuantizeLinear makes, and
    DynamicQuantizeMatMul; with `forms_only` (`byoc.standalone`) the operators in `FORMS` alone.
    """

    dynamic_only: bool = False
    forms_only: bool = False

    name: ClassVar[str] = "read-quantized"
    operators: ClassVar[frozenset[str]] = frozenset({*FORMS, *_PRODUCTS})
    contrib_operators: ClassVar[frozenset[str]] = frozenset({*FORMS, *_FLOAT_PRODUCTS})

    @classmethod
    def list_read_operators(cls) -> frozenset[str]:
        """Return the operators of integers that are replaced."""
        return frozenset({*FORMS, *_PRODUCTS, *_FLOAT_PRODUCTS})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace each operator that has such a form, in order."""
        reader = _FormReader(edits)
        asked = {*numbers}
        for number, node in enumerate(edits.index.nodes):
            if self.dynamic_only and node.op_type not in _DYNAMIC_PRODUCTS:
                continue
            if number in asked and node.op_type in FORMS:
                form = FORMS[node.op_type](list(node.input), get_stated_attributes(node))
                reader.replace_operator(number, form)
            elif self.forms_only:
                continue
            elif number in asked and node.op_type in _FLOAT_PRODUCTS:
                reader.replace_float_product(number)
            elif number in asked:
                reader.replace_product(number)
            elif node.op_type in _KEPT and is_onnx(node):
                reader.replace_view(number)


@dataclass(eq=False)
class _FormReader:
    """The edits that replace operators of a graph; `quantities` are the tensors made so far.

    `reals` are the tensors that DynamicQuantizeLinear makes as real numbers, by name of the integers.
    All products that read one share it, so that a target can take both nodes as one.
    """

    edits: GraphEdits
    quantities: dict[str, Quantity] = field(default_factory=dict)
    reals: dict[str, str] = field(default_factory=dict)

    def replace_operator(self, number: int, form: FloatForm | None) -> None:
        """Replace an operator of integers by its form, where the operator set can say that."""
        index = self.edits.index
        node = index.nodes[number]
        if form is None or node.output[0] not in index.type_protos or not self._can_say(form):
            return
        nodes: list[NodeProto] = []
        reads = [self._dequantize(each, node, nodes) for each in form.operands]
        if form.bias:
            bias = self._dequantize_bias(form, node)
            if bias is None:
                return
            reads.append(self._dequantize(bias, node, nodes))
        made = node.output[0]
        if form.result is not None:
            made = self._name(f"{node.output[0]}_real", TensorProto.FLOAT, node.output[0])
        operator = build_node(form.op, reads, [made])
        operator.attribute.extend(_keep_attributes(node.attribute, form))
        nodes.append(operator)
        if form.result is not None:
            point = [form.result.zero_point] if form.result.zero_point else []
            operator.name = self.edits.names.new_node(f"{node.name or node.output[0]}_real")
            reads = [made, form.result.scale, *point]
            nodes.append(build_node("QuantizeLinear", reads, [node.output[0]]))
            self.quantities[node.output[0]] = Quantity(
                node.output[0], form.result.scale, form.result.zero_point
            )
        self.edits.replace(number, *nodes)
        self.edits.note_replaced(number, f"read as {form.op} between QDQ nodes")

    def replace_product(self, number: int) -> None:
        """Replace a product of integers, the Cast behind it and the Mul nodes by its scales."""
        edits, index = self.edits, self.edits.index
        node = index.nodes[number]
        found = self._find_scaling(number)
        dynamic = index.producers.get(node.input[0])
        if found is None or dynamic is None or index.nodes[dynamic].op_type != "DynamicQuantizeLinear":
            return
        between, last, factors = found
        _, own, point = index.nodes[dynamic].output
        points = [*node.input[2:4], "", ""][:2]
        others = [name for name in factors if name != own]
        made = index.nodes[last].output[0]
        if len(others) != 1 or len(factors) != 2 or points[0] not in ("", point):
            return
        weights = self._find_weights(node, others[0], points[1])
        if weights is None or made not in index.type_protos:
            return
        operands = (Quantity(node.input[0], own, points[0]), weights)
        form = FloatForm(_PRODUCTS[node.op_type], operands)
        if not self._can_say(form):
            return
        nodes: list[NodeProto] = []
        reads = [self._dequantize(each, node, nodes) for each in operands]
        operator = build_node(form.op, reads, [made])
        operator.attribute.extend(node.attribute)
        edits.replace(last, *nodes, operator)
        edits.note(last, f"{node.op_type} '{node.name or node.output[0]}' read as {form.op}")
        for each in (*between, number):
            edits.remove(each)

    def _find_scaling(self, number: int) -> tuple[list[int], int, list[str]] | None:
        """Return the scaling of a product of integers: nodes before the last, this, and two factors.

        They are a Cast and a Mul by the product of two scales, or a Cast and a Mul by each of them.
        """
        index = self.edits.index
        cast = self._find_only_reader(index.nodes[number].output[0], "Cast")
        first = None if cast is None else self._find_only_reader(index.nodes[cast].output[0], "Mul")
        if cast is None or first is None:
            return None
        factor = _other_factor(index.nodes[first], index.nodes[cast].output[0])
        maker = index.producers.get(factor)
        if maker is not None and index.nodes[maker].op_type == "Mul" and factor not in index.outputs:
            alone = len(index.consumers[factor]) == 1
            return [cast, *([maker] if alone else [])], first, list(index.nodes[maker].input)
        second = self._find_only_reader(index.nodes[first].output[0], "Mul")
        if second is None:
            return None
        last = _other_factor(index.nodes[second], index.nodes[first].output[0])
        return [cast, first], second, [factor, last]

    def _find_weights(self, node: NodeProto, scale: str, point: str) -> Quantity | None:
        """Return the second operand of a product; None where its scales are not those of channels.

        Several scales multiply the result: along its last axis, or for a convolution along the second.
        """
        weights, types = node.input[1], self.edits.index.type_protos
        is_matrix = node.op_type == "MatMulInteger"
        axis = -1 if is_matrix else 0
        values = find_constant_value(self.edits.index, scale, self.edits.folder)
        if values is None:
            return Quantity(weights, scale, point, axis)
        extents = np.shape(values)
        if weights not in types or node.output[0] not in types:
            return None
        rank = len(types[node.output[0]].tensor_type.shape.dim)
        if len(extents) > rank or (is_matrix and len(types[weights].tensor_type.shape.dim) < 2):
            return None
        if np.size(values) > 1:
            along = (*(1,) * (rank - len(extents)), *extents)[-1 if is_matrix else 1]
            channels = types[weights].tensor_type.shape.dim[axis].dim_value
            if (along, channels) != (np.size(values), np.size(values)):
                return None
        if len(extents) > 1:  # DequantizeLinear takes one number, or a list
            shape = (-1,) if np.size(values) > 1 else ()
            scale = self._store(np.ascontiguousarray(np.reshape(values, shape)), scale)
        return Quantity(weights, scale, point, axis)

    def replace_float_product(self, number: int) -> None:
        """Replace an operator of com.microsoft that multiplies integers and adds a bias to floats."""
        index = self.edits.index
        node = index.nodes[number]
        made = node.output[0]
        reads = [*node.input, "", "", "", "", ""]
        nodes: list[NodeProto] = []
        if node.op_type == "MatMulIntegerToFloat":
            left, right = (Quantity(reads[i], reads[i + 2], reads[i + 4]) for i in (0, 1))
            bias = reads[6]
        else:
            if reads[0] not in index.type_protos or index.opsets.get("", 0) < _DYNAMIC_OPSET:
                return
            left = self._quantize_dynamically(reads[0], made, nodes)
            right, bias = take_operand(reads, 1), reads[4]
        form = FloatForm("MatMul", (left, replace(right, axis=-1)))
        if made not in index.type_protos or not self._can_say(form):
            return
        operands = [self._dequantize(each, node, nodes) for each in form.operands]
        product = self._name(f"{made}_product", TensorProto.FLOAT, made) if bias else made
        nodes.append(build_node(form.op, operands, [product]))
        if bias:
            nodes[-1].name = self.edits.names.new_node(product)
            nodes.append(build_node("Add", [product, bias], [made]))
        self.edits.replace(number, *nodes)
        self.edits.note_replaced(number, f"read as {form.op} between QDQ nodes")

    def _quantize_dynamically(self, tensor: str, made: str, nodes: list[NodeProto]) -> Quantity:
        """Append the DynamicQuantizeLinear of a float tensor; return what it makes."""
        names = [self._name(f"{made}_integers", TensorProto.UINT8, tensor)]
        for word, dtype in (("scale", TensorProto.FLOAT), ("zero_point", TensorProto.UINT8)):
            names.append(self.edits.names.new_tensor(f"{made}_{word}"))
            self.edits.types[names[-1]] = helper.make_tensor_type_proto(dtype, ())
        nodes.append(
            build_node("DynamicQuantizeLinear", [tensor], names, self.edits.names.new_node(names[0]))
        )
        return Quantity(names[0], names[1], names[2])

    def replace_view(self, number: int) -> None:
        """Have an operator that keeps the numbers of a quantized tensor compute between QDQ nodes."""
        index = self.edits.index
        node = index.nodes[number]
        known = self.quantities.get(node.input[0])
        if known is None or len([name for name in node.output if name]) != 1:
            return
        if node.output[0] not in index.type_protos:
            return
        result = Quantity(node.output[0], known.scale, known.zero_point)
        rest = list(node.input[1:])
        self.replace_operator(number, FloatForm(node.op_type, (known, *rest), result))

    def _find_only_reader(self, tensor: str, op: str) -> int | None:
        index = self.edits.index
        readers = index.consumers.get(tensor, ())
        if len(readers) != 1 or tensor in index.outputs:
            return None
        return readers[0] if index.nodes[readers[0]].op_type == op else None

    def _can_say(self, form: FloatForm) -> bool:
        """Return whether operands have types, and scales for channels an axis in the operator set."""
        version = self.edits.index.opsets.get("", 0)
        for each in form.operands:
            if isinstance(each, str):
                continue
            if each.tensor not in self.edits.index.type_protos and each.tensor not in self.edits.types:
                return False
            counts = (
                self._count_elements(each.scale),
                self._count_elements(each.zero_point or each.scale),
            )
            if None in counts:
                return False
            several = counts != (1, 1)
            if several and (version < _AXIS_OPSET or each.axis is None):
                return False
            if counts[0] != counts[1] and (1 not in counts or self._read_constants(each) is None):
                return False
        return True

    def _count_elements(self, name: str) -> int | None:
        """Return the number of elements of a scale or zero point; None where it is not known."""
        value = self._read_constant(name)
        if value is not None:
            return int(np.size(value))
        kind = self.edits.types.get(name) or self.edits.index.type_protos.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        extents = [dim.dim_value for dim in kind.tensor_type.shape.dim]
        return prod(extents) if all(extents) else None

    def _read_constants(self, each: Quantity) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return the scale and the zero point of an operand, None where one is not stored."""
        scale, point = map(self._read_constant, (each.scale, each.zero_point))
        return None if scale is None or point is None else (scale, point)

    def _read_constant(self, name: str) -> NDArray[Any] | None:
        """Return a constant of the graph or of the edits; None for another tensor."""
        made = next((tensor for tensor in self.edits.stored if tensor.name == name), None)
        if made is not None:
            return numpy_helper.to_array(made)
        return find_constant_value(self.edits.index, name, self.edits.folder)

    def _dequantize(self, each: Quantity | str, node: NodeProto, nodes: list[NodeProto]) -> str:
        """Append the DequantizeLinear of an operand; return what it makes."""
        if isinstance(each, str):
            return each
        dynamic = self._find_dynamic(each)
        if dynamic is not None:
            return self._dequantize_dynamic(each, dynamic)
        made = self._name(f"{each.tensor}_read_by_{node.output[0]}", TensorProto.FLOAT, each.tensor)
        reads = [each.tensor, *self._broadcast_constants(each)]
        nodes.append(build_node("DequantizeLinear", reads, [made], self.edits.names.new_node(made)))
        if each.axis is not None and (self._count_elements(reads[1]) or 1) > 1:
            rank = len(self._find_type(each.tensor).tensor_type.shape.dim)
            nodes[-1].attribute.append(helper.make_attribute("axis", each.axis % rank))
        return made

    def _find_dynamic(self, each: Quantity) -> int | None:
        """Return the DynamicQuantizeLinear of the graph that makes an operand with its zero point."""
        index = self.edits.index
        number = index.producers.get(each.tensor)
        made = [] if number is None else list(index.nodes[number].output)
        if number is None or index.nodes[number].op_type != "DynamicQuantizeLinear":
            return None
        return number if made == [each.tensor, each.scale, each.zero_point] else None

    def _dequantize_dynamic(self, each: Quantity, dynamic: int) -> str:
        """Return the real numbers of a DynamicQuantizeLinear, made right behind it for all readers."""
        if each.tensor not in self.reals:
            made = self._name(f"{each.tensor}_real", TensorProto.FLOAT, each.tensor)
            reads = [each.tensor, each.scale, each.zero_point]
            operator = build_node("DequantizeLinear", reads, [made], self.edits.names.new_node(made))
            self.edits.insert_after(dynamic, operator)
            self.reals[each.tensor] = made
        return self.reals[each.tensor]

    def _broadcast_constants(self, each: Quantity) -> list[str]:
        """Return the scale and the zero point of an operand, as many of the one as of the other."""
        if not each.zero_point:
            return [each.scale]
        names = [each.scale, each.zero_point]
        counts = [self._count_elements(name) for name in names]
        values = self._read_constants(each) if counts[0] != counts[1] else None
        if values is None:
            return names
        for position, array in enumerate(np.broadcast_arrays(*(value.reshape(-1) for value in values))):
            if counts[position] == 1:
                names[position] = self._store(np.ascontiguousarray(array), names[position])
        return names

    def _store(self, value: NDArray[Any], wanted: str) -> str:
        return self.edits.store(value, wanted)

    def _dequantize_bias(self, form: FloatForm, node: NodeProto) -> Quantity | None:
        """Return a bias with a scale of its own: the product of those of the operands, if stored."""
        scales = [
            find_constant_value(self.edits.index, each.scale, self.edits.folder)
            for each in form.operands[:2]
            if not isinstance(each, str)
        ]
        if len(scales) != 2 or form.bias not in self.edits.index.type_protos:
            return None
        values = [value for value in scales if value is not None]
        if len(values) != 2:
            return None
        scale: NDArray[Any] = np.asarray(values[0] * values[1], np.float32)
        if scale.size == 1:
            scale = scale.reshape(())
        elif self.edits.index.opsets.get("", 0) < _AXIS_OPSET:
            return None
        return Quantity(
            form.bias, self._store(scale, f"{form.bias}_scale"), axis=0 if scale.ndim else None
        )

    def _name(self, wanted: str, dtype: int, like: str) -> str:
        """Return a new tensor of the shape of another one."""
        name = self.edits.names.new_tensor(wanted)
        kind = TypeProto()
        kind.CopyFrom(self._find_type(like))
        kind.tensor_type.elem_type = dtype
        self.edits.types[name] = kind
        return name

    def _find_type(self, name: str) -> TypeProto:
        return self.edits.types.get(name) or self.edits.index.type_protos[name]


def _other_factor(product: NodeProto, name: str) -> str:
    """Return the factor of a Mul beside another one; empty where both are the same."""
    return next((each for each in product.input if each != name), "")


def _keep_attributes(attributes: Sequence[AttributeProto], form: FloatForm) -> Iterator[AttributeProto]:
    return (each for each in attributes if each.name not in form.dropped)
