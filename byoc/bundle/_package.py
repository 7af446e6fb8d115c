"""Packages: several models in one folder, each as a bundle, with weights and artifacts stored once.

manifest.json            the devices, and the hash of each model's manifest
detector.manifest.json   the manifest of the model `detector`, as that of a bundle
detector.pc.model.onnx   a file of this model, in its variant for the device `pc`
detector.pc.weights.bin  the weights that this variant was the first to need

A model that needs weights which an earlier one stored reads them there. So models come and go without
being compiled anew: a file goes with its last reader.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto

from byoc._dataclasses import dataclass, field
from byoc.bundle._decisions import DECISIONS_FILE
from byoc.bundle._epcontext import CONTEXT_MODEL_FILE
from byoc.bundle._manifest import (
    Manifest,
    PackageManifest,
    ReferenceEntry,
    RegionEntry,
    describe_file,
)
from byoc.bundle._manifest_reading import Package, name_manifest, read_manifest, read_whole, split_path
from byoc.bundle._original_weights import WEIGHTS_FILE, align_offset, name_path
from byoc.bundle._packing import (
    is_packed_name,
    pack_folder,
    read_signature,
    require_trusted_references,
    sign_folder,
    unpack_whole,
)
from byoc.bundle._reading import Bundle, read_alone, read_only_manifest
from byoc.bundle._writing import (
    ARTIFACTS_FOLDER,
    save_model,
    stage_bundle,
    stage_packed_file,
    write_manifest,
)
from byoc.codegen import Codegens, find_same_paths, quote_name
from byoc.console import format_quantity
from byoc.errors import InputError, suggest_nearest
from byoc.model import find_external_data, walk_tensors
from byoc.support import (
    check_type,
    clone_file,
    describe_missing_file,
    make_temporary_folder,
    remove_temporary_folder,
    resolve_path,
)
from byoc.support.trust import judge_signature

_BLOCK = 1 << 20  # bytes of weights that are copied at a time


def pack_bundle(source: Path, output: Path) -> None:
    """Write the bundle or package at a path as one file.

    Raises InputError when it is none, or not whole, or refers to files outside, or cannot be written.
    """
    whole, name = split_path(source)
    if name is not None:
        read_only_manifest(source)  # which says where there is no such model, or no package
        raise InputError(f"{source}: is one of the models of a package: pack {whole}")
    with _open_files(source) as (folder, manifest):
        if manifest.references:
            raise InputError(f"{source}: refers to files outside of it, which a packed bundle cannot")
        with stage_packed_file(output) as file:
            pack_folder(folder, manifest.files, file)


@contextmanager
def _open_files(path: Path) -> Iterator[tuple[Path, Manifest | Package]]:
    """Provide a folder with all files of the bundle or package at a path, checked, and its manifest.

    Files outside that it refers to are not looked at. Raises InputError.
    """
    if path.is_dir():
        yield path, read_whole(path)
        return
    if not path.is_file():
        raise InputError(describe_missing_file(path, "bundle"))
    folder = make_temporary_folder()
    try:
        yield folder, unpack_whole(path, folder)
    finally:
        remove_temporary_folder(folder)


@dataclass(eq=False)
class PackageWriter:
    """A package that is being written into `folder`, to be at `place`.

    `workspace` is an empty folder for the models' bundles on the way. `not_signed` is why the package
    may not be signed by this machine, empty where it may.
    """

    folder: Path
    workspace: Path
    place: Path
    devices: tuple[str, ...] = ()
    models: dict[str, Manifest] = field(default_factory=dict)
    not_signed: str = ""

    def add_model(self, name: str, bundle: Path) -> None:
        """Move the bundle of a model, which lies in the workspace, into the package.

        Files of artifacts are called after their hash, so that equal ones are stored once, unless
        models with EPContext nodes name them.
        """
        manifest = _leave_out_unread(bundle, read_manifest(bundle))
        artifacts = {path for region in manifest.regions for path in region.artifact_files.values()}
        moved = {
            path: f"{ARTIFACTS_FOLDER}/{entry.sha256}"
            if path in artifacts and not manifest.asked.get("emit")
            else path
            for path, entry in manifest.files.items()
        }
        for path, stored in moved.items():
            target = self.folder / stored
            if not target.exists():  # else another model has these bytes
                target.parent.mkdir(parents=True, exist_ok=True)
                (bundle / path).rename(target)
        self.models[name] = _rename_artifacts(manifest, moved).model_copy(
            update={
                "files": {moved[path]: entry for path, entry in manifest.files.items()},
                "references": _move_references(manifest, bundle, self.place),
            }
        )
        shutil.rmtree(bundle)

    def add_devices(self, devices: Iterable[str]) -> None:
        """Add devices to those that the package is for; raises as `check_devices`."""
        self.devices = tuple(dict.fromkeys((*self.devices, *devices)))
        check_devices(self.devices)

    def take_over(self, source: Path, choose: Callable[[str, Manifest], Manifest | None]) -> None:
        """Put the models of the package at a path into this one, as `choose` gives them; None for none.

        Nothing is compiled. The files share their blocks with those of the source, or are links where
        this package is to take its place. Raises InputError where it is no package.
        """
        with _open_files(source) as (folder, found):
            if not isinstance(found, Package):
                raise _make_kind_error(source)
            maker = judge_signature(read_signature(folder), found.index.digest)
            if not maker.trusted:
                self.not_signed = (
                    f"the package is not signed: what it takes over from {source} may be of somebody "
                    f"whom you do not trust: {maker.reason}"
                )
            self.devices = found.index.devices
            is_same = resolve_path(source) == self.place
            for name, whole in found.models.items():
                chosen = choose(name, whole)
                if chosen is None:
                    continue
                require_trusted_references(Bundle(folder, chosen, given_path=source))
                manifest = _leave_out_unread(folder, chosen)
                for path in manifest.files:
                    _copy_file(folder / path, self.folder / path, may_link=is_same)
                references = _move_references(manifest, source, self.place)
                self.models[name] = manifest.model_copy(update={"references": references})

    def finish(self, sign: bool) -> str:
        """Write the manifest, and sign it; return why it is not signed, empty if there is no reason."""
        self._compact_weights()
        if is_packed_name(self.place) and any(each.references for each in self.models.values()):
            raise InputError(f"{self.place}: refers to files outside, which a packed package cannot")
        for name, manifest in self.models.items():
            write_manifest(self.folder, manifest, name_manifest(name))
        entries = {name: describe_file(self.folder / name_manifest(name)) for name in self.models}
        index = PackageManifest(devices=self.devices, models=entries)
        digest = write_manifest(self.folder, index)
        if self.not_signed:  # nor is it taken for one that was made here
            return self.not_signed if sign else ""
        return sign_folder(self.folder, digest, sign)

    def _compact_weights(self) -> None:
        """Write each weight file anew that holds tensors which no model reads any more.

        One that artifacts know by offsets stays as it is.
        """
        readers = _WeightReaders(self.folder, self.models)
        for name, places in readers.places.items():
            needed = sum(align_offset(length) for _, length in places)
            if name not in readers.fixed and align_offset((self.folder / name).stat().st_size) > needed:
                moved = _rewrite_weights(self.folder / name, sorted(places))
                readers.move_tensors(name, moved)
        changed = {path: describe_file(self.folder / path) for path in readers.changed}
        for name, manifest in self.models.items():
            files = {path: changed.get(path, entry) for path, entry in manifest.files.items()}
            self.models[name] = manifest.model_copy(update={"files": files})


@contextmanager
def stage_package(path: Path) -> Iterator[PackageWriter]:
    """Provide a package to write, which becomes `path` when the block succeeds; as `stage_bundle`."""
    with stage_bundle(path) as folder:
        workspace = folder.with_name("models")
        workspace.mkdir()
        yield PackageWriter(folder, workspace, resolve_path(path))


def reduce_package(
    package: str | Path,
    output: str | Path | None = None,
    *,
    without: Sequence[str] = (),
    device: str | None = None,
    sign: bool = True,
) -> str:
    """Write a package with fewer models, or for one device alone, and compile nothing.

    `package` is the path of a folder or a packed file, which the result replaces unless there is an
    `output`. The models in `without` are left out, and where a `device` is named all variants for
    others, and models that have none for it. Weights and artifacts that nothing reads any more are gone.
    With `sign` the result is signed by this machine, if the package's maker is trusted; returns why it
    is not, empty if it is or was not to be.

    Raises InputError where it is no package, has no such model or device, or nothing would be left.
    """
    check_type("package", package, str | Path)
    check_type("output", output, str | Path | None)
    check_type("without", without, Sequence[str])
    check_type("device", device, str | None)
    left_out = set(without)

    def choose(name: str, manifest: Manifest) -> Manifest | None:
        if name in left_out:
            return None
        return manifest if device is None else _choose_device(manifest, device)

    source = Path(package)
    with stage_package(Path(package if output is None else output)) as writer:
        known = _read_index(source)
        for what, names, there in (
            ("model", left_out, tuple(known.models)),
            ("device", [] if device is None else [device], known.devices),
        ):
            for name in sorted(names):
                if name not in there:
                    near = suggest_nearest(name, there)
                    has = ", ".join(there) or "none: it was made without --for"
                    raise InputError(f"{source}: no {what} '{name}'{near}; it has {has}")
        writer.take_over(source, choose)
        writer.devices = known.devices if device is None else (device,)
        if not writer.models:
            raise InputError(f"{source}: no model would be left, and a package has at least one")
        return writer.finish(sign)


def _read_index(path: Path) -> PackageManifest:
    """Return the manifest of the package at a path, and look at no other file. Raises InputError."""
    found = read_alone(path)
    if not isinstance(found, PackageManifest):
        raise _make_kind_error(path)
    return found


def _make_kind_error(path: Path) -> InputError:
    return InputError(
        f"{path}: is a bundle of one model, not a package: `byoc package` makes one of models"
    )


@dataclass(frozen=True)
class PackageSizes:
    """The models of a package, and the bytes of its files; weights are those in files of their own."""

    models: tuple[str, ...]
    devices: tuple[str, ...]
    bytes: int
    weight_bytes: int

    def describe(self) -> str:
        """Return a sentence with the sizes."""
        size, weights = (format_quantity(each, "B") for each in (self.bytes, self.weight_bytes))
        devices = f" for {', '.join(self.devices)}" if self.devices else ""
        models = "1 model" if len(self.models) == 1 else f"{len(self.models)} models"
        return f"{models}{devices}, {size}, of which {weights} are weights"


def measure_package(path: Path) -> PackageSizes:
    """Return the sizes of the package at a path, as its manifest states them. Raises InputError."""
    index = _read_index(path)
    manifests = (read_only_manifest(path / name)[0] for name in index.models)
    files = {name: entry.bytes for each in manifests for name, entry in each.files.items()}
    weights = (size for name, size in files.items() if name.endswith(f".{WEIGHTS_FILE}"))
    return PackageSizes(tuple(index.models), index.devices, sum(files.values()), sum(weights))


def check_devices(devices: Iterable[str]) -> None:
    """Raise InputError for devices of which variants could not be told apart, by the case or a `_`."""
    names = list(devices)
    same = find_same_paths(names)
    if same is not None:
        raise InputError(f"devices {same[0]} and {same[1]} cannot be told apart on every system")
    for one in names:
        other = next((name for name in names if name.startswith(f"{one}_")), None)
        if other is not None:
            raise InputError(
                f"devices {one} and {other} cannot be told apart: {other} would be a variant of {one}"
            )


def _choose_device(manifest: Manifest, device: str) -> Manifest | None:
    """Return a model's manifest with the variants for a device alone, None where it has none."""
    variants = [
        each for each in manifest.variants if each.name == device or each.name.startswith(f"{device}_")
    ]
    if not variants:
        return None
    # Regions of another device are never `same_as` these: it has other rule files, so another compiler.
    targets = {name for each in variants for name in each.report.targets}
    return manifest.model_copy(
        update={
            "variants": tuple(variants),
            "targets": tuple(name for name in manifest.targets if name in targets),
        }
    )


