"""Writing of bundles: models, the regions' artifacts, the manifest."""

import copy
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import onnx
from onnx import ModelProto, TensorProto, TypeProto

from byoc.boundary.contracts import RegionContext, TensorContract, check_contracts
from byoc.bundle._compiling import CompiledRegion, RegionCompiler, compile_regions
from byoc.bundle._manifest import (
    ALTERNATIVES_FORMAT,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    MODEL_FILE,
    HostEntry,
    Manifest,
    PackageManifest,
    ReferenceEntry,
    RegionEntry,
    UnlistedConstants,
    VariantEntry,
    contract_to_entry,
    describe_file,
)
from byoc.bundle._manifest_reading import (
    FolderReader,
    list_files,
    read_whole,
)
from byoc.bundle._original_weights import WeightFile, move_weights
from byoc.bundle._packing import check_packed_files, is_packed_name, list_packed_files, pack_folder
from byoc.bundle._reading import list_models, open_staged_bundle
from byoc.bundle._report import Report
from byoc.codegen import (
    Artifact,
    Refusal,
    RefusedError,
    Region,
    describe_path_problem,
    quote_name,
    read_region,
    read_stored_contracts,
)
from byoc.errors import InputError
from byoc.model import (
    ONLY_VARIANT,
    GraphIndex,
    Model,
    TensorLayout,
    Variant,
    check_model,
    copy_without,
    is_large,
    read_raw_bytes,
)
from byoc.passes import find_interface_change
from byoc.planning import Plan, PlannedRegion, read_weight_layout
from byoc.support import (
    collect_rarely,
    describe_missing_folder,
    dump_json,
    open_workspace,
    read_byoc_version,
    replace_path,
    report_step,
    resolve_path,
)
from byoc.support.trust import SIGNATURE_FILE
from byoc.zoo import GENAI_CONFIG_FILE, GenaiFolder, choose_pipeline, name_source

# Atomic writing of bundles, as folders or packed files: complete, or not at all.


def check_destination(path: Path, packed: bool | None = None) -> None:
    """Raise InputError when a bundle cannot be written to a path; leaves nothing behind.

    `packed` is by default derived from the path's name.
    """
    try:
        real = _resolve(path)
        if real.exists():
            _check_replaceable(path, real, is_packed_name(path) if packed is None else packed)
        elif path.is_symlink():
            raise InputError(f"{path}: cannot be written: it is a link to nothing")
        elif not real.parent.is_dir():
            raise InputError(f"{path}: cannot be written: {describe_missing_folder(path.parent)}")
        if list_files(FolderReader(real.parent)) is not None:
            raise InputError(f"{path}: is not written: it would lie in another bundle, or in a package")
        _check_text(path, real)
        tempfile.TemporaryDirectory(prefix=".byoc-", dir=real.parent).cleanup()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise InputError(f"{path}: cannot be written: {reason}") from None


@contextmanager
def stage_bundle(path: Path) -> Iterator[Path]:
    """Provide a folder to write into, which becomes `path` when the block succeeds.

    Where the name of `path` ends in `.zip`, the folder is packed. It is read back, and is on the disk,
    before it takes the place of an existing bundle in one step (`replace_path`). It lies beside the
    destination; a link is followed. When the block raises, the destination is unchanged.
    """
    real = _resolve(path)  # the block may change the working directory
    with _workspace(path) as workspace:
        fresh = workspace / "new"
        fresh.mkdir()
        yield fresh
        with _reading_back(fresh, path), collect_rarely():
            for each in list_models(fresh):
                open_staged_bundle(each, real).check_regions()
        if is_packed_name(path):
            pack_folder(fresh, read_whole(fresh).files, workspace / "packed")
            fresh = workspace / "packed"
        _replace(fresh, real, path)


@contextmanager
def stage_packed_file(path: Path) -> Iterator[Path]:
    """Provide a path to write a packed bundle to, which becomes `path`; else as `stage_bundle`."""
    real = _resolve(path)
    with _workspace(path, packed=True) as workspace:
        yield workspace / "packed"
        _replace(workspace / "packed", real, path)


