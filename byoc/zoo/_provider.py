"""The interface of a provider of models: a list, a model by name, sample inputs.

A package of yours joins with an entry point of the group `byoc.zoo` that names a class with these
three methods; the class is made without arguments.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import onnx
from numpy.typing import NDArray


@dataclass(frozen=True)
class ZooEntry:
    """One model of the zoo: its name, family, source, licence, and whether it is on this machine.

    `nodes` counts those inside bodies as well, but no constants (None: nobody has looked). `present`
    is False where loading it would fetch something first.
    """

    name: str
    family: str
    source: str
    licence: str
    weights: str
    nodes: int | None = None
    present: bool = True


class Provider(Protocol):
    """A source of models. Creating one and listing its models must be cheap."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return the models that `load` knows."""
        ...

    def load(self, name: str) -> onnx.ModelProto:
        """Return one of the models; raises `InputError` when that cannot be."""
        ...

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return realistic inputs of the model; the same seed gives the same inputs."""
        ...


@runtime_checkable
class OnDisk(Protocol):
    """A provider whose models are files, with external data in the same folder."""

    def path(self, name: str) -> Path | None:
        """Return the model's file, fetched if necessary; None if `load` builds the model another way."""
        ...
