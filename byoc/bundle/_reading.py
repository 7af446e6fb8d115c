"""Reading of bundles: a checked manifest, the partitioned model, regions and artifacts."""

import hashlib
import os
import weakref
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from byoc._dataclasses import asdict, dataclass, field, replace
from byoc.boundary.contracts import RegionContracts
from byoc.bundle._decisions import DECISIONS_FILE, DecisionDocument, read_decisions
from byoc.bundle._manifest import (
    MANIFEST_FILE,
    FileEntry,
    Manifest,
    PackageManifest,
    RegionEntry,
    VariantEntry,
    entry_to_contract,
)
from byoc.bundle._manifest_reading import (
    FolderReader,
    check_file_entry,
    choose_model,
    read_manifest,
    read_manifest_alone,
    resolve_inside,
    split_path,
)
from byoc.bundle._original_weights import find_references, open_whole_folder
from byoc.bundle._packing import (
    NO_CONSENT,
    Consent,
    choose_packed_model,
    judge_maker,
    judge_trust,
    read_packed_manifest,
    read_signature,
    require_trusted_references,
    unpack_bundle,
)
from byoc.codegen import (
    UNLESS_TRUSTED,
    Artifact,
    Codegens,
    Isolation,
    Region,
    find_disagreement,
    quote_name,
    read_region,
    read_stored_contracts,
    region_structure,
)
from byoc.errors import InputError, suggest_nearest
from byoc.model import check_model, walk_tensors
from byoc.support import (
    check_type,
    describe_missing_file,
    make_temporary_folder,
    remove_temporary_folder,
)
from byoc.support.trust import Trust


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle on disk whose files all match their hashes.

    `folder` has all of its files. It is temporary, and removed with this object, where the bundle was
    unpacked or refers to files outside, so keep the object as long as its regions are used. `packed` is
    the zip that was unpacked, None for a folder, whose path as given by the user is `given_path`.
    `codegens` finds those that load its artifacts, and `consent` is
    what the user allows them to execute. Unless files are `hashed`, those of artifacts are compared with
    their hashes when they are read. `just_compiled` says that its artifacts were made here and now,
    so that one which does not fit this machine is for another.

    Models, regions and decisions are those of a `variant`: the one called `chosen`, or the only one, or
    the one with sizes where byoc chose these by itself.
    `variants` has an object for each, with this one as its `whole`.
    """

    folder: Path
    manifest: Manifest
    packed: Path | None = None
    given_path: Path | None = None
    codegens: Codegens = field(default_factory=Codegens)
    consent: Consent = NO_CONSENT
    just_compiled: bool = False
    hashed: bool = True
    chosen: str | None = None
    whole: "Bundle | None" = None
    judged_makers: list[Trust] = field(default_factory=list)
    """What was judged of its maker: nothing, or one Trust, which holds as long as it is open."""

    def __repr__(self) -> str:
        """Return the path of the bundle, and its chosen variant."""
        chosen = f", variant={self.chosen!r}" if self.chosen else ""
        return f"Bundle({str(self.display_path)!r}{chosen})"

    @property
    def variant(self) -> VariantEntry:
        """The variant that this object is for. Raises InputError where several are not chosen from."""
        entries = self.manifest.variants
        if self.chosen is None and (len(entries) == 1 or entries[0].automatic):
            return entries[0]
        found = next((entry for entry in entries if entry.name == self.chosen), None)
        if found is not None:
            return found
        names = ", ".join(entry.name for entry in entries)
        if self.chosen is None:
            raise InputError(
                f"{self.display_path}: has several variants, and this takes one: give --variant (in "
                f"Python variant=) one of {names}"
            )
        near = suggest_nearest(self.chosen, [entry.name for entry in entries])
        there = f"it has {names}" if names else "it has no variants"
        raise InputError(f"{self.display_path}: no variant '{self.chosen}'{near}; {there}")

    @property
    def variants(self) -> tuple["Bundle", ...]:
        """This bundle for each of its variants; the one that is chosen, where one is."""
        if self.chosen is not None or len(self.manifest.variants) == 1:
            return (self,)
        return tuple(self.choose(entry.name) for entry in self.manifest.variants)

    def choose(self, variant: str) -> "Bundle":
        """Return this bundle for one of its variants. Raises InputError for one that it has not."""
        check_type("variant", variant, str)
        found = replace(self, chosen=variant, whole=self.whole or self)
        _ = found.variant
        return found

    @property
    def display_path(self) -> Path:
        """The path that was opened, for error messages."""
        return self.packed or self.given_path or self.folder

    def model(self) -> onnx.ModelProto:
        """Return the partitioned model, its weights left in the bundle's weight file."""
        return self._read_model(self.variant.model)

    def decisions(self) -> DecisionDocument | None:
        """Return the decisions node by node, None where the bundle holds none.

        Raises InputError when they are not as byoc writes them.
        """
        name = self.variant.variant.name_file(DECISIONS_FILE)
        if name not in self.manifest.files:
            return None
        return read_decisions(resolve_inside(self.folder, name, self.display_path), self.display_path)

    def regions(self) -> list[tuple[str, Region, Artifact]]:
        """Return (codegen name, region, artifact) for each region, in order of execution.

        A region in `identical_regions` has the artifact of the earlier region it is identical to, which
        contains that region's names.
        """
        found: list[tuple[str, Region, Artifact]] = []
        twins = self.identical_regions
        firsts: dict[str, tuple[str, Region, Artifact]] = {}
        for entry in self.variant.regions:
            first = twins.get(entry.name, entry.name)
            if first not in firsts:
                firsts[first] = self.open_compiled(first)
            _, own, artifact = firsts[first]
            region = own if first == entry.name else self._read_region(entry)
            if region is not own and region_structure(region) != region_structure(own):
                raise self._twin_error(entry)
            found.append((entry.codegen, region, artifact))
        return found

    def open_compiled(self, name: str) -> tuple[str, Region, Artifact]:
        """Return (codegen name, region, artifact) for a region of any variant that has its own artifact.

        The first of identical regions may be one of an earlier variant.
        """
        entry = next(entry for entry in self.manifest.regions if entry.name == name)
        files = {name: self._read_artifact(path) for name, path in entry.artifact_files.items()}
        return entry.codegen, self._read_region(entry), Artifact(files, entry.artifact_metadata)

    def _read_artifact(self, name: str) -> bytes:
        """Return a file of an artifact. Raises InputError for one that is changed."""
        content = resolve_inside(self.folder, name, self.display_path).read_bytes()
        if not self.hashed:
            found = FileEntry(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
            check_file_entry(self.display_path, name, found, self.manifest.files[name])
        return content

    def _read_region(self, entry: RegionEntry) -> Region:
        contracts = self._read_contracts(entry, self._read_model(entry.model))
        path = resolve_inside(self.folder, entry.model, self.display_path)
        return read_region(path, entry.name, entry.target, contracts)

    def check_regions(self) -> None:
        """Raise InputError unless the models of all variants, and their regions, are as described."""
        for each in self.variants:
            each.model()
            each.regions()  # their models bear out their contracts

    @property
    def identical_regions(self) -> Mapping[str, str]:
        """Regions identical to an earlier one except for names, mapped to that region's name.

        The earlier one's executor runs them too, inputs and outputs by position. Raises InputError when
        the manifest names no such region.
        """
        found = {}
        earlier: dict[str, RegionEntry] = {}
        for entry in self.manifest.regions:
            if not entry.same_as:
                earlier[entry.name] = entry
                continue
            own = earlier.get(entry.same_as)
            if own is None or (own.target, own.codegen) != (entry.target, entry.codegen):
                raise self._twin_error(entry)
            found[entry.name] = own.name
        return found

    def _twin_error(self, entry: RegionEntry) -> InputError:
        what = f"it is not the same as {quote_name(entry.same_as)}"
        return InputError(f"{self.display_path / MANIFEST_FILE}: regions: {entry.name}: {what}")

    def _read_contracts(self, entry: RegionEntry, model: onnx.ModelProto) -> RegionContracts:
        """Return a region's contracts. Raises InputError when its `model` contradicts them."""
        try:
            found = read_stored_contracts(model, self.folder, entry.weight_layout)
            inputs, outputs = (tuple(map(entry_to_contract, e)) for e in (entry.inputs, entry.outputs))
            contracts = RegionContracts(inputs, outputs, entry.list_constants(found.constants))
            wrong = find_disagreement(contracts, found)
        except (ValueError, LookupError, TypeError):  # an invalid layout; a node without its attribute
            wrong = entry.name
        except InputError as error:  # a node that no runtime executes
            raise InputError(f"{self.display_path}: {quote_name(entry.model)}: {error}") from None
        if wrong:
            what = f"{quote_name(wrong)} is not as the region's model has it"
            raise InputError(f"{self.display_path / MANIFEST_FILE}: regions: {entry.name}: {what}")
        return contracts

    def _read_model(self, name: str) -> onnx.ModelProto:
        """Read a model of the bundle.

        Raises InputError for weights outside the files with a hash, and for a model that is not valid.
        """
        try:
            proto = onnx.load(
                resolve_inside(self.folder, name, self.display_path), load_external_data=False
            )
        except DecodeError:
            raise InputError(f"{self.display_path}: {quote_name(name)} is not an ONNX model") from None
        for tensor in walk_tensors(proto):
            places = [entry.value for entry in tensor.external_data if entry.key == "location"]
            if not places and tensor.data_location == TensorProto.EXTERNAL:
                places = [""]
            for place in places:
                if place not in self.manifest.files and place not in self.manifest.references:
                    raise InputError(
                        f"{self.display_path}: the file {quote_name(place)} has no hash "
                        f"in {MANIFEST_FILE}"
                    )
        try:
            check_model(proto, self.folder)
        except InputError as error:
            raise InputError(f"{self.display_path}: {quote_name(name)}: {error}") from None
        return proto


def is_bundle(path: Path) -> bool:
    """Return whether a path may be a bundle rather than a model: a folder or a zip, or in a package."""
    whole, _ = split_path(path)
    try:
        return whole.is_dir() or (whole.is_file() and zipfile.is_zipfile(whole))
    except (OSError, ValueError):  # no file can have this name
        return False


def list_models(path: Path) -> list[Path]:
    """Return the paths of the models of the package in a folder or zip; the path alone for all else.

    Raises InputError for a bundle or package whose manifest cannot be read.
    """
    if not (path / MANIFEST_FILE).is_file() and not (path.is_file() and zipfile.is_zipfile(path)):
        return [path]
    found = read_alone(path)
    return [path] if isinstance(found, Manifest) else [path / name for name in found.models]


def inspect(bundle: str | Path, *, trust: bool = False) -> dict[str, Any]:
    """Return the manifest of a `bundle` at a path as plain data: `byoc inspect --format json`.

    It has what was asked for, the report, the regions with their boundary tensors, and the size (bytes)
    and hash of every file; under `trust` also who signed the bundle, and whether that key is trusted.
    Files outside to which it refers are checked where its maker is trusted, or with `trust`.
    Raises InputError when it is not a complete bundle, or a file or contract is not as it was written.
    """
    check_type("bundle", bundle, str | Path)
    path = Path(bundle)
    models = [open_bundle(each, trust=trust) for each in list_models(path)]
    for each in models:
        each.check_regions()
    return describe_models(path, models)


def describe_models(path: Path, models: Sequence[Bundle]) -> dict[str, Any]:
    """Return what `inspect` says of the bundle or package at a path, whose models are open."""
    trusted = {"trust": asdict(judge_maker(models[0]))}
    documents = {each.display_path.name: each.manifest.model_dump(mode="json") for each in models}
    if models[0].display_path == path:
        return documents[path.name] | trusted
    found = read_alone(path)
    return {**found.model_dump(mode="json"), "models": documents, **trusted}


def judge_path(path: Path) -> Trust:
    """Return whether the maker of a bundle or package is trusted; raises as `open_own_files`.

    Of a package the files of all models are looked at. There is one signature.
    """
    *_, judged = (judge_maker(open_own_files(each)) for each in list_models(path))
    return judged


def read_only_manifest(path: str | Path) -> tuple[Manifest, bytes | None]:
    """Return the manifest of the bundle in a folder or zip, and its signature, None for none.

    No other file is looked at.
    Raises InputError when there is none, or it is not one of a bundle.
    """
    check_type("path", path, str | Path)
    path = Path(path)
    whole, _ = split_path(path)
    if whole.is_dir():
        found = read_manifest_alone(whole)
        return choose_model(found, path, FolderReader(whole)), read_signature(whole)
    if not whole.is_file():
        raise InputError(describe_missing_file(path, "bundle"))
    return choose_packed_model(path)


def read_alone(path: Path) -> Manifest | PackageManifest:
    """Return the manifest of the bundle or package in a folder or zip.

    No other file is looked at. Raises InputError.
    """
    if path.is_dir():
        return read_manifest_alone(path)
    if not path.is_file():
        raise InputError(describe_missing_file(path, "bundle"))
    return read_packed_manifest(path)[0]


def open_own_files(path: Path) -> Bundle:
    """Open the bundle at a path for its manifest and its own files; no file outside is looked at.

    So nobody has to trust its maker, and its models are not whole where it refers to weights. Raises
    InputError unless it is complete and all of its own files are as the manifest says.
    """
    whole, _ = split_path(path)
    if not whole.is_dir():
        return open_bundle(path)  # a packed one refers to nothing
    return Bundle(whole.absolute(), read_manifest(path), None, path)


def open_bundle(  # noqa: PLR0913 - each has a default
    path: str | Path,
    isolation: Isolation | None = UNLESS_TRUSTED,
    *,
    trust: bool = False,
    codegens: Iterable[str] | str | None = None,
    variant: str | None = None,
    hash_artifacts: bool = True,
) -> Bundle:
    """Open the bundle in a folder or zip at `path`, or one `variant` of it.

    `app.byoc/detector` is the model `detector` in the package `app.byoc`.

    With `isolation` its codegens run in worker processes, by default unless its maker is trusted; with
    None in this process. With `trust` it is trusted, and so may run native code and refer to files
    outside, whoever made it.
    `codegens` names those that may load its regions, by default all. Without `hash_artifacts` the hash
    of an artifact is compared when it is read, so that those for other accelerators take no time.
    Raises InputError unless it is complete and unchanged.
    """
    check_type("path", path, str | Path)
    opened = _open(Path(path), isolation, Consent.of(trust, codegens), hash_artifacts=hash_artifacts)
    return opened if variant is None else opened.choose(variant)


def open_staged_bundle(folder: Path, destination: Path) -> Bundle:
    """Open the bundle in a folder that is to become `destination`; raises as `open_bundle`."""
    return _open(folder, UNLESS_TRUSTED, NO_CONSENT, destination)


def _open(
    path: Path,
    isolation: Isolation | None,
    consent: Consent,
    destination: Path | None = None,
    hash_artifacts: bool = True,
) -> Bundle:
    """Open the bundle at a path; a folder's references are those of a bundle at `destination`, if given.

    Raises as `open_bundle`.
    """
    whole, _ = split_path(path)
    if not whole.is_dir() and not whole.is_file():
        raise InputError(describe_missing_file(path, "bundle"))
    with ExitStack() as stack:  # leaves nothing behind, even after an interrupt
        if whole.is_file():
            folder = make_temporary_folder()
            stack.callback(remove_temporary_folder, folder)
            bundle = Bundle(folder, unpack_bundle(path, folder), path, consent=consent)
        else:
            manifest = read_manifest(path, hash_artifacts)
            # Absolute: a codegen may change the working directory.
            bundle = Bundle(whole.absolute(), manifest, None, path, consent=consent)
            bundle = replace(bundle, hashed=hash_artifacts)
            if destination is None:
                require_trusted_references(bundle)
            if references := find_references(manifest, destination or whole, path):
                complete = open_whole_folder(whole, manifest, references, path)
                bundle = replace(bundle, folder=stack.enter_context(complete))
        bundle = _choose_processes(bundle, isolation)
        weakref.finalize(bundle, _close, stack.pop_all(), os.getpid())
    return bundle


def _choose_processes(bundle: Bundle, isolation: Isolation | None) -> Bundle:
    """Return a bundle whose codegens are found in worker processes where `isolation` asks for that."""
    if isolation is not None and isolation.unless_trusted and judge_trust(bundle).trusted:
        isolation = None
    return replace(bundle, codegens=Codegens(isolation))


def _close(stack: ExitStack, process: int) -> None:
    if os.getpid() == process:  # a forked process has the object, too, but does not own the folder
        stack.close()
