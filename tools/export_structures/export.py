"""Export structures into the package: `python export.py [NAME ...]`, all of them without a name.

Writes NAME.onnx.xz and the index into byoc/zoo/structures/. No weights are downloaded: every model is
built from its definition, and what it is drawn with is thrown away but for mean and deviation.
"""

import io
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch
import yaml
from heal import heal
from recipes import RECIPES, Made
from strip import pack, strip, tidy

OPSET = 17
FOLDER = Path(__file__).parents[2] / "byoc" / "zoo" / "structures"


def main(names: list[str]) -> None:
    """Export the models called `names`."""
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    for name in names or RECIPES:
        made = RECIPES[name].make()
        made.module.eval()
        with torch.no_grad():
            heal(made.module, tuple(made.arguments.values()), made.target, made.positions)
            model = _export(made)
        tidy(model)
        onnx.checker.check_model(model, full_check=True)
        kept, stripped = strip(model, made.keep)
        model.graph.name = name
        data = pack(model)
        (FOLDER / f"{name}.onnx.xz").write_bytes(data)
        _note(name, made, sum(node.op_type != "Constant" for node in _nodes(model.graph)))
        sys.stdout.write(
            f"{name}: {len(model.graph.node)} nodes, {len(data) / 1024:.0f} KB, "
            f"{len(stripped)} weights seeded, kept: {', '.join(kept) or 'none'}\n"
        )


def _export(made: Made) -> onnx.ModelProto:
    buffer = io.BytesIO()
    torch.onnx.export(
        made.module,
        tuple(made.arguments.values()),
        buffer,
        input_names=list(made.arguments),
        output_names=list(made.outputs),
        opset_version=OPSET,
        dynamo=False,
        dynamic_axes=made.open_axes or None,
    )
    return onnx.load_from_string(buffer.getvalue())


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _note(name: str, made: Made, nodes: int) -> None:
    path = FOLDER / "index.yaml"
    index = yaml.safe_load(path.read_text())["structures"] if path.exists() else {}
    recipe = RECIPES[name]
    index[name] = {
        "family": recipe.family,
        "source": recipe.source,
        "licence": recipe.licence,
        "nodes": nodes,
        "inputs": {
            key: {**made.feeds[key], "shape": list(value.shape)} for key, value in made.arguments.items()
        },
    }
    content = {"structures": dict(sorted(index.items()))}
    text = yaml.safe_dump(content, default_flow_style=None, sort_keys=False, width=105)
    path.write_text("# Written by tools/export_structures; `inputs`: see _sample_inputs.py.\n" + text)


if __name__ == "__main__":
    main(sys.argv[1:])
