"""A region's model on disk as what a codegen is handed."""

from pathlib import Path

import onnx

from byoc.codegen import Region, Value
from byoc.graph.index import GraphIndex, stated_types


def read_region(path: Path, name: str, target: str) -> Region:
    """Return the region whose model lies at a path."""
    proto = onnx.load(path, load_external_data=False)
    types = GraphIndex(proto, stated_types(proto)).types
    return Region(
        name=name,
        target=target,
        path=path,
        inputs=tuple(Value(v.name, types[v.name]) for v in proto.graph.input),
        outputs=tuple(Value(v.name, types[v.name]) for v in proto.graph.output),
        composites=tuple(node.op_type for node in proto.graph.node if node.domain == f"byoc.{target}"),
    )
