"""Models of all sources, read, checked and ready to be planned: a path, the zoo, memory, a folder.

The keys of a folder of onnxruntime-genai are those of its `genai_config.json`
(onnxruntime.ai/docs/genai/reference/config.html):
`model.decoder.filename` is the decoder's model, `model.decoder.inputs.input_ids` its input of tokens;
`model.vision`, `speech`, `embedding` and `encoder` may name models beside it.
Where `model.decoder.pipeline` is given, the decoder is several models instead.

Of a model package of onnxruntime the plain ONNX model is read. The format is that of onnxruntime's
`model_package` library, schema 1 (model_package/README.md of its sources): `manifest.json` has
components, each with variants for one provider.
"""

import copy
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any

import onnx

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    Dim,
    Dimensions,
    Model,
    PlannedSizes,
    TensorType,
    find_external_data,
    list_open_dims,
    prepare_model,
    read_model_file,
    read_without_heavy_weights,
    walk_tensors,
)
from byoc.samples import explain_sizes
from byoc.support import find_inside, require_inside
from byoc.zoo._catalog import brings_samples, find_path, load, sample_inputs

Source = str | Path | onnx.ModelProto
"""A model: a path, also that of a folder of genai or a model package, `zoo:NAME`, or a protobuf."""

ZOO = "zoo:"


def name_source(source: Source) -> str:
    """Return the name of a model or file in the manifest: without folders, which differ elsewhere."""
    if isinstance(source, onnx.ModelProto):
        return "a model in memory"
    name = str(source)
    return name if name.startswith(ZOO) else Path(name).name


CONFIG_FILE = "genai_config.json"
_DEFAULT_NAMES = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
}
"""The names of inputs, or patterns of them, where a configuration has none."""
_PATH_KEYS = ("filename", "config_filename", "custom_ops_library")
OTHER_MODELS = ("encoder", "vision", "speech", "embedding")
"""Keys of `model` beside `decoder`; a model with one is of a type that has no pipeline."""
_MOST_SHOWN = 100  # characters of a name in a sentence
LINK_PROBLEM = "it leads out of the folder, and of the cache that the folder is a snapshot of"


@dataclass(frozen=True, eq=False)
class GenaiFolder:
    """A folder of onnxruntime-genai, its configuration, and the file of the decoder's model."""

    path: Path
    config: dict[str, Any]
    decoder: Path

    @cached_property
    def models(self) -> dict[str, Path]:
        """The file of each model that the configuration names, by its key: the decoder first.

        Raises InputError for one that is a pipeline of several.
        """
        found = {"decoder": self.decoder}
        for key in OTHER_MODELS:
            section = self.config["model"].get(key)
            if not isinstance(section, dict):
                continue
            if section.get("pipeline"):
                raise InputError(
                    f"{self.path / CONFIG_FILE}: model.{key}.pipeline: partition its models one by one"
                )
            name = section.get("filename")
            if isinstance(name, str) and name:
                found[key] = self.path / name
        return found

    def find_input_name(self, key: str) -> str:
        """Return the name of an input of the decoder, or the pattern of names, by genai's key for it."""
        named = self.config["model"]["decoder"].get("inputs")
        name = named.get(key) if isinstance(named, dict) else None
        return name if isinstance(name, str) else _DEFAULT_NAMES[key]

    def find_prompt_length(self, model: Model) -> int | str | None:
        """Return the number of tokens that a decoder reads, a name or None where it is open."""
        kind = model.index.types.get(self.find_input_name("input_ids"))
        return None if kind is None or not kind.shape else kind.shape[-1]

    def check_prompt_length(self, model: Model) -> None:
        """Raise InputError unless the loaded decoder's prompt may have any length, as genai's has."""
        length = self.find_prompt_length(model)
        if isinstance(length, int):
            raise InputError(
                f"{self.path}: '{self.find_input_name('input_ids')}' has {length} tokens, but "
                "onnxruntime-genai gives prompts of any length: leave that dimension open"
            )

    def list_other_files(
        self, bundle: Path, models: Iterable[str] = ("decoder",)
    ) -> Iterator[tuple[str, Path]]:
        """Yield the name in the folder, and the real path, of each file that a bundle takes as it is.

        All are taken but the configuration, the files and weights of `models`, hidden files, and those
        in `bundle`, the path of what is to be written, where an earlier one may be. Raises InputError
        when a model cannot be read, for what is neither a file nor a folder of its own, such as a link
        to a folder, and for a link out of the folder.
        """
        own = {(self.path / CONFIG_FILE).resolve()}
        for file in (self.models[name] for name in models):
            own.add(file.resolve())
            for tensor in walk_tensors(read_model_file(file)):
                external = find_external_data(tensor, file.parent)
                if external is not None:
                    own.add(external.path)
        for file in sorted(self.path.rglob("*")):
            name = file.relative_to(self.path).as_posix()
            hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
            if hidden:
                continue
            if not file.is_file() and (file.is_symlink() or not file.is_dir()):
                raise InputError(f"{file}: cannot be passed through: it is neither a file nor a folder")
            if file.is_dir():
                continue
            real = _find_inside(self.path, name)
            if real is None:
                raise InputError(f"{file}: cannot be passed through: {LINK_PROBLEM}")
            if real not in own and not real.is_relative_to(bundle):
                yield name, real


