"""Weights in 4 bits: byoc, onnxruntime's quantizer, HQQ and GPTQ, block by block.

    python benchmarks/weights_in_blocks.py
    python benchmarks/weights_in_blocks.py MODEL.onnx DATA HELD_OUT [--block 32 128]

Without a model figures are the squared errors of seeded 512 x 256 weights as shares of those of
onnxruntime's symmetric quantizer. Of a model they are decibels of its first output on the samples of
HELD_OUT, folders of .npz files as byoc takes them, where products have weights of 4 bits, and processor
seconds; samples of DATA are what GPTQ and byoc round on. Where the only input is token numbers
`[1, length]` and the output their logits, perplexity stands beside.

HQQ is the published iteration (Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning
Models", 2023): zeros are real numbers, which MatMulNBits of most accelerators has not. GPTQ is that of
its paper (Frantar et al., ICLR 2023), with the defaults of its authors' program: scales and zeros that
fit the least and the greatest weight, 1 % of the mean diagonal added, columns in order or (act) the
largest moments first. Both are written here; byoc shares no code with them. They leave tables
that Gather reads in floats, which byoc does not where a product reads the same tensor.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.capi._pybind_state as onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

import byoc
from byoc.numerics import convert_to_db
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization import round_to_blocks

Floats = NDArray[np.float32]
Samples = Sequence[dict[str, NDArray[Any]]]
BLOCKS = (16, 32, 64, 128)
LEAST = 1024  # bytes of weights, as of byoc
_POWER, _BETA, _KAPPA, _ROUNDS = 0.7, 10.0, 1.01, 20


def round_by_onnxruntime(weights: Floats, block: int, *, symmetric: bool) -> Floats:
    """Return weights `[N, K]`, K a multiple of the block, as onnxruntime's quantizer rounds them."""
    count, inputs = weights.shape
    blocks = inputs // block
    packed = np.zeros((count, blocks, block // 2), np.uint8)
    scales, points = (
        np.zeros(count * blocks, np.float32),
        np.zeros(count * ((blocks + 1) // 2), np.uint8),
    )
    rows = np.ascontiguousarray(weights.T)
    onnxruntime.quantize_matmul_4bits(packed, rows, scales, points, block, count, inputs, symmetric)
    numbers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(count, blocks, block)
    pairs = points.reshape(count, -1)
    zeros = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(count, -1)[:, :blocks, np.newaxis]
    moved = numbers.astype(np.float32) - (8 if symmetric else zeros.astype(np.float32))
    return (moved * scales.reshape(count, blocks, 1)).reshape(count, -1)


def round_by_hqq(weights: Floats, block: int) -> Floats:
    """Return weights `[N, K]` as HQQ rounds them: scales of min and max, zeros found in steps."""
    inputs = weights.shape[1]
    padded = np.pad(weights, [(0, 0), (0, -inputs % block)], mode="edge")
    values = padded.reshape(len(weights), -1, block).astype(np.float64)
    low, high = values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)
    scale = 15 / np.maximum(high - low, 1e-30)
    zero, beta = -low * scale, _BETA
    best, least = values, np.inf
    for _ in range(_ROUNDS):
        numbers = np.clip(np.rint(values * scale + zero), 0, 15)
        restored = (numbers - zero) / scale
        error = float(np.abs(values - restored).mean())
        if error >= least:
            break
        best, least = restored, error
        away = values - restored
        shrunk = np.abs(away) - np.abs(away).clip(1e-8) ** (_POWER - 1) / beta
        kept = np.sign(away) * np.maximum(shrunk, 0)
        zero = (numbers - (values - kept) * scale).mean(axis=-1, keepdims=True)
        beta *= _KAPPA
    return best.reshape(padded.shape)[:, :inputs].astype(np.float32)


def round_by_gptq(
    weights: Floats, block: int, moments: NDArray[np.float64], *, by_moments: bool
) -> Floats:
    """Return weights `[N, K]` as GPTQ rounds them; with `by_moments` the largest moments come first."""
    values, moments = weights.astype(np.float64), moments.copy()
    dead = np.diag(moments) == 0
    moments[dead, dead], values[:, dead] = 1, 0
    count = len(moments)
    order = np.argsort(-np.diag(moments), kind="stable") if by_moments else np.arange(count)
    grids = [_fit_grid(values[:, first : first + block]) for first in range(0, count, block)]
    values, moments = values[:, order], moments[np.ix_(order, order)]
    moments[np.diag_indices(count)] += 0.01 * np.diag(moments).mean()
    factor = np.linalg.cholesky(np.linalg.inv(moments)).T
    found = np.empty_like(values)
    for first in range(0, count, block):
        part = slice(first, min(first + block, count))
        away = np.zeros_like(values[:, part])
        if not by_moments:
            grids[first // block] = _fit_grid(values[:, part])
        for column in range(part.start, part.stop):
            scale, zero = grids[order[column] // block]
            number = np.clip(np.rint(values[:, column] / scale) + zero, 0, 15)
            found[:, column] = (number - zero) * scale
            error = (values[:, column] - found[:, column]) / factor[column, column]
            values[:, column : part.stop] -= error[:, None] * factor[column, column : part.stop]
            away[:, column - first] = error
        values[:, part.stop :] -= away @ factor[part, part.stop :]
    restored = np.empty(weights.shape, np.float32)
    restored[:, order] = found
    return restored


def _fit_grid(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scales and zeros that the least and the greatest weight of each row fit."""
    low, high = np.minimum(values.min(axis=1), 0), np.maximum(values.max(axis=1), 0)
    scale = np.where(high > low, high - low, 15) / 15
    return scale, np.rint(-low / scale)


def find_weights(proto: onnx.ModelProto) -> dict[int, tuple[Floats, bool]]:
    """Return the weights of products, as they are multiplied, by numbers of nodes; whether as rows."""
    known = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    found = {}
    for number, node in enumerate(proto.graph.node):
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            known[node.output[0]] = numpy_helper.to_array(attributes["value"])
        elif node.op_type == "Transpose" and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]].transpose(attributes.get("perm"))
        elif node.op_type in ("MatMul", "Gemm") and node.input[1] in known:
            weights = known[node.input[1]]
            if weights.ndim == 2 and weights.nbytes > LEAST:
                found[number] = weights, bool(attributes.get("transB", 0))
    return found


def run(proto: onnx.ModelProto, samples: Samples) -> list[dict[str, NDArray[Any]]]:
    """Return the outputs of a model for samples."""
    with without_optimizations():
        session = open_session(proto)
    return [run_session(session, sample) for sample in samples]


def measure_moments(
    proto: onnx.ModelProto, numbers: Sequence[int], samples: Samples
) -> dict[str, NDArray[np.float64]]:
    """Return the second moments of what products read, by its name."""
    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    names = {proto.graph.node[number].input[0] for number in numbers}
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
    moments: dict[str, Any] = dict.fromkeys(names, 0)
    for sample in samples:
        for name, value in run(watched, [sample])[0].items():
            rows = value.reshape(-1, value.shape[-1]).astype(np.float64)
            moments[name] = moments[name] + rows.T @ rows / len(rows) / len(samples)
    return moments


def replace_weights(proto: onnx.ModelProto, rounder: Callable[[Floats, str], Floats]) -> onnx.ModelProto:
    """Return a model whose products have weights `[N, K]` that a function of them and inputs gives."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for number, (weights, has_rows) in find_weights(proto).items():
        node = made.graph.node[number]
        rows = rounder(np.ascontiguousarray(weights if has_rows else weights.T), node.input[0])
        name = f"{node.output[0]}_rounded"
        value = np.ascontiguousarray(rows if has_rows else rows.T).astype(weights.dtype)
        made.graph.initializer.append(numpy_helper.from_array(value, name))
        node.input[1] = name
    return made


def find_perplexity(outputs: Sequence[NDArray[Any]], samples: Samples) -> float:
    """Return the perplexity of the tokens of samples, each by the logits before it."""
    total = count = 0.0
    for logits, sample in zip(outputs, samples, strict=True):
        (tokens,) = sample.values()
        rows = logits[0, :-1].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        sums = np.log(np.exp(rows).sum(axis=1))
        total += float((sums - rows[np.arange(len(rows)), tokens[0, 1:]]).sum())
        count += len(rows)
    return float(np.exp(total / count))


def describe(expected: Sequence[Any], actual: Sequence[Any], samples: Samples) -> str:
    """Describe how near the first outputs are to those expected."""
    power = sum(float(np.square(each, dtype=np.float64).sum()) for each in expected)
    noise = sum(
        float(np.square(one - other, dtype=np.float64).sum())
        for one, other in zip(expected, actual, strict=True)
    )
    ratio = convert_to_db(power, noise) if noise else np.inf
    (given, *others) = samples[0].values()
    is_language = not others and given.dtype.kind == "i" and expected[0].ndim == 3
    more = f"  perplexity {find_perplexity(actual, samples):.4f}" if is_language else ""
    return f"{ratio:6.2f} dB{more}"


def compare_on_model(path: Path, data: Path, held_out: Path, blocks: Sequence[int], rules: str) -> None:
    """Print what is left of a model's first output, method by method."""
    proto = onnx.load(path)
    seen, held = (
        [dict(np.load(each)) for each in sorted(folder.glob("*.npz"))] for folder in (data, held_out)
    )
    expected = [next(iter(each.values())) for each in run(proto, held)]
    numbers = list(find_weights(proto))
    print(f"{len(numbers)} products; as it is: {describe(expected, expected, held)}")
    moments = measure_moments(proto, numbers, seen)

    def partition(block: int, given: Path | None) -> onnx.ModelProto:
        precision = byoc.Precision(quantize="int4-weights", block=block, data=given)
        return byoc.partition(path, rules=rules, precision=precision).model

    rivals: dict[str, Callable[[int], Callable[[Floats, str], Floats]]] = {
        "onnxruntime, with zeros": lambda b: lambda w, _: _round_padded(w, b),
        "HQQ": lambda b: lambda w, _: round_by_hqq(w, b),
        "GPTQ": lambda b: lambda w, x: round_by_gptq(w, b, moments[x], by_moments=False),
        "GPTQ, act": lambda b: lambda w, x: round_by_gptq(w, b, moments[x], by_moments=True),
    }
    makers: dict[str, Callable[[int], onnx.ModelProto]] = {
        what: lambda b, made=made: replace_weights(proto, made(b)) for what, made in rivals.items()
    }
    makers["byoc, without data"] = lambda b: partition(b, None)
    makers["byoc, with data"] = lambda b: partition(b, data)
    for block in blocks:
        for what, make in makers.items():
            start = time.process_time()
            made = make(block)
            seconds = time.process_time() - start
            actual = [next(iter(each.values())) for each in run(made, held)]
            print(f"{block:4} {what:24} {describe(expected, actual, held)} {seconds:7.1f} s", flush=True)


def _round_padded(weights: Floats, block: int) -> Floats:
    """Return weights as onnxruntime rounds them, of any number of inputs."""
    inputs = weights.shape[1]
    padded = np.pad(weights, [(0, 0), (0, -inputs % block)])
    return round_by_onnxruntime(padded, block, symmetric=False)[:, :inputs]


def compare_on_weights() -> None:
    """Print the squared errors of seeded weights."""
    generator = np.random.default_rng(1)
    drawn = {
        "normal": generator.standard_normal((256, 512)),
        "Student's t, 4 degrees": generator.standard_t(4, (256, 512)),
    }
    print(f"{'weights':24} {'':22}" + "".join(f"{block:>8}" for block in BLOCKS))
    for name, made in drawn.items():
        weights = made.astype(np.float32)
        rows = {
            "byoc, symmetric": lambda w, b: round_to_blocks(w, b).restore(),
            "byoc, with zeros": lambda w, b: round_to_blocks(w, b, symmetric=False).restore(),
            "onnxruntime, with zeros": lambda w, b: round_by_onnxruntime(w, b, symmetric=False),
            "HQQ": round_by_hqq,
        }
        for what, round_weights in rows.items():
            shares = []
            for block in BLOCKS:
                plain = np.square(round_by_onnxruntime(weights, block, symmetric=True) - weights).sum()
                shares.append(np.square(round_weights(weights, block) - weights).sum() / plain)
            print(f"{name:24} {what:23}" + "".join(f"{share:8.3f}" for share in shares))


def main() -> None:
    """Print the table that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("held_out", type=Path, nargs="?")
    parser.add_argument("--block", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--rules", default="openvino-cpu", help="the rule file of the accelerator")
    given = parser.parse_args()
    if given.model is None:
        compare_on_weights()
    elif given.held_out is None:
        parser.error("a model needs DATA and HELD_OUT")
    else:
        compare_on_model(given.model, given.data, given.held_out, given.block, given.rules)


if __name__ == "__main__":
    main()
