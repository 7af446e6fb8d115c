"""Samples of a model as they reach its regions, for codegens that calibrate."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import ModelProto

from byoc.model import GraphIndex, inline_functions
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification._rounding_noise import expose_tensors

Values = Mapping[str, Any]


def record_region_inputs(
    proto: ModelProto, folder: Path, inputs: Mapping[str, Sequence[str]], samples: Sequence[Values]
) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield the inputs of each region when plain onnxruntime runs a partitioned model on samples.

    `inputs` has the inputs of each region by its name; `folder` holds the external data. For a region
    of the main graph there is one row of arrays for each sample. Raises InputError when it does not run.
    """
    index = GraphIndex(proto, {})
    functions = {function.name: function for function in proto.functions}
    outer: dict[str, list[str]] = {}
    for node in index.nodes:
        if node.op_type in inputs and node.op_type in functions:
            read = dict(zip(functions[node.op_type].input, node.input, strict=False))
            outer[node.op_type] = [read[name] for name in inputs[node.op_type]]
    computed = {name for names in outer.values() for name in names if name in index.producers}
    runs = samples
    if computed:
        with without_optimizations():
            session = open_session(expose_tensors(inline_functions(proto), sorted(computed)), folder)
            runs = [{**sample, **run_session(session, sample)} for sample in samples]
    for region, names in outer.items():
        yield region, [[run[name] for name in names] for run in runs]
