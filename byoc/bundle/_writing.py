"""Writing of bundles: the shared weight file, models, the regions' artifacts, the manifest."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import onnx
from onnx import ModelProto, TensorProto, TypeProto

from byoc.boundary.contracts import RegionContext, check_contracts
from byoc.bundle._compiling import CompiledRegion, RegionCompiler, compile_regions
from byoc.bundle._manifest import (
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    Manifest,
    RegionEntry,
    contract_to_entry,
    describe_file,
)
from byoc.bundle._report import Report
from byoc.codegen import Artifact, Refusal, RefusedError, Region, read_region
from byoc.model import copy_without, is_large, read_raw_bytes, walk_tensors, write_raw_bytes
from byoc.planning import Plan, PlannedRegion, read_weight_layout
from byoc.support import read_byoc_version, report_step

WEIGHTS_FILE = "weights.bin"
# In bytes: enough for any vector load from a memory-mapped file.
_ALIGNMENT = 64


class WeightFile:
    """A writer of tensors to `weights.bin` in a folder; use as a context manager."""

    def __init__(self, folder: Path, append: bool = False) -> None:
        """Create the file in a folder, or open the one that is there to `append` to it."""
        self._file = (folder / WEIGHTS_FILE).open("ab" if append else "wb")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def add(self, tensor: TensorProto, folder: Path | None) -> TensorProto:
        """Move a tensor's data into the file and return the tensor; `folder` holds its external data."""
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        offset = self._file.tell()
        length = write_raw_bytes(tensor, folder, self._file)
        moved = TensorProto(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            doc_string=tensor.doc_string,
            data_location=TensorProto.EXTERNAL,
        )
        moved.metadata_props.extend(tensor.metadata_props)
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", length)):
            moved.external_data.add(key=key, value=str(value))
        return moved


def move_weights(model: ModelProto, folder: Path | None, weights: WeightFile) -> ModelProto:
    """Move a model's large constants into the weight file, and embed all others; return the model.

    A large tensor in a Constant node of the main graph becomes an initializer. `folder` holds the
    model's external data.
    """
    result = copy_without(model, "initializer", "node")
    lifted = []
    for node in model.graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None and is_large(value):
            lifted.append((node.output[0], value))
        else:
            result.graph.node.append(node)
    # onnxruntime supports external data only in initializers of the main graph.
    for tensor in walk_tensors(result):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(_embed(tensor, folder))
    for name, tensor in [*((t.name, t) for t in model.graph.initializer), *lifted]:
        moved = weights.add(tensor, folder) if is_large(tensor) else _embed(tensor, folder)
        result.graph.initializer.add().CopyFrom(moved)
        result.graph.initializer[-1].name = name
    return result


def _embed(tensor: TensorProto, folder: Path | None) -> TensorProto:
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    result = TensorProto()
    result.CopyFrom(tensor)
    result.raw_data = read_raw_bytes(tensor, folder)
    result.ClearField("data_location")
    del result.external_data[:]
    return result


MODEL_FILE = "model.onnx"
_ARTIFACTS_FOLDER = "artifacts"


def write_bundle(  # noqa: PLR0913, PLR0917 - each has a default
    plan: Plan,
    folder: Path,
    compilers: Mapping[str, RegionCompiler],
    strict: bool = True,
    jobs: int | None = 1,
    rewrite: Callable[[Sequence[Region]], Sequence[Region]] = lambda regions: regions,
) -> tuple[RegionEntry, ...]:
    """Write everything but the manifest into an empty folder; return the regions' manifest entries.

    `compilers` maps targets to compilers, of which each compiles `jobs` regions at a time. `rewrite`
    rewrites the regions that are written, before they are compiled.

    Raises RefusedError with all regions that codegens refuse
    (with `strict`, CompileError for the first), and ContractError when region and host disagree on a
    tensor, which is a defect of byoc.
    """
    report_step("write weights")
    with WeightFile(folder) as weights:
        proto = move_weights(plan.proto, plan.model.folder, weights)
    save_model(proto, folder / MODEL_FILE)
    regions = rewrite(write_regions(folder, proto, plan.regions, plan.values, plan.origins))
    compiled: dict[str, CompiledRegion] = {}
    refusals: list[Refusal] = []
    for target, compiler in compilers.items():
        own = [region for region in regions if region.target == target]
        try:
            compiled |= compile_regions(own, compiler, strict, jobs)
        except RefusedError as error:
            refusals += error.refusals
    if refusals:
        raise RefusedError(refusals)
    return tuple(
        _store_artifact(folder, region, compilers[region.target], compiled[region.name])
        for region in regions
    )


def write_regions(
    folder: Path,
    proto: ModelProto,
    planned: Sequence[PlannedRegion],
    values: Mapping[str, TypeProto],
    origins: Mapping[str, str],
) -> list[Region]:
    """Write the model of each region of a partitioned model, whose weights are in the folder already.

    `values` and `origins` are those of the boundary's conversions. Raises ContractError when region and
    host disagree on a tensor, which is a defect of byoc.
    """
    known = {
        region.name: RegionContext(
            region.index, region.interface, values, origins, read_weight_layout(region.target)
        )
        for region in planned
    }
    checked = check_contracts(proto, {region.target.domain for region in planned}, known, folder)
    regions = []
    for region in planned:
        path = folder / f"{region.name}.onnx"
        save_model(checked[region.name].model, path)
        contracts = checked[region.name].contracts
        regions.append(read_region(path, region.name, region.target.name, contracts))
    return regions


def build_manifest(
    folder: Path, plan: Plan, regions: tuple[RegionEntry, ...], report: Report
) -> Manifest:
    """Return the manifest of a folder in which all other files are written."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Manifest(
        format=MANIFEST_FORMAT,
        versions={"byoc": read_byoc_version(), "onnx": onnx.__version__},
        asked=dict(plan.asked),
        targets=tuple(target.name for target in plan.targets),
        model=MODEL_FILE,
        regions=regions,
        report=report,
        files={path.relative_to(folder).as_posix(): describe_file(path) for path in files},
    )


def write_manifest(folder: Path, manifest: Manifest) -> bytes:
    """Write a bundle's manifest, the last of its files but for a signature; return its SHA-256."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True)
    content = f"{text}\n".encode()
    (folder / MANIFEST_FILE).write_bytes(content)
    return hashlib.sha256(content).digest()


def save_model(proto: onnx.ModelProto, path: Path) -> None:
    """Write a model with external weights, deterministically."""
    path.write_bytes(proto.SerializeToString(deterministic=True))


def _store_artifact(
    folder: Path, region: Region, compiler: RegionCompiler, compiled: CompiledRegion
) -> RegionEntry:
    """Write a region's artifact, unless it is an earlier region's; return the manifest's entry."""
    artifact = Artifact() if compiled.same_as else compiled.artifact
    place = folder / _ARTIFACTS_FOLDER / region.name
    files = {}
    for name, content in artifact.files.items():
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
        files[name] = f"{_ARTIFACTS_FOLDER}/{region.name}/{name}"
    return RegionEntry(
        name=region.name,
        target=region.target,
        model=region.path.name,
        codegen=compiler.codegen.name,
        codegen_options=dict(compiler.options),
        composites=region.composites,
        inputs=tuple(map(contract_to_entry, region.inputs)),
        outputs=tuple(map(contract_to_entry, region.outputs)),
        constants=tuple(map(contract_to_entry, region.constants)),
        same_as=compiled.same_as,
        artifact_files=files,
        artifact_metadata=dict(artifact.metadata),
    )
