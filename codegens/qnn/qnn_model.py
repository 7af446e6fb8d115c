"""A model in the form that suits the provider, with the origin of each node in the original."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_graphsurgeon as gs
from onnx import ModelProto

from byoc.codegen import MAX_IR, node_names

# Access to ONNX Runtime's QNN provider; as a script, the process that compiles a model.
#
# Of byoc the script imports what it needs to read a model alone: the rest would take longer than
# compiling a small one. It reads `model.onnx` and `settings.json`, the provider's settings, in a folder.
# It writes `context.onnx`, if there is a context, and `answer.json`, with an error and the assignment of
# nodes. A context is reproducible only if it is the first of its process.

PROVIDER = "QNN"
MODEL = "model.onnx"
CONTEXT = "context.onnx"
SETTINGS = "settings.json"
ANSWER = "answer.json"

_VERBOSE, _FATAL_ONLY = 0, 4


@cache
def provider_devices() -> list[Any]:
    """Register the provider, and return its devices with an NPU first.

    Raises ImportError if onnxruntime or onnxruntime-qnn is not installed, and any exception of
    onnxruntime if it cannot load the provider.
    """
    import onnxruntime  # noqa: PLC0415 - optional
    import onnxruntime_qnn  # noqa: PLC0415 - optional

    def there() -> list[Any]:
        return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]

    if not there():  # else it is registered already
        onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    return sorted(there(), key=lambda device: "NPU" not in str(device.device.type))


def open_session(
    model: bytes, settings: Mapping[str, str], entries: Mapping[str, str], verbose: bool = False
) -> Any:
    """Return a session of the provider on a model, with entries of its configuration.

    With `verbose` it logs to standard error, with the reasons for refused nodes. Raises as `devices`
    does, and any exception of onnxruntime; it does not fall back to the CPU if the provider fails.
    """
    import onnxruntime  # noqa: PLC0415 - optional
    import onnxruntime_qnn  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _VERBOSE if verbose else _FATAL_ONLY
    for key, value in {"session.record_ep_graph_assignment_info": "1", **entries}.items():
        options.add_session_config_entry(key, value)
    backend = {"backend_path": onnxruntime_qnn.get_qnn_htp_path()}
    options.add_provider_for_devices(provider_devices()[:1], {**backend, **settings})
    return onnxruntime.InferenceSession(model, options, enable_fallback=0)


def node_assignment(session: Any) -> list[tuple[str, str, str]]:
    """Return the provider, the name and the operator of every node after optimization."""
    return [
        (part.ep_name, node.name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def main(folder: Path) -> None:
    """Compile the model in a folder."""
    model = (folder / MODEL).read_bytes()
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    entries = {
        "ep.context_enable": "1",
        "ep.context_embed_mode": "1",
        "ep.context_file_path": str(folder / CONTEXT),
    }
    error, nodes = "", None
    try:
        nodes = node_assignment(open_session(model, settings, entries, verbose=True))
    except Exception as raised:  # onnxruntime's own exception types share no base but this
        error = str(raised)
    if error:  # there is no context of several parts, but the assignment can be read
        try:
            nodes = node_assignment(open_session(model, settings, {}))
        except Exception:  # the first error says more
            nodes = None
    (folder / ANSWER).write_text(json.dumps({"error": error, "nodes": nodes}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skip the unloading of libraries, which may crash


_PREFIX = "n"
_STANDARD = (None, "", "ai.onnx")


@dataclass(frozen=True, eq=False)
class ProviderModel:
    """A model of standard operators with nodes named `n0`, `n1`, ...

    `origins` has, for each of these numbers, the position of its node in `original`.
    """

    proto: ModelProto
    original: ModelProto
    origins: Sequence[int]

    def origin_of(self, name: str) -> int | None:
        """Return the position in the original of a node of onnxruntime, None for an inserted node.

        Nodes that onnxruntime rewrites get a suffix; those that it inserts have other names.
        """
        number = name.partition("_")[0].removeprefix(_PREFIX)
        return self.origins[int(number)] if number.isdecimal() and name.startswith(_PREFIX) else None

    def display_names(self, positions: Iterable[int]) -> list[str]:
        """Return the display names of nodes of the original."""
        return node_names(self.original.graph.node[position] for position in positions)


def adapt_model(original: ModelProto, inlined: ModelProto) -> ProviderModel:
    """Return a copy of a model for the provider.

    `inlined` is the original with composites inlined, and with constants in memory.
    """
    graph = gs.import_onnx(inlined)
    nodes: list[gs.Node] = []
    known: list[int] = []
    for node, origin in zip(graph.nodes, _node_origins(original, inlined), strict=True):
        made = [*_insert_before(node, graph), node]
        nodes += made
        known += [origin] * len(made)
    graph.nodes = nodes
    for number, node in enumerate(nodes):
        _drop_unread(node, graph)
        node.name = f"{_PREFIX}{number}"
    proto = gs.export_onnx(graph)
    proto.ir_version = min(inlined.ir_version, MAX_IR)
    return ProviderModel(proto, original, known)


def _node_origins(original: ModelProto, inlined: ModelProto) -> list[int]:
    """Return for each inlined node the position of its origin; both are in the same order."""
    origins: list[int] = []
    left = iter(inlined.graph.node)
    for position, node in enumerate(original.graph.node):
        missing = {name for name in node.output if name}
        while missing and (part := next(left, None)) is not None:
            origins.append(position)
            missing -= set(part.output)
    return origins + [origins[-1] for _ in left] if origins else []


def _insert_before(clamp: gs.Node, graph: gs.Graph) -> list[gs.Node]:
    """Insert a pair of nodes before a clamp, and return it; for most nodes none.

    The provider computes `Conv, Relu, QuantizeLinear` wrongly unless the zero point is the least number,
    and refuses `Gemm, Relu, QuantizeLinear`. With a QuantizeLinear and a DequantizeLinear before the
    Relu or Clip, of the same scale as after it, both work. The result is the same: Q is monotonic, so
    Q(max(c, m)) = max(Q(c), Q(m)), and DQ inverts Q on its results; likewise for min.
    """
    if clamp.op not in ("Relu", "Clip") or clamp.domain not in _STANDARD:
        return []
    x, y = clamp.inputs[0], clamp.outputs[0]
    if not x.inputs or x.inputs[0].op == "DequantizeLinear" or len(y.outputs) != 1 or y in graph.outputs:
        return []
    quantize = y.outputs[0]
    if quantize.op != "QuantizeLinear" or (clamp.op == "Relu" and _is_least(quantize)):
        return []
    pair: list[gs.Node] = []
    for op, kept in (
        ("QuantizeLinear", set(quantize.attrs)),
        ("DequantizeLinear", {"axis", "block_size"}),
    ):
        made = gs.Variable(f"{x.name}/byoc_{op}/{y.name}")
        attributes = {name: value for name, value in quantize.attrs.items() if name in kept}
        source = pair[-1].outputs[0] if pair else x
        pair.append(gs.Node(op, "", attributes, [source, *quantize.inputs[1:]], [made]))
    clamp.inputs[0] = pair[-1].outputs[0]
    return pair


def _is_least(quantize: gs.Node) -> bool:
    """Return whether the zero point is the least number, so that quantizing includes a Relu."""
    if len(quantize.inputs) < 3 or not quantize.inputs[2].name:
        return not quantize.attrs  # uint8 and 0, unless an attribute says otherwise
    if not isinstance(quantize.inputs[2], gs.Constant):
        return False
    zero = quantize.inputs[2].copy().values  # of a copy: the graph cannot export 4 bits that were read
    return zero.dtype.kind in "iu" and bool(np.all(zero == np.iinfo(zero.dtype).min))


def _drop_unread(node: gs.Node, graph: gs.Graph) -> None:
    """Remove optional last outputs that are not read, such as indices of a pool."""
    while len(node.outputs) > 1 and _is_optional(node):
        if node.outputs[-1].outputs or node.outputs[-1] in graph.outputs:
            break
        del node.outputs[-1]


def _is_optional(node: gs.Node) -> bool:
    """Return whether the last output of a standard node is optional."""
    if node.domain not in _STANDARD or not onnx.defs.has(node.op):
        return False
    outputs = onnx.defs.get_schema(node.op).outputs
    last = outputs[min(len(node.outputs), len(outputs)) - 1]
    return bool(last.option == onnx.defs.OpSchema.FormalParameterOption.Optional)
