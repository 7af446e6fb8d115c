"""The sources of models: a path, an entry of the zoo, or a protobuf; their names in manifests."""

from pathlib import Path

import onnx

Source = str | Path | onnx.ModelProto
"""A model: a path, also that of a folder of genai or a model package, `zoo:NAME`, or a protobuf."""

ZOO = "zoo:"


def name_source(source: Source) -> str:
    """Return the name of a model or file in the manifest: without folders, which differ elsewhere."""
    if isinstance(source, onnx.ModelProto):
        return "a model in memory"
    name = str(source)
    return name if name.startswith(ZOO) else Path(name).name
