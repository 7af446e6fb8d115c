"""The table of trained models, read from `trained.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from byoc.support import StrictModel, read_yaml
from byoc.zoo._sample_inputs import InputSpec


class TrainedRow(StrictModel):
    """One model of the file: its path in the wheel, size, digest and sample inputs."""

    family: str
    file: str
    bytes: int
    sha256: str
    nodes: int
    inputs: dict[str, InputSpec]


class WheelPackage(StrictModel):
    """One wheel of the file with its models. `bytes` is its approximate size."""

    licence: str
    bytes: int
    models: dict[str, TrainedRow]


class TrainedTable(StrictModel):
    """The whole file: packages by `NAME==VERSION`."""

    packages: dict[str, WheelPackage]


@dataclass(frozen=True)
class TrainedModel:
    """One trained model: its name, the package that it travels in, and its row."""

    name: str
    requirement: str
    package: WheelPackage
    row: TrainedRow


@lru_cache
def read_trained_table() -> Mapping[str, TrainedModel]:
    """Return the trained models by name, sorted."""
    read = read_yaml(Path(__file__).with_name("trained.yaml"), TrainedTable)
    models = {
        name: TrainedModel(name, requirement, package, row)
        for requirement, package in read.packages.items()
        for name, row in package.models.items()
    }
    return MappingProxyType(dict(sorted(models.items())))
