"""Random small models with open dimensions, of operators that padding may or may not disturb.

Shapes are pairs of numbers, at two sizes of the open dimensions, so that extents that are equal as
expressions can be told from those that are not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SMALL = {"b": 2, "n": 3}
LARGE = {"b": 3, "n": 6}
_B, _N = (SMALL["b"], LARGE["b"]), (SMALL["n"], LARGE["n"])
_WIDTH = 4

Extent = tuple[int, int]


@dataclass(frozen=True)
class Value:
    """A tensor of a random graph: `f` floats, `i` whole numbers from 0 to 3, `c` bool."""

    name: str
    kind: str
    shape: tuple[Extent, ...]


def fixed(size: int) -> Extent:
    """Return the pair of an extent that is the same at both sizes."""
    return (size, size)


@dataclass(eq=False)
class GraphMaker:
    """A graph under construction; each method adds nodes, or nothing where none of its values fit."""

    random: Random
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def add_input(self, name: str, kind: str, dims: list[str | int]) -> Value:
        """Add a graph input of extents with these names."""
        dtype = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}[kind]
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        shape = tuple((SMALL[d], LARGE[d]) if isinstance(d, str) else fixed(d) for d in dims)
        self.values.append(Value(name, kind, shape))
        return self.values[-1]

    def store(self, array: Any, dtype: Any = np.float32) -> str:
        """Store a constant and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(array, dtype), name))
        return name

    def store_random(self, *shape: int) -> str:
        """Store random floats and return their name."""
        numbers = [self.random.uniform(-1, 1) for _ in range(int(np.prod(shape)))]
        return self.store(np.reshape(numbers, shape))

    def add(
        self, operator: str, reads: list[str], kind: str, shape: tuple[Extent, ...], **attributes: Any
    ) -> Value:
        """Add a node with one output, which later nodes may read."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, reads, [name], f"node{len(self.nodes)}", **attributes)
        )
        found = Value(name, kind, shape)
        self.values.append(found)
        return found

    def choose(self, accepts: Callable[[Value], bool]) -> Value | None:
        """Return one of the values that fit, the latest most often, None where none does."""
        found = [value for value in self.values if accepts(value)]
        if not found:
            return None
        return found[-1] if self.random.random() < 0.6 else self.random.choice(found)

    def choose_float(self, rank: int = 1) -> Value | None:
        """Return one of the floats of at least a rank."""
        return self.choose(lambda value: value.kind == "f" and len(value.shape) >= rank)

    def choose_axis(self, value: Value) -> int:
        """Return one of the axes of a value."""
        return self.random.randrange(len(value.shape))


def _unary(m: GraphMaker) -> None:
    x = m.choose_float(0)
    if x:
        m.add(
            m.random.choice(["Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Erf", "Exp", "Cos"]),
            [x.name],
            "f",
            x.shape,
        )


def _binary(m: GraphMaker) -> None:
    x = m.choose_float(0)
    y = x and m.choose(lambda v: v.kind == "f" and _broadcast(v.shape, x.shape) == x.shape)
    if x and y:
        m.add(
            m.random.choice(["Add", "Mul", "Sub", "Max"]),
            m.random.sample([x.name, y.name], 2),
            "f",
            x.shape,
        )


def _broadcast(a: tuple[Extent, ...], b: tuple[Extent, ...]) -> tuple[Extent, ...] | None:
    if len(a) > len(b):
        return None
    fits = all(x in {y, (1, 1)} for x, y in zip(a[::-1], b[::-1], strict=False))
    return b if fits else None


def _matmul_constant(m: GraphMaker) -> None:
    x = m.choose(lambda v: v.kind == "f" and len(v.shape) >= 2 and v.shape[-1][0] == v.shape[-1][1])
    if x:
        weight = m.store_random(x.shape[-1][0], _WIDTH)
        m.add("MatMul", [x.name, weight], "f", (*x.shape[:-1], fixed(_WIDTH)))


def _matmul_itself(m: GraphMaker) -> None:
    x = m.choose_float(2)
    if x:
        order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
        turned = m.add("Transpose", [x.name], "f", tuple(x.shape[a] for a in order), perm=order)
        pair = [x, turned] if m.random.random() < 0.7 else [turned, x]
        m.add(
            "MatMul", [v.name for v in pair], "f", (*x.shape[:-2], pair[0].shape[-2], pair[1].shape[-1])
        )


def _softmax(m: GraphMaker) -> None:
    x = m.choose_float()
    if x:
        m.add(m.random.choice(["Softmax", "LogSoftmax"]), [x.name], "f", x.shape, axis=m.choose_axis(x))


def _normalize(m: GraphMaker) -> None:
    x = m.choose(lambda v: v.kind == "f" and bool(v.shape) and v.shape[-1][0] == v.shape[-1][1])
    if x:
        width = x.shape[-1][0]
        m.add("LayerNormalization", [x.name, m.store_random(width), m.store_random(width)], "f", x.shape)


def _reduce(m: GraphMaker) -> None:
    x = m.choose_float()
    if x:
        axis, keep = m.choose_axis(x), m.random.random() < 0.5
        operator = m.random.choice(
            ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"]
        )
        kept = [fixed(1)] if keep else []
        shape = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
        m.add(operator, [x.name, m.store([axis], np.int64)], "f", shape, keepdims=int(keep))


def _cumulate(m: GraphMaker) -> None:
    x = m.choose_float()
    if x:
        axis = m.store(m.choose_axis(x), np.int64)
        m.add(
            "CumSum",
            [x.name, axis],
            "f",
            x.shape,
            reverse=int(m.random.random() < 0.3),
            exclusive=int(m.random.random() < 0.3),
        )


def _concatenate(m: GraphMaker) -> None:
    x = m.choose_float()
    if not x:
        return
    axis = m.choose_axis(x)
    others = x.shape[:axis] + x.shape[axis + 1 :]
    same = m.choose(
        lambda v: (
            v.kind == "f"
            and len(v.shape) == len(x.shape)
            and v.shape[:axis] + v.shape[axis + 1 :] == others
        )
    )
    names, parts = [x.name], [x.shape[axis]]
    if all(a == b for a, b in others) and m.random.random() < 0.6:
        extra = [2 if i == axis else a for i, (a, _) in enumerate(x.shape)]
        names, parts = [m.store_random(*extra), x.name], [fixed(2), x.shape[axis]]
    elif same:
        names, parts = [x.name, same.name], [x.shape[axis], same.shape[axis]]
    if m.random.random() < 0.3:
        names.reverse()
    whole = (sum(p[0] for p in parts), sum(p[1] for p in parts))
    m.add("Concat", names, "f", (*x.shape[:axis], whole, *x.shape[axis + 1 :]), axis=axis)


def _slice(m: GraphMaker) -> None:
    x = m.choose_float()
    if not x:
        return
    axis = m.choose_axis(x)
    start, end, step = m.random.choice(
        [(0, 2, 1), (1, 2**62, 1), (0, -1, 1), (-2, 2**62, 1), (0, 2**62, 2), (-1, -(2**62), -1)]
    )
    cut = tuple(len(range(size)[slice(start, end, step)]) for size in x.shape[axis])
    if 0 not in cut:
        numbers = [m.store([value], np.int64) for value in (start, end, axis, step)]
        m.add(
            "Slice", [x.name, *numbers], "f", (*x.shape[:axis], (cut[0], cut[1]), *x.shape[axis + 1 :])
        )


def _gather(m: GraphMaker) -> None:
    x = m.choose_float()
    if x:
        axis = m.choose_axis(x)
        index = m.random.choice([0, 0, 1, -1]) if x.shape[axis][0] > 1 else 0
        m.add(
            "Gather",
            [x.name, m.store(index, np.int64)],
            "f",
            x.shape[:axis] + x.shape[axis + 1 :],
            axis=axis,
        )


def _look_up(m: GraphMaker) -> None:
    ids = m.choose(lambda v: v.kind == "i")
    if ids:
        m.add("Gather", [m.store_random(4, _WIDTH), ids.name], "f", (*ids.shape, fixed(_WIDTH)))


def _transpose(m: GraphMaker) -> None:
    x = m.choose_float(2)
    if x:
        order = m.random.sample(range(len(x.shape)), len(x.shape))
        m.add("Transpose", [x.name], "f", tuple(x.shape[a] for a in order), perm=order)


def _join_axes(m: GraphMaker) -> None:
    x = m.choose_float(2)
    if x:
        axis = m.random.randrange(len(x.shape) - 1)
        joined = tuple(x.shape[axis][i] * x.shape[axis + 1][i] for i in (0, 1))
        whole = (*x.shape[:axis], (joined[0], joined[1]), *x.shape[axis + 2 :])
        if sum(a != b for a, b in whole) == 1:
            wanted = m.store([a if a == b else -1 for a, b in whole], np.int64)
            m.add("Reshape", [x.name, wanted], "f", whole)


def _split_axis(m: GraphMaker) -> None:
    x = m.choose(
        lambda v: v.kind == "f" and bool(v.shape) and v.shape[-1] == fixed(_WIDTH) and len(v.shape) < 4
    )
    if x:
        wanted = m.store([*[0] * (len(x.shape) - 1), 2, 2], np.int64)
        m.add("Reshape", [x.name, wanted], "f", (*x.shape[:-1], fixed(2), fixed(2)))


def _unsqueeze(m: GraphMaker) -> None:
    x = m.choose_float()
    if x and len(x.shape) < 4:
        axis = m.random.randrange(len(x.shape) + 1)
        m.add(
            "Unsqueeze",
            [x.name, m.store([axis], np.int64)],
            "f",
            (*x.shape[:axis], fixed(1), *x.shape[axis:]),
        )


def _convolve(m: GraphMaker) -> None:
    x = m.choose(
        lambda v: (
            v.kind == "f" and len(v.shape) == 3 and v.shape[1][0] == v.shape[1][1] and v.shape[2][0] > 1
        )
    )
    if x:
        pads = m.random.choice([[0, 0], [1, 0], [0, 1], [1, 1]])
        out = tuple(size + sum(pads) - 1 for size in x.shape[2])
        if m.random.random() < 0.6:
            weight = m.store_random(_WIDTH, x.shape[1][0], 2)
            m.add(
                "Conv", [x.name, weight], "f", (x.shape[0], fixed(_WIDTH), (out[0], out[1])), pads=pads
            )
        else:
            pool = m.random.choice(["MaxPool", "AveragePool"])
            m.add(pool, [x.name], "f", (*x.shape[:2], (out[0], out[1])), kernel_shape=[2], pads=pads)


def _pad(m: GraphMaker) -> None:
    x = m.choose_float()
    if x:
        axis, pads = m.choose_axis(x), [0] * (2 * len(x.shape))
        side = m.random.randrange(2)
        pads[axis + side * len(x.shape)] = 1
        whole = (x.shape[axis][0] + 1, x.shape[axis][1] + 1)
        m.add(
            "Pad", [x.name, m.store(pads, np.int64)], "f", (*x.shape[:axis], whole, *x.shape[axis + 1 :])
        )


def _divide_by_size(m: GraphMaker) -> None:
    x = m.choose_float()
    if x:
        size = m.add("Shape", [x.name], "s", (fixed(len(x.shape)),))
        one = m.add("Gather", [size.name, m.store(m.choose_axis(x), np.int64)], "s", ())
        cast = m.add("Cast", [one.name], "s", (), to=TensorProto.FLOAT)
        m.add("Div", [x.name, cast.name], "f", x.shape)


def _number_positions(m: GraphMaker) -> None:
    x = m.choose_float()
    if x:
        axis = m.choose_axis(x)
        size = m.add("Shape", [x.name], "s", (fixed(len(x.shape)),))
        one = m.add("Gather", [size.name, m.store(axis, np.int64)], "s", ())
        zero, step = m.store(0, np.int64), m.store(1, np.int64)
        found = m.add("Range", [zero, one.name, step], "s", (x.shape[axis],))
        m.add("Cast", [found.name], "f", (x.shape[axis],), to=TensorProto.FLOAT)


def _mask_values(m: GraphMaker) -> None:
    """Multiply by the mask, or choose by it."""
    mask = m.choose(lambda v: v.name == "mask")
    x = mask and m.choose(lambda v: v.kind == "f" and v.shape[:2] == mask.shape and len(v.shape) == 3)
    if mask and x:
        wide = m.add("Unsqueeze", [mask.name, m.store([2], np.int64)], "s", (*mask.shape, fixed(1)))
        if m.random.random() < 0.5:
            cast = m.add("Cast", [wide.name], "s", wide.shape, to=TensorProto.FLOAT)
            m.add("Mul", [x.name, cast.name], "f", x.shape)
        else:
            cast = m.add("Cast", [wide.name], "s", wide.shape, to=TensorProto.BOOL)
            other = m.store(m.random.choice([0, -np.inf, -5]))
            m.add("Where", [cast.name, x.name, other], "f", x.shape)
    if mask and x and m.random.random() < 0.6:
        last, one = m.values[-1], m.store([1], np.int64)
        if m.random.random() < 0.3:
            m.add("Softmax", [last.name], "f", last.shape, axis=1)
        else:
            m.add(
                m.random.choice(["ReduceSum", "ReduceMax", "ReduceMean"]),
                [last.name, one],
                "f",
                (mask.shape[0], last.shape[2]),
                keepdims=0,
            )


def _attend(m: GraphMaker) -> None:
    """Add attention of a sequence to itself, with a mask of some kind or none."""
    x = m.choose(lambda v: v.kind == "f" and v.shape == (_B, _N, fixed(_WIDTH)))
    if not x:
        return
    if m.random.random() < 0.8:
        x = m.add("LayerNormalization", [x.name, m.store_random(_WIDTH)], "f", x.shape)
    parts = [m.add("MatMul", [x.name, m.store_random(_WIDTH, _WIDTH)], "s", x.shape) for _ in range(3)]
    turned = m.add("Transpose", [parts[1].name], "s", (_B, fixed(_WIDTH), _N), perm=[0, 2, 1])
    scores = m.add("MatMul", [parts[0].name, turned.name], "s", (_B, _N, _N))
    kind = m.random.choice(["none", "causal", "where", "add", "add", "where"])
    low = m.random.choice([-np.inf, float(np.finfo(np.float32).min), -1e9, -1e4, -5.0])
    mask = m.choose(lambda v: v.name == "mask")
    if kind == "causal":
        size = m.add("Shape", [scores.name], "s", (fixed(3),))
        two = m.add(
            "Slice", [size.name, m.store([1], np.int64), m.store([3], np.int64)], "s", (fixed(2),)
        )
        filled = m.add(
            "ConstantOfShape",
            [two.name],
            "s",
            (_N, _N),
            value=helper.make_tensor("v", TensorProto.FLOAT, [1], [low]),
        )
        upper = m.add("Trilu", [filled.name, m.store(1, np.int64)], "s", (_N, _N), upper=1)
        scores = m.add("Add", [scores.name, upper.name], "s", scores.shape)
    elif kind != "none" and mask:
        wide = m.add("Unsqueeze", [mask.name, m.store([1], np.int64)], "s", (_B, fixed(1), _N))
        cast = m.add(
            "Cast",
            [wide.name],
            "s",
            wide.shape,
            to=TensorProto.FLOAT if kind == "add" else TensorProto.BOOL,
        )
        if kind == "add":
            low = max(low, float(np.finfo(np.float32).min))
            left = m.add("Sub", [m.store(1), cast.name], "s", wide.shape)
            added = m.add("Mul", [left.name, m.store(low)], "s", wide.shape)
            scores = m.add("Add", [scores.name, added.name], "s", scores.shape)
        else:
            scores = m.add("Where", [cast.name, scores.name, m.store(low)], "s", scores.shape)
    shares = m.add("Softmax", [scores.name], "s", scores.shape, axis=-1)
    m.add("MatMul", [shares.name, parts[2].name], "f", x.shape)


def _choose_largest(m: GraphMaker) -> None:
    x = m.choose_float()
    if x:
        axis = m.choose_axis(x)
        kept = m.add(
            "ArgMax", [x.name], "s", (*x.shape[:axis], fixed(1), *x.shape[axis + 1 :]), axis=axis
        )
        m.add("Cast", [kept.name], "f", kept.shape, to=TensorProto.FLOAT)


_STEPS: tuple[Callable[[GraphMaker], None], ...] = (
    *(
        _unary,
        _binary,
        _matmul_constant,
        _matmul_constant,
        _normalize,
        _look_up,
        _attend,
        _attend,
        _attend,
    ),
    *(_mask_values, _mask_values, _matmul_itself, _softmax, _reduce, _cumulate, _concatenate, _slice),
    *(_gather, _transpose, _join_axes, _split_axis, _unsqueeze, _convolve, _convolve, _pad),
    *(_divide_by_size, _number_positions, _choose_largest),
)


def make_random_model(random: Random) -> onnx.ModelProto:
    """Return a model of a few random nodes with open dimensions `b` and `n`."""
    m = GraphMaker(random)
    m.add_input("x", "f", ["b", "n", _WIDTH])
    if random.random() < 0.8:
        m.add_input("mask", "i", ["b", "n"])
    if random.random() < 0.5:
        m.add_input("ids", "i", ["b", "n"])
    for _ in range(random.randint(1, 7)):
        random.choice(_STEPS)(m)
    made = [value for value in m.values if value.kind == "f" and value.name.startswith("t")]
    outputs = [value.name for value in made[-1:]]
    if len(made) > 2 and random.random() < 0.3:
        outputs.append(random.choice(made[:-1]).name)
    if not outputs:
        outputs.append(m.add("Relu", ["x"], "f", m.values[0].shape).name)
    used = {name for node in m.nodes for name in node.input}
    graph = helper.make_graph(
        m.nodes,
        "random",
        [each for each in m.inputs if each.name in used],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        m.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
