"""What a network of equal layers costs to plan and to compile, whole and cut into its layers.

    python benchmarks/share_blocks.py [--layers 8 80] [--codegen c|dla]

A decoder of so many equal layers (attention and a feed-forward part, 24 nodes each, their weights
different), for `dla` a network of residual blocks of 5 nodes, is placed on one accelerator, first as one
region, then with `share_blocks`. For each the processor time of planning and of compiling is printed,
that of compilers that are started included, with the regions, and how often the codegen compiled. Last
come the ratios of the most layers to the fewest. The first network is done once before, unprinted.
"""

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from common import machine
from onnx import TensorProto, helper, numpy_helper

import byoc
from byoc.bundle import RegionCompiler, _writing

_WIDTH, _HEADS, _TOKENS = 64, 4, 16
_OPERATORS = ("MatMul", "Add", "Relu", "Mul", "Softmax", "Reshape", "Transpose", "LayerNormalization")
_CHANNELS = 16
_IMAGE = (1, _CHANNELS, 16, 16)
_SHAPE = (1, _TOKENS, _HEADS, _WIDTH // _HEADS)


class DecoderBuilder:
    """Builds a model of equal layers, each with weights of its own."""

    def __init__(self) -> None:
        """Begin without layers."""
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)
        self.last = "x"

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return its output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def store(self, value: Any) -> str:
        """Add a constant; return its name."""
        self.stored.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.stored)}"))
        return self.stored[-1].name

    def weight(self, *shape: int) -> str:
        """Add a random weight; return its name."""
        return self.store((self.random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32))

    def add_layer(self) -> None:
        """Add a layer of attention and a feed-forward part."""
        read = self.add("LayerNormalization", self.last, self.weight(_WIDTH), self.weight(_WIDTH))
        q, k, v = (
            self.add("Transpose", self.project(read), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = self.add("Mul", self.add("MatMul", q, k), self.store(np.float32(0.25)))
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        flat = self.store(np.array([1, _TOKENS, _WIDTH], np.int64))
        mixed = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        mixed = self.add("MatMul", mixed, self.weight(_WIDTH, _WIDTH))
        self.last = self.add("Add", self.last, mixed)
        read = self.add("LayerNormalization", self.last, self.weight(_WIDTH), self.weight(_WIDTH))
        wide = self.add("MatMul", read, self.weight(_WIDTH, 4 * _WIDTH))
        wide = self.add("Relu", self.add("Add", wide, self.weight(4 * _WIDTH)))
        narrow = self.add("MatMul", wide, self.weight(4 * _WIDTH, _WIDTH))
        self.last = self.add("Add", self.last, narrow)

    def add_block(self) -> None:
        """Add a residual block of two convolutions."""
        weight, bias = (_CHANNELS, _CHANNELS, 3, 3), (_CHANNELS,)
        pads = [1, 1, 1, 1]
        made = self.add("Conv", self.last, self.weight(*weight), self.weight(*bias), pads=pads)
        made = self.add("Relu", made)
        made = self.add("Conv", made, self.weight(*weight), self.weight(*bias), pads=pads)
        self.last = self.add("Relu", self.add("Add", made, self.last))

    def project(self, read: str) -> str:
        """Add a projection, its result by heads."""
        made = self.add("MatMul", read, self.weight(_WIDTH, _WIDTH))
        return self.add("Reshape", made, self.store(np.array(_SHAPE, np.int64)))

    def build(self, shape: Sequence[int]) -> onnx.ModelProto:
        """Return the model, whose input and output have a shape."""
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", self.last)
        ]
        graph = helper.make_graph(self.nodes, "decoder", ends[:1], ends[1:], self.stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main(arguments: argparse.Namespace) -> None:
    """Print the figures of each number of layers, and the ratios."""
    print(f"{machine()}; codegen {arguments.codegen}, seconds of the processors")
    print(f"{'layers':>6} {'cut':6}{'plan':>8}{'compile':>9}{'regions':>9}{'compiled':>9}")
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with TemporaryDirectory() as name:
        for layers in arguments.layers:
            if arguments.codegen == "dla":
                rules, model = "dla", build_model(DecoderBuilder.add_block, layers, _IMAGE)
            else:
                rules = str(write_rules(Path(name), arguments.codegen))
                model = build_model(DecoderBuilder.add_layer, layers, (1, _TOKENS, _WIDTH))
            if not found[False]:
                byoc.partition(model, rules, output=Path(name) / "first", verify=False, cache=False)
            for share in (False, True):
                found[share].append(measure(model, layers, rules, Path(name), share))
    for share, rows in found.items():
        plan, compiling = (last / first for first, last in zip(rows[0], rows[-1], strict=True))
        sizes = f"{arguments.layers[-1]} layers against {arguments.layers[0]}"
        print(f"{'cut' if share else 'whole'}: {sizes}: plan {plan:.2f}, compile {compiling:.2f}")


def build_model(
    add: Callable[[DecoderBuilder], None], layers: int, shape: Sequence[int]
) -> onnx.ModelProto:
    """Return a model of so many layers."""
    builder = DecoderBuilder()
    for _ in range(layers):
        add(builder)
    return builder.build(shape)


def write_rules(folder: Path, codegen: str) -> Path:
    """Write a rule file that takes all of the model; return its path."""
    lines = ["target: npu", f"codegen: {codegen}", "cost_model: dla", "regions: phase", "dtype: float32"]
    path = folder / "npu.yaml"
    path.write_text("\n".join([*lines, "ops:", *(f"  - op: {name}" for name in _OPERATORS), ""]))
    return path


def measure(
    model: onnx.ModelProto, layers: int, rules: str, folder: Path, share: bool
) -> tuple[float, float]:
    """Print what a model takes to plan and to compile, in seconds, and return both."""
    options: dict[str, Any] = {"strategy": "all-supported", "share_blocks": share, "what_if": False}
    compiled, seconds = 0, 0.0
    compile_regions, compile_one = _writing.compile_regions, RegionCompiler.compile

    def count(self: RegionCompiler, *given: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return compile_one(self, *given)

    def take_time(*given: Any) -> Any:
        nonlocal seconds
        start = read_seconds()
        result = compile_regions(*given)
        seconds = read_seconds() - start
        return result

    start = read_seconds()
    byoc.partition(model, rules, **options)
    planning = read_seconds() - start
    _writing.compile_regions, RegionCompiler.compile = take_time, count  # type: ignore[method-assign]
    try:
        result = byoc.partition(model, rules, output=folder / "b", verify=False, cache=False, **options)
    finally:
        _writing.compile_regions, RegionCompiler.compile = compile_regions, compile_one  # type: ignore[method-assign]
    regions = len(result.plan.regions)
    figures = f"{planning:8.2f}{seconds:9.2f}{regions:9}{compiled:9}"
    print(f"{layers:6} {'cut' if share else 'whole':6}{figures}", flush=True)
    return planning, seconds


def read_seconds() -> float:
    """Return the processor time of this process and of those that it started, which have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="+", type=int, default=[8, 80])
    parser.add_argument("--codegen", default="c")
    main(parser.parse_args())
