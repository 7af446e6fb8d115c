"""Pipelines of onnxruntime-genai: a model for prompts, and one for the tokens behind them.

genai runs the models of `model.decoder.pipeline` that say `run_on_prompt` where it is given several
tokens, and those that say `run_on_token_gen` where it is given one (its decoder_only_pipeline.cpp). Only
a model of type `decoder-pipeline` has them.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from byoc.errors import InputError
from byoc.model import Model, TensorType
from byoc.zoo._genai_folder import GenaiFolder

_TYPE = "decoder-pipeline"
_OTHER_MODELS = ("encoder", "vision", "speech", "embedding")
"""Keys of `model` beside `decoder`; a model with one is of a type that has no pipeline."""
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
    for key in _OTHER_MODELS:
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
