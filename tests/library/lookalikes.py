"""What looks like a composite and is none: fragments with something changed, and small graphs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose

import numpy as np
import onnx
from onnx import numpy_helper

Edit = Callable[[onnx.ModelProto], int]


def numbers(old: float, new: float) -> Edit:
    """Change all constants of one element that are `old`; give how many there are."""

    def edit(model: onnx.ModelProto) -> int:
        changed = 0
        for tensor in _constants(model):
            value = numpy_helper.to_array(tensor)
            if value.size == 1 and value.dtype.kind == "f" and isclose(value.item(), old, rel_tol=1e-3):
                replacement = np.full_like(value, new)
                tensor.CopyFrom(numpy_helper.from_array(replacement, tensor.name))
                changed += 1
        return changed

    return edit


def elements(old: Sequence[int], new: Sequence[int]) -> Edit:
    """Change all lists of integers that are `old`; give how many there are."""

    def edit(model: onnx.ModelProto) -> int:
        changed = 0
        for tensor in _constants(model):
            value = numpy_helper.to_array(tensor)
            if value.dtype == np.int64 and value.ndim == 1 and value.tolist() == list(old):
                tensor.CopyFrom(numpy_helper.from_array(np.array(new, np.int64), tensor.name))
                changed += 1
        return changed

    return edit


def attribute(op: str, name: str, value: object) -> Edit:
    """Give an attribute of all nodes of an operator another value; give how many there are."""

    def edit(model: onnx.ModelProto) -> int:
        nodes = [node for node in model.graph.node if node.op_type == op]
        for node in nodes:
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
        return len(nodes)

    return edit


def operator(op: str, other: str) -> Edit:
    """Make another operator of all nodes of an operator; give how many there are."""

    def edit(model: onnx.ModelProto) -> int:
        nodes = [node for node in model.graph.node if node.op_type == op]
        for node in nodes:
            node.op_type = other
        return len(nodes)

    return edit


def _constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        if node.op_type == "Constant":
            yield from (a.t for a in node.attribute if a.name == "value")


# Composite, fragment, what is changed, and how many are left.
EDITS: Sequence[tuple[str, str, Sequence[Edit], int]] = (
    ("gelu", "gelu_classic17", [numbers(2**0.5, 1.5), numbers(0.5**0.5, 0.8)], 0),
    ("gelu", "gelu_dynamo18", [numbers(0.5, 0.4)], 0),
    ("gelu", "gelu_classic17", [numbers(1, 1.1)], 0),
    ("gelu", "gelu_classic17", [operator("Erf", "Tanh")], 0),
    ("gelu_tanh", "gelu_tanh_classic17", [numbers(0.044715, 0.05)], 0),
    ("gelu_tanh", "gelu_tanh_classic17", [numbers(0.7978846, 0.8862)], 0),
    ("gelu_tanh", "gelu_tanh_dynamo18", [numbers(3, 2)], 3),
    ("quick_gelu", "quick_gelu_classic17", [numbers(1.702, 1.5)], 0),
    ("silu", "silu_classic17", [operator("Sigmoid", "Tanh")], 0),
    ("silu", "quick_gelu_classic17", [numbers(1.702, 1.01)], 0),
    ("glu", "glu_classic17", [operator("Sigmoid", "Tanh")], 0),
    ("relu6", "conv_blocks_classic13", [numbers(6, 5)], 0),
    ("hard_sigmoid", "hard_sigmoid_classic17", [numbers(3, 2), numbers(0.5, 0.6)], 0),
    ("hard_swish", "hard_swish_classic17", [numbers(6, 5), numbers(1 / 6, 0.2)], 1),
    ("hard_swish", "hard_swish_classic13", [attribute("HardSigmoid", "alpha", 0.2)], 7),
    ("softplus", "mish_classic17", [numbers(1, 2)], 0),
    ("mish", "mish_classic17", [operator("Tanh", "Sigmoid")], 0),
    ("layer_norm", "layer_norm_classic13", [attribute("ReduceMean", "axes", [1])], 0),
    ("layer_norm", "layer_norm_classic17", [attribute("ReduceMean", "axes", [-1, -2])], 0),
    ("layer_norm", "layer_norm_dynamo18", [elements([-1], [1]), elements([2], [1])], 0),
    ("layer_norm", "layer_norm_classic13", [numbers(1e-5, 0.5)], 0),
    ("layer_norm", "layer_norm_channels_classic17", [numbers(1e-5, 1e-6)], 0),
    ("layer_norm_channels", "layer_norm_channels_classic17", [attribute("ReduceMean", "axes", [2])], 0),
    ("rms_norm", "rms_norm_classic17", [attribute("ReduceMean", "axes", [1])], 0),
    ("rms_norm", "rms_norm_dynamo18", [numbers(2, 3), numbers(1e-6, 1)], 0),
    ("group_norm", "group_norm_dynamo18", [elements([0, 2, -1], [0, 2, 2, -1])], 1),
    ("l2_norm", "l2_norm_dynamo18", [operator("ReduceL2", "ReduceL1")], 0),
    ("l2_norm", "l2_norm_classic17", [numbers(1e-12, 0.5)], 1),
    ("scale_shift", "scale_shift_classic17", [operator("Add", "Sub")], 0),
    ("conv_bn", "conv_scaled_classic17", [operator("Add", "Sub")], 0),
    ("conv_relu", "conv_blocks_keep17", [operator("Relu", "Softplus")], 0),
    ("conv_relu6", "conv_blocks_keep17", [numbers(6, 5)], 0),
    ("conv_activation", "deconv_keep17", [operator("Relu", "Sigmoid")], 0),
    ("conv_silu", "conv_blocks_keep17", [operator("Sigmoid", "HardSigmoid")], 0),
    ("conv_hard_swish", "conv_blocks_classic13", [attribute("HardSigmoid", "alpha", 0.2)], 0),
    ("conv_add", "conv_blocks_keep17", [operator("Add", "Mul")], 0),
    ("separable_conv", "depthwise_dynamo18", [operator("Clip", "Max")], 2),
    ("conv_transpose_relu", "deconv_keep17", [operator("Relu", "Sigmoid")], 0),
    ("add_relu", "conv_blocks_keep17", [operator("Add", "Mul")], 0),
    (
        "squeeze_excitation",
        "squeeze_excitation_classic17",
        [operator("GlobalAveragePool", "GlobalMaxPool")],
        1,
    ),
    ("gemm_relu", "linears_2d_dynamo18", [operator("Relu", "Sigmoid")], 0),
    ("gemm_activation", "linears_2d_dynamo18", [operator("Relu", "Sqrt"), operator("Tanh", "Sqrt")], 0),
    ("matmul_bias", "linears_classic17", [operator("Add", "Sub")], 0),
    ("matmul_bias_relu", "linears_classic17", [operator("Relu", "Sigmoid")], 0),
    ("matmul_activation", "linears_classic17", [operator("Relu", "Sqrt"), operator("Tanh", "Sqrt")], 0),
    ("matmul_bias_add", "residual_linears_classic17", [operator("MatMul", "Mul")], 0),
    ("linear_gelu", "linears_classic17", [numbers(2**0.5, 1.5)], 0),
    ("linear_gelu_tanh", "linears_classic17", [numbers(0.044715, 0.05)], 0),
    ("linear_silu", "linears_classic17", [operator("Sigmoid", "HardSigmoid")], 0),
    ("gated_mlp", "gated_mlp_classic17", [operator("Sigmoid", "HardSigmoid"), numbers(0.5, 0.6)], 0),
    ("attention", "attention_classic17", [attribute("Softmax", "axis", 2)], 0),
    ("attention", "attention_dynamo18", [operator("Softmax", "LogSoftmax")], 0),
    ("multi_head_attention", "attention_classic17", [attribute("Softmax", "axis", 2)], 0),
    ("multi_head_attention", "attention_classic17", [attribute("Transpose", "perm", [0, 1, 2, 3])], 0),
    ("qdq_conv", "qdq_fake_classic17", [operator("Relu", "Sigmoid"), operator("Clip", "Max")], 2),
    ("qdq_matmul", "qdq_tokens_static17", [operator("MatMul", "Sub")], 0),
    ("qdq_add", "qdq_fake_classic17", [operator("Add", "Sub")], 0),
    ("qdq_mul", "qdq_fake_classic17", [operator("Mul", "Div")], 0),
    ("qdq_constant", "qdq_tokens_static17", [operator("Add", "Sub")], 0),
    ("qdq_pool", "qdq_fake_classic17", [operator("GlobalAveragePool", "Sigmoid")], 2),
    ("qdq_activation", "qdq_tokens_static17", [operator("Tanh", "Sin")], 2),
    ("qdq_view", "qdq_fake_classic17", [operator("Flatten", "Softmax")], 0),
)

_IMAGE = "float[1,8,6,6]"
_CONV = f"g ({_IMAGE} x, float[8,8,3,3] w, {_IMAGE} z) => ({_IMAGE} y)"
_PADS = "<pads = [1,1,1,1]>"
_MATMUL = "float[8,8] w = {" + ",".join(map(str, range(64))) + "}"
_ROW = "float[8] b = {1,2,3,4,5,6,7,8}"
_COLUMN = "float[8,1] b = {1,2,3,4,5,6,7,8}"
_WIDTH = "float[1,1,1,6] b = {1,2,3,4,5,6}"

# Composite to graphs in which it is not, each with the reason.
TEXTS: Mapping[str, Sequence[str]] = {
    "conv_bn": [  # the bias lies along another axis
        f"{_CONV} <{_WIDTH}> {{ c = Conv{_PADS}(x, w) y = Add(c, b) }}",
    ],
    "conv_relu": [
        f"{_CONV} <{_WIDTH}> {{ c = Conv{_PADS}(x, w) a = Add(c, b) y = Relu(a) }}",
    ],
    "conv_relu6": [  # limits that are computed
        f"""g ({_IMAGE} x, float[8,8,3,3] w, float low, float high) => ({_IMAGE} y)
        {{ c = Conv{_PADS}(x, w) y = Clip(c, low, high) }}""",
    ],
    "conv_silu": [  # the sigmoid of something else
        f"{_CONV} {{ c = Conv{_PADS}(x, w) s = Sigmoid(x) y = Mul(c, s) }}",
    ],
    "conv_hard_swish": [
        f"{_CONV} {{ c = Conv{_PADS}(x, w) h = HardSigmoid <alpha = 0.1666667> (x) y = Mul(c, h) }}",
    ],
    "conv_add": [
        f"{_CONV} <{_WIDTH}> {{ c = Conv{_PADS}(x, w) y = Add(c, b) }}",  # a constant
        f"""g ({_IMAGE} x, float[8,8,3,3] w, float[1,8,1,1] z) => ({_IMAGE} y)
        {{ c = Conv{_PADS}(x, w) y = Add(c, z) }}""",  # of another shape
    ],
    "depthwise_conv": [
        f"""g ({_IMAGE} x, float[8,4,3,3] w) => ({_IMAGE} y)
        {{ c = Conv<pads = [1,1,1,1], group = 2>(x, w) y = Relu(c) }}""",
        """g (float[1,1,6,6] x, float[8,1,3,3] w) => (float[1,8,6,6] y)
        { c = Conv<pads = [1,1,1,1]>(x, w) y = Relu(c) }""",
    ],
    "separable_conv": [  # the second is not pointwise
        f"""g ({_IMAGE} x, float[8,1,3,3] w, float[8,8,3,3] v) => ({_IMAGE} y)
        {{ c = Conv<pads = [1,1,1,1], group = 8>(x, w) y = Conv{_PADS}(c, v) }}""",
        f"""g ({_IMAGE} x, float[8,1,3,3] w, float[8,4,1,1] v) => ({_IMAGE} y)
        {{ c = Conv<pads = [1,1,1,1], group = 8>(x, w) y = Conv<group = 2>(c, v) }}""",
    ],
    "add_relu": [f"g ({_IMAGE} x) => ({_IMAGE} y) <{_WIDTH}> {{ a = Add(x, b) y = Relu(a) }}"],
    "squeeze_excitation": [
        f"""g ({_IMAGE} x, float[4,8,1,1] v, float[8,4,1,1] w) => ({_IMAGE} y)
        {{ p = ReduceMean <axes = [3]> (x) d = Conv(p, v) f = Relu(d) u = Conv(f, w) s = Sigmoid(u)
        y = Mul(x, s) }}""",  # the mean is over one axis
        f"""g ({_IMAGE} x, {_IMAGE} z, float[4,8,1,1] v, float[8,4,1,1] w) => ({_IMAGE} y)
        {{ p = GlobalAveragePool(x) d = Conv(p, v) f = Relu(d) u = Conv(f, w) s = Sigmoid(u)
        y = Mul(z, s) }}""",  # the gate of something else
    ],
    "matmul_bias": [
        f"""g (float[8,8] x) => (float[8,8] y) <{_MATMUL}, {_COLUMN}>
        {{ m = MatMul(x, w) y = Add(m, b) }}""",
        f"""g (float[2,8] x, float[8,8] w) => (float[2,8] y) <{_ROW}>
        {{ m = MatMul(x, w) y = Add(m, b) }}""",
    ],
    "matmul_bias_relu": [
        f"""g (float[8,8] x) => (float[8,8] y) <{_MATMUL}, {_COLUMN}>
        {{ m = MatMul(x, w) a = Add(m, b) y = Relu(a) }}""",
    ],
    "matmul_activation": [
        f"""g (float[8,8] x) => (float[8,8] y) <{_MATMUL}, {_COLUMN}>
        {{ m = MatMul(x, w) a = Add(m, b) y = Relu(a) }}""",
    ],
    "matmul_bias_add": [  # what is added is smaller, or a constant
        f"""g (float[4,8] x, float[8] z) => (float[4,8] y) <{_MATMUL}, {_ROW}>
        {{ m = MatMul(x, w) a = Add(m, b) y = Add(a, z) }}""",
        f"""g (float[1,8] x) => (float[1,8] y) <{_MATMUL}, {_ROW}, float[1,8] z = {{1,2,3,4,5,6,7,8}}>
        {{ m = MatMul(x, w) a = Add(m, b) y = Add(a, z) }}""",
    ],
    "layer_norm": [  # of one tensor the mean, of another the deviation
        """g (float[2,8] x, float[2,8] z) => (float[2,8] y) <float e = {1e-5}, float two = {2}>
        { m = ReduceMean <axes = [-1]> (z) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p)
        a = Add(v, e) r = Sqrt(a) y = Div(d, r) }""",
    ],
    "rms_norm": [
        """g (float[2,8] x, float[2,8] z) => (float[2,8] y) <float e = {1e-5}>
        { p = Mul(x, z) v = ReduceMean <axes = [-1]> (p) a = Add(v, e) r = Sqrt(a) y = Div(x, r) }""",
    ],
    "group_norm": [  # it scales
        """g (float[1,4,2] x) => (float[1,4,2] y)
        <float[2] s = {1, 2}, float[2] b = {0, 0}, int64[3] n = {0, 2, -1}, int64[3] t = {1, 4, 2}>
        { r = Reshape(x, n) i = InstanceNormalization(r, s, b) y = Reshape(i, t) }""",
    ],
    "l2_norm": [
        """g (float[2,8] x, float[2,8] z) => (float[2,8] y)
        { n = ReduceL2 <axes = [-1]> (z) y = Div(x, n) }""",
    ],
    "scale_shift": [  # what is computed, and what makes the tensor larger
        f"g (float[2,8] x, float[8] s) => (float[2,8] y) <{_ROW}> {{ m = Mul(x, s) y = Add(m, b) }}",
        f"g (float[2,1] x) => (float[2,8] y) <{_ROW}> {{ m = Mul(x, b) y = Add(m, b) }}",
    ],
    "gelu": [  # halved twice before it is multiplied, and not at all
        """g (float[2,8] x) => (float[2,8] y)
        <float q = {1.4142135}, float one = {1}, float half = {0.5}>
        { a = Div(x, q) e = Erf(a) s = Add(e, one) v = Mul(s, half) u = Mul(x, half) y = Mul(u, v) }""",
        """g (float[2,8] x) => (float[2,8] y) <float q = {1.4142135}, float one = {1}>
        { a = Div(x, q) e = Erf(a) s = Add(e, one) y = Mul(x, s) }""",
    ],
    "gated_mlp": [  # two different inputs
        f"""g (float[2,8] x, float[2,8] z) => (float[2,8] y) <{_MATMUL}>
        {{ g = MatMul(x, w) s = Sigmoid(g) h = Mul(g, s) u = MatMul(z, w) p = Mul(h, u)
        y = MatMul(p, w) }}""",
    ],
    "attention": [  # a scale for each number
        f"""g (float[8,8] q, float[8,8] k, float[8,8] v) => (float[8,8] y) <{_ROW}>
        {{ s = MatMul(q, k) m = Mul(s, b) t = Neg(m) p = Softmax(t) y = MatMul(p, v) }}""",
        """g (float[8,8] q, float[8,8] k, float[8,8] v) => (float[8,8] y)
        { s = MatMul(q, k) p = Softmax(s) y = MatMul(v, p) }""",  # the weights on the other side
    ],
    "qdq_conv": [  # a scale that is computed
        f"""g (int8[1,8,6,6] x, float[8,8,3,3] w, float s) => (int8[1,8,6,6] y)
        <float t = {{0.1}}, int8 z = {{0}}>
        {{ f = DequantizeLinear(x, s) c = Conv{_PADS}(f, w) y = QuantizeLinear(c, t, z) }}""",
    ],
    "qdq_gemm": [  # the other matrix is computed
        """g (int8[8,8] x, float[8,8] w) => (int8[8,8] y) <float t = {0.1}, int8 z = {0}>
        { f = DequantizeLinear(x, t) c = Gemm(f, w) y = QuantizeLinear(c, t, z) }""",
    ],
    "qdq_pool": [  # nothing is quantized behind it
        f"""g (int8[1,8,6,6] x) => ({_IMAGE} y) <float t = {{0.1}}>
        {{ f = DequantizeLinear(x, t) y = AveragePool <kernel_shape = [1, 1]> (f) }}""",
    ],
    "dynamic_matmul": [  # the matrix is computed, and the scale of something else
        """g (float[2,8] x, uint8[8,8] w, float s) => (float[2,8] y) <float t = {0.1}>
        { q, r, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w, z) f = Cast <to = 1> (m)
        k = Mul(r, t) y = Mul(f, k) }""",
        """g (float[2,2] x, float s) => (float[2,2] y) <float t = {0.1}, uint8[2,2] w = {1, 2, 3, 4}>
        { q, r, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w, z) f = Cast <to = 1> (m)
        k = Mul(s, t) y = Mul(f, k) }""",
    ],
    "dynamic_conv": [
        """g (float[1,1,4,4] x, uint8[1,1,1,1] w) => (float[1,1,4,4] y) <float t = {0.1}>
        { q, r, z = DynamicQuantizeLinear(x) m = ConvInteger(q, w, z) f = Cast <to = 1> (m)
        k = Mul(r, t) y = Mul(f, k) }""",
    ],
}