def read_genai_folder(path: Path) -> GenaiFolder | None:
    """Read a folder of onnxruntime-genai; None for a path that is none.

    Raises InputError for a configuration that does not name a decoder's model.
    """
    file = path / CONFIG_FILE
    try:
        if not file.is_file():
            return None
    except (OSError, ValueError):  # no file can have this name
        return None
    require_inside(path, CONFIG_FILE)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
    decoder: Any = config
    for key in ("model", "decoder"):
        decoder = decoder.get(key) if isinstance(decoder, dict) else None
    if not isinstance(decoder, dict):
        raise InputError(f"{file}: model.decoder: must be given, with the decoder's filename")
    if decoder.get("pipeline"):
        raise InputError(f"{file}: model.decoder.pipeline: partition its models one by one")
    name = decoder.get("filename")
    if not isinstance(name, str) or not name:
        raise InputError(f"{file}: model.decoder.filename: must be given")
    for key, text in _list_paths(config):
        if _find_inside(path, text) is None:
            raise InputError(f"{file}: {key}: {_shorten(text)} is not in the folder: {LINK_PROBLEM}")
    try:
        json.dumps(config, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InputError(f"{file}: is not text: {error}") from None
    return GenaiFolder(path, config, path / name)


def find_genai_folder(source: Source) -> GenaiFolder | None:
    """Return the folder of onnxruntime-genai that a source names, None for any other source.

    Raises InputError for a configuration that does not name a decoder's model.
    """
    if isinstance(source, onnx.ModelProto) or str(source).startswith(ZOO):
        return None
    return read_genai_folder(Path(source))


def find_genai_model(path: Path) -> Path | None:
    """Return the file that a path means in a folder of onnxruntime-genai, None for any other path.

    The folder stands for its decoder, and `FOLDER/vision` for the model of that key, where there is no
    such file. Raises InputError for a key that the configuration has not got, and as
    `read_genai_folder`.
    """
    genai = read_genai_folder(path)
    if genai is not None:
        return genai.decoder
    try:
        genai = None if path.exists() or not path.name else read_genai_folder(path.parent)
    except (OSError, ValueError):  # no file can have this name
        return None
    if genai is None:
        return None
    if path.name not in genai.models:
        near = suggest_nearest(path.name, genai.models)
        known = ", ".join(genai.models)
        raise InputError(f"{path}: no such file, nor a model of the folder{near}; it has {known}")
    return genai.models[path.name]


def _find_inside(folder: Path, name: str) -> Path | None:
    try:
        return find_inside(folder, name)
    except (OSError, ValueError):  # no file can have this name
        return None


def _list_paths(config: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys and values of a configuration, at any depth, that name files to load."""
    if isinstance(config, list):
        for number, part in enumerate(config):
            yield from _list_paths(part, f"{key}[{number}]")
    elif isinstance(config, dict):
        for name, part in config.items():
            full = f"{key}.{name}" if key else name
            if name in _PATH_KEYS and isinstance(part, str) and part:
                yield full, part
            yield from _list_paths(part, full)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


# Pipelines of onnxruntime-genai: a model for prompts, and one for the tokens behind them.
#
# genai runs the models of `model.decoder.pipeline` that say `run_on_prompt` where it is given
# several tokens, and those that say `run_on_token_gen` where it is given one (its
# decoder_only_pipeline.cpp). Only a model of type `decoder-pipeline` has them.

_TYPE = "decoder-pipeline"
_LENGTH_AXIS = -2
"""The axis of a cache, [batch, heads, length, width], along which it grows."""


@dataclass(frozen=True)
class GenaiPipeline:
    """The variants that genai runs on prompts and on single tokens, by name, and their models."""

    prompt: str
    token: str
    models: Mapping[str, Model]

    def make_config(self, genai: GenaiFolder, files: Mapping[str, str]) -> dict[str, Any]:
        """Return genai's configuration for a folder with these models; `files` are theirs by variant."""
        config = copy.deepcopy(genai.config)
        config["model"]["type"] = _TYPE
        decoder = config["model"]["decoder"]
        del decoder["filename"]
        decoder["pipeline"] = [
            {
                name: {
                    "filename": files[name],
                    "inputs": list(self.models[name].index.inputs),
                    "outputs": list(self.models[name].index.outputs),
                    "run_on_prompt": name == self.prompt,
                    "run_on_token_gen": name == self.token,
                }
            }
            for name in (self.prompt, self.token)
        ]
        return config


def choose_pipeline(genai: GenaiFolder, models: Mapping[str, Model]) -> GenaiPipeline:
    """Choose the variant that genai runs on prompts, and the one for single tokens.

    `models` are the loaded models by variant. Raises InputError, which names the folder, where genai
    could not run them: prompts have any length, and its mask has as many positions as tokens so far.
    """
    for key in OTHER_MODELS:
        if key in genai.config["model"]:
            raise InputError(
                f"{genai.path}: a model with '{key}' has no pipeline in onnxruntime-genai, so there are "
                "no variants"
            )
    if len(models) != 2:
        raise InputError(
            f"{genai.path}: onnxruntime-genai runs two variants, one on prompts and one on single "
            f"tokens, and not {len(models)}"
        )
    lengths = {name: genai.find_prompt_length(model) for name, model in models.items()}
    for name, length in lengths.items():
        if isinstance(length, int) and length != 1:
            raise InputError(
                f"{genai.path}: variant {name} reads {length} tokens, but onnxruntime-genai gives "
                "prompts of any length, then single tokens: leave that dimension open, or give it 1"
            )
        for problem in _find_problems(genai, models[name]):
            raise InputError(f"{genai.path}: variant {name}: {problem}")
    prompts = [name for name, length in lengths.items() if not isinstance(length, int)]
    if len(prompts) != 1:
        what = "open in one variant and 1 in the other"
        raise InputError(f"{genai.path}: the number of tokens has to be {what}")
    (token,) = models.keys() - prompts
    return GenaiPipeline(prompts[0], token, models)


def _find_problems(genai: GenaiFolder, model: Model) -> Iterator[str]:
    """Yield ends of sentences on inputs of fixed extents that genai gives others."""
    search = genai.config.get("search")
    settings = search if isinstance(search, dict) else {}
    shared = settings.get("past_present_share_buffer") is True
    mask = genai.find_input_name("attention_mask")
    caches = tuple(
        genai.find_input_name(key).partition("%d") for key in ("past_key_names", "past_value_names")
    )
    for name, kind in model.index.types.items():
        if name not in model.index.inputs:
            continue
        if name == mask and (length := _get_extent(kind, -1)) is not None:
            yield (
                f"'{name}' has {length} positions, but onnxruntime-genai's has one for each token so "
                "far: leave that dimension open"
            )
        is_cache = any(dot and name.startswith(one) and name.endswith(end) for one, dot, end in caches)
        length = _get_extent(kind, _LENGTH_AXIS) if is_cache else None
        if length is not None and not (shared and settings.get("max_length") == length):
            yield (
                f"'{name}' has {length} positions, but onnxruntime-genai's has search.max_length, where "
                "search.past_present_share_buffer is true, and else one for each token so far"
            )


def _get_extent(kind: TensorType, axis: int) -> int | None:
    """Return an extent of a type, None where it is open or there is none."""
    if kind.shape is None or len(kind.shape) < -axis:
        return None
    extent = kind.shape[axis]
    return extent if isinstance(extent, int) else None


# Models of all sources, read, checked and ready to be planned: a path, the zoo, memory, a package.


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
    if os.path.isfile(source):  # noqa: PTH113 - False for a name that the system refuses
        return None  # a model, whatever a manifest beside it says
    for folder, component in ((source, None), (source.parent, source.name)):
        file = folder / _MANIFEST
        manifest = _read_json(file)
        if manifest is None and os.path.isfile(file):  # noqa: PTH113 - as above
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