@contextmanager
def _workspace(path: Path, packed: bool | None = None) -> Iterator[Path]:
    check_destination(path, packed)
    try:
        with open_workspace(_resolve(path).parent) as workspace:
            yield workspace
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _reading_back(fresh: Path, path: Path) -> Iterator[None]:
    """Name the destination when what was written for it cannot be opened, or differs."""
    try:
        yield
    except InputError as error:
        reason = str(error).replace(str(fresh), path.name)
        raise InputError(f"{path}: was not written: what was read back is wrong: {reason}") from None


def _replace(fresh: Path, real: Path, path: Path) -> None:
    """Replace the existing bundle, unless something else lies there by now."""
    if fresh.is_file():
        with _reading_back(fresh, path):
            check_packed_files(fresh)
    if real.exists():
        _check_replaceable(path, real, fresh.is_file())
    replace_path(fresh, real)


def _resolve(path: Path) -> Path:
    """Resolve a path; to an absolute one, since renaming a folder moves a working directory inside."""
    try:
        return resolve_path(path)
    except OSError:
        raise InputError(f"{path}: cannot be written: it is a link to itself") from None


def _check_text(path: Path, real: Path) -> None:
    """Raise InputError for a path that is not text: ONNX and onnxruntime open no other ones."""
    try:
        str(real).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{path}: cannot be written: '{real}' is not UTF-8, and onnxruntime opens no other paths"
        ) from None


def _check_replaceable(path: Path, real: Path, packed: bool) -> None:
    """Raise InputError unless the existing content is exactly one bundle of byoc in the same form."""
    found = list_packed_files(real) if real.is_file() else _folder_files(real)
    known = None if found is None else found[0]
    if found is None or known is None:
        raise InputError(f"{path}: exists and is not a bundle, so it is not replaced")
    foreign = sorted(found[1] - known - {MANIFEST_FILE, SIGNATURE_FILE})
    if foreign:
        raise InputError(
            f"{path}: is a bundle, but {quote_name(foreign[0])} is not part of it, so it is not replaced"
        )
    if packed != real.is_file():
        forms = ("a folder", "a packed one") if packed else ("packed", "a folder")
        raise InputError(f"{path}: is a bundle, but {forms[0]}, so {forms[1]} does not replace it")


def _folder_files(folder: Path) -> tuple[set[str] | None, set[str]]:
    there = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir())
    return list_files(FolderReader(folder)), set(there)


ARTIFACTS_FOLDER = "artifacts"

T = TypeVar("T")


def write_bundle(
    plan: Plan, folder: Path, compilers: Mapping[str, RegionCompiler]
) -> tuple[RegionEntry, ...]:
    """Write everything but the manifest into an empty folder; return the regions' manifest entries.

    `compilers` maps targets to compilers. Raises as `write_models` and `compile_bundle` do.
    """
    regions = write_models(plan, folder, WeightFile(folder))
    return compile_bundle(folder, regions, {each.name: compilers[each.target] for each in regions})


def write_models(plan: Plan, folder: Path, weights: WeightFile) -> list[Region]:
    """Write the partitioned model of a plan and those of its regions into a folder; return the regions.

    `weights` is the folder's weight file. Raises ContractError as `write_regions` does.
    """
    report_step("write weights")
    with weights:
        proto = move_weights(plan.proto, plan.model.folder, weights)
    save_model(proto, folder / plan.variant.name_file(MODEL_FILE))
    return write_regions(folder, proto, plan.regions, plan.values, plan.origins)


