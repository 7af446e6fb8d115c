"""Which tensors are images: batch, channels, height, width, in ONNX's order N, C, H, W.

ONNX does not write it on a tensor. Operators say it: those that speak of height and width read and make
images, and what keeps the axes of a tensor where they are, such as Relu, Concat or QuantizeLinear, makes
an image of an image and has read an image where it makes one. Only tensors of rank 4 are looked at.
"""

from collections.abc import Iterator, Mapping

from onnx import NodeProto

from byoc.graph.index import GraphIndex
from byoc.graph.walk import is_onnx

# The images among the inputs of operators that speak of height and width; all their outputs of rank 4
# are images (of BatchNormalization in training the others are of rank 1).
_SPEAKING: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool", "MaxRoiPool", "RoiAlign"), (0,)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), (0,)),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN"), (0,)),
    **dict.fromkeys(("Resize", "Upsample", "DepthToSpace", "SpaceToDepth", "GridSample"), (0,)),
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv"), (0,)),
    "FusedConv": (0, 3),
    "MaxUnpool": (0, 1),
    "DeformConv": (0, 2, 4),
    "Col2Im": (),
}

# Operators that keep axes, whatever they read. Where an axis goes, as in a Reduce or ArgMax without
# keepdims or a Gather of one element, the rank is another one, and tells.
_KEEPING = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Cos Cosh Elu Erf Exp FastGelu
    Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not QuickGelu Reciprocal
    Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu

    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual
    Max Mean Min Mod Mul Or Pow PRelu Sub Sum Where Xor

    Hardmax LogSoftmax LpNormalization MeanVarianceNormalization RMSNormalization LayerNormalization
    Softmax

    ArgMax ArgMin CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare TopK

    Concat QLinearAdd QLinearConcat QLinearLeakyRelu QLinearMul QLinearSigmoid
"""

# Operators that keep the axes of their first input; the others speak of something else.
_KEEPING_FIRST = """
    Bernoulli Clip Compress DequantizeLinear Dropout DynamicQuantizeLinear Expand Gather GatherElements
    Pad QuantizeLinear RandomNormalLike RandomUniformLike ReverseSequence ScatterElements ScatterND Slice
    Split Tile Trilu
"""

# The weight among the inputs of convolutions, and what its axes are.
_WEIGHTS = {
    "Conv": (1, "OIHW"),
    "ConvInteger": (1, "OIHW"),
    "FusedConv": (1, "OIHW"),
    "QLinearConv": (3, "OIHW"),
    "DeformConv": (1, "OIHW"),
    "ConvTranspose": (1, "IOHW"),
}


def images(index: GraphIndex) -> frozenset[str]:
    """Return the tensors of a graph that are images and no constants, in time linear in its size.

    The bodies of If, Loop and Scan are graphs of their own, each with an index, and asked alone; what
    they capture and use as an image is one in the graph around them.
    """
    keeping, keeping_first = {*_KEEPING.split()}, {*_KEEPING_FIRST.split()}
    groups = _Groups()
    spoken = [
        name for inner in index.bodies.values() for body in inner for name in _captured(body.index)
    ]
    if not spoken and all(node.op_type not in _SPEAKING for node in index.nodes):
        return frozenset()  # a large transformer has none, and many operators that keep axes
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes or not (is_onnx(node) or node.domain == "com.microsoft"):
            continue
        told = _SPEAKING.get(node.op_type)
        if told is not None:
            read = [node.input[i] for i in told if i < len(node.input)]
            spoken.extend(_of_rank_4(index, (*read, *node.output)))
        elif node.op_type in keeping or node.op_type in keeping_first:
            operands = node.input if node.op_type in keeping else node.input[:1]
            together = list(_of_rank_4(index, (*operands, *node.output)))
            for name in together[1:]:
                groups.join(together[0], name)
    found = {groups.of(name) for name in spoken}
    return frozenset({*spoken, *(name for name in groups.names if groups.of(name) in found)})


def _captured(index: GraphIndex) -> frozenset[str]:
    return images(index).intersection(index.captured)


def weights(index: GraphIndex) -> Mapping[str, str]:
    """Return the constants of rank 4 that are weights of convolutions, with their axes.

    That is `OIHW`, and `IOHW` for a ConvTranspose's. A weight behind a DequantizeLinear, Cast or
    Identity counts, and what is between, too. One that two operators read differently is left out.
    """
    found: dict[str, set[str]] = {}
    for node in index.nodes:
        position, axes = _WEIGHTS.get(node.op_type, (0, ""))
        name = node.input[position] if axes and position < len(node.input) else ""
        while name and index.is_constant(name) and _rank(index, name) == 4:
            if axes in found.get(name, ()):
                break
            found.setdefault(name, set()).add(axes)
            name = _behind(index, name)
    return {name: told.pop() for name, told in found.items() if len(told) == 1}


def _behind(index: GraphIndex, name: str) -> str:
    """Return what a tensor is made of that has the same axes, empty when it is stored."""
    number = index.producer.get(name)
    node: NodeProto | None = None if number is None else index.nodes[number]
    if node is None or node.op_type not in ("DequantizeLinear", "QuantizeLinear", "Cast", "Identity"):
        return ""
    return node.input[0]


def _of_rank_4(index: GraphIndex, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if name and _rank(index, name) == 4 and not index.is_constant(name):
            yield name


def _rank(index: GraphIndex, name: str) -> int | None:
    known = index.types.get(name)
    return None if known is None or known.shape is None else len(known.shape)


class _Groups:
    """Disjoint sets of names, by halving paths and the smaller under the larger (Tarjan, 1975)."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    def of(self, name: str) -> str:
        """Return what stands for the set that a name is in."""
        above = self.names.setdefault(name, name)
        while above != name:
            self.names[name] = self.names[above]
            name, above = above, self.names[above]
        return name

    def join(self, one: str, other: str) -> None:
        """Make one set of those of two names."""
        one, other = self.of(one), self.of(other)
        if one == other:
            return
        if self._sizes.get(one, 1) < self._sizes.get(other, 1):
            one, other = other, one
        self.names[other] = one
        self._sizes[one] = self._sizes.get(one, 1) + self._sizes.get(other, 1)
