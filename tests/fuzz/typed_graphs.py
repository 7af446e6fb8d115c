"""Steps of random models through every element type: casts, codes, text, complex, empty tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from pipeline.random_graphs import GraphMaker

_INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")
_FLOATS = ("FLOAT16", "BFLOAT16", "DOUBLE")
_SHORT_FLOATS = (
    "FLOAT8E4M3FN",
    "FLOAT8E4M3FNUZ",
    "FLOAT8E5M2",
    "FLOAT8E5M2FNUZ",
    "FLOAT8E8M0",
    "FLOAT4E2M1",
)
_SHORT_INTEGERS = ("INT4", "UINT4", "INT2", "UINT2")
_LIMITS = {"INT4": (-8.0, 7.0), "UINT4": (0.0, 15.0), "INT2": (-2.0, 1.0), "UINT2": (0.0, 3.0)}
_ARITHMETIC = ("Add", "Mul", "Sub", "Max", "Min")
_NO_LARGEST = ("INT8", "UINT8", "INT16", "UINT16")
"""The integers for which onnxruntime has no kernel of the last two."""
_MOVES = (
    "Flatten",
    "Identity",
    "Transpose",
    "Reshape",
    "Concat",
)  # the first lacks kernels, the last slices


class TypedGraphMaker(GraphMaker):
    """Takes tensors of the shape through other types, each in a step that ends in another of them.

    Three of five models have only what onnxruntime has kernels for; the others have other types, too,
    and nothing that onnx.reference does not run.
    """

    ir = 13
    opset = 25

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._has_kernels = seed % 5 < 3
        self._odd: dict[str, onnx.TypeProto] = {}

    def model(self, size: int) -> onnx.ModelProto:
        """Return a model of about `size` nodes; some have an output that is no float32 tensor."""
        model = super().model(size)
        if self._odd and self._random.random() < 0.6:
            name = self._choose(list(self._odd))
            model.graph.output.append(helper.make_value_info(name, self._odd[name]))
        return model

    def _choose(self, names: Sequence[str]) -> str:
        return str(self._random.choice(names))

    def _finish(self, tensor: str) -> None:
        """Make a tensor with the values of an odd one among those of the shape."""
        self._tensors.append(self._add("Add", [self._pick(), tensor]))

    def _offer(self, tensor: str, dtype: int, shape: Sequence[int | str] | None = None) -> None:
        """Make a tensor of another type than the others one that may be an output."""
        shape = self.shape if shape is None else shape
        self._odd[tensor] = helper.make_tensor_type_proto(dtype, shape)

    def _store(self, values: NDArray[Any], dtype: str = "") -> str:
        name = f"k{len(self._constants)}"
        if dtype:
            kind = getattr(TensorProto, dtype)
            self._constants.append(helper.make_tensor(name, kind, values.shape, values.ravel().tolist()))
        else:
            self._constants.append(numpy_helper.from_array(values, name))
        return name

    def _integers(self, *values: int) -> str:
        return self._store(np.array(values, np.int64))

    def _integers_scalar(self, value: int) -> str:
        return self._store(np.array(value, np.int64))

    def _cast(self) -> None:
        """Go through another element type, and on in it for a while."""
        usual = (*_INTEGERS, "FLOAT16", "FLOAT16", "FLOAT16", "DOUBLE")
        names = usual if self._has_kernels else (*_FLOATS, *_SHORT_FLOATS, *_SHORT_INTEGERS)
        dtype = self._choose(names)
        low, high = _LIMITS.get(dtype, (0.0 if dtype[0] == "U" else -100.0, 100.0))
        tensor = self._pick()
        if dtype not in _FLOATS:
            bounds = [self._store(np.array(bound, np.float32)) for bound in (low, high)]
            tensor = self._add("Clip", [tensor, *bounds])
        tensor = self._add("Cast", [tensor], to=getattr(TensorProto, dtype))
        for _ in range(int(self._random.integers(4))):
            short = dtype in (*_SHORT_FLOATS, *_SHORT_INTEGERS)
            if short or self._random.random() < 0.5:
                tensor = self._move(tensor, not short)
            else:
                some = _ARITHMETIC[:3] if self._has_kernels and dtype in _NO_LARGEST else _ARITHMETIC
                tensor = self._add(self._choose(some), [tensor, tensor])
        self._offer(tensor, getattr(TensorProto, dtype))
        self._finish(self._add("Cast", [tensor], to=TensorProto.FLOAT))

    def _move(self, tensor: str, whole: bool = False) -> str:
        """Move the elements of a tensor, and back; slices are for types of `whole` bytes."""
        op = self._choose(_MOVES[self._has_kernels : None if whole else -1])
        if op == "Transpose":
            tensor = self._add(op, [tensor], perm=[0, 2, 3, 1])
            return self._add(op, [tensor], perm=[0, 3, 1, 2])
        if op == "Concat":
            parts = [self._slice(tensor, 1, start, start + 2) for start in (2, 0)]
            return self._add(op, parts, axis=1)
        if op in ("Reshape", "Flatten"):
            flat = [tensor, self._integers(-1)] if op == "Reshape" else [tensor]
            tensor = self._add(op, flat)
            return self._add("Reshape", [tensor, self._integers(-1, 4, 3, 3)])
        return self._add(op, [tensor])

    def _slice(self, tensor: str, axis: int, start: int, stop: int) -> str:
        return self._add("Slice", [tensor, *(self._integers(i) for i in (start, stop, axis))])

    def _codes(self) -> None:
        """Quantize and dequantize, in any of the types that this is done in."""
        kinds = ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2")
        dtype = self._choose(kinds if self._has_kernels else (*kinds, "INT2", "FLOAT4E2M1"))
        scale = self._store(np.array(self._random.uniform(0.05, 0.5), np.float32))
        point = self._store(np.array(0), dtype)
        codes = self._add("QuantizeLinear", [self._pick(), scale, point])
        if not self._has_kernels or (dtype in ("INT8", "UINT8") and self._random.random() < 0.5):
            codes = self._move(codes)
        if not self._has_kernels or dtype in _INTEGERS:
            self._offer(codes, getattr(TensorProto, dtype))
        self._finish(self._add("DequantizeLinear", [codes, scale, point]))

    def _condition(self) -> None:
        a, b = self._pick(), self._pick()
        mask = self._add(self._choose(("Greater", "LessOrEqual", "Equal")), [a, b])
        if self._random.random() < 0.5:
            mask = self._add(self._choose(("And", "Or", "Xor")), [mask, self._add("Not", [mask])])
        self._offer(mask, TensorProto.BOOL)
        self._tensors.append(self._add("Where", [mask, a, b]))

    def _text(self) -> None:
        """Compare numbers as text."""
        a = self._pick()
        whole = self._add("Cast", [self._add("Round", [a])], to=TensorProto.INT32)
        text = self._add("Cast", [whole], to=TensorProto.STRING)
        other = self._store(np.array([self._choose(("0", "1", "", "é"))], object))
        if self._random.random() < 0.4:
            joined = [self._add("StringConcat", [each, other]) for each in (text, text)]
            self._offer(joined[0], TensorProto.STRING)
            same = self._add("Equal", joined)
        else:
            text = self._move(text, True)
            self._offer(text, TensorProto.STRING)
            same = self._add("Equal", [text, other])
        self._tensors.append(self._add("Where", [same, a, self._pick()]))

    def _complex(self) -> None:
        """Choose complex numbers by what the inputs are, and carry them along."""
        dtype = np.dtype(self._choose(("complex64", "complex128")))
        values = self._random.standard_normal((2, 2, 3)) * (1 + 1j) + 1j
        choices = [self._store(each.astype(dtype)) for each in values]
        sign = self._add("ReduceSum", [self._pick()], keepdims=0)
        positive = self._add("Greater", [sign, self._store(np.array(0, np.float32))])
        tensor = self._add("Where", [positive, *choices])
        op = self._choose(("Identity", "Transpose", "Flatten", "Concat"))
        tensor = (
            self._add(op, [tensor, choices[0]], axis=0) if op == "Concat" else self._add(op, [tensor])
        )
        shapes = {"Transpose": [3, 2], "Concat": [4, 3]}
        self._offer(tensor, helper.np_dtype_to_tensor_dtype(dtype), shapes.get(op, [2, 3]))
        size = self._add("Cast", [self._add("Size", [tensor])], to=TensorProto.FLOAT)
        self._finish(size)

    def _empty(self) -> None:
        a = self._pick()
        nothing = self._add(self._choose(("Relu", "Neg", "Abs")), [self._slice(a, 1, 2, 2)])
        self._finish(
            self._add("Concat", [nothing, a] if self._random.random() < 0.5 else [a, nothing], axis=1)
        )

    def _scalar(self) -> None:
        mean = self._add(
            self._choose(("ReduceMean", "ReduceMax", "ReduceL1")), [self._pick()], keepdims=0
        )
        self._finish(self._add("Tanh", [mean]))

    def _shape_of(self) -> None:
        a = self._pick()
        shape = self._add("Shape", [a])
        flat = self._add("Reshape", [a, self._integers(-1)])
        self._tensors.append(self._add("Reshape", [flat, self._add("Abs", [shape])]))
