"""The user's own folders of models, and the folders of the cache and the configuration."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import onnx
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from byoc.errors import InputError
from byoc.model import prepare_model, read_model_file
from byoc.samples import model_samples
from byoc.support import StrictModel, find_user_folder, read_yaml

# The interface of a provider of models: a list, a model by name, sample inputs.
#
# A package of yours joins with an entry point of the group `byoc.zoo` that names a class with these
# three methods; the class is made without arguments.


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


def get_cache_folder() -> Path:
    """Return the folder of fetched models, `$XDG_CACHE_HOME/byoc/zoo`; it need not exist."""
    return _find_base_folder("XDG_CACHE_HOME") / "zoo"


def get_config_file() -> Path:
    """Return the path of the user's configuration, `$XDG_CONFIG_HOME/byoc/config.yaml`."""
    return _find_base_folder("XDG_CONFIG_HOME") / "config.yaml"


def _find_base_folder(variable: str) -> Path:
    try:
        return find_user_folder(variable)
    except InputError as error:
        raise InputError(f"zoo: {error}") from None


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class ZooConfig(StrictModel):
    """The configuration file. A folder is absolute, in the home folder (`~`), or beside the file."""

    zoo: dict[Name, Annotated[str, StringConstraints(min_length=1)]] = Field(default_factory=dict)


@dataclass(frozen=True)
class ModelFolder:
    """Every .onnx file below a folder, under the name that the configuration gives the folder."""

    name: str
    folder: Path
    named_in: Path

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return the files by name. Raises `InputError` when there is no such folder."""
        return tuple(
            ZooEntry(name, "your own", str(path), "not stated", "not stated")
            for name, path in self._find_files().items()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Return a model, external data loaded. Raises `InputError` when it is none."""
        return _read_model(self.path(name))

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return made inputs that fit together, and that the model runs with."""
        path = self.path(name)
        return dict(model_samples(prepare_model(read_model_file(path), name, path.parent), seed))

    def path(self, name: str) -> Path:
        """Return the model's file, with external data in the same folder."""
        files = self._find_files()
        if name not in files:
            raise InputError(f"zoo:{name}: {self.folder} holds no such model any more")
        return files[name]

    def _find_files(self) -> dict[str, Path]:
        if not self.folder.is_dir():
            raise InputError(f"{self.named_in}: zoo.{self.name}: there is no folder '{self.folder}'")
        found = sorted(path for path in self.folder.rglob("*.onnx") if path.is_file())
        below = ((path.relative_to(self.folder).with_suffix(""), path) for path in found)
        return {f"{self.name}/{inner.as_posix()}": path for inner, path in below}


def read_folders() -> tuple[ModelFolder, ...]:
    """Return the folders that the configuration names; none when there is no configuration.

    Raises `InputError`, naming the file, when it is wrong.
    """
    try:
        file = get_config_file()
    except InputError:  # no home, no configuration: that is no reason to refuse a light model
        return ()
    if not os.path.lexists(file):
        return ()
    named = read_yaml(file, ZooConfig).zoo
    return tuple(
        ModelFolder(name, _resolve_folder(file, path), file) for name, path in sorted(named.items())
    )


def _resolve_folder(file: Path, path: str) -> Path:
    try:
        return file.parent / Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{file}: there is no home folder for '{path}'") from None


def _read_model(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path, load_external_data=True)
    except Exception as error:  # each of ONNX's formats fails in its own ways
        raise InputError(f"{path}: not an ONNX model: {' '.join(str(error).split())}") from None