def compile_bundle(
    folder: Path,
    regions: Sequence[Region],
    chosen: Mapping[str, RegionCompiler],
    strict: bool = True,
    jobs: int | None = 1,
) -> tuple[RegionEntry, ...]:
    """Compile the regions whose models are in a folder, write the artifacts; return manifest entries.

    The regions are those of all variants. `chosen` maps their names to compilers, of which each compiles
    `jobs` regions at a time. Raises RefusedError with all regions that codegens refuse (with `strict`,
    CompileError for the first).
    """
    compiled: dict[str, CompiledRegion] = {}
    refusals: list[Refusal] = []
    for compiler in dict.fromkeys(chosen.values()):
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
        rules=tuple(map(name_source, plan.variant.rules)),
    )


def build_manifest(
    folder: Path,
    plans: Sequence[Plan],
    variants: Sequence[VariantEntry],
    references: Mapping[str, str] = MappingProxyType({}),
    host: HostEntry | None = None,
) -> Manifest:
    """Return the manifest of a folder in which all other files are written.

    `plans` are those of the variants, for all of which the same was asked. `references` are paths of
    files in the folder that will stay outside of the bundle, by their names in it. Raises InputError
    where rule files promise other arithmetic for accelerators of one name.
    """
    first, targets = plans[0], [target for plan in plans for target in plan.targets]
    arithmetic = {each.name: each.rules.arithmetic for each in targets}
    for each in targets:
        if each.rules.arithmetic != arithmetic[each.name]:
            raise InputError(
                f"{each.source}: {each.name} promises other arithmetic here than in another variant"
            )
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = {name: describe_file(folder / name) for name in names}
    are_alternatives = any(each.rules for each in variants)
    if are_alternatives:
        variants = [
            each.model_copy(
                update={"regions": tuple(_leave_constants_out(r, folder) for r in each.regions)}
            )
            for each in variants
        ]
    return Manifest(
        format=ALTERNATIVES_FORMAT if are_alternatives else MANIFEST_FORMAT,
        versions={"byoc": read_byoc_version(), "onnx": onnx.__version__},
        asked=_sort_by_key(first.asked),
        state=_sort_by_key(first.state),
        targets=tuple(arithmetic),
        arithmetic={name: clauses for name, clauses in arithmetic.items() if clauses},
        variants=tuple(variants),
        host=host or HostEntry(),
        files={name: entry for name, entry in files.items() if name not in references},
        references={
            name: ReferenceEntry(**dict(files[name]), path=path) for name, path in references.items()
        },
    )


def _leave_constants_out(entry: RegionEntry, folder: Path) -> RegionEntry:
    """Return a region's entry without the constants that its model in `folder` states, if all are."""
    stated = entry.list_constants(())
    model = onnx.load(folder / entry.model, load_external_data=False)
    found = read_stored_contracts(model, folder, entry.weight_layout).constants
    both = zip(stated, found, strict=False)
    names = {one.name: one.tensor for one, own in both if one.tensor != own.tensor}
    short = UnlistedConstants(count=len(stated), layout=entry.weight_layout, names=names)
    try:
        is_same = short.list_contracts(found) == stated
    except LookupError:
        is_same = False
    return entry.model_copy(update={"constants": short}) if is_same else entry


def write_manifest(
    folder: Path, manifest: Manifest | PackageManifest, name: str = MANIFEST_FILE
) -> bytes:
    """Write a bundle's manifest, the last of its files but for a signature; return its SHA-256."""
    content = dump_json(manifest, indent=1) + b"\n"
    (folder / name).write_bytes(content)
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
    place = folder / ARTIFACTS_FOLDER / region.name
    files = {}
    for name, content in artifact.files.items():
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
        files[name] = f"{ARTIFACTS_FOLDER}/{region.name}/{name}"
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


# Files of onnxruntime-genai in a bundle: its configuration, and those that are passed through.


