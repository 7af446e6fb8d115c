"""Writing of bundles: models and weights, the regions' artifacts, the manifest."""

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import onnx

from byoc.boundary.check import RegionContext, check_contracts
from byoc.bundle.compile import CompiledRegion, RegionCompiler, compile_regions
from byoc.bundle.contracts import contract_to_entry
from byoc.bundle.manifest import MANIFEST_FORMAT, MANIFEST_FILE, Manifest, RegionEntry, describe_file
from byoc.bundle.regions import read_region
from byoc.bundle.weights import WeightFile, move_weights
from byoc.codegen import Artifact, Region
from byoc.codegen.refusal import Refusal, RefusedError
from byoc.plan import Plan, PlannedRegion
from byoc.plan.wants import read_weight_layout

MODEL_FILE = "model.onnx"
_ARTIFACTS_FOLDER = "artifacts"


def write_bundle(
    plan: Plan,
    folder: Path,
    compilers: Mapping[str, RegionCompiler],
    progress: Callable[[str], None],
    strict: bool = True,
) -> tuple[RegionEntry, ...]:
    """Write everything but the manifest into an empty folder; return the regions' manifest entries.

    `compilers` maps targets to compilers. Raises RefusedError with all regions that codegens refuse
    (with `strict`, CompileError for the first), and ContractError when region and host disagree on a
    tensor, which is a defect of byoc.
    """
    progress("write weights")
    with WeightFile(folder) as weights:
        proto = move_weights(plan.proto, plan.model.folder, weights)
    save_model(proto, folder / MODEL_FILE)
    known = {region.name: _check_inputs(plan, region) for region in plan.regions}
    checked = check_contracts(proto, {target.domain for target in plan.targets}, known, folder)
    regions = []
    for planned in plan.regions:
        path = folder / f"{planned.name}.onnx"
        save_model(checked[planned.name].model, path)
        contracts = checked[planned.name].contracts
        regions.append(read_region(path, planned.name, planned.target.name, contracts))
    compiled: dict[str, CompiledRegion] = {}
    refusals: list[Refusal] = []
    for target, compiler in compilers.items():
        own = [region for region in regions if region.target == target]
        try:
            compiled |= compile_regions(own, compiler, progress, strict)
        except RefusedError as error:
            refusals += error.refusals
    if refusals:
        raise RefusedError(refusals)
    return tuple(
        _store_artifact(folder, region, compilers[region.target], compiled[region.name]) for region in regions
    )


def _check_inputs(plan: Plan, region: PlannedRegion) -> RegionContext:
    weights = read_weight_layout(region.target)
    return RegionContext(region.index, region.interface, plan.values, plan.origins, weights)


def build_manifest(folder: Path, plan: Plan, regions: tuple[RegionEntry, ...]) -> Manifest:
    """Return the manifest of a folder in which all other files are written."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Manifest(
        format=MANIFEST_FORMAT,
        versions={"byoc": version("onnx-byoc"), "onnx": onnx.__version__},
        asked=dict(plan.asked),
        targets=tuple(target.name for target in plan.targets),
        model=MODEL_FILE,
        regions=regions,
        report={},
        files={path.relative_to(folder).as_posix(): describe_file(path) for path in files},
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a bundle's manifest, the last of its files."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def save_model(proto: onnx.ModelProto, path: Path) -> None:
    """Write a model with external weights, deterministically."""
    path.write_bytes(proto.SerializeToString(deterministic=True))


def _store_artifact(folder: Path, region: Region, compiler: RegionCompiler, compiled: CompiledRegion) -> RegionEntry:
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
