"""Ask Vela about each quantized operation of a model, alone."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from byoc.codegen import YES, CompileError, Operation, Region, Verdict, read_region, refuse

from .lower_regions import lower_alone
from .vela import EthosUOptions, compile_graphs, vela_version

_PREFIX = "byoc."


def check_nodes(model: onnx.ModelProto, options: EthosUOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether Vela compiles the operation that it is part of.

    A DequantizeLinear is taken wherever what reads it is. Raises MissingRuntimeError without Vela.
    """
    vela_version()
    target = next(
        (
            each.domain.removeprefix(_PREFIX)
            for each in model.functions
            if each.domain.startswith(_PREFIX)
        ),
        "checked",
    )
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "model.onnx"
        stored = onnx.ModelProto()
        stored.CopyFrom(model)  # saving changes it
        onnx.save(stored, path, save_as_external_data=True, location="weights.bin")
        region = read_region(path, "checked", target)
        refused = {
            name: why
            for operation, why in _ask(region, options)
            for node in (operation, *operation.fused)
            for name in node.node.output
        }
    return [
        next((refuse(refused[name]) for name in node.output if name in refused), YES)
        for node in model.graph.node
    ]


def find_refused(region: Region, options: EthosUOptions) -> list[str]:
    """Return the names of the operations of a region that Vela refuses alone."""
    return [operation.name for operation, _ in _ask(region, options)]


def _ask(region: Region, options: EthosUOptions) -> Iterator[tuple[Operation, str]]:
    """Yield the operations that are not taken, each with the reason."""
    graphs: dict[bytes, list[Operation]] = {}
    for operation in region.operations(quantized=True):
        try:
            graphs.setdefault(lower_alone(region, operation), []).append(operation)
        except CompileError as error:
            yield operation, str(error)
    for operations, result in zip(graphs.values(), compile_graphs(list(graphs), options), strict=True):
        if isinstance(result, CompileError):
            yield from zip(operations, [str(result)] * len(operations), strict=True)
