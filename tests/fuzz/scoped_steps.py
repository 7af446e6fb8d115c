"""Steps of random models on tensors, codes of quantized ones, texts and sequences: `StepMaker`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from scoped_values import FLOATS, CannotStepError, ScopeBuilder, Value, fits

INTEGERS = tuple(
    getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)
)
_UNARY = (
    "Relu Sigmoid Tanh Abs Neg Exp Sqrt Erf Floor Ceil Round Sin Cos Softplus Softsign Sign Reciprocal"
)
_UNARY += " LeakyRelu Elu HardSigmoid HardSwish Selu ThresholdedRelu Celu Identity Identity Log Atan"
_OF_INTEGERS = ("Abs", "Neg", "Sign", "Identity", "Relu", "BitwiseNot")
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "Mod", "Mean", "Sum")
_COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")
_REDUCTIONS += ("ReduceProd", "ReduceSumSquare", "ReduceLogSumExp")
_MOVES = (
    *("Transpose", "Reshape", "Concat", "Split", "Slice", "Gather", "Pad", "Tile", "Expand", "Flatten"),
    *("Unsqueeze", "Squeeze", "DepthToSpace", "SpaceToDepth", "GatherElements", "Trilu", "Resize"),
    *("ReverseSequence", "ScatterND", "CumSum", "Compress", "GatherND"),
)


class StepMaker(ScopeBuilder):
    """Steps that are a node or a few of them, on what is visible."""

    def _unary(self) -> None:
        value = self.find(*FLOATS, *INTEGERS)
        names = _UNARY.split() if value.dtype in FLOATS else _OF_INTEGERS
        self.add(self.pick(names), [value.name])

    def _binary(self) -> None:
        value = self.find(*FLOATS, *INTEGERS)
        names = [value.name, self.partner(value).name]
        if self.chance(0.5):
            names.reverse()
        op = self.pick(_BINARY)
        if op in ("Sum", "Max", "Min", "Mean") and self.chance(0.3):
            names.append(self.partner(value).name)
        fmod = {"fmod": 1} if op == "Mod" and value.dtype in FLOATS else {}
        self.add(op, names, **fmod)

    def _product(self) -> None:
        value = self.find(*FLOATS, least=1)
        inner, columns = value.shape[-1], 1 + self.below(4)
        stack = value.shape[:-2] if self.chance(0.3) else ()
        weight = self.store(self.draw(value.dtype, (*stack, inner, columns)), value.dtype)
        if len(value.shape) == 2 and self.chance(0.5):
            bias = [self.store(self.draw(value.dtype, (columns,)), value.dtype).name] * self.below(2)
            self.add("Gemm", [value.name, weight.name, *bias], alpha=self.pick((1.0, 0.5)))
        else:
            self.add("MatMul", [value.name, weight.name])

    def _convolution(self) -> None:
        value = self.find(*FLOATS[:3], least=3)
        rank, channels = len(value.shape) - 2, value.shape[1]
        kernel = [int(min(1 + self.below(3), extent or 1)) for extent in value.shape[2:]]
        group = channels if channels > 1 and self.chance(0.25) else 1
        made = group * (1 + self.below(2)) if group > 1 else 1 + self.below(4)
        shape = (made, channels // max(group, 1), *kernel)
        op = "Conv"
        if group == 1 and self.chance(0.2):
            op, shape = "ConvTranspose", (channels, made, *kernel)
        weight = self.store(self.draw(value.dtype, shape), value.dtype)
        bias = [self.store(self.draw(value.dtype, (made,)), value.dtype).name] * self.below(2)
        pads = [self.below(k) for k in kernel] * 2
        given = {"pads": pads} if self.chance(0.5) else {}
        if self.chance(0.3):
            given["strides"] = [1 + self.below(2)] * rank
        (found,) = self.add(op, [value.name, weight.name, *bias], group=group, **given)
        if self.chance(0.3):
            self.add("Relu", [found.name])

    def _pool(self) -> None:
        value = self.find(*FLOATS[:3], least=3)
        op = self.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"))
        if op.startswith("Global"):
            self.add(op, [value.name])
            return
        kernel = [int(min(1 + self.below(3), extent or 1)) for extent in value.shape[2:]]
        given: dict[str, Any] = {"ceil_mode": 1} if self.chance(0.2) and op != "LpPool" else {}
        if self.chance(0.3):
            given["strides"] = [1 + self.below(2)] * len(kernel)
        if self.chance(0.3):
            given["pads"] = [self.below(k) for k in kernel] * 2
        if op == "AveragePool" and self.chance(0.3):
            given["count_include_pad"] = 1
        outputs = 2 if op == "MaxPool" and self.chance(0.2) else 1
        self.add(op, [value.name], outputs, kernel_shape=kernel, **given)

    def _normalize(self) -> None:
        value = self.find(*FLOATS[:3], least=1)
        op = self.pick(("Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization", "LRN"))
        if op in ("Softmax", "LogSoftmax"):
            self.add(op, [value.name], axis=self.below(len(value.shape)))
        elif op == "LayerNormalization":
            scale = self.store(self.draw(value.dtype, value.shape[-1:]), value.dtype).name
            self.add(op, [value.name, scale], axis=-1)
        elif len(value.shape) < 3:
            raise CannotStepError
        elif op == "LRN":
            self.add(op, [value.name], size=3)
        else:
            channels = value.shape[1:2]
            given = [self.store(self.draw(value.dtype, channels), value.dtype).name for _ in range(3)]
            variance = np.abs(self.draw(value.dtype, channels)) + value.held.dtype.type(1)
            self.add(op, [value.name, *given, self.store(variance, value.dtype).name])

    def _reduce(self) -> None:
        value = self.find(*FLOATS, TensorProto.INT32, TensorProto.INT64)
        rank, op = len(value.shape), self.pick(_REDUCTIONS)
        axes = sorted({self.below(rank) for _ in range(1 + self.below(2))}) if rank else []
        axes = [axis - rank if self.chance(0.3) else axis for axis in axes]
        keep = {"keepdims": self.below(2)}
        if not axes or self.chance(0.2):
            self.add(op, [value.name], **keep)
        elif self.opset >= 18 or op == "ReduceSum":
            self.add(op, [value.name, self.integers(*axes)], **keep)
        else:
            self.add(op, [value.name], axes=axes, **keep)

    def _move(self) -> None:  # noqa: PLR0912, PLR0915 - a way for each operator
        value = self.find()
        rank, shape = len(value.shape), value.shape
        op = self.pick(_MOVES)
        name = value.name
        if (
            op in ("Transpose", "Concat", "Split", "Slice", "Gather", "GatherElements", "CumSum")
            and not rank
        ):
            raise CannotStepError
        axis = self.below(rank) if rank else 0
        if op == "Transpose":
            perm = {"perm": list(map(int, self.random.permutation(rank)))} if self.chance(0.8) else {}
            self.add(op, [name], **perm)
        elif op == "Reshape":
            self._reshape(value)
        elif op == "Concat":
            others = [each.name for each in self._scope.visible if _same_but(each, value, axis)]
            joined = [self.pick(others) for _ in range(1 + self.below(2))]
            self.add(op, [name, *joined], axis=axis - rank if self.chance(0.3) else axis)
        elif op == "Split":
            first = self.below(shape[axis] + 1)
            self.add(op, [name, self.integers(first, shape[axis] - first)], 2, axis=axis)
        elif op == "Slice":
            start, step = self.below(shape[axis] + 1), self.pick((1, 1, 2, -1))
            stop = -(2**62) if step < 0 else self.pick((shape[axis], 2**62, -1))
            parts = [self.integers(part) for part in (start, stop, axis, step)]
            self.add(op, [name, *parts])
        elif op == "Gather":
            places = self.random.integers(-shape[axis], max(shape[axis], 1), self.extents(self.below(3)))
            self.add(op, [name, self.store(np.asarray(places, np.int64)).name], axis=axis)
        elif op == "GatherElements":
            places = self.random.integers(0, max(shape[axis], 1), shape)
            self.add(op, [name, self.store(np.asarray(places, np.int64)).name], axis=axis)
        elif op == "Pad":
            mode = self.pick(("constant", "constant", "edge", "reflect"))
            self.add(op, [name, self.integers(*(self.below(2) for _ in range(2 * rank)))], mode=mode)
        elif op == "Tile":
            self.add(op, [name, self.integers(*(1 + self.below(2) for _ in shape))])
        elif op == "Expand":
            self.add(op, [name, self.integers(*self.extents(self.below(2)), *shape)])
        elif op == "Flatten":
            self.add(op, [name], axis=self.below(rank + 1))
        elif op in ("Unsqueeze", "Squeeze"):
            ones = [i for i, extent in enumerate(shape) if extent == 1]
            axis = self.pick(ones) if op == "Squeeze" else self.below(rank + 1)
            self.add(op, [name, self.integers(axis)])
        elif op in ("DepthToSpace", "SpaceToDepth"):
            self.add(op, [name], blocksize=1 if self.chance(0.3) else 2)
        elif op == "Resize":
            scales = self.store(np.array([1, 1, *(2.0 for _ in shape[2:])], np.float32)).name
            self.add(op, [name, "", scales], mode=self.pick(("nearest", "linear")))
        elif op == "CumSum":
            self.add(op, [name, self.store(np.array(axis, np.int64)).name], reverse=self.below(2))
        elif op == "Trilu":
            self.add(op, [name], upper=self.below(2))
        elif op == "ReverseSequence":
            if rank < 2:
                raise CannotStepError
            lengths = [1 + self.below(max(shape[0], 1)) for _ in range(shape[1])]
            self.add(op, [name, self.integers(*lengths)])
        elif op == "Compress":
            kept = self.store(self.random.random(shape[axis] if rank else 1) < 0.7).name
            self.add(op, [name, kept], **({"axis": axis} if rank else {}))
        elif op == "GatherND":
            places = [[self.below(max(extent, 1)) for extent in shape[:1]] for _ in range(2)]
            self.add(op, [name, self.store(np.array(places, np.int64)).name])
        else:
            places = self.store(np.array([[self.below(max(shape[0], 1))]] if rank else [[0]], np.int64))
            update = self.store(self.draw(value.dtype, (1, *shape[1:])), value.dtype)
            self.add(op, [name, places.name, update.name])

    def _reshape(self, value: Value) -> None:
        size = int(np.prod(value.shape))
        way = self.below(4)
        if way == 0:
            shape = [-1] if size else [0]
        elif way == 1:
            shape = [0] * len(value.shape)
        elif way == 2 and size % 2 == 0 and size:
            shape = [2, -1] if self.chance(0.5) else [-1, 1, 2]
        else:
            shape = [*value.shape[::-1]] if size else [0, 3]
        if self.chance(0.2):  # of a shape that the model computes
            flat = self.add("Reshape", [value.name, self.integers(-1)])[0]
            self.add("Reshape", [flat.name, self.add("Shape", [value.name])[0].name])
            return
        self.add("Reshape", [value.name, self.integers(*shape)])

    def _cast(self) -> None:
        value = self.find()
        dtype = self.pick((*FLOATS, *INTEGERS, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL))
        name = value.name
        if value.dtype in FLOATS and dtype in INTEGERS:
            low = self.store(self.draw(value.dtype, ()) * 0, value.dtype).name
            name = self.add("Max", [name, low])[0].name if self.chance(0.7) else name
        self.add("Cast", [name], to=dtype)

    def _compare(self) -> None:
        value = self.find(*FLOATS, *INTEGERS)
        op = self.pick(_COMPARISONS)
        self.add(op, [value.name, self.partner(value).name])

    def _logic(self) -> None:
        value = self.find(TensorProto.BOOL)
        if self.chance(0.3):
            self.add("Not", [value.name])
        else:
            self.add(self.pick(("And", "Or", "Xor")), [value.name, self.partner(value).name])

    def _where(self) -> None:
        value = self.find()
        masks = [
            each
            for each in self._scope.visible
            if each.dtype == TensorProto.BOOL and not each.is_sequence and fits(each.shape, value.shape)
        ]
        if not masks:
            masks = [self.store(self.draw(TensorProto.BOOL, value.shape))]
        self.add("Where", [self.pick(masks).name, value.name, self.partner(value).name])

    def _select(self) -> None:
        value = self.find(*FLOATS, TensorProto.INT64, TensorProto.INT32, least=1)
        axis = self.below(len(value.shape))
        op = self.pick(("ArgMax", "ArgMin", "TopK", "NonZero", "OneHot", "Unique", "Einsum"))
        if op == "TopK":
            number = self.integers(1 + self.below(max(value.shape[axis], 1)))
            self.add(op, [value.name, number], 2, axis=axis, largest=self.below(2))
        elif op == "NonZero":
            self.add(op, [value.name])
        elif op == "OneHot":
            indices = self.find(TensorProto.INT64, TensorProto.INT32)
            depth = self.store(np.array(4, np.int64)).name
            ends = self.store(np.array([0.0, 1.5], np.float32)).name
            self.add(op, [indices.name, depth, ends], axis=-1)
        elif op == "Unique":
            self.add(op, [value.name], self.pick((1, 2, 4)))
        elif op == "Einsum":
            letters = "ijkl"[: len(value.shape)]
            rest = letters.replace(letters[axis], "")
            equation = (
                f"{letters},{letters}->{rest}" if self.chance(0.5) else f"{letters}->{letters[::-1]}"
            )
            self.add(op, [value.name] * (1 + equation.count(",")), equation=equation)
        else:
            self.add(op, [value.name], axis=axis, keepdims=self.below(2))

    def _shape(self) -> None:
        value = self.find()
        way = self.below(4)
        shape = self.add("Shape", [value.name])[0].name if way else ""
        if way == 0:
            size = self.add("Size", [value.name])[0].name
            self.add("Cast", [size], to=TensorProto.FLOAT)
        elif way == 1:
            one = numpy_helper.from_array(self.draw(TensorProto.FLOAT, (1,)))
            self.add("ConstantOfShape", [shape], value=one)
        elif way == 2:
            start, step = (self.store(np.array(each, np.int64)).name for each in (0, 1))
            end = self.add("Gather", [shape, start])[0].name
            self.add("Range", [start, end, step])
        else:
            self.add("Expand", [self.store(self.draw(TensorProto.FLOAT, ())).name, shape])

    def _scale(self, shape: Sequence[int] = (), dtype: int = TensorProto.FLOAT) -> Value:
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        return self.store(
            np.asarray(self.random.choice([0.03, 0.125, 0.25, 0.1], shape)).astype(kind), dtype
        )

    def _point(self, dtype: int, shape: Sequence[int] = ()) -> Value:
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        low = 0 if self.chance(0.5) else int(self.random.integers(0, 12))
        return self.store(np.full(shape, low).astype(kind), dtype)

    def _quantized(self, value: Value, dtype: int) -> tuple[Value, Value]:
        """Return a tensor that was quantized and dequantized, and its integers."""
        scale, point = self._scale(dtype=value.dtype), self._point(dtype)
        points = [] if dtype == TensorProto.UINT8 and self.chance(0.2) else [point.name]
        codes = self.add("QuantizeLinear", [value.name, scale.name, *points])[0]
        return self.add("DequantizeLinear", [codes.name, scale.name, *points])[0], codes

    def _codes(self) -> None:
        """A QDQ group: an operator between dequantized tensors and a QuantizeLinear."""
        dtype = self.pick((TensorProto.INT8, TensorProto.INT8, TensorProto.UINT8))
        if self.opset >= 21:
            dtype = self.pick((dtype, dtype, TensorProto.INT16, TensorProto.UINT16))
        kinds = FLOATS[:2] if self.opset >= 19 and self.chance(0.2) else FLOATS[:1]
        value = self.find(*kinds)
        left, _ = self._quantized(value, dtype)
        way = self.below(5)
        if way == 0 and len(value.shape) >= 2:
            made = 1 + self.below(4)
            if len(value.shape) == 4:
                shape, op = (made, value.shape[1], 1, 1), "Conv"
            else:
                shape, op = (value.shape[-1], made), "MatMul"
            axis = 0 if op == "Conv" else 1
            scales = self._scale((made,) if self.chance(0.5) else (), value.dtype)
            codes = self.store(self.draw(TensorProto.INT8, shape), TensorProto.INT8)
            given = {"axis": axis} if scales.shape else {}
            weight = self.add("DequantizeLinear", [codes.name, scales.name], **given)[0]
            found = self.add(op, [left.name, weight.name])[0]
        elif way == 1:
            right, _ = self._quantized(self.partner(value), dtype)
            found = self.add(self.pick(("Add", "Mul")), [left.name, right.name])[0]
        elif way == 2:
            found = self.add(self.pick(("Relu", "Sigmoid", "Identity", "HardSwish")), [left.name])[0]
        elif way == 3 and value.shape:
            found = self.add("Concat", [left.name, left.name], axis=0)[0]
        else:
            found = left
        self._quantized(found, dtype)

    def _integer_product(self) -> None:
        """Products of integers: MatMulInteger, QLinearMatMul, and what is quantized as it runs."""
        value = self.find(TensorProto.FLOAT, least=2)
        if not value.held.size:
            raise CannotStepError  # onnxruntime leaves sums of nothing as memory was
        made, way = 1 + self.below(4), self.below(4)
        weight = self.store(self.draw(TensorProto.INT8, (value.shape[-1], made)), TensorProto.INT8)
        if way == 0:
            codes, scale, point = self.add("DynamicQuantizeLinear", [value.name], 3)
            total = self.add("MatMulInteger", [codes.name, weight.name, point.name])[0]
            number = self.add("Cast", [total.name], to=TensorProto.FLOAT)[0]
            self.add("Mul", [number.name, scale.name])
            return
        dtype = self.pick((TensorProto.INT8, TensorProto.UINT8))
        _, codes = self._quantized(value, dtype)
        ends = [codes.name, self._scale().name, self._point(dtype).name]
        if way == 1:
            zero = self.store(np.zeros((), np.int8)).name
            last = [self._scale().name, self._point(dtype).name]
            self.add("QLinearMatMul", [*ends, weight.name, self._scale().name, zero, *last])
        elif way == 2 and len(value.shape) == 4:
            kernel = self.store(
                self.draw(TensorProto.INT8, (made, value.shape[1], 1, 1)), TensorProto.INT8
            )
            zero = self.store(np.zeros((), np.int8)).name
            scales = self._scale((made,) if self.chance(0.4) else ()).name
            last = [self._scale().name, self._point(dtype).name]
            self.add("QLinearConv", [*ends, kernel.name, scales, zero, *last])
        else:
            self.add("MatMulInteger", [codes.name, weight.name, ends[2]])

    def _text(self) -> None:
        value = self.find(TensorProto.STRING, *INTEGERS[:4], TensorProto.BOOL)
        if value.dtype != TensorProto.STRING:
            value = self.add("Cast", [value.name], to=TensorProto.STRING)[0]
        way = self.below(4)
        if way == 0:
            self.add("Equal", [value.name, self.partner(value).name])
        elif way == 1:
            self.add("StringConcat", [value.name, self.partner(value).name])
        elif way == 2:
            self.add("Identity", [value.name])
        else:
            self.add("RegexFullMatch", [value.name], pattern="[0-9]+")

    def _sequence(self) -> None:
        known = [value for value in self._scope.visible if value.is_sequence]
        if not known or self.chance(0.4):
            value = self.find()
            same = [
                each
                for each in self._scope.visible
                if each.dtype == value.dtype and not each.is_sequence
            ]
            if value.shape and self.chance(0.3):
                sequence = self.add("SplitToSequence", [value.name], axis=0, keepdims=self.below(2))[0]
            else:
                names = [self.pick(same).name for _ in range(1 + self.below(2))]
                sequence = self.add("SequenceConstruct", [value.name, *names])[0]
        else:
            sequence = self.pick(known)
        if not sequence.held:
            raise CannotStepError
        place = self.store(np.array(self.below(len(sequence.held)), np.int64)).name
        way = self.below(5)
        if way == 0:
            self.add("SequenceLength", [sequence.name])
        elif way == 1:
            fitting = [v for v in self._scope.visible if v.dtype == sequence.dtype and not v.is_sequence]
            self.add("SequenceInsert", [sequence.name, self.pick(fitting).name, place])
        elif way == 2:
            self.add("SequenceErase", [sequence.name, place])
        elif way == 3:
            self.add("ConcatFromSequence", [sequence.name], axis=0, new_axis=self.below(2))
        else:
            self.add("SequenceAt", [sequence.name, place])


def _same_but(one: Value, other: Value, axis: int) -> bool:
    if one.is_sequence or one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return False
    return all(a == b or i == axis for i, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)))
