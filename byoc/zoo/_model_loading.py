"""Reading a model from a path, the zoo or memory, checked and ready to be planned."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx

from byoc.model import Model, prepare_model, read_model_file
from byoc.zoo._catalog import find_path, load, sample_inputs

Source = str | Path | onnx.ModelProto
"""A model: a path, `zoo:NAME`, or a protobuf, which is never changed."""

ZOO = "zoo:"


def name_source(source: Source) -> str:
    """Return the name of a model or file in the manifest: without folders, which differ elsewhere."""
    if isinstance(source, onnx.ModelProto):
        return "a model in memory"
    name = str(source)
    return name if name.startswith(ZOO) else Path(name).name


def load_model(source: Source | Model, dims: Mapping[str, int] | None = None) -> Model:
    """Load and check a model from a path, `zoo:NAME`, or a protobuf, which is left as it is.

    `source` may be a model that was loaded before, too. `dims` gives symbolic dimensions a size. Raises
    InputError when there is no such model, it is not valid ONNX, or has no such dimension.
    """
    if isinstance(source, Model):
        return prepare_model(source.proto, source.source, source.folder, dims) if dims else source
    if isinstance(source, onnx.ModelProto):
        return prepare_model(source, source.graph.name or "model", dims=dims)
    name = str(source)
    if name.startswith(ZOO):
        return _load_zoo_model(name, dims)
    model = prepare_model(read_model_file(Path(name)), name, Path(name).parent, dims)
    # Absolute: a codegen's code may change the working directory before weights are read again.
    return replace(model, folder=Path(name).parent.absolute())


def _load_zoo_model(source: str, dims: Mapping[str, int] | None) -> Model:
    """Return a model of the zoo, with the inputs that the zoo has for it unless dimensions are given."""
    name = source.removeprefix(ZOO)
    path = find_path(name)
    if path is None:
        model = prepare_model(load(name), source, dims=dims)
    else:
        model = prepare_model(read_model_file(path), source, path.parent, dims)
    return model if dims else replace(model, make_samples=partial(sample_inputs, name))
