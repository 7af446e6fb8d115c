"""What the zoo asks of whoever brings models: a list, a model by name, inputs that suit it.

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
    """One model of the zoo: what it is, where it comes from, on which terms, and whether it is here.

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
    """Brings models. Making one, and listing what it has, should cost next to nothing."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return what `load` can give."""
        ...

    def load(self, name: str) -> onnx.ModelProto:
        """Return one of the models; raises `InputError` when that cannot be."""
        ...

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return inputs that make sense to the model, the same ones for the same seed."""
        ...


@runtime_checkable
class OnDisk(Protocol):
    """A provider may also keep models as files, whose external data lies beside them."""

    def path(self, name: str) -> Path | None:
        """Return the model's file, fetched if need be; None if `load` makes it from something else."""
        ...
