"""What the compiler takes, asked about each node of a model."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import NodeProto

from byoc.bundle.regions import read_region
from byoc.codegen import CompileError
from byoc.codegen.single import alike, single_nodes
from byoc.graph.unshare import is_dequantize, is_quantize
from byoc.verdict import YES, Verdict, refuse

from .lower import lower
from .options import NAME
from .rules import RULES


def check(model: onnx.ModelProto) -> Sequence[Verdict]:
    """Return for each node of a model's main graph whether it can be lowered, or why it cannot.

    Where the model cannot be lowered as a whole, each node is asked about alone. DequantizeLinear and
    QuantizeLinear are parts of the groups that they begin and end, and not asked about.
    """
    if _lowered(model):
        return [YES] * len(model.graph.node)
    known: dict[bytes, Verdict] = {}
    verdicts = []
    for single in single_nodes(model):
        key = alike(single)
        if key not in known:
            known[key] = YES if _is_border(single.node) else _lowered(single.standard())
        verdicts.append(known[key])
    return verdicts


def _is_border(node: NodeProto) -> bool:
    return is_dequantize(node) or is_quantize(node)


def _lowered(model: onnx.ModelProto) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            lower(read_region(path, f"{NAME}_0", NAME), RULES)
        except CompileError as error:
            return refuse(str(error))
    return YES
