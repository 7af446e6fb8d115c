"""Export fragments into the tests: `python export.py [NAME ...]`, all of them without a name.

Writes NAME_EXPORTER.onnx into tests/library/models/: a few KB each, seeded weights, our own modules.
"""

import io
import logging
import sys
import warnings
from pathlib import Path

import onnx
import torch
from modules import FRAGMENTS, Exporter, Fragment

FOLDER = Path(__file__).parents[2] / "tests" / "library" / "models"


def main(names: list[str]) -> None:
    """Export the fragments called `names`."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or FRAGMENTS:
        fragment = FRAGMENTS[name]
        for exporter in fragment.exporters:
            save(export(fragment, exporter), f"{name}_{exporter[0]}{exporter[1]}")


def save(model: onnx.ModelProto, name: str) -> None:
    """Check a model and write it, without what the exporter noted for people."""
    model.graph.name = name
    model.doc_string = ""
    del model.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in [*model.graph.value_info, *model.graph.input, *model.graph.output]:
        del value.metadata_props[:]
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString(deterministic=True)
    (FOLDER / f"{name}.onnx").write_bytes(data)
    operators = " ".join(sorted({node.op_type for node in model.graph.node} - {"Constant"}))
    sys.stdout.write(f"{name}: {len(data) / 1024:.1f} KB, {len(model.graph.node)} nodes, {operators}\n")


def export(fragment: Fragment, exporter: Exporter) -> onnx.ModelProto:
    """Export a fragment to ONNX with one of the exporters."""
    kind, opset = exporter
    torch.manual_seed(0)
    module = fragment.make().eval()
    buffer = io.BytesIO()
    names = (
        ["x", "z"] if len(fragment.arguments) == 2 else ["x", "mask", "seen"][: len(fragment.arguments)]
    )
    if kind == "dynamo":
        program = torch.onnx.export(
            module,
            fragment.arguments,
            input_names=names,
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
        return program.model_proto
    mode = torch.onnx.TrainingMode.PRESERVE if kind == "keep" else torch.onnx.TrainingMode.EVAL
    torch.onnx.export(
        module,
        fragment.arguments,
        buffer,
        input_names=names,
        opset_version=opset,
        dynamo=False,
        training=mode,
    )
    return onnx.load_from_string(buffer.getvalue())


if __name__ == "__main__":
    main(sys.argv[1:])
