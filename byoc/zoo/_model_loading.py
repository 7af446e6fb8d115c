"""Reading a model from a path, the zoo or memory, checked and ready to be planned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from byoc.model import (
    Dim,
    Dimensions,
    Model,
    PlannedSizes,
    list_open_dims,
    prepare_model,
    read_model_file,
    read_without_heavy_weights,
)
from byoc.samples import explain_sizes
from byoc.zoo._catalog import brings_samples, find_path, load, sample_inputs
from byoc.zoo._genai_folder import GenaiFolder, read_genai_folder
from byoc.zoo._sources import ZOO, Source


def find_genai_folder(source: Source) -> GenaiFolder | None:
    """Return the folder of onnxruntime-genai that a source names, None for any other source.

    Raises InputError for a configuration that does not name a decoder's model.
    """
    if isinstance(source, onnx.ModelProto) or str(source).startswith(ZOO):
        return None
    return read_genai_folder(Path(source))


def load_model(
    source: Source | Model,
    dims: Mapping[str, int | str] | None = None,
    shapes: Mapping[str, Sequence[Dim]] | None = None,
    without_heavy: bool = False,
) -> Model:
    """Load and check a model from a path, `zoo:NAME`, or a protobuf, which is left as it is.

    `source` may be a model that was loaded before, too. `dims` and `shapes` say what open dimensions are
    (`byoc.model.Dimensions`); those that stay open get plausible sizes to plan with. `without_heavy`
    says that heavy weights of a file are read when the whole model is asked for. Raises InputError when
    there is no such model, it is not valid ONNX, or its dimensions cannot be as they were given.
    """
    given = Dimensions(dims or {}, shapes or {})
    if isinstance(source, Model) and not given:
        return source
    model = _read_model(source, given, without_heavy)
    if not list_open_dims(model.structure):
        return model
    ranges = model.planned.ranges
    middles = {name: (low + high) // 2 for name, (low, high) in ranges.items()}
    found = explain_sizes(model.index, middles)
    return replace(model, planned=PlannedSizes(found.sizes, ranges, found.reasons))


def _read_model(source: Source | Model, given: Dimensions, without_heavy: bool) -> Model:
    if isinstance(source, Model):
        return prepare_model(source.proto, source.source, source.folder, given)
    if isinstance(source, onnx.ModelProto):
        return prepare_model(source, source.graph.name or "model", given=given)
    name = str(source)
    if name.startswith(ZOO):
        return _read_zoo_model(name, given)
    genai = find_genai_folder(source)
    path = Path(name) if genai is None else genai.decoder
    parts = read_without_heavy_weights(path) if without_heavy else None
    proto, heavy = (read_model_file(path), None) if parts is None else parts
    model = prepare_model(proto, name, path.parent, given, heavy)
    # Absolute: a codegen's code may change the working directory before weights are read again.
    return replace(model, folder=path.parent.absolute())


def _read_zoo_model(source: str, given: Dimensions) -> Model:
    """Return a model of the zoo, with the inputs that the zoo has for it unless dimensions are given."""
    name = source.removeprefix(ZOO)
    path = find_path(name)
    if path is None:
        model = prepare_model(load(name), source, given=given)
    else:
        model = prepare_model(read_model_file(path), source, path.parent, given)
    return replace(model, make_samples=find_samples(source, given))


def find_samples(source: str, given: Dimensions) -> Callable[[int], Mapping[str, Any]] | None:
    """Return a function that makes from a seed the inputs that the zoo has for `zoo:NAME`.

    Returns None where the zoo has none: for another source, an unknown name, a model in a folder of the
    user's, and where dimensions are given.
    """
    name = source.removeprefix(ZOO)
    if given or not source.startswith(ZOO) or not brings_samples(name):
        return None
    return partial(sample_inputs, name)
