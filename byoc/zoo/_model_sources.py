"""Models of all sources, read, checked and ready to be planned: a path, the zoo, memory, a package.

Of a model package of onnxruntime the plain ONNX model is read. The format is that of onnxruntime's
`model_package` library, schema 1 (model_package/README.md of its sources): `manifest.json` has
components, each with variants for one provider.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from byoc.errors import InputError, suggest_nearest
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
from byoc.support import require_inside
from byoc.zoo._catalog import brings_samples, find_path, load, sample_inputs
from byoc.zoo._genai_folder import find_genai_model
from byoc.zoo._sources import ZOO, Source


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
    path = find_genai_model(Path(name)) or Path(name)
    packaged = find_packaged_model(path)
    if packaged is not None:
        path = packaged.file
    folder = path.parent if packaged is None else packaged.weights
    parts = read_without_heavy_weights(path) if without_heavy and packaged is None else None
    proto, heavy = (read_model_file(path), None) if parts is None else parts
    model = prepare_model(proto, name, folder, given, heavy)
    # Absolute: a codegen's code may change the working directory before weights are read again.
    return replace(model, folder=folder.absolute())


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


# Model packages of onnxruntime.

_MANIFEST = "manifest.json"
_PLAIN = ("CPUExecutionProvider", None)  # providers whose models are plain ONNX; None: any
_WEIGHTS = "session.model_external_initializers_file_folder_path"
_ASSET = re.compile(r"sha256:([0-9a-f]{64})(?:/(.+))?")


@dataclass(frozen=True)
class PlainModel:
    """The model file of a component, and the folder in which its external weights lie."""

    file: Path
    weights: Path


def find_packaged_model(source: Path) -> PlainModel | None:
    """Return the model that a source names: a package with one component, or `PACKAGE/COMPONENT`.

    Returns None for any other source. Raises InputError for a package without such a component, without
    a variant for onnxruntime's own processor, or with a path that leads out of it.
    """
    for folder, component in ((source, None), (source.parent, source.name)):
        file = folder / _MANIFEST
        manifest = _read_json(file)
        # What has the name of a model's file is not what a broken manifest beside it speaks of.
        if manifest is None and os.path.isfile(file) and not os.path.isfile(source):  # noqa: PTH113
            raise InputError(f"{file}: is not the manifest of a model package: it is not JSON")
        if isinstance(manifest, dict) and {"schema_version", "components"} <= manifest.keys():
            return _find_model(folder, manifest, component)
    return None


def _find_model(folder: Path, manifest: dict[str, Any], component: str | None) -> PlainModel:
    version = manifest["schema_version"]
    if str(version).partition(".")[0] != "1":
        raise InputError(f"{folder / _MANIFEST}: schema_version: {version!r} is not read, only 1")
    components = manifest["components"]
    if not isinstance(components, dict) or not components:
        raise InputError(f"{folder / _MANIFEST}: components: there are none")
    if component is None and len(components) > 1:
        names = ", ".join(map(str, components))
        raise InputError(f"{folder}: has several models: name one, as {folder}/NAME, of {names}")
    name = next(iter(components)) if component is None else component
    if name not in components:
        near = suggest_nearest(name, components)
        raise InputError(f"{folder}: no model '{name}'{near}; it has {', '.join(components)}")
    place, body = folder, components[name]
    if isinstance(body, str):
        file = require_inside(folder, _check_path(folder, body))
        file = file / "component.json" if os.path.isdir(file) else file  # noqa: PTH112 - of any text
        place, body = file.parent, _read_json(file)
    variants = body.get("variants") if isinstance(body, dict) else None
    if not isinstance(variants, dict):
        raise InputError(f"{folder / _MANIFEST}: components: {name}: it has no variants")
    for provider in _PLAIN:
        for variant, entry in variants.items():
            if isinstance(entry, dict) and entry.get("ep") == provider:
                own = require_inside(place, _check_path(folder, entry.get("variant_directory", variant)))
                return _read_variant(folder, own, entry, f"{name}: {variant}")
    known = ", ".join(f"{key} ({_get_provider(each)})" for key, each in variants.items())
    raise InputError(
        f"{folder}: {name} has no variant for {_PLAIN[0]}, whose model would be plain ONNX; it has "
        f"{known}"
    )


def _get_provider(entry: Any) -> Any:
    return entry.get("ep") if isinstance(entry, dict) else None


def _read_variant(folder: Path, place: Path, entry: dict[str, Any], where: str) -> PlainModel:
    information = entry.get("executor_info")
    found = information.get("ort") if isinstance(information, dict) else None
    if isinstance(found, str):
        found = _read_json(require_inside(place, _check_path(folder, found)))
    if not isinstance(found, dict) or not isinstance(found.get("model_file"), str):
        raise InputError(f"{folder / _MANIFEST}: {where}: executor_info.ort.model_file: must be given")
    settings = found.get("session_options")
    weights = settings.get(_WEIGHTS) if isinstance(settings, dict) else None
    file = _resolve(folder, place, found["model_file"])
    return PlainModel(file, file.parent if weights is None else _resolve(folder, place, weights))


def _resolve(folder: Path, place: Path, name: Any) -> Path:
    """Return the path that a text of a variant means: from its folder, or that of a shared asset."""
    asset = _ASSET.fullmatch(name) if isinstance(name, str) else None
    if asset is None:
        return require_inside(place, _check_path(folder, name))
    shared = require_inside(folder, f"shared_assets/sha256-{asset[1]}")
    return shared if asset[2] is None else require_inside(shared, _check_path(folder, asset[2]))


def _check_path(folder: Path, name: Any) -> str:
    """Return a path from a package. Raises InputError where it does not lie inside of it."""
    if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(f"{folder / _MANIFEST}: {name!r} is not the path of a file in the package")
    return name


def _read_json(path: Path) -> Any:
    """Return the content of a JSON file, None where there is none to be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
