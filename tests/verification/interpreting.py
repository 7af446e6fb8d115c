"""A codegen that runs a region node by node, some of them wrong, and rules for the tests."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from helpers.cutting import number_regions
from onnx import ModelProto, NodeProto

from byoc.bundle import Bundle, open_bundle
from byoc.codegen import Artifact, CompileError, Executor, Region
from byoc.model import extract_nodes, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.pipeline import partition

# The condition is computed from x in a way that no flip of an input changes.
NEVER = """
g (float[1, 4] x) => (float[1, 4] z) <float big = {1000000}> {
  m = ReduceMax <keepdims = 0> (x)
  which = Greater(m, big)
  z = If (which) <
    then_branch = t () => (float[1, 4] p) { q = Neg(x) p = Abs(q) },
    else_branch = e () => (float[1, 4] r) { s = Abs(x) r = Neg(s) }
  >
}"""

Spoil = Callable[[NodeProto, ModelProto, list[Any]], Sequence[Any]]
"""Given a node, the model it is in and what it makes: what the codegen makes of it."""

RULES = """
target: npu
cost_model: dla
dtype: float32
ops:
  - op: [Conv, Relu, Add, Mul, Sub, Abs, MaxPool, Split, Concat, Transpose, Reshape, Neg, Sigmoid]
  - op: [QuantizeLinear, DequantizeLinear]
"""


def interpreter(spoil: Spoil, name: str = "wrong", least: int = 1) -> type:
    """Return a codegen class that refuses regions of fewer than `least` nodes."""

    class Interpreter:
        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            if len(region.nodes) < least:
                raise CompileError(f"a region has to have {least} nodes")
            return Artifact({"options.txt": repr(dict(options)).encode()})

        def load(self, region: Region, artifact: Artifact) -> Executor:
            model = region.load(inline=True)
            index = prepare_model(model, region.name).index
            with without_optimizations():
                steps = [
                    (node, open_session(extract_nodes(index, [i], "step", index.type_protos)))
                    for i, node in enumerate(index.nodes)
                    if i not in index.constant_nodes
                ]

            def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
                values = dict(inputs)
                for node, session in steps:
                    given = {value.name: values[value.name] for value in session.get_inputs()}
                    made = run_session(session, given)
                    names = [name for name in node.output if name in made]
                    spoilt = spoil(node, model, [made[name] for name in names])
                    values |= dict(zip(names, spoilt, strict=True))
                return {value.name: values[value.name] for value in region.outputs}

            return run

    Interpreter.name = name  # type: ignore[attr-defined]
    return Interpreter


def only(output: str, change: Callable[[Any], Any], position: int = 0) -> Spoil:
    """Make a function that changes one output of the node whose first output has a name."""

    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        if node.output[0] != output:
            return made
        return [change(value) if i == position else value for i, value in enumerate(made)]

    return spoil


def right(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
    return made


def bundle_of(
    model: ModelProto, folder: Path, codegen: str = "wrong", rules: str = RULES, **options: Any
) -> Bundle:
    """Return the bundle of a model of which an accelerator takes all that the rules have."""
    (folder / "npu.yaml").write_text(rules, encoding="utf-8")
    with number_regions():
        partition(
            model,
            folder / "npu.yaml",
            output=folder / "b",
            strategy="all-supported",
            codegen=codegen,
            verify=False,
            **options,
        )
    return open_bundle(folder / "b")


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]
