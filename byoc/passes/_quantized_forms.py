"""The forms of operators of integers: what each computes in floating point, and between which scales.

QLinearConv and QLinearMatMul are defined so by ONNX, the others by onnxruntime's ContribOperators.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
"""What returns the form of an operator, by its name; None where its attributes allow none."""
