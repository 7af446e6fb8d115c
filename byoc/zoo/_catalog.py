"""The zoo's catalog: the models of all providers by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from byoc.errors import InputError, suggest_nearest
from byoc.support import find_entry_points, get_distribution
from byoc.zoo._classic_models import ClassicModels
from byoc.zoo._decoder_families import GeneratedDecoders
from byoc.zoo._trained_models import FetchResult, TrainedModels, read_trained_table
from byoc.zoo._trained_models import fetch_models as fetch_trained
from byoc.zoo._transformers import ExportedStructures, GeneratedTransformers
from byoc.zoo._user_folders import ModelFolder, OnDisk, Provider, ZooEntry, read_folders

GROUP = "byoc.zoo"


@dataclass(frozen=True)
class _Offer:
    """A model with its provider and the provider's display name."""

    entry: ZooEntry
    provider: Provider
    provider_name: str


@dataclass(frozen=True)
class _Catalog:
    """All offers by name, and one sentence for each provider that failed to list its models."""

    offers: Mapping[str, Sequence[_Offer]]
    problems: Sequence[str]

    def find(self, name: str) -> _Offer:
        if name not in self.offers:
            broken = f"; could not look in {'; '.join(self.problems)}" if self.problems else ""
            raise InputError(
                f"zoo: no model named {name!r}{suggest_nearest(name, self.offers)}; "
                f"available: {', '.join(self.offers) or 'none'}{broken}"
            )
        offer, *others = self.offers[name]
        if others:
            both = " and ".join(found.provider_name for found in (offer, *others))
            raise InputError(f"zoo: {both} both bring a model named {name!r}")
        return offer


def list_entries() -> tuple[ZooEntry, ...]:
    """Return the models that `load` knows, sorted by name.

    A provider that fails is left out, see `find_problems`. Raises `InputError` when two bring
    the same name, and when the user's configuration is wrong.
    """
    catalog = _gather_catalog()
    return tuple(catalog.find(name).entry for name in catalog.offers)


def find_problems() -> tuple[str, ...]:
    """Return one sentence for each provider that failed to list its models."""
    return tuple(_gather_catalog().problems)


def load(name: str) -> onnx.ModelProto:
    """Return the model called `name`, ready to run; a trained one is fetched on first use.

    Raises `InputError` for an unknown name, for one that two providers bring, and when the model
    cannot be fetched or built.
    """
    return _gather_catalog().find(name).provider.load(name)


def sample_inputs(name: str, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return realistic inputs of the model by name; the same seed gives the same inputs.

    Raises `InputError` as `load` does.
    """
    return _gather_catalog().find(name).provider.sample_inputs(name, seed)


def brings_samples(name: str) -> bool:
    """Return whether a model is known and comes with realistic inputs, and not with made ones."""
    catalog = _gather_catalog()
    return name in catalog.offers and not isinstance(catalog.find(name).provider, ModelFolder)


def find_path(name: str) -> Path | None:
    """Return the model's file, with external data in the same folder; None if there is no file.

    Raises `InputError` as `load` does.
    """
    provider = _gather_catalog().find(name).provider
    return provider.path(name) if isinstance(provider, OnDisk) else None


def fetch(names: Sequence[str] | None = None) -> Iterator[FetchResult]:
    """Fetch trained models into the cache, all unless `names` says which, and yield each result.

    One that fails does not stop the others. Raises `InputError` for an unknown name, before
    anything is fetched; a model that needs no fetching is already there.
    """
    known = read_trained_table()
    wanted = list(known if names is None else dict.fromkeys(names))
    if others := [name for name in wanted if name not in known]:
        catalog = _gather_catalog()
        for name in others:
            catalog.find(name)
    here = (FetchResult(name, "already there") for name in others)
    fetched = fetch_trained(known[name] for name in wanted if name in known)
    return (result for results in (here, fetched) for result in results)


def _gather_catalog() -> _Catalog:
    offers: dict[str, list[_Offer]] = {}
    broken = []
    for called, make in _list_providers():
        try:
            provider = make()
            found = provider.entries()
        except Exception as error:  # a plug-in can fail in any way, and the others still count
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            broken.append(f"{called}: {kind}{error}")
            continue
        for entry in found:
            offers.setdefault(entry.name, []).append(_Offer(entry, provider, called))
    return _Catalog(dict(sorted(offers.items())), broken)


def _list_providers() -> Iterator[tuple[str, Callable[[], Provider]]]:
    yield "the light models", ClassicModels
    yield "the exported structures", ExportedStructures
    yield "the generated transformers", GeneratedTransformers
    yield "the generated decoders", GeneratedDecoders
    yield "the trained models", TrainedModels
    for folder in read_folders():
        yield f"the folder {folder.folder}", partial(_return_provider, folder)
    points = {point.value: point for point in find_entry_points(GROUP)}
    for point in sorted(points.values(), key=lambda point: point.name):
        yield f"{point.name} of {get_distribution(point)}", partial(_load_provider, point)


def _return_provider(provider: Provider) -> Provider:
    return provider


def _load_provider(point: EntryPoint) -> Provider:
    made: Provider = point.load()()
    return made