def _rename_artifacts(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    def rename(region: RegionEntry) -> RegionEntry:
        files = {name: names[path] for name, path in region.artifact_files.items()}
        return region.model_copy(update={"artifact_files": files})

    variants = tuple(
        each.model_copy(update={"regions": tuple(map(rename, each.regions))})
        for each in manifest.variants
    )
    return manifest.model_copy(update={"variants": variants})


def _move_references(manifest: Manifest, before: Path, after: Path) -> dict[str, ReferenceEntry]:
    """Return the files outside that a model refers to, by their paths from another folder."""
    return {
        name: entry.model_copy(
            update={"path": name_path(resolve_path(resolve_path(before) / entry.path), after)}
        )
        for name, entry in manifest.references.items()
    }


def _copy_file(source: Path, target: Path, *, may_link: bool) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if clone_file(source, target):
        return
    if may_link:
        try:
            target.hardlink_to(source)
        except OSError:  # the file system has no links
            pass
        else:
            return
    shutil.copyfile(source, target)


def _list_models(manifest: Manifest) -> Iterator[str]:
    """Yield the files with models of a manifest: those of variants, and of regions."""
    for each in manifest.variants:
        names = (each.model, each.variant.name_file(CONTEXT_MODEL_FILE))
        yield from (name for name in names if name in manifest.files)
    yield from (region.model for region in manifest.regions)


def _leave_out_unread(folder: Path, manifest: Manifest) -> Manifest:
    """Return the manifest of a model without files that none of its variants needs."""
    models = set(_list_models(manifest))
    read = {location for name in models for _, location in _list_external(_read(folder / name))}
    artifacts = {path for region in manifest.regions for path in region.artifact_files.values()}
    decisions = {each.variant.name_file(DECISIONS_FILE) for each in manifest.variants}
    needed = {*models, *read, *artifacts, *decisions}
    return manifest.model_copy(
        update={
            "files": {name: entry for name, entry in manifest.files.items() if name in needed},
            "references": {n: entry for n, entry in manifest.references.items() if n in needed},
        }
    )


def _read(path: Path) -> ModelProto:
    """Return a model without its large weights. Raises InputError for a file that is none."""
    try:
        return onnx.load(path, load_external_data=False)
    except DecodeError:
        raise InputError(f"{path.parent}: {quote_name(path.name)} is not an ONNX model") from None


def _list_external(model: ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    """Yield each tensor that lies in another file, and the file's name."""
    for tensor in walk_tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                yield tensor, entry.value


class _WeightReaders:
    """The tensors that the models of a package read in its weight files.

    `places` has their offsets and lengths by file, `fixed` the files whose offsets artifacts know, and
    `changed` the files that were written anew.
    """

    def __init__(self, folder: Path, models: Mapping[str, Manifest]) -> None:
        """Read all models, in the folder of the package."""
        self.folder = folder
        self.places: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.fixed: set[str] = set()
        self.changed: set[str] = set()
        self._readers: dict[str, set[str]] = defaultdict(set)
        codegens = Codegens()
        for manifest in models.values():
            by_place = {region.model for region in manifest.regions if _knows_offsets(region, codegens)}
            for name in _list_models(manifest):
                for tensor, location in _list_external(_read(folder / name)):
                    if not location.endswith(f".{WEIGHTS_FILE}") or location not in manifest.files:
                        continue
                    place = find_external_data(tensor, folder)
                    if place is None:
                        continue
                    self.places[location].add((place.offset, place.length))
                    self._readers[location].add(name)
                    if name in by_place or manifest.asked.get("emit"):  # drivers know regions by hash
                        self.fixed.add(location)

    def move_tensors(self, file: str, moved: Mapping[int, int]) -> None:
        """Have all models read the tensors of a file at other offsets."""
        for name in self._readers[file]:
            model = _read(self.folder / name)
            for tensor, location in _list_external(model):
                for entry in tensor.external_data if location == file else ():
                    if entry.key == "offset":
                        entry.value = str(moved[int(entry.value)])
            (self.folder / name).unlink()  # it may be a link to that of the package before
            save_model(model, self.folder / name)
        self.changed |= {file, *self._readers[file]}


def _knows_offsets(region: RegionEntry, codegens: Codegens) -> bool:
    """Return whether an artifact may say at which offsets weights lie; one of a codegen not here may."""
    try:
        return bool(getattr(codegens.find(region.codegen), "refers_to_weights", False))
    except InputError:
        return True


def _rewrite_weights(path: Path, places: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Write a weight file anew with the tensors at some places alone; return new offsets by old ones."""
    moved: dict[int, int] = {}
    fresh = path.with_name(f"{path.name}.new")
    with path.open("rb") as source, fresh.open("wb") as target:
        for offset, length in places:
            target.write(bytes(align_offset(target.tell()) - target.tell()))
            moved[offset] = target.tell()
            source.seek(offset)
            left = length
            while left and (block := source.read(min(left, _BLOCK))):
                target.write(block)
                left -= len(block)
    fresh.replace(path)
    return moved
