"""Rule files that are nearly right: small valid ones, changed in their structure or in their text."""

from functools import cache
from typing import Any

from text_inputs import TextInputs

_SEEDS = [
    """
target: dla
description: "vanilla, float32"
cost_model: dla
regions: phase
dtype: float32
ops:
  - op: Conv
    tensors: {X: {rank: 4}, W: {constant: true}}
    attributes:
      kernel_shape: {each: {min: 1, max: 11}, length: [1, 2]}
      auto_pad: {one_of: NOTSET}
  - op: [Add, Mul, Relu]
composites:
  - name: conv_relu
    pattern: |
      c = Conv(x, w, b?)
      y = Relu(c)
""",
    """
target: npu
cost_model: npu
dtype: [int8, uint8, any]
ops:
- {op: '*', opset: {min: 7, max: 1e2}, dtype: any}
- op: acme.Op
  attributes: {mode: {one_of: [a, 1, 2.5, true]}, old: {absent: true}}
  standalone: false
""",
    """
target: &name shared
cost_model: *name
dtype: float32
ops:
  - &rule {op: Gemm, tensors: {C: {absent: true}, B: {rank: [2]}}, attributes: {alpha: {min: -1.0}}}
  - <<: *rule
    op: ["Gemm"]  # a comment
    tensors: {A: {rank: [3]}}
""",
    """
target: t
cost_model: host
dtype: float32
ops: [{op: [Add, Sum, Sub, Sigmoid, Mul]}]
composites:
- {name: two, pattern: "a = Add|Sum(x, y)\\nz = Sub(a, x)"}
- {name: swish, pattern: "# swish\\ns = Sigmoid(x)\\ny = Mul(x, s)"}
""",
    """
target: q
extends: dla
cost_model: dla
dtype: any
limits: {regions: 3, min_nodes: 1, max_nodes: 900, memory: 4MiB, batch: 8}
quantization: {activations: {dtype: int8, symmetric: true}, scales: any, convert: host}
layout: {activations: NHWC, weights: OHWI}
host: {ops: [Sum], names: ['^h', 'x{2}'], after: {ops: [Softmax], names: ['z$']}}
ops:
  - op: [Conv, Mul]
    quantized: true
    dtype: int8
  - op: Conv
    opset: {min: 7, max: 21}
    level: must
    tensors:
      X:
        rank: [3, 4]
        dims: {1: {multiple_of: 3}, -1: [8, 16], each: {min: 1}}
        static: true
        elements: {min: 1, multiple_of: 2}
        bytes: {max: 1MiB}
      W: {constant: true, dims: {0: {equals: 'Y[1]'}}, dtype: float32}
      B: {absent: true, scalar: false, value: {min: -1, max: 1, one_of: [0, 1]}}
    where:
      - attr.kernel_shape.all(k, k < 9) && W.shape[0] % 4 == 0
      - {expr: 'X.shape[1] * 2 > size(X.shape) && has(attr.group)', reason: nope}
  - op: [Mul, Add]
    tensors: {A: {broadcast: [none, scalar, channel]}, B: {broadcast: other, absent: false}}
    where: "A.rank == B.rank || C.given && name.matches('^a+$')"
  - op: '*'
    standalone: false
""",
    """
target: p
cost_model: dla
dtype: any
ops: [{op: '*'}]
composites:
- name: many
  pattern:
    - |
      c = Conv <group = 1, auto_pad = "VALID"|"NOTSET", kernel_shape = [3, 3]> (x, w!, b!?)
      n = Neg(c)?
      y = Relu|Clip|LeakyRelu(n, low?, 6.0?)
    - |
      a, _ = *(x, ...)  # any
      s = Sum(a, a, ...)
      return s, a
  where: ["c.attr.group == 1 || x.rank == 4", {expr: "y.op == 'Relu'", reason: other}]
- library: silu
- {library: conv_add, where: 'y.rank == 4'}
- {name: lit, pattern: "h = Mul(x, [0, -1])\\nz = Add(h, +inf)\\ny = Mul(z, -0.5)"}
""",
]


_SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2.5,
    1e300,
    float("nan"),
    float("inf"),
    2**63,
    10**400,
    "",
    " ",
    "x",
]
_SCALARS += [
    "Conv",
    "Relu",
    "*",
    "acme.Op",
    "a.b.c",
    "float32",
    "any",
    "Conv ",
    "dla_0",
    "conv_relu",
    "\0",
]
_SCALARS += [
    "y = Relu(x)",
    "y = Relu(y)",
    "y = " * 50,
    "a = Conv(a?, b?)",
    "y=|(,)",
    "é" * 50,
    "n" * 5000,
]
_SCALARS += ["y = Add(" + "x, " * 500 + "x)", "\n".join(f"v{i} = Relu(v{i - 1})" for i in range(1, 120))]
_SCALARS += [
    "NOTSET",
    "min",
    "each",
    "one_of",
    "tensors",
    "W",
    "X",
    b"bytes",
    "a\nb",
    "\ud800",
    "$",
    "../x",
]
_SCALARS += [
    "X.shape[0] > 1",
    "attr.all(a, a == 1)",
    "size(",
    "X",
    "''",
    "y = *(x, ...)?",
    "a, b = Split(x)\nreturn b, a",
    "y = Relu <a = 1..2|absent> (x!?)",
    "y = Add(x, 1e400)",
    "silu",
    "extends",
    "W[1]",
    "W[-9]",
    "4MiB",
    "1e999GiB",
    "qdq",
    "return y",
    "[a{9}",
    "(a|b)*",
]


@cache
def inputs() -> TextInputs:
    """Return what makes and changes rule files."""
    return TextInputs(tuple(text.lstrip().encode() for text in _SEEDS), tuple(_SCALARS))