def write_genai_files(
    folder: Path, genai: GenaiFolder, bundle: Path, models: Mapping[str, Model]
) -> None:
    """Write genai's configuration into a bundle's folder, for its models, and copy all other files.

    `bundle` is where the bundle will be, `models` are those that were partitioned, by variant. Raises
    InputError for a file whose name is that of one of the bundle's or that no bundle may have, and one
    that cannot be read.
    """
    for name, source in genai.list_other_files(bundle):
        problem = describe_path_problem(name)
        if problem:
            raise InputError(f"{source}: cannot be passed through: it {problem}")
        target = folder / name
        if target.exists() or name in {MANIFEST_FILE, SIGNATURE_FILE}:
            raise InputError(f"{source}: cannot be passed through: the bundle has a file of that name")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None
    text = json.dumps(_make_config(genai, models), indent=4, ensure_ascii=False)
    (folder / GENAI_CONFIG_FILE).write_text(f"{text}\n", encoding="utf-8")


def _make_config(genai: GenaiFolder, models: Mapping[str, Model]) -> dict[str, Any]:
    """Return genai's configuration: of one model, or of a pipeline of two variants."""
    files = {name: Variant(name).name_file(MODEL_FILE) for name in models}
    if models.keys() != {ONLY_VARIANT.name}:
        return choose_pipeline(genai, models).make_config(genai, files)
    config = copy.deepcopy(genai.config)
    config["model"]["decoder"]["filename"] = files[ONLY_VARIANT.name]
    return config


# Writing of a region that a pass rewrote, and the checks that it is still the same region.


def write_rewritten(
    region: Region, rewritten: ModelProto, path: Path, layout: TensorLayout | None, weights: WeightFile
) -> Region:
    """Write the rewritten model of a region, weights in memory, to a path beside the region's.

    Weights that are as before stay where they are; new ones are added to `weights`, and those that
    nothing reads are left out. `layout` is that of the target's convolution weights. Raises InputError,
    with the end of a sentence, when the model is not valid, or not of the same inputs and outputs.
    """
    problem = find_interface_change(region.model, rewritten)
    if problem:
        raise InputError(problem)
    try:
        check_model(rewritten)
    except InputError as error:
        raise InputError(f"what it makes is {error}") from None
    save_model(_share_weights(region, rewritten, weights), path)
    made = read_region(path, region.name, region.target, weights=layout)
    for one, other in (*zip(region.inputs, made.inputs), *zip(region.outputs, made.outputs)):  # noqa: B905
        if one.inner != other.inner or not one.view.is_same(other.view):
            raise InputError(f"it changes the conversion of '{one.tensor}' at the boundary")
    known = {contract.name: contract for contract in region.constants}
    constants = tuple(_keep_name(contract, known) for contract in made.constants)
    return replace(made, inputs=region.inputs, outputs=region.outputs, constants=constants)


def _keep_name(contract: TensorContract, known: Mapping[str, TensorContract]) -> TensorContract:
    """Return the contract of a constant with the user's name of the tensor, where that is known."""
    before = known.get(contract.name)
    return contract if before is None else replace(contract, tensor=before.tensor)


def _share_weights(region: Region, rewritten: ModelProto, weights: WeightFile) -> ModelProto:
    """Return a model whose large weights are in the weight file of the region's folder."""
    folder, index = region.path.parent, GraphIndex(rewritten, {})
    stored = {tensor.name: tensor for tensor in region.model.graph.initializer}
    result = copy_without(rewritten, "initializer")
    with weights:
        for tensor in rewritten.graph.initializer:
            if not index.is_used(tensor.name):
                continue
            before = stored.get(tensor.name)
            if before is not None and _is_same(before, tensor, folder):
                result.graph.initializer.append(before)
            elif is_large(tensor):
                result.graph.initializer.append(weights.add(tensor, None))
            else:
                result.graph.initializer.append(tensor)
    return result


def _is_same(stored: TensorProto, tensor: TensorProto, folder: Path) -> bool:
    if (stored.data_type, list(stored.dims)) != (tensor.data_type, list(tensor.dims)):
        return False
    if stored.data_type == TensorProto.STRING:
        return stored.string_data == tensor.string_data
    return read_raw_bytes(stored, folder) == read_raw_bytes(tensor, None)
