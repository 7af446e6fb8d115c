"""Random models whose steps are tried as they are made, in scopes of their own: `ScopedGraphMaker`.

Where `MixedGraphMaker` leads tensors of one shape through fixed detours, this one keeps whatever was
made, of any type, rank and extents, sequences among it, and each step takes what fits. A step is run by
onnxruntime before it is kept, so that every value of the model is known: what fails, or becomes NaN or
very large, is left out. A body is made by the same steps on the values of its first trip, and may read
whatever is visible where it stands.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from evaluators import rename_tensor, run_plain
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

DOMAIN = "acme"
OPSETS = (13, 14, 16, 17, 18, 19, 20, 21, 22)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_INTEGERS = tuple(
    getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)
)
_USUAL = (TensorProto.FLOAT,) * 8 + (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
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
_LARGEST = 1e4
_MOST_ELEMENTS = 400
_DEEPEST = 3
_TRIES = 40


class CannotStepError(Exception):
    """Nothing that is visible fits a step, or onnxruntime does not run it."""


@dataclass(frozen=True)
class Value:
    """A tensor, or a sequence of tensors, with what it holds on the inputs of the model."""

    name: str
    dtype: int
    held: Any
    is_sequence: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents on these inputs; of a sequence none."""
        return () if self.is_sequence else tuple(self.held.shape)

    def describe(self, shape: Sequence[int | str | None] | None = None) -> onnx.ValueInfoProto:
        """Return what a graph says of it, with the extents that are given, or none."""
        kind = helper.make_tensor_type_proto(self.dtype, shape)
        if self.is_sequence:
            kind = helper.make_sequence_type_proto(kind)
        return helper.make_value_info(self.name, kind)


@dataclass
class Scope:
    """A graph that is being made: its nodes, and what is visible in it."""

    visible: list[Value]
    depth: int = 0
    is_function: bool = False
    nodes: list[NodeProto] = field(default_factory=list)
    made: list[Value] = field(default_factory=list)


