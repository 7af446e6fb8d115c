"""Folders of onnxruntime-genai: a configuration, its models, and pipelines for prompts and tokens.

The keys are those of `genai_config.json` (onnxruntime.ai/docs/genai/reference/config.html):
`model.decoder.filename` is the decoder's model, `model.decoder.inputs.input_ids` its input of tokens;
`model.vision`, `speech`, `embedding` and `encoder` may name models beside it.
Where `model.decoder.pipeline` is given, the decoder is several models instead.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import onnx

from byoc.errors import InputError, suggest_nearest
from byoc.model import Model, TensorType, find_external_data, read_model_file, walk_tensors
from byoc.support import find_inside, require_inside
from byoc.zoo._sources import ZOO, Source

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
