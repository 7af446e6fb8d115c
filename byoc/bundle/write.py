"""Emitting a bundle: models and weights to a folder, each region through its codegen, the manifest."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from byoc.boundary.check import Known, check_model
from byoc.bundle.contracts import as_entry
from byoc.bundle.manifest import FORMAT, NAME, Manifest, RegionEntry, describe_file
from byoc.bundle.regions import read_region
from byoc.bundle.weights import WeightFile, move_weights
from byoc.codegen import Artifact, Codegen, CompileError, Region
from byoc.errors import ByocError
from byoc.plan import Plan, PlannedRegion
from byoc.plan.wants import weights_of

MODEL = "model.onnx"
_ARTIFACTS = "artifacts"
_PLAIN = re.compile(r"[^/\\\0]+")


@dataclass(frozen=True, eq=False)
class Compiler:
    """What compiles the regions of a target: a codegen and what is passed to it."""

    codegen: Codegen
    options: Mapping[str, str]


def write_bundle(
    plan: Plan,
    folder: Path,
    compilers: Mapping[str, Compiler],
    progress: Callable[[str], None],
) -> tuple[RegionEntry, ...]:
    """Write everything but the manifest into an empty folder, and return what the regions became.

    `compilers` has one for each target by name.

    Raises CompileError, naming the region, when the codegen refuses one, and ContractError when a
    region and the host disagree on a tensor (a defect).
    """
    progress("write weights")
    with WeightFile(folder) as weights:
        proto = move_weights(plan.proto, plan.model.folder, weights)
    save(proto, folder / MODEL)
    known = {region.name: _known(plan, region) for region in plan.regions}
    checked = check_model(proto, {target.domain for target in plan.targets}, known, folder)
    entries = []
    for planned in plan.regions:
        path = folder / f"{planned.name}.onnx"
        save(checked[planned.name].model, path)
        contracts = checked[planned.name].contracts
        region = read_region(path, planned.name, planned.target.name, contracts)
        compiler = compilers[planned.target.name]
        progress(f"compile {region.name} with {compiler.codegen.name}")
        entries.append(_store(folder, region, compiler.codegen.name, _compile(compiler, region)))
    return tuple(entries)


def _known(plan: Plan, region: PlannedRegion) -> Known:
    weights = weights_of(region.target)
    return Known(region.index, region.border, plan.values, plan.origins, weights)


def make_manifest(folder: Path, plan: Plan, regions: tuple[RegionEntry, ...]) -> Manifest:
    """Return the manifest for a folder whose files are all written."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Manifest(
        format=FORMAT,
        versions={"byoc": version("onnx-byoc"), "onnx": onnx.__version__},
        asked=dict(plan.asked),
        targets=tuple(target.name for target in plan.targets),
        model=MODEL,
        regions=regions,
        report={},
        files={path.relative_to(folder).as_posix(): describe_file(path) for path in files},
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a bundle's manifest, the last of its files."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")


def save(proto: onnx.ModelProto, path: Path) -> None:
    """Write a model whose weights lie elsewhere; the same model gives the same bytes."""
    path.write_bytes(proto.SerializeToString(deterministic=True))


def _compile(compiler: Compiler, region: Region) -> Artifact:
    codegen = compiler.codegen
    try:
        artifact = codegen.compile(region, compiler.options)
    except ByocError as error:
        raise CompileError(f"codegen {codegen.name}: {region.name}: {error}") from error
    except Exception as error:  # a plug-in can fail in any way; say whose fault it was
        raise CompileError(
            f"codegen {codegen.name}: {region.name}: failed with {type(error).__name__}: {error}"
        ) from error
    wrong = _wrong(artifact)
    if wrong:
        raise CompileError(f"codegen {codegen.name}: {region.name}: {wrong}")
    return artifact


def _wrong(artifact: Any) -> str:
    """Return what is wrong with what a codegen gave, as a sentence; empty when nothing is."""
    if not isinstance(artifact, Artifact):
        return f"compile gave {type(artifact).__name__}, not an Artifact"
    for name, content in artifact.files.items():
        if not isinstance(name, str) or name in (".", "..") or not _PLAIN.fullmatch(name):
            return f"{name!r} is not a plain file name for an artifact"
        if not isinstance(content, bytes):
            return f"the content of '{name}' is {type(content).__name__}, not bytes"
    for key, value in artifact.metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            return f"the metadata '{key}' is not text"
    return ""


def _store(folder: Path, region: Region, codegen: str, artifact: Artifact) -> RegionEntry:
    place = folder / _ARTIFACTS / region.name
    files = {}
    for name, content in artifact.files.items():
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
        files[name] = f"{_ARTIFACTS}/{region.name}/{name}"
    return RegionEntry(
        name=region.name,
        target=region.target,
        model=region.path.name,
        codegen=codegen,
        composites=region.composites,
        inputs=tuple(map(as_entry, region.inputs)),
        outputs=tuple(map(as_entry, region.outputs)),
        constants=tuple(map(as_entry, region.constants)),
        artifact_files=files,
        artifact_metadata=dict(artifact.metadata),
    )
