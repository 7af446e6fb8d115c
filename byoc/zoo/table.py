"""The table of trained models, read from `trained.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from byoc.yamlfile import Strict, read_yaml
from byoc.zoo.feeds import Feed


class Row(Strict):
    """One model of the file: its path in the wheel, size, digest and sample inputs."""

    family: str
    file: str
    bytes: int
    sha256: str
    nodes: int
    inputs: dict[str, Feed]


class Package(Strict):
    """One wheel of the file with its models. `bytes` is its approximate size."""

    licence: str
    bytes: int
    models: dict[str, Row]


class Table(Strict):
    """The whole file: packages by `NAME==VERSION`."""

    packages: dict[str, Package]


@dataclass(frozen=True)
class Trained:
    """One trained model: its name, the package that it travels in, and its row."""

    name: str
    requirement: str
    package: Package
    row: Row


@lru_cache
def table() -> Mapping[str, Trained]:
    """Return the trained models by name, sorted."""
    read = read_yaml(Path(__file__).with_name("trained.yaml"), Table)
    models = {
        name: Trained(name, requirement, package, row)
        for requirement, package in read.packages.items()
        for name, row in package.models.items()
    }
    return MappingProxyType(dict(sorted(models.items())))