class ScopedGraphMaker:
    """Builds a random model with inputs; the same seed gives the same model."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = int(self.random.choice(OPSETS))
        self._constants: dict[str, onnx.TensorProto] = {}
        self._values: dict[str, Value] = {}
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._calls: dict[str, list[Value]] = {}
        self._names = 0
        self._style = self.pick(("t{}", "t{}", "layer/{}:0", "é {}", "dla_{}", "{}"))
        self._repeats_names = self.chance(0.15)
        self._scope = Scope([])

    # What is drawn

    def chance(self, share: float) -> bool:
        """Return True so often."""
        return bool(self.random.random() < share)

    def pick(self, things: Sequence[Any]) -> Any:
        """Return one of some things, which may be of any kind. Raises CannotStepError."""
        if not things:
            raise CannotStepError
        return things[int(self.random.integers(len(things)))]

    def below(self, number: int) -> int:
        """Return a whole number from 0 to below `number`."""
        return int(self.random.integers(number))

    def extents(self, rank: int) -> tuple[int, ...]:
        """Return small extents, seldom 0."""
        return tuple(0 if self.chance(0.01) else 1 + self.below(4) for _ in range(rank))

    def draw(self, dtype: int, shape: Sequence[int]) -> NDArray[Any]:
        """Return an array of quarters between -4 and 4, or of what the type has instead."""
        numbers = self.random.integers(-16, 17, shape)
        if dtype == TensorProto.STRING:
            words = np.array(["a", "b", "", "é", "10"], object)
            return words[np.asarray(numbers % 5).ravel()].reshape(shape)
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        if dtype == TensorProto.BOOL:
            return np.asarray(numbers > 0)
        if dtype in _FLOATS:
            return np.asarray(numbers / 4).astype(kind)
        low = 0 if np.iinfo(kind).min == 0 else -16
        return np.asarray(np.maximum(numbers, low)).astype(kind)

    # Names and constants

    def fresh(self) -> str:
        """Return a name that no tensor of the model has."""
        self._names += 1
        return str(self._style.format(self._names))

    def store(self, array: NDArray[Any], dtype: int | None = None) -> Value:
        """Return a constant: an initializer of the main graph, or a node where one stands."""
        dtype = dtype or helper.np_dtype_to_tensor_dtype(array.dtype)
        name = self.fresh()
        tensor = numpy_helper.from_array(array, name)
        value = Value(name, dtype, array)
        if self._scope.is_function or self.chance(0.2):
            self._scope.nodes.append(self._constant_node(name, array, tensor))
        else:
            self._constants[name] = tensor
        self._values[name] = value
        return value

    def _constant_node(self, name: str, array: NDArray[Any], tensor: onnx.TensorProto) -> NodeProto:
        plain = (
            array.dtype in (np.float32, np.int64) and array.ndim < 2 and array.size and self.chance(0.5)
        )
        if not plain:
            return helper.make_node("Constant", [], [name], self.node_name(), value=tensor)
        kind = "float" if array.dtype == np.float32 else "int"
        key = f"value_{kind}" + ("s" if array.ndim else "")
        return helper.make_node("Constant", [], [name], self.node_name(), **{key: array.tolist()})

    def integers(self, *numbers: int) -> str:
        """Return the name of a constant of int64."""
        return self.store(np.array(numbers, np.int64)).name

    def node_name(self) -> str:
        """Return a name for a node, that of others in some models, or none."""
        if self._repeats_names:
            return str(self.pick(("same", "", "other")))
        return f"n{self.fresh()}"

    # What is visible

    def find(self, *dtypes: int, rank: int | None = None, least: int = 0) -> Value:
        """Return a tensor of a type, one of the latest rather. Raises CannotStepError."""
        fitting = [
            value
            for value in self._scope.visible
            if not value.is_sequence
            and (not dtypes or value.dtype in dtypes)
            and (rank is None or len(value.shape) == rank)
            and len(value.shape) >= least
        ]
        return self.pick(fitting[-5:] if self.chance(0.7) else fitting)  # type: ignore[no-any-return]

    def partner(self, value: Value) -> Value:
        """Return a tensor that is broadcast with another, of its type, or a constant that is."""
        fitting = [
            each
            for each in self._scope.visible
            if not each.is_sequence and each.dtype == value.dtype and _fits(each.shape, value.shape)
        ]
        if fitting and self.chance(0.6):
            return self.pick(fitting)  # type: ignore[no-any-return]
        keep = self.below(len(value.shape) + 1)
        shape = [1 if self.chance(0.3) else extent for extent in value.shape[keep:]]
        return self.store(self.draw(value.dtype, shape), value.dtype)

    # Steps

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[Value]:
        """Add a node to the scope and return what it makes. Raises CannotStepError."""
        domain, _, op = op.rpartition(".")
        if not domain and not onnx.defs.has(op, self.opset):
            raise CannotStepError  # onnxruntime crashes where a function has such a node in a body
        names = [self.fresh() for _ in range(outputs)]
        node = helper.make_node(op, inputs, names, self.node_name(), domain=domain, **attributes)
        return self.keep(node)

    def keep(self, node: NodeProto) -> list[Value]:
        """Add a node that an evaluator runs. Raises CannotStepError."""
        made = self._evaluate(node)
        self._scope.nodes.append(node)
        for value in made:
            self._values[value.name] = value
            self._scope.made.append(value)
            self._scope.visible.append(value)
        return made

    def step(self) -> None:
        """Add one step, or none where forty do not fit."""
        for _ in range(_TRIES):
            scope = self._scope
            before = [len(each) for each in (scope.nodes, scope.made, scope.visible)]
            try:
                self.pick(self._steps())()
            except CannotStepError:
                self._scope = scope
                for kept, size in zip((scope.nodes, scope.made, scope.visible), before, strict=True):
                    del kept[size:]
            else:
                return

    def _steps(self) -> list[Callable[[], object]]:
        steps = [self._unary] * 4 + [self._binary] * 4 + [self._product] * 3 + [self._convolution] * 4
        steps += (
            [self._move] * 5 + [self._reduce] * 2 + [self._compare, self._where, self._cast, self._cast]
        )
        steps += [self._normalize, self._pool, self._pool, self._select, self._shape, self._logic]
        steps += [self._codes] * 3 + [self._integer_product, self._text, self._sequence, self._optional]
        if self._scope.depth < _DEEPEST:
            steps += [self._if, self._if, self._loop, self._scan]
        if not self._scope.is_function:
            steps += [self._call, self._call]
        return steps

    def _unary(self) -> None:
        value = self.find(*_FLOATS, *_INTEGERS)
        names = _UNARY.split() if value.dtype in _FLOATS else _OF_INTEGERS
        self.add(self.pick(names), [value.name])

    def _binary(self) -> None:
        value = self.find(*_FLOATS, *_INTEGERS)
        names = [value.name, self.partner(value).name]
        if self.chance(0.5):
            names.reverse()
        op = self.pick(_BINARY)
        if op in ("Sum", "Max", "Min", "Mean") and self.chance(0.3):
            names.append(self.partner(value).name)
        fmod = {"fmod": 1} if op == "Mod" and value.dtype in _FLOATS else {}
        self.add(op, names, **fmod)

    def _product(self) -> None:
        value = self.find(*_FLOATS, least=1)
        inner, columns = value.shape[-1], 1 + self.below(4)
        stack = value.shape[:-2] if self.chance(0.3) else ()
        weight = self.store(self.draw(value.dtype, (*stack, inner, columns)), value.dtype)
        if len(value.shape) == 2 and self.chance(0.5):
            bias = [self.store(self.draw(value.dtype, (columns,)), value.dtype).name] * self.below(2)
            self.add("Gemm", [value.name, weight.name, *bias], alpha=self.pick((1.0, 0.5)))
        else:
            self.add("MatMul", [value.name, weight.name])

    def _convolution(self) -> None:
        value = self.find(*_FLOATS[:3], least=3)
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
        value = self.find(*_FLOATS[:3], least=3)
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
        value = self.find(*_FLOATS[:3], least=1)
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
        value = self.find(*_FLOATS, TensorProto.INT32, TensorProto.INT64)
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
        dtype = self.pick(
            (*_FLOATS, *_INTEGERS, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL)
        )
        name = value.name
        if value.dtype in _FLOATS and dtype in _INTEGERS:
            low = self.store(self.draw(value.dtype, ()) * 0, value.dtype).name
            name = self.add("Max", [name, low])[0].name if self.chance(0.7) else name
        self.add("Cast", [name], to=dtype)

    def _compare(self) -> None:
        value = self.find(*_FLOATS, *_INTEGERS)
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
            if each.dtype == TensorProto.BOOL and not each.is_sequence and _fits(each.shape, value.shape)
        ]
        if not masks:
            masks = [self.store(self.draw(TensorProto.BOOL, value.shape))]
        self.add("Where", [self.pick(masks).name, value.name, self.partner(value).name])

    def _select(self) -> None:
        value = self.find(*_FLOATS, TensorProto.INT64, TensorProto.INT32, least=1)
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
        kinds = _FLOATS[:2] if self.opset >= 19 and self.chance(0.2) else _FLOATS[:1]
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
        value = self.find(TensorProto.STRING, *_INTEGERS[:4], TensorProto.BOOL)
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

    def _optional(self) -> None:
        """An optional, made and asked in one body, since neither evaluator is given one."""
        value = self.find(*_FLOATS, *_INTEGERS)
        names = [self.fresh() for _ in range(3)]
        given = helper.make_node("Optional", [value.name], names[:1], self.node_name())
        asked = self.pick(("OptionalGetElement", "OptionalHasElement"))
        if self.opset < 15:
            raise CannotStepError
        last = helper.make_node(asked, names[:1], names[1:2], self.node_name())
        dtype = TensorProto.BOOL if asked == "OptionalHasElement" else value.dtype
        bodies = [
            helper.make_graph([given, last], "some", [], [Value(names[1], dtype, None).describe()]),
            helper.make_graph(
                [
                    helper.make_node(
                        "Identity" if dtype == value.dtype else "IsInf", [value.name], names[2:]
                    )
                ]
                if dtype == value.dtype
                else [
                    self._constant_node(
                        names[2], np.array(False), numpy_helper.from_array(np.array(False))
                    )
                ],
                "none",
                [],
                [Value(names[2], dtype, None).describe()],
            ),
        ]
        condition = self._condition()
        self.add("If", [condition.name], then_branch=bodies[0], else_branch=bodies[1])

    # Bodies and functions

    def _condition(self) -> Value:
        flags = [
            v
            for v in self._scope.visible
            if v.dtype == TensorProto.BOOL and v.shape == () and not v.is_sequence
        ]
        if flags and self.chance(0.6):
            return self.pick(flags)  # type: ignore[no-any-return]
        if self.chance(0.3):
            return self.store(np.array(self.chance(0.5)))
        value = self.find(TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32)
        kept = self.add("ReduceMax", [value.name], keepdims=0)[0]
        return self.add(
            "Greater", [kept.name, self.store(self.draw(value.dtype, ()), value.dtype).name]
        )[0]

    @contextmanager
    def _inside(self, formal: Sequence[Value], is_function: bool = False) -> Iterator[Scope]:
        outside = self._scope
        visible = [*formal] if is_function else [*outside.visible, *formal]
        self._scope = Scope(visible, outside.depth + 1, is_function or outside.is_function)
        for value in formal:
            self._values[value.name] = value
        try:
            yield self._scope
        finally:
            self._scope = outside

    def _formal(self, dtype: int, held: Any) -> Value:
        return Value(self.fresh(), dtype, held)

    def _if(self) -> None:
        condition = self._condition()
        with self._inside(()) as one:
            for _ in range(1 + self.below(3)):
                self.step()
        if not one.made:
            raise CannotStepError
        results = [self.pick(one.made) for _ in range(1 + self.below(2))]
        results = list({value.name: value for value in results}.values())
        other_results = []
        with self._inside(()) as other:
            for _ in range(self.below(3)):
                self.step()
            for result in results:
                fitting = [
                    v
                    for v in other.visible
                    if v.dtype == result.dtype and v.is_sequence == result.is_sequence
                ]
                same = [v for v in fitting if v.shape == result.shape]
                chosen = self.pick(same or fitting)
                other_results.append(self.add("Identity", [chosen.name])[0])
        bodies = [self._graph(one, (), results), self._graph(other, (), other_results)]
        if self.chance(0.5):
            bodies.reverse()
        self._share_names(bodies)
        self.add("If", [condition.name], len(results), then_branch=bodies[0], else_branch=bodies[1])

    def _share_names(self, bodies: Sequence[onnx.GraphProto]) -> None:
        """Call a tensor of one branch as one of the other, which no scope forbids."""
        if not self.chance(0.5):
            return
        last = [body.node[-1].output[0] for body in bodies if body.node and body.node[-1].output]
        if len(last) == 2 and last[0] != last[1]:
            rename_tensor(bodies[1], last[1], last[0])

    def _loop(self) -> None:
        carried = [self.find(*_FLOATS, *_INTEGERS) for _ in range(1 + self.below(2))]
        trips = self.store(np.array(self.pick((0, 1, 2, 3)), np.int64))
        if self.chance(0.3):
            shape = self.find(least=1)
            first = self.store(np.array(0, np.int64)).name
            trips = self.add("Gather", [self.add("Shape", [shape.name])[0].name, first])[0]
        number = self._formal(TensorProto.INT64, np.array(0, np.int64))
        going = self._formal(TensorProto.BOOL, np.array(True))
        states = [self._formal(value.dtype, value.held) for value in carried]
        with self._inside((number, going, *states)) as scope:
            for _ in range(1 + self.below(3)):
                self.step()
            nexts = []
            for state in states:
                found = [v for v in scope.made if _alike(v, state) and v not in nexts]
                if not found:
                    found = [self.add(self.pick(("Identity", "Abs")), [state.name])[0]]
                nexts.append(self.pick(found))
            rest = [v for v in scope.made if not v.is_sequence and v not in nexts]
            stacked = [self.pick(rest)] if rest and self.chance(0.6) else []
            on = self.add("Identity", [going.name])[0]
            if self.chance(0.2):
                few = self.store(np.array(1, np.int64)).name
                on = self.add("Less", [number.name, few])[0]
        body = self._graph(scope, (number, going, *states), (on, *nexts, *stacked))
        go = "" if self.chance(0.3) else self.store(np.array(True)).name
        inputs = [trips.name, go, *(value.name for value in carried)]
        self.add("Loop", inputs, len(nexts) + len(stacked), body=body)

    def _scan(self) -> None:
        rows = self.find(*_FLOATS, *_INTEGERS, least=1)
        if not rows.shape[0]:
            raise CannotStepError
        state = self.find(*_FLOATS, *_INTEGERS)
        formal = [self._formal(state.dtype, state.held), self._formal(rows.dtype, rows.held[0])]
        with self._inside(formal) as scope:
            for _ in range(1 + self.below(3)):
                self.step()
            found = [v for v in scope.made if _alike(v, state)]
            after = self.pick(found) if found else self.add("Identity", [formal[0].name])[0]
            rest = [v for v in scope.made if not v.is_sequence and v is not after]
            made = [self.pick(rest)] if rest else [self.add("Identity", [formal[1].name])[0]]
        body = self._graph(scope, formal, (after, *made))
        given = {"scan_input_directions": [1]} if self.chance(0.3) else {}
        self.add("Scan", [state.name, rows.name], 1 + len(made), body=body, num_scan_inputs=1, **given)

    def _graph(self, scope: Scope, formal: Sequence[Value], results: Sequence[Value]) -> onnx.GraphProto:
        described = [value.describe(None) for value in formal]
        shown = [value.describe(None) for value in results]
        return helper.make_graph(scope.nodes, f"g{self.fresh()}", described, shown)

    def _call(self) -> None:
        """Call a function of the model, a new one or one that was called before."""
        if self._functions and self.chance(0.5):
            name = self.pick(list(self._functions))
            inputs = [self.find(value.dtype, rank=len(value.shape)) for value in self._calls[name]]
        else:
            inputs = [self.find(*_FLOATS, *_INTEGERS) for _ in range(1 + self.below(2))]
            name = self._make_function(inputs)
        function = self._functions[name]
        self.add(f"{DOMAIN}.{name}", [value.name for value in inputs], len(function.output))

    def _make_function(self, inputs: Sequence[Value]) -> str:
        formal = [self._formal(value.dtype, value.held) for value in inputs]
        with self._inside(formal, is_function=True) as scope:
            for _ in range(1 + self.below(3)):
                self.step()
        results = [v for v in scope.made if not v.is_sequence]
        chosen = list({v.name: v for v in (self.pick(results), self.pick(results))}.values())
        name = f"F{len(self._functions)}"
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        names = [[value.name for value in side] for side in (formal, chosen)]
        self._functions[name] = helper.make_function(DOMAIN, name, *names, scope.nodes, imports)
        self._calls[name] = list(inputs)
        return name

    # Trying

    def _evaluate(self, node: NodeProto) -> list[Value]:
        read = sorted(_free_names(node))
        feeds, stored, inputs = {}, [], []
        for name in read:
            if name in self._constants:
                stored.append(self._constants[name])
                continue
            value = self._values.get(name)
            if value is None:
                raise CannotStepError
            feeds[name] = value.held
            inputs.append(value.describe(None if value.is_sequence else value.shape))
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "step", inputs, outputs, stored)
        model = self._model(graph)
        found = _run(model, feeds)
        made = []
        for name, held in zip((name for name in node.output if name), found, strict=True):
            parts = held if isinstance(held, list) else [held]
            if not parts or any(part is None for part in parts):
                raise CannotStepError
            parts = [np.asarray(part) for part in parts]
            for part in parts:
                _require_sane(part)
            dtype = _dtype_of(parts[0])
            made.append(
                Value(name, dtype, parts if isinstance(held, list) else parts[0], isinstance(held, list))
            )
        return made

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        functions = list(self._functions.values())
        return helper.make_model(graph, ir_version=10, opset_imports=imports, functions=functions)

    # The whole

    def types(self) -> Mapping[str, int]:
        """Return the element types of all tensors of the model by name, those in bodies too."""
        return {name: value.dtype for name, value in self._values.items()}

    def model(self, size: int) -> tuple[onnx.ModelProto, Mapping[str, NDArray[Any]]]:
        """Return a model of about `size` steps, and values for its inputs."""
        inputs, described = {}, []
        batch = 1 + self.below(3) if self.chance(0.3) else 0
        for _ in range(1 + self.below(3)):
            dtype = (
                self.pick(_USUAL)
                if self.chance(0.7)
                else self.pick((*_FLOATS, *_INTEGERS, TensorProto.STRING))
            )
            shape = self.extents(self.pick((0, 1, 2, 2, 3, 4, 4, 4)))
            if batch and shape:
                shape = (batch, *shape[1:])
            value = Value(self.fresh(), dtype, self.draw(dtype, shape))
            self._values[value.name] = value
            self._scope.visible.append(value)
            inputs[value.name] = value.held
            shown: list[int | str | None] = [*shape]
            if batch and shape:
                shown[0] = self.pick(("N", "N", None))
            described.append(value.describe(shown))
        if self.chance(0.3):
            self._scope.visible.append(self.store(self.draw(TensorProto.FLOAT, self.extents(2))))
        for _ in range(size):
            self.step()
        return self._finish(described, inputs), inputs

    def _finish(
        self, described: list[onnx.ValueInfoProto], inputs: dict[str, NDArray[Any]]
    ) -> onnx.ModelProto:
        made = [value for value in self._scope.made if value.name]
        made = made or [self._scope.visible[0]]
        chosen = [made[-1], *(self.pick(made) for _ in range(self.below(4)))]
        if self.chance(0.1):
            chosen.append(self.pick([self._values[each.name] for each in described]))
        if self.chance(0.1) and self._constants:
            name = self.pick(
                [n for n, t in self._constants.items() if t.data_type != TensorProto.STRING]
            )
            chosen.append(self._values[name])
        outputs = [
            v.describe(None if v.is_sequence else [None] * len(v.shape))
            for v in {value.name: value for value in chosen}.values()
        ]
        known = self.chance(0.5) and not any(d.dim_param for each in described for d in _dims(each))
        if known:
            outputs = [
                v.describe(None if v.is_sequence else v.shape)
                for v in {value.name: value for value in chosen}.values()
            ]
        stored = [self._constants[name] for name in self._constants]
        if self.chance(0.1) and stored:
            described.append(
                Value(stored[0].name, stored[0].data_type, None).describe(list(stored[0].dims))
            )
        if self.chance(0.2):
            stored.append(numpy_helper.from_array(np.arange(3.0), f"unread {self.fresh()}"))
        graph = helper.make_graph(self._scope.nodes, "scoped", described, outputs, stored)
        model = self._model(graph)
        if self.chance(0.3):
            model = onnx.shape_inference.infer_shapes(model)
        return model


def _dims(value: onnx.ValueInfoProto) -> Sequence[Any]:
    return value.type.tensor_type.shape.dim


def _fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Say whether two shapes are broadcast to one that is no larger than the largest of both."""
    try:
        made = np.broadcast_shapes(tuple(shape), tuple(other))
    except ValueError:
        return False
    return int(np.prod(made)) <= _MOST_ELEMENTS


