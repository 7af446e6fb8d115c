"""Models in model packages of onnxruntime, of which the plain ONNX one is read.

The format is that of onnxruntime's `model_package` library, schema 1 (model_package/README.md of its
sources): `manifest.json` has components, each with variants for one provider.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byoc.errors import InputError, suggest_nearest
from byoc.support import require_inside

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
        manifest = _read_json(folder / _MANIFEST)
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
