"""Runs, dtypes and the single nodes of ONNX's tests, for tests of forms that narrow numbers."""

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

sys.path.append(str(Path(__file__).parents[1] / "onnx_suite"))
from suite import Case, collect

from byoc.model import is_onnx, prepare_model
from byoc.model.schemas import OperatorSchema, get_schema
from byoc.onnxrt import open_session, run_session, without_optimizations


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    with without_optimizations():
        return run_session(open_session(model), inputs)


def dtypes_of(model: onnx.ModelProto, op: str) -> set[str]:
    """Return the dtypes of what the nodes of an operator read and make."""
    index = prepare_model(model, "m").index
    nodes = (node for node in index.nodes if node.op_type == op)
    return {
        index.get_dtype(name) or "" for node in nodes for name in (*node.input, *node.output) if name
    }


def variants(
    dtypes: Collection[str], least_opset: int = 1
) -> Iterator[tuple[Case, OperatorSchema, str]]:
    """Yield the single nodes of ONNX's tests with each type variable that may be all of some dtypes."""
    for case in collect(costly=False):
        nodes = case.model.graph.node
        if case.kind != "node" or len(nodes) != 1 or not is_onnx(nodes[0]) or not case.data_sets:
            continue
        version = next(
            each.version for each in case.model.opset_import if each.domain in ("", "ai.onnx")
        )
        schema = get_schema(nodes[0].op_type, "", version)
        if schema is not None and version >= least_opset:
            for variable, allowed in schema.variables.items():
                if allowed >= {*dtypes}:
                    yield case, schema, variable