def _same_but(one: Value, other: Value, axis: int) -> bool:
    if one.is_sequence or one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return False
    return all(a == b or i == axis for i, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)))


def _alike(one: Value, other: Value) -> bool:
    return (one.is_sequence, one.dtype, one.shape) == (other.is_sequence, other.dtype, other.shape)


def _dtype_of(array: NDArray[Any]) -> int:
    return (
        TensorProto.STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
    )


def _require_sane(array: NDArray[Any]) -> None:
    if array.size > _MOST_ELEMENTS:
        raise CannotStepError
    if array.dtype.kind in "OUSb" or not array.size:
        return
    if array.dtype.kind in "iu":
        # Wrapped numbers follow, and so do those that float32 does not hold.
        if np.abs(array.astype(np.float64)).max() > _LARGEST * _LARGEST:
            raise CannotStepError
        return
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all() or np.abs(numbers).max() > _LARGEST:
        raise CannotStepError


def _free_names(node: NodeProto) -> set[str]:
    """Return what a node and its bodies read from outside."""
    found = {name for name in node.input if name}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found |= _free_names_of_graph(attribute.g)
    return found


def _free_names_of_graph(graph: onnx.GraphProto) -> set[str]:
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    found = set()
    for node in graph.node:
        found |= _free_names(node) - known
        known |= set(node.output)
    return found | {value.name for value in graph.output} - known


def _run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return what onnxruntime gives. Raises CannotStepError."""
    try:
        return run_plain(model, feeds)
    except Exception:  # whatever it says: it does not run it
        raise CannotStepError from None
