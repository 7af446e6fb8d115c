"""Images among tensors: batch, channels, height, width, in ONNX's order N, C, H, W.

ONNX does not mark images, but operators tell: those with spatial axes read and make images; those that
keep the axes of a tensor, such as Relu, Concat or QuantizeLinear, make an image if and only if they read
one. Only tensors of rank 4 are considered.
"""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from onnx import NodeProto

from byoc.model._graph_index import GraphIndex
from byoc.model._node_kinds import NodeKind
from byoc.model._walk import get_input

# Operators with spatial axes, and the positions of the images among their inputs. All their outputs of
# rank 4 are images; in training BatchNormalization has outputs of rank 1, too.
_IMAGE_OPERATORS: dict[str, tuple[int, ...]] = {
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

# Operators that keep the axes of all their inputs. If one removes an axis, as ReduceMax does without
# keepdims, its output has another rank and is ignored.
_KEEP_AXES = """
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

# Operators that keep the axes of their first input only.
_KEEP_FIRST_AXES = """
    Bernoulli Clip Compress DequantizeLinear Dropout DynamicQuantizeLinear Expand Gather GatherElements
    Pad QuantizeLinear RandomNormalLike RandomUniformLike ReverseSequence ScatterElements ScatterND Slice
    Split Tile Trilu
"""

# The position of the weight among the inputs of convolutions, and its axes.
_WEIGHT_INPUTS = {
    "Conv": (1, "OIHW"),
    "ConvInteger": (1, "OIHW"),
    "FusedConv": (1, "OIHW"),
    "QLinearConv": (3, "OIHW"),
    "DeformConv": (1, "OIHW"),
    "ConvTranspose": (1, "IOHW"),
}


def find_images(index: GraphIndex) -> frozenset[str]:
    """Return the tensors of a graph that are images, without constants, in time linear in its size.

    The bodies of If, Loop and Scan have indices of their own; a tensor that they capture and use as an
    image is one in the graph around them, too.
    """
    if index not in _IMAGES:
        _IMAGES[index] = _find_images(index)
    return _IMAGES[index]


_IMAGES: "WeakKeyDictionary[GraphIndex, frozenset[str]]" = WeakKeyDictionary()


def _find_images(index: GraphIndex) -> frozenset[str]:
    known_images = [
        name
        for inner in index.bodies.values()
        for body in inner
        for name in _find_captured_images(body.index)
    ]
    if not known_images and all(kind.op_type not in _IMAGE_OPERATORS for kind in index.node_kinds):
        return frozenset()  # saves time on large transformers
    data = {
        name for name, kind in index.types.items() if kind.shape is not None and len(kind.shape) == 4
    }
    data -= index.constant_names
    read_by = {kind: _find_images_read(kind) for kind in {*index.node_kinds}}
    kinds, inputs, outputs = index.node_kinds, index.node_inputs, index.node_outputs
    for number, kind in enumerate(kinds):
        positions = read_by[kind]
        if isinstance(positions, tuple) and number not in index.constant_nodes:
            images = [inputs[number][i] for i in positions if i < len(inputs[number])]
            known_images.extend([name for name in (*images, *outputs[number]) if name in data])
    # The tensors that are images if one of them is, by node.
    alike = {
        number: (*inputs[number][read], *outputs[number])
        for number, kind in enumerate(kinds)
        if isinstance(read := read_by[kind], slice) and number not in index.constant_nodes
    }
    producers, consumers = index.producers, index.consumers
    found = set(known_images)
    while known_images:
        name = known_images.pop()
        for number in (producers.get(name, -1), *consumers.get(name, ())):
            if number in alike and name in alike[number]:
                new = [each for each in alike.pop(number) if each in data and each not in found]
                found.update(new)
                known_images.extend(new)
    return frozenset(found)


def _find_images_read(kind: NodeKind) -> tuple[int, ...] | slice | None:
    """Return the inputs that are images, those that are if the outputs are as a slice; else None."""
    if not (kind.is_onnx or kind.domain == "com.microsoft"):
        return None
    if kind.op_type in _IMAGE_OPERATORS:
        return _IMAGE_OPERATORS[kind.op_type]
    if kind.op_type in _KEEP_AXES.split():
        return slice(None)
    return slice(1) if kind.op_type in _KEEP_FIRST_AXES.split() else None


def _find_captured_images(index: GraphIndex) -> frozenset[str]:
    return find_images(index).intersection(index.captured_names)


def find_weights(index: GraphIndex) -> Mapping[str, str]:
    """Return the constants of rank 4 that are weights of convolutions, with their axes.

    The axes are `OIHW`, and `IOHW` for ConvTranspose. A weight behind DequantizeLinear, Cast or Identity
    counts, and so do the tensors between. A weight that two operators read differently is left out.
    """
    found: dict[str, set[str]] = {}
    for node in index.nodes:
        position, axes = _WEIGHT_INPUTS.get(node.op_type, (0, ""))
        name = get_input(node, position) if axes else ""
        while name and index.is_constant(name) and index.get_rank(name) == 4:
            if axes in found.get(name, ()):
                break
            found.setdefault(name, set()).add(axes)
            name = _get_source(index, name)
    return {name: axes.pop() for name, axes in found.items() if len(axes) == 1}


def _get_source(index: GraphIndex, name: str) -> str:
    """Return the tensor with the same axes that a constant is made of, empty for a stored one."""
    number = index.producers.get(name)
    node: NodeProto | None = None if number is None else index.nodes[number]
    if node is None or node.op_type not in ("DequantizeLinear", "QuantizeLinear", "Cast", "Identity"):
        return ""
    return node.input[0]
