"""Models of one quantized operator for the codegen `ethos_u`, and how far results may be off."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

_RANDOM = np.random.default_rng(1)
_WEIGHTS = _RANDOM.integers(-127, 128, 6 * 8 * 3 * 3).astype(np.int8)
_SCALES = _RANDOM.uniform(0.001, 0.01, 8).astype(np.float32)
_DEEP_SCALES = _RANDOM.uniform(0.01, 0.05, 16).astype(np.float32)
_STEP = np.float32(0.05)

IMAGE = "[1,8,10,12]"
_FILTERS = "v = DequantizeLinear<axis=0>(w, ws) "
_BIASED = _FILTERS + "u = DequantizeLinear<axis=0>(b, bs) "
_FLAT = "v = DequantizeLinear(w, ws) "


@dataclass(frozen=True)
class Case:
    """An operator between DequantizeLinear of `x` (and `o`) and QuantizeLinear of what it makes.

    `line` reads `dx` (and `do`) and makes `r` (and `r1`). `stored` has values of constants. `differing`
    is the largest share of elements that may be off by one unit, which is the most for any.
    """

    line: str
    made: str = IMAGE
    given: str = IMAGE
    other: str = ""
    second: str = ""
    dtype: str = "int8"
    opset: int = 18
    differing: float = 0.0
    stored: dict[str, Any] = field(default_factory=dict)

    def make_model(self) -> onnx.ModelProto:
        """Return the model; its nodes are named `n0`, `n1`, ..."""
        inputs = {"x": self.given, **({"o": self.other} if self.other else {})}
        outputs = {"y": self.made, **({"y1": self.second} if self.second else {})}
        heads = " ".join(f"d{name} = DequantizeLinear({name}, s{name}, z)" for name in inputs)
        tails = " ".join(f"{name} = QuantizeLinear(r{name[1:]}, sy, zy)" for name in outputs)
        declared, returned = (
            ", ".join(f"{self.dtype}{shape} {name}" for name, shape in tensors.items())
            for tensors in (inputs, outputs)
        )
        text = f"g ({declared}) => ({returned}) {{ {heads} {self.line} {tails} }}"
        proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {self.opset}]>\n{text}')
        for number, node in enumerate(proto.graph.node):
            node.name = f"n{number}"
        read = {name for node in proto.graph.node for name in node.input}
        kind = np.dtype(self.dtype).type
        point, made = (3, -5) if self.dtype == "int8" else (0, 0)
        usual = {"sx": _STEP, "so": np.float32(0.031), "sy": np.float32(0.07)}
        usual |= {"z": kind(point), "zy": kind(made)}
        for name, value in (usual | self.stored).items():
            if name in read:
                proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        onnx.checker.check_model(proto, full_check=True)
        return onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)


def _store_filters(*shape: int, scales: Any = None) -> dict[str, Any]:
    """Return weights, scales, and a bias in units of the products."""
    chosen = _SCALES[: shape[0]] if scales is None else scales
    bias = np.arange(-1500, 1500, 3000 // shape[0])[: shape[0]].astype(np.int32)
    weights = _WEIGHTS[: int(np.prod(shape))].reshape(shape).copy()
    return {"w": weights, "ws": chosen, "b": bias, "bs": (chosen * _STEP).astype(np.float32)}


def _resize(mode: str, places: str, scale: int, more: str = "", **rest: Any) -> Case:
    line = f'r = Resize<mode="{mode}",coordinate_transformation_mode="{places}"{more}>(dx,,k)'
    stored = {"k": np.array([1, 1, scale, scale], np.float32)}
    return Case(line, made=f"[1,8,{10 * scale},{12 * scale}]", stored=stored, **rest)


_CONV = _store_filters(6, 8, 3, 3)
_TINY = {"sx": np.float32(1e-4), "so": np.float32(3e-4), "sy": np.float32(4e-4)}
_UNIT = {"sy": np.float32(1 / 256), "zy": np.int8(-128)}

CASES: dict[str, Case] = {
    "conv": Case(_BIASED + "r = Conv<pads=[1,1,1,1]>(dx,v,u)", "[1,6,10,12]", stored=_CONV),
    "conv, stride 2, rest cut off": Case(
        _BIASED + "r = Conv<pads=[1,1,1,1],strides=[2,2]>(dx,v,u)", "[1,6,5,6]", stored=_CONV
    ),
    "conv, stride 3": Case(_BIASED + "r = Conv<strides=[3,3]>(dx,v,u)", "[1,6,3,4]", stored=_CONV),
    "conv and relu": Case(_BIASED + "c = Conv(dx,v,u) r = Relu(c)", "[1,6,8,10]", stored=_CONV),
    "conv and relu to the least": Case(
        _BIASED + "c = Conv(dx,v,u) r = Relu(c)", "[1,6,8,10]", stored=_CONV | {"zy": np.int8(-128)}
    ),
    "conv and clip": Case(
        _BIASED + "c = Conv(dx,v,u) r = Clip(c,l,h)",
        "[1,6,8,10]",
        stored=_CONV | {"l": np.float32(-1.0), "h": np.float32(2.5)},
    ),
    "conv, same": Case(
        _BIASED + 'r = Conv<auto_pad="SAME_LOWER",strides=[2,3]>(dx,v,u)', "[1,6,5,4]", stored=_CONV
    ),
    "conv with dilation, a batch": Case(
        _BIASED + "r = Conv<dilations=[2,2],pads=[2,1,0,2]>(dx,v,u)",
        "[3,6,8,11]",
        "[3,8,10,12]",
        stored=_CONV,
    ),
    "conv of rows": Case(
        _BIASED + "r = Conv<pads=[1,1],strides=[2]>(dx,v,u)",
        "[1,6,6]",
        "[1,8,12]",
        stored=_store_filters(6, 8, 3),
    ),
    "conv in groups": Case(
        _BIASED + "r = Conv<group=2>(dx,v,u)", "[1,6,8,10]", stored=_store_filters(6, 4, 3, 3)
    ),
    "depthwise": Case(
        _BIASED + "r = Conv<group=8,strides=[2,1]>(dx,v,u)",
        "[1,8,4,10]",
        stored=_store_filters(8, 1, 3, 3, scales=_DEEP_SCALES[:8]),
    ),
    "depthwise, two of each": Case(
        _FILTERS + "r = Conv<group=8>(dx,v)",
        "[1,16,8,10]",
        stored=_store_filters(16, 1, 3, 3, scales=_DEEP_SCALES),
    ),
    "transposed conv": Case(
        _FLAT + "r = ConvTranspose<strides=[2,2],pads=[1,1,1,1],output_padding=[1,1]>(dx,v)",
        "[1,6,20,24]",
        stored=_store_filters(8, 6, 3, 3, scales=np.float32(0.004)),
        differing=0.01,
    ),
    "gemm": Case(
        "v = DequantizeLinear<axis=1>(w, ws) u = DequantizeLinear<axis=0>(b, bs) r = Gemm(dx,v,u)",
        "[4,6]",
        "[4,24]",
        stored=_CONV | {"w": _WEIGHTS[:144].reshape(24, 6), "ws": _SCALES[:6]},
    ),
    "gemm, transposed, times a half": Case(
        _FLAT + "r = Gemm<transB=1,alpha=0.5>(dx,v)",
        "[4,18]",
        "[4,24]",
        stored={"w": _WEIGHTS.reshape(18, 24), "ws": np.float32(0.004)},
    ),
    "matmul of rank 3": Case(
        _FLAT + "r = MatMul(dx,v)",
        "[2,4,18]",
        "[2,4,24]",
        stored={"w": _WEIGHTS.reshape(24, 18), "ws": np.float32(0.004)},
    ),
    "matmul of two computed": Case("r = MatMul(dx,do)", "[2,3,4,5]", "[2,3,4,24]", "[3,24,5]"),
    "add": Case("r = Add(dx,do)", other=IMAGE, differing=0.02),
    "add, scales far apart": Case("r = Add(dx,do)", other=IMAGE, stored={"so": np.float32(1e-6)}),
    "add, both broadcast": Case("r = Add(dx,do)", given="[1,8,1,12]", other="[10,1]", differing=0.02),
    "add a number of rank 4": Case(
        _FLAT + "r = Add(dx,v)",
        stored={"w": np.full((1, 1, 1, 1), 50, np.int8), "ws": np.float32(0.02)},
    ),
    "add a number": Case(_FLAT + "r = Add(dx,v)", stored={"w": np.int8(50), "ws": np.float32(0.02)}),
    "sub": Case("r = Sub(dx,do)", other=IMAGE, differing=0.02),
    "sum": Case("r = Sum(dx,do,dx)", other=IMAGE, differing=0.02),
    "mul": Case("r = Mul(dx,do)", other=IMAGE),
    # A factor below 0, one of next to nothing (whose bias does not fit its unit) and one of 0.
    "batch normalization and relu": Case(
        "c = BatchNormalization<epsilon=0.01>(dx,k,l,m,h) r = Relu(c)",
        stored={
            "k": np.array([1, -2, 1e-12, 0, 0.5, 3, 1.5, 0.25], np.float32),
            "l": np.array([0, 1, 2, 0.6, -1, 0.3, -0.2, 4], np.float32),
            "m": np.array([0.3, 0, 5, 1, -1, 2, 0, 0.1], np.float32),
            "h": np.array([1, 0.5, 2, 1, 0.1, 3, 1, 0.4], np.float32),
        },
        differing=0.002,
    ),
    "mul by channel": Case(
        _FLAT + "r = Mul(dx,v)",
        stored={"w": _WEIGHTS[:8].reshape(8, 1, 1), "ws": np.float32(0.02)},
        differing=0.03,
    ),
    "add by channel": Case(
        _FLAT + "r = Add(v,dx)",
        stored={"w": _WEIGHTS[:8].reshape(8, 1, 1), "ws": np.float32(0.02)},
        differing=0.03,
    ),
    "sub by channel": Case(
        _FLAT + "r = Sub(dx,v)",
        stored={"w": _WEIGHTS[:8].reshape(1, 8, 1, 1), "ws": np.float32(0.02)},
        differing=0.03,
    ),
    "max": Case("r = Max(dx,do)", other=IMAGE),
    "min with a row": Case("r = Min(dx,do)", other="[12]"),
    "relu": Case("r = Relu(dx)"),
    "leaky relu": Case("r = LeakyRelu(dx)"),
    "sigmoid": Case("r = Sigmoid(dx)", stored=_UNIT),
    "hard swish": Case("r = HardSwish(dx)"),
    "gelu": Case("r = Gelu(dx)", opset=20),
    "division by a number": Case(
        _FLAT + "r = Div(dx,v)", stored={"w": np.int8(9), "ws": np.float32(0.2)}
    ),
    "prelu": Case(
        _FLAT + "r = PRelu(dx,v)",
        stored={"w": np.arange(-4, 4).astype(np.int8).reshape(8, 1, 1), "ws": np.float32(0.1)},
        differing=0.02,
    ),
    "softmax of channels": Case("r = Softmax<axis=1>(dx)", stored=_UNIT, differing=0.005),
    "softmax of rows": Case("r = Softmax(dx)", stored=_UNIT | {"sx": np.float32(0.01)}, differing=0.005),
    "softmax of many": Case(
        "r = Softmax(dx)", "[2,1000]", "[2,1000]", stored=_UNIT | {"sx": np.float32(0.1)}
    ),
    "softmax, flattened": Case(
        "r = Softmax<axis=1>(dx)",
        "[2,10,100]",
        "[2,10,100]",
        opset=11,
        stored=_UNIT | {"sx": np.float32(0.1)},
    ),
    "max pool": Case("r = MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(dx)", "[1,8,5,6]"),
    "max pool, rounded up": Case(
        "r = MaxPool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1>(dx)", "[1,8,5,6]"
    ),
    "average pool": Case(
        "r = AveragePool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(dx)",
        "[1,8,5,6]",
        differing=0.02,
    ),
    "average pool, padding counted": Case(
        "r = AveragePool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1],count_include_pad=1>(dx)",
        "[1,8,5,6]",
    ),
    "average pool, one scale": Case(
        "r = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1]>(dx)",
        stored={"sy": _STEP, "zy": np.int8(3)},
        differing=0.1,
    ),
    "global average pool": Case(
        "r = GlobalAveragePool(dx)", "[1,8,1,1]", stored={"sy": np.float32(0.01)}
    ),
    "global max pool": Case("r = GlobalMaxPool(dx)", "[1,8,1,1]"),
    "mean": Case(
        "r = ReduceMean(dx,k)",
        "[1,1,10,1]",
        stored={"k": np.array([1, -1]), "sy": np.float32(0.0049)},
        differing=0.1,
    ),
    "sum of channels": Case("r = ReduceSum<keepdims=0>(dx,k)", "[1,10,12]", stored={"k": np.array([1])}),
    "largest": Case("r = ReduceMax(dx,k)", "[1,1,10,12]", stored={"k": np.array([1])}),
    "least": Case("r = ReduceMin<keepdims=0>(dx,k)", "[1,8]", stored={"k": np.array([2, 3])}),
    "concat": Case("r = Concat<axis=1>(dx,do)", "[1,11,10,12]", other="[1,3,10,12]"),
    "reshape to rank 5": Case(
        "r = Reshape(dx,k)", "[1,2,4,10,12]", stored={"k": np.array([1, 2, 4, 10, 12])}
    ),
    "flatten": Case("r = Flatten(dx)", "[1,960]"),
    "transpose": Case("r = Transpose<perm=[0,2,1,3]>(dx)", "[1,10,8,12]"),
    "transpose of rank 5": Case("r = Transpose<perm=[0,2,1,4,3]>(dx)", "[1,4,2,5,3]", "[1,2,4,3,5]"),
    "transpose, axis by axis": Case(
        "r = Transpose<perm=[3,2,1,0]>(dx)", "[3,300,300,2]", "[2,300,300,3]"
    ),
    "conv, stride 4, padded": Case(
        _BIASED + "r = Conv<pads=[1,1,1,1],strides=[4,4]>(dx,v,u)", "[1,6,3,3]", stored=_CONV
    ),
    "max pool, stride 4, padded": Case(
        "r = MaxPool<kernel_shape=[3,3],strides=[4,4],pads=[1,1,1,1]>(dx)", "[1,8,3,3]"
    ),
    "channel shuffle": Case(
        "a = Reshape(dx,k) t = Transpose<perm=[0,2,1,3,4]>(a) r = Reshape(t,m)",
        stored={"k": np.array([1, 2, 4, 10, 12]), "m": np.array([1, 8, 10, 12])},
    ),
    "slice": Case(
        "r = Slice(dx,k,m,a)",
        "[1,8,4,6]",
        stored={"k": np.array([2, -8]), "m": np.array([6, -2]), "a": np.array([2, 3])},
    ),
    "pad": Case("r = Pad(dx,k)", "[1,8,13,17]", stored={"k": np.array([0, 0, 1, 2, 0, 0, 2, 3])}),
    "pad with more than the operand holds": Case(
        "r = Pad(dx,k,f)",
        "[1,8,13,17]",
        stored={"k": np.array([0, 0, 1, 2, 0, 0, 2, 3]), "f": np.float32(100.0)},
    ),
    "pad with less than a step": Case(
        "r = Pad(dx,k,f)",
        "[1,8,13,17]",
        stored={"k": np.array([0, 0, 1, 2, 0, 0, 2, 3]), "f": np.float32(0.5), "sx": np.float32(2.0)},
    ),
    "pad less": Case("r = Pad(dx,k)", "[1,8,11,14]", stored={"k": np.array([0, 0, -1, 2, 0, 0, 2, 0])}),
    "split": Case(
        "r, r1 = Split<axis=1>(dx,k)",
        "[1,3,10,12]",
        second="[1,5,10,12]",
        stored={"k": np.array([3, 5])},
    ),
    "expand": Case("r = Expand(dx,k)", given="[1,8,1,12]", stored={"k": np.array([1, 8, 10, 12])}),
    "depth to space": Case("r = DepthToSpace<blocksize=2>(dx)", "[1,2,20,24]"),
    "depth to space, by columns": Case('r = DepthToSpace<blocksize=2,mode="CRD">(dx)', "[1,2,20,24]"),
    "space to depth": Case("r = SpaceToDepth<blocksize=2>(dx)", "[1,32,5,6]"),
    "requantize": Case("r = Identity(dx)"),
    "nearest, by 2": _resize("nearest", "half_pixel", 2),
    "nearest, by 3": _resize("nearest", "asymmetric", 3, ',nearest_mode="floor"'),
    "linear, by 2": _resize("linear", "half_pixel", 2, differing=0.03),
    "linear, by 8": _resize("linear", "asymmetric", 8, differing=0.03),
    "linear, aligned": Case(
        'r = Resize<mode="linear",coordinate_transformation_mode="align_corners">(dx,,,k)',
        "[1,8,19,23]",
        stored={"k": np.array([1, 8, 19, 23])},
        differing=0.03,
    ),
    "int16 add": Case(
        "r = Add(dx,do)", other=IMAGE, dtype="int16", opset=21, stored=_TINY, differing=0.1
    ),
    "int16 mul": Case(
        "r = Mul(dx,do)", other=IMAGE, dtype="int16", opset=21, stored=_TINY | {"sy": np.float32(1e-3)}
    ),
    "int16 conv": Case(
        _FILTERS + "r = Conv<pads=[1,1,1,1]>(dx,v)",
        "[1,6,10,12]",
        dtype="int16",
        opset=21,
        stored=_CONV | _TINY,
        differing=0.1,
    ),
    "int16 concat": Case(
        "r = Concat<axis=1>(dx,do)",
        "[1,16,10,12]",
        other=IMAGE,
        dtype="int16",
        opset=21,
        stored=_TINY,
        differing=0.2,
    ),
    "int16 max pool": Case(
        "r = MaxPool<kernel_shape=[3,3]>(dx)",
        "[1,8,8,10]",
        dtype="int16",
        opset=21,
        stored=_TINY | {"sy": np.float32(1e-4)},
    ),
}
