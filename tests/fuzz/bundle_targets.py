"""Bundles and artifacts of `dla` that are held against byoc, which come as zips (bundle_inputs.py)."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import artifact_inputs
import bundle_inputs
import numpy as np
from byoc.codegens.dla import DLA
from byoc.codegens.dla.simulator import SimulationError
from targets import REFUSED, check_sentence

from byoc.bundle import Bundle, open_bundle
from byoc.codegen import Artifact, describe_path_problem
from byoc.comparison import diff
from byoc.errors import InputError
from byoc.model import TensorType
from byoc.onnxrt import without_optimizations
from byoc.runtime import load_bundle

_MAX_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class Bundles:
    """A bundle in a folder: opened, loaded, and run on zeros where it is one."""

    folder: Path
    suffix: str = ".zip"

    def prepare(self) -> None:
        """Build the bundles that everything begins with."""
        bundle_inputs.seeds()

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        path = self.folder / "b"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        files = bundle_inputs.split(data)
        for name, content in ({bundle_inputs.MANIFEST: data} if files is None else files).items():
            if describe_path_problem(name):
                continue
            file = path / name
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            except OSError:  # a file is in the way of a folder, or the other way round
                continue
        return _try_bundle(path)


@dataclass(frozen=True)
class Packed:
    """A bundle in one file: opened, loaded, and run on zeros where it is one."""

    folder: Path
    suffix: str = ".zip"

    def prepare(self) -> None:
        """Build the bundles that everything begins with."""
        bundle_inputs.seeds()

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        path = self.folder / f"b{self.suffix}"
        path.write_bytes(data)
        return _try_bundle(path)


def _try_bundle(path: Path) -> str:
    try:
        bundle: Bundle = open_bundle(path, isolation=None)
        bundle.manifest.model_dump_json()
        assert diff(bundle, bundle).equal
    except InputError as error:
        check_sentence(error)
        return REFUSED
    try:
        with without_optimizations():
            session = load_bundle(bundle)
    except InputError as error:
        check_sentence(error)
        return "opened, not loaded"
    try:
        session(_zeros(session.types))
    except InputError as error:
        check_sentence(error)
        return "loaded, not run"
    return "run"


def _zeros(types: Mapping[str, TensorType]) -> dict[str, Any]:
    """Return inputs of zeros, open extents 1; those of too many elements are left out."""
    inputs = {}
    for name, kind in types.items():
        shape = [extent if isinstance(extent, int) else 1 for extent in kind.shape or ()]
        if np.prod([float(extent) for extent in shape]) <= _MAX_ELEMENTS and kind.dtype in (
            "float32",
            "bool",
        ):
            inputs[name] = np.zeros(shape, kind.dtype)
    return inputs


@dataclass(frozen=True)
class Artifacts:
    """An artifact of `dla`: program, weights and interface, loaded, and run on the simulator."""

    folder: Path
    suffix: str = ".zip"

    def prepare(self) -> None:
        """Compile the regions that everything begins with."""
        artifact_inputs.artifact_seeds()

    def __call__(self, data: bytes) -> str:
        """Return what became of it, for the count."""
        files = bundle_inputs.split(data) or {}
        number = files.pop(artifact_inputs.REGION, b"0")
        region = artifact_inputs.region_of(int(number) if number in {b"0", b"1", b"2"} else 0)
        try:
            run = DLA().load(region, Artifact(files, {}))
        except InputError as error:
            check_sentence(error)
            return REFUSED
        try:
            run(_zeros({value.name: value.type for value in region.inputs}))
        except (InputError, SimulationError) as error:  # a session makes an InputError of it
            check_sentence(error)
            return "stopped"
        return "run"
