"""Models cut by hand into regions that compute in float16, held against what they were."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from helpers.cutting import planned
from onnx import FunctionProto, ModelProto, NodeProto
from onnx.reference import ReferenceEvaluator

from byoc.boundary.convert import BoundaryFormat, ModelEditor, RegionBoundary
from byoc.boundary.convert._cast_regions import cast_regions
from byoc.model import (
    CAST,
    GraphCuts,
    GraphIndex,
    Model,
    OutlineGroup,
    RegionCut,
    extract_call,
    get_purpose,
    infer_types,
    outline,
    read_type,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.placement import Strategy
from byoc.rules import Target, load_rules
from byoc.rules._schema_values import Quantization

FIRST, SECOND = "npu_0", "npu_1"

RULES = """
target: npu
cost_model: dla
dtype: float16
ops:
  - op: [Conv, Relu, MaxPool, AveragePool, GlobalAveragePool, Gemm, BatchNormalization, Add, Sum, Mul,
         Sub, Sigmoid, Abs, Identity, Concat, Split, Reshape, Flatten, Dropout, LRN, Softmax, Transpose,
         Unsqueeze, Clip, Cast, If]
"""
CHAIN = """
g (float[2, 4] x) => (float[2, 4] y) <float[4] w = {0.1, -2.5, 3.3, 1e-6}> {
  a = Mul(x, w)
  b = Relu(a)
  c = Sigmoid(b)
  y = Sub(c, w)
}
"""


@dataclass(frozen=True)
class Short:
    """A model whose regions compute in a short type, and what byoc tells the user of it."""

    original: Model
    proto: ModelProto
    values: Mapping[str, onnx.TypeProto]
    notes: tuple[str, ...]

    @property
    def host(self) -> list[str]:
        """The operators of the main graph, in order."""
        return [node.op_type for node in self.proto.graph.node]

    def function(self, region: str = FIRST) -> FunctionProto:
        return next(f for f in self.proto.functions if f.name == region)

    def inside(self, region: str = FIRST) -> list[str]:
        """The operators of a region, in order."""
        return [node.op_type for node in self.function(region).node]

    def dtypes(self, region: str = FIRST) -> dict[str, str]:
        """The data types of all tensors of a region, by inference of it alone."""
        index = GraphIndex(self.proto, {**self.original.index.type_protos, **self.values})
        call = next(node for node in index.nodes if node.op_type == region)
        model = extract_call(index, call, index.type_protos)
        del model.graph.value_info[:]
        kinds = infer_types(model, {}).type_protos
        read = {name: read_type(kind) for name, kind in kinds.items()}
        return {name: kind.dtype for name, kind in read.items() if kind is not None}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        with without_optimizations():
            return run_session(open_session(self.proto, self.original.folder), inputs)

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by ONNX's own evaluator, which rounds after every operator.

        onnxruntime computes in float32 where it has no kernel, and leaves out Casts in between.
        """
        outputs = [value.name for value in self.proto.graph.output]
        values = ReferenceEvaluator(self.proto).run(None, dict(inputs))
        return dict(zip(outputs, values, strict=True))

    def stored(self) -> dict[str, str]:
        """The data types of the initializers of the main graph."""
        return {
            t.name: onnx.TensorProto.DataType.Name(t.data_type) for t in self.proto.graph.initializer
        }


def short(
    model: Model,
    *regions: Sequence[int],
    dtype: str | Sequence[str] = "float16",
    convert: Literal["host", "device"] | Sequence[Literal["host", "device"]] = "host",
) -> Short:
    """Return a model with nodes outlined as regions `npu_0`, ... that compute in a type, and checked."""
    cuts = [
        RegionCut(f"npu_{i}", "byoc.npu", tuple(OutlineGroup((node,)) for node in nodes))
        for i, nodes in enumerate(regions)
    ]
    dtypes = [dtype] * len(cuts) if isinstance(dtype, str) else dtype
    converts = [convert] * len(cuts) if isinstance(convert, str) else convert
    wants = [BoundaryFormat(convert=c, compute=d or None) for c, d in zip(converts, dtypes, strict=True)]
    return computed(model, outline(GraphCuts(model.index, tuple(cuts))), wants)


def computed(
    model: Model, outlined: ModelProto, wants: Sequence[BoundaryFormat], names: Sequence[str] = ()
) -> Short:
    """Return an outlined model whose regions, in order of their names, are given what they want."""
    borders = [
        RegionBoundary(names[i] if names else f"npu_{i}", want, frozenset(), model.index.type_protos)
        for i, want in enumerate(wants)
    ]
    edit = ModelEditor(outlined)
    cast_regions(edit, borders, model.folder)
    result = Short(model, edit.finish(), edit.types, tuple(edit.notes))
    onnx.checker.check_model(result.proto, full_check=model.folder is None)
    assert all(get_purpose(n) == CAST for n in result.proto.graph.node if n.op_type == "Cast" and n.name)
    return result


def original(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    with without_optimizations():
        return run_session(open_session(model.proto, model.folder), inputs)


def decibels(expected: Any, given: Any) -> float:
    """Return the signal-to-noise ratio of an array against the expected one."""
    signal = np.square(expected.astype(np.float64)).sum()
    noise = np.square(expected.astype(np.float64) - given.astype(np.float64)).sum()
    return float("inf") if not noise else float(10 * np.log10(signal / noise))


def near(made: Short, inputs: Mapping[str, Any], least: float = 50.0) -> None:
    """Assert that outputs are of the dtype and close to the values that they had."""
    expected, given = original(made.original, inputs), made.run(inputs)
    assert list(expected) == list(given)
    for name, value in expected.items():
        assert given[name].dtype == value.dtype
        assert given[name].shape == value.shape
        if value.dtype.kind == "f":
            assert decibels(value, given[name]) >= least, name
        else:
            np.testing.assert_array_equal(value, given[name])


def same(expected: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    assert list(expected) == list(given)
    for name, value in expected.items():
        assert value.dtype == given[name].dtype
        np.testing.assert_array_equal(value, given[name], err_msg=name)


def casts(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Return the Casts that byoc put in."""
    return [node for node in nodes if get_purpose(node) == CAST]


def target(folder: Path, rules: str = RULES, compute: str = "float16") -> Target:
    file = folder / "npu.yaml"
    file.write_text(rules)
    return replace(load_rules(str(file)), compute_dtype=compute)


def partitioned(
    model: Model, there: Target, strategy: Strategy, convert: Literal["host", "device"] = "host"
) -> Short:
    """Return a model placed by the rules, its regions in the target's type."""
    rules = there.rules.model_copy(update={"quantization": Quantization(convert=convert)})
    plan = planned(model, replace(there, rules=rules), strategy)
    onnx.checker.check_model(plan.proto, full_check=True)
    return Short(model, plan.proto, plan.values, ())
