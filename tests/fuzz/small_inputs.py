"""Conditions, cost files and calibration files that are nearly right."""

from functools import cache
from typing import Any

from text_inputs import TextInputs

_CONDITIONS = """
attr.kernel_shape.all(k, k < 9) && W.shape[0] % 4 == 0
X.shape[1] * 2 > size(X.shape) && has(attr.group)
name.matches('^a+$') || name.startsWith("x") || name.contains('b')
X.rank == 4 ? X.dtype in ['float32', "int8"] : false
!(X.shape.exists(d, d == 3)) || X.shape.exists_one(d, d > 2u)
X.shape.map(d, d * 2).filter(d, d > 1)[0] >= -1
X.shape.map(d, d > 1, d + 1) == [4, 9, 9]
int(attr.alpha) + int("7") == uint(7) || double("1e3") > 1.5
string(attr.group) + 'é\\x41\\u00e9' != r'raw\\n'
type(X.rank) == int && W.given && attr.auto_pad == 'VALID'
W.value.all(v, v >= -1.0 && v <= 3e38) && 9223372036854775807 > 1
- - - X.elements / 3 < 0x10 && !!true
[[1, 2], [3]][1][0] == 3 && {'a': 1}.a == 1
name.size() > 100 || name.endsWith("") || size(name) % 2 == 0
"""
_COSTS = [
    """
kind: roofline
name: dla
description: a vanilla accelerator behind a link
peak: {int8: 2.0e+12, float16: 1.0e+12, default: 0.5e+12}
bandwidth: 16.0e+9
overhead: 1.0e-6
launch: 50.0e-6
link: {bandwidth: 2.0e+9, latency: 5.0e-6}
operators:
  conv_relu: {efficiency: 0.8}
  Softmax: {overhead: 20.0e-6}
""",
    """
kind: table
name: host
together: 0.8
else: host
entries:
- {op: Relu, types: 'float32[1, 8] -> float32[1, 8]', seconds: 1.5e-06, spread: 1.0e-07, operations: 8}
- op: Conv
  types: 'float32[1, 3, 9, 9], float32[4, 3, 2, 2], - -> float32[1, 4, 8, 8]'
  attributes: {kernel_shape: [2, 2]}
  seconds: 2.0e-05
  joules: 1.0e-4
  samples: 5
  bytes: 64
""",
    """
kind: linear
name: host
estimates: {operation: 5.9e-12, byte: 1.4e-11, call: 4.7e-06, r2: 0.09, samples: 375}
operators:
  Conv: {operation: 4.9e-12, byte: 3.6e-11, call: 1.0e-05, r2: 0.62, samples: 122}
  Conv/grouped: {byte: 3.3e-11, call: 3.2e-05, r2: -0.51, samples: 25}
""",
]
_CALIBRATIONS = [
    """
method: percentile
options: {percentile: 99.9}
samples: 64
data: photos
random: true
model: {name: squeezenet}
notes: [one, two]
tensors:
  x: {low: -1.25, high: 3.5}
  c: {scale: 0.02, zero_point: 3, dtype: int8}
  w:
    scale: [0.01, 0.02]
    zero_point: [0, 1]
    dtype: uint4
    axis: 0
""",
    "tensors: {r: {low: 0, high: 0}, y: {low: -1.0e+38, high: 1.0e+38}}\n",
]
_NUMBERS: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    0.5,
    1e-300,
    1e300,
    10**400,
    float("nan"),
    float("inf"),
    -0.0,
]
_COST_WORDS = [
    "",
    "x",
    "roofline",
    "table",
    "linear",
    "host",
    "dla",
    "dla.yaml",
    "/dev/null",
    "Conv",
    "a\nb",
]
_COST_WORDS += [
    "link",
    "else",
    "peak",
    "default",
    "float32[1, 3] -> -",
    "float32[N, ?]",
    "[" * 500,
    "\x1b[m",
]
_RANGE_WORDS = [
    "",
    "x",
    "low",
    "high",
    "scale",
    "zero_point",
    "dtype",
    "axis",
    "int8",
    "uint16",
    "a\nb",
    "1e5",
]


@cache
def condition_inputs() -> TextInputs:
    """Return what makes and changes conditions."""
    return TextInputs(tuple(line.encode() for line in _CONDITIONS.strip().splitlines()))


@cache
def cost_inputs() -> TextInputs:
    """Return what makes and changes cost files."""
    return TextInputs(tuple(text.lstrip().encode() for text in _COSTS), (*_NUMBERS, *_COST_WORDS))


@cache
def calibration_inputs() -> TextInputs:
    """Return what makes and changes calibration files."""
    return TextInputs(
        tuple(text.lstrip().encode() for text in _CALIBRATIONS), (*_NUMBERS, *_RANGE_WORDS)
    )
