"""Writing of bundles: models, the regions' artifacts, the manifest."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import onnx
from onnx import ModelProto, TypeProto

from byoc.boundary.contracts import RegionContext, check_contracts
from byoc.bundle._compiling import CompiledRegion, RegionCompiler, compile_regions
from byoc.bundle._manifest import (
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    HostEntry,
    Manifest,
    ReferenceEntry,
    RegionEntry,
    VariantEntry,
    contract_to_entry,
    describe_file,
)
from byoc.bundle._original_weights import WeightFile, move_weights
from byoc.bundle._report import Report
from byoc.codegen import Artifact, Refusal, RefusedError, Region, read_region
from byoc.planning import Plan, PlannedRegion, read_weight_layout
from byoc.support import collect_rarely, dump_json, read_byoc_version, report_step

MODEL_FILE = "model.onnx"
_ARTIFACTS_FOLDER = "artifacts"

T = TypeVar("T")


def write_bundle(
    plan: Plan, folder: Path, compilers: Mapping[str, RegionCompiler]
) -> tuple[RegionEntry, ...]:
    """Write everything but the manifest into an empty folder; return the regions' manifest entries.

    `compilers` maps targets to compilers. Raises as `write_models` and `compile_bundle` do.
    """
    return compile_bundle(folder, write_models(plan, folder, WeightFile(folder)), compilers)


def write_models(plan: Plan, folder: Path, weights: WeightFile) -> list[Region]:
    """Write the partitioned model of a plan and those of its regions into a folder; return the regions.

    `weights` is the folder's weight file. Raises ContractError as `write_regions` does.
    """
    report_step("write weights")
    with weights:
        proto = move_weights(plan.proto, plan.model.folder, weights)
    save_model(proto, folder / plan.variant.name_file(MODEL_FILE))
    return write_regions(folder, proto, plan.regions, plan.values, plan.origins)


def compile_bundle(  # noqa: PLR0913, PLR0917 - each has a default
    folder: Path,
    regions: Sequence[Region],
    compilers: Mapping[str, RegionCompiler],
    strict: bool = True,
    jobs: int | None = 1,
    attempts: Mapping[str, int] = MappingProxyType({}),
) -> tuple[RegionEntry, ...]:
    """Compile the regions whose models are in a folder, write the artifacts; return manifest entries.

    The regions are those of all variants. `compilers` maps targets to compilers, of which each compiles
    `jobs` regions at a time; `attempts` has the numbers of those to recover with, by region. Raises
    RefusedError with all regions that codegens refuse (with `strict`, CompileError for the first).
    """
    compiled: dict[str, CompiledRegion] = {}
    refusals: list[Refusal] = []
    chosen = {
        region.name: compilers[region.target].choose(attempts.get(region.name, 0)) for region in regions
    }
    for compiler in dict.fromkeys(
        each for first in compilers.values() for each in (first, *first.recoveries)
    ):
        own = [region for region in regions if chosen[region.name] is compiler]
        try:
            compiled |= compile_regions(own, compiler, strict, jobs)
        except RefusedError as error:
            refusals += error.refusals
    if refusals:
        raise RefusedError(refusals)
    with collect_rarely():
        return tuple(
            _store_artifact(folder, region, chosen[region.name], compiled[region.name])
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


def describe_variant(plan: Plan, regions: tuple[RegionEntry, ...], report: Report) -> VariantEntry:
    """Return the manifest's entry for the variant that a plan was made for."""
    return VariantEntry(
        name=plan.variant.name,
        dims=_sort_by_key(plan.variant.dims),
        model=plan.variant.name_file(MODEL_FILE),
        regions=regions,
        report=report,
        automatic=plan.variant.automatic,
    )


def build_manifest(
    folder: Path,
    plan: Plan,
    variants: Sequence[VariantEntry],
    references: Mapping[str, str] = MappingProxyType({}),
    host: HostEntry | None = None,
) -> Manifest:
    """Return the manifest of a folder in which all other files are written.

    `plan` is that of any variant: what was asked for and the targets are the same in all. `references`
    are paths of files in the folder that will stay outside of the bundle, by their names in it.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = {name: describe_file(folder / name) for name in names}
    return Manifest(
        format=MANIFEST_FORMAT,
        versions={"byoc": read_byoc_version(), "onnx": onnx.__version__},
        asked=_sort_by_key(plan.asked),
        state=_sort_by_key(plan.state),
        targets=tuple(target.name for target in plan.targets),
        arithmetic={t.name: t.rules.arithmetic for t in plan.targets if t.rules.arithmetic},
        variants=tuple(variants),
        host=host or HostEntry(),
        files={name: entry for name, entry in files.items() if name not in references},
        references={
            name: ReferenceEntry(**dict(files[name]), path=path) for name, path in references.items()
        },
    )


def write_manifest(folder: Path, manifest: Manifest) -> bytes:
    """Write a bundle's manifest, the last of its files but for a signature; return its SHA-256."""
    content = dump_json(manifest, indent=1) + b"\n"
    (folder / MANIFEST_FILE).write_bytes(content)
    return hashlib.sha256(content).digest()


def _sort_by_key(mapping: Mapping[str, T]) -> dict[str, T]:
    """Return a mapping in an order that depends on no order in which options were given."""
    return dict(sorted(mapping.items()))


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
        codegen_options=_sort_by_key(compiler.options),
        composites=region.composites,
        inputs=tuple(map(contract_to_entry, region.inputs)),
        outputs=tuple(map(contract_to_entry, region.outputs)),
        constants=tuple(map(contract_to_entry, region.constants)),
        same_as=compiled.same_as,
        artifact_files=files,
        artifact_metadata=_sort_by_key(artifact.metadata),
    )
