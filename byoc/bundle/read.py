"""Reading a bundle back: checked manifest, partitioned model, regions and artifacts."""

import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from byoc.boundary.inside import Contracts
from byoc.bundle.contracts import as_contract
from byoc.bundle.manifest import NAME, Manifest, RegionEntry, inside, read_manifest
from byoc.bundle.names import quoted
from byoc.bundle.regions import disagreement, read_region
from byoc.bundle.unpack import unpack
from byoc.codegen import Artifact, Region
from byoc.codegen.fingerprint import structure
from byoc.errors import InputError
from byoc.graph.walk import not_text, walk_tensors


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle on disk whose files are all as they were written.

    `packed` is the file that it was taken out of, None for a folder; `folder` is then a temporary one
    that is removed with this object, so keep it for as long as a region of it is used. `called` is what
    the user called a folder.
    """

    folder: Path
    manifest: Manifest
    packed: Path | None = None
    called: Path | None = None

    @property
    def place(self) -> Path:
        """What sentences call it: the folder or the file that was opened."""
        return self.packed or self.called or self.folder

    def model(self) -> onnx.ModelProto:
        """Return the partitioned model, its weights left in the bundle's weight file."""
        return self._read(self.manifest.model)

    def regions(self) -> list[tuple[str, Region, Artifact]]:
        """Return each region's codegen, region and artifact, in order of execution.

        The artifact of a region in `twins` is that of the region it is the same as, whose names are
        those in it.
        """
        found: list[tuple[str, Region, Artifact]] = []
        twins = self.twins
        for entry in self.manifest.regions:
            self._read(entry.model)
            path = inside(self.folder, entry.model, self.place)
            contracts = self._contracts(entry, path)
            region = read_region(path, entry.name, entry.target, contracts)
            if entry.name in twins:
                own = next(own for own in found if own[1].name == twins[entry.name])
                if structure(region) != structure(own[1]):
                    raise self._wrong_twin(entry)
                found.append((entry.codegen, region, own[2]))
                continue
            files = {
                name: inside(self.folder, path, self.place).read_bytes()
                for name, path in entry.artifact_files.items()
            }
            found.append((entry.codegen, region, Artifact(files, entry.artifact_metadata)))
        return found

    @property
    def twins(self) -> Mapping[str, str]:
        """The regions that are the same as an earlier one but for names, to the name of that one.

        What runs the earlier one runs them too, inputs and outputs by position. Raises InputError when
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
                raise self._wrong_twin(entry)
            found[entry.name] = own.name
        return found

    def _wrong_twin(self, entry: RegionEntry) -> InputError:
        what = f"it is not the same as {quoted(entry.same_as)}"
        return InputError(f"{self.place / NAME}: regions: {entry.name}: {what}")

    def _contracts(self, entry: RegionEntry, path: Path) -> Contracts:
        """Return the contracts of a region, which its model has to bear out."""
        told = (entry.inputs, entry.outputs, entry.constants)
        try:
            contracts = Contracts(*(tuple(map(as_contract, entries)) for entries in told))
            wrong = disagreement(path, contracts)
        except (ValueError, LookupError, TypeError):  # no layout, a node without its attribute
            wrong = entry.name
        if wrong:
            what = f"{quoted(wrong)} is not as the region's model has it"
            raise InputError(f"{self.place / NAME}: regions: {entry.name}: {what}")
        return contracts

    def _read(self, name: str) -> onnx.ModelProto:
        """Return a model of the bundle, all of whose weights lie in files that have a hash."""
        try:
            proto = onnx.load(inside(self.folder, name, self.place), load_external_data=False)
        except DecodeError:
            raise InputError(f"{self.place}: {quoted(name)} is not an ONNX model") from None
        wrong = not_text(proto)
        if wrong:
            raise InputError(f"{self.place}: {quoted(name)} is not an ONNX model: {wrong} is not text")
        for tensor in walk_tensors(proto):
            places = [entry.value for entry in tensor.external_data if entry.key == "location"]
            if not places and tensor.data_location == TensorProto.EXTERNAL:
                places = [""]
            for place in places:
                if place not in self.manifest.files:
                    raise InputError(f"{self.place}: the file {quoted(place)} has no hash in {NAME}")
        return proto


def is_bundle(path: Path) -> bool:
    """Return whether a path can be that of a bundle and not of a model: a folder, or a zip."""
    return path.is_dir() or (path.is_file() and zipfile.is_zipfile(path))


def open_bundle(path: Path) -> Bundle:
    """Return the bundle in a folder or in a packed file. Raises InputError unless it is a whole one."""
    if path.is_dir():
        # Absolute: a codegen's code may change the working directory.
        return Bundle(path.absolute(), read_manifest(path), called=path)
    if not path.is_file():
        raise InputError(f"{path}: no such bundle")
    folder = Path(tempfile.mkdtemp(prefix="byoc-"))
    try:
        bundle = Bundle(folder, unpack(path, folder), path)
    except BaseException:  # an interrupt too must leave nothing behind
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(bundle, _remove, folder, os.getpid())
    return bundle


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a fork has the object, too, but not the folder
        shutil.rmtree(folder, ignore_errors=True)
