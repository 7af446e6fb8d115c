"""Models cut into regions, with layouts at their borders, held against the models as they were."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from helpers.cutting import ramp
from helpers.support import prepared
from numpy.typing import NDArray
from onnx import FunctionProto, ModelProto, NodeProto

from byoc.boundary.convert import BoundaryFormat, ModelEditor, RegionBoundary, insert_layouts
from byoc.model import (
    LAYOUT,
    GraphCuts,
    GraphIndex,
    Model,
    OutlineGroup,
    RegionCut,
    find_images,
    get_purpose,
    outline,
    parse_layout,
    read_type,
    walk_graphs,
)
from byoc.onnxrt import open_session, run_session, without_optimizations


def border(index: GraphIndex, region: str, layout: str) -> RegionBoundary:
    wants = BoundaryFormat(parse_layout(layout))
    return RegionBoundary(region, wants, find_images(index), index.type_protos)


def cut(model: Model, *regions: Sequence[int]) -> ModelProto:
    """Return a model with the nodes of each region outlined as `npu_0`, `npu_1`, ..."""
    cuts = (
        RegionCut(f"npu_{i}", "byoc.npu", tuple(OutlineGroup((n,)) for n in nodes))
        for i, nodes in enumerate(regions)
    )
    return outline(GraphCuts(model.index, tuple(cuts)))


def arranged(outlined: ModelProto, borders: Sequence[RegionBoundary]) -> tuple[ModelProto, ModelEditor]:
    """Return a copy of an outlined model in which layouts alone have been arranged."""
    copy = ModelProto()
    copy.CopyFrom(outlined)
    edit = ModelEditor(copy)
    insert_layouts(edit, borders)
    return edit.finish(), edit


def laid(
    text: str, regions: Sequence[Sequence[int]], layouts: str | Sequence[str] = "NHWC"
) -> ModelProto:
    """Return a model cut in regions with the layouts, after holding it against the model as it was."""
    model = prepared(text)
    words = [layouts] * len(regions) if isinstance(layouts, str) else layouts
    borders = [border(model.index, f"npu_{i}", word) for i, word in enumerate(words)]
    outlined = cut(model, *regions)
    result, _ = arranged(outlined, borders)
    same(model.proto, result)
    return result


def same(one: ModelProto, other: ModelProto, inputs: Mapping[str, Any] | None = None) -> None:
    """Assert that two models are right and give the same bits."""
    if len(one.graph.initializer) < 100:
        onnx.checker.check_model(other, full_check=True)
    inputs = inputs or feeds(one)
    with without_optimizations():
        expected = run_session(open_session(one), inputs)
        given_out = run_session(open_session(other), inputs)
    assert list(expected) == list(given_out)
    for name, value in expected.items():
        assert value.dtype == given_out[name].dtype
        np.testing.assert_array_equal(value, given_out[name], err_msg=name)


def feeds(model: ModelProto) -> dict[str, NDArray[Any]]:
    stored = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        kind = read_type(value.type)
        if value.name in stored or kind is None or kind.shape is None:
            continue
        shape = [dim if isinstance(dim, int) else 2 for dim in kind.shape]
        found[value.name] = np.asarray(
            ramp(*shape) if kind.dtype == "float32" else np.full(shape, 3)
        ).astype(kind.dtype)
    return found


def put_in(nodes: Sequence[NodeProto]) -> list[str]:
    """Return what was put in for layouts, as `output = Operator(input)`."""
    return [
        f"{node.output[0]} = {node.op_type}({node.input[0]})"
        for node in nodes
        if get_purpose(node) == LAYOUT and node.op_type != "Constant"
    ]


def region(model: ModelProto, name: str) -> FunctionProto:
    return next(function for function in model.functions if function.name == name)


def call(model: ModelProto, name: str) -> NodeProto:
    nodes = (node for graph in walk_graphs(model.graph) for node in graph.node)
    return next(node for node in nodes if node.op_type == name)
