"""The weights of a bundle: one file for all models, files linked into it or referred to.

Only bytes that stand in the user's files as they are can be shared. What byoc makes is in the bundle's
own weight file, and so is what the model holds itself.
"""

import copy
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import onnx
from onnx import ModelProto, TensorProto

from byoc._dataclasses import dataclass, field
from byoc.bundle._manifest import MANIFEST_FILE, Manifest, describe_file
from byoc.bundle._report import Sharing
from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.model import (
    ExternalData,
    Model,
    Variant,
    copy_without,
    embed_external_data,
    find_external_data,
    is_large,
    walk_tensors,
    write_raw_bytes,
)
from byoc.support import clone_file, is_utf8, open_workspace, resolve_path
from byoc.support.trust import SIGNATURE_FILE

FileCopy = Literal["reflink", "hard link", "copy"]
"""What a file at another path is: it shares the blocks of the first, is the same file, or a copy."""

_NAME = "original_weights"
_MOST_LEVELS_UP = 3
"""A file is named relative to the bundle where so many folders up lead to a common one."""
_LEAST_ALIGNMENT = 8
"""In bytes: bytes that are found by their content may be of another dtype than the user's tensor."""


@dataclass(eq=False)
class OriginalFiles:
    """The user's files whose weights a bundle shares, as files of the bundle's folder.

    The bundle is written in `folder`, and `bundle` is where it will be. A user's file appears in
    `folder`, under a name of the bundle's, when a weight in it is first found; so do files of the other
    models of a package, of which this one is called `component`.
    """

    folder: Path
    bundle: Path
    sharing: Sharing
    component: str = ""
    _names: dict[Path, str] = field(default_factory=dict)
    """The names in `folder` of the user's files that are there."""
    _package: Path | None = None
    """The folder of the package's other models; files keep the names that they have there."""
    _is_hard_linked: bool = False
    """Whether one of these is a hard link."""
    _tensors: dict[int, dict[tuple[Path, int], tuple[TensorProto, Path | None]]] = field(
        default_factory=dict
    )
    """The tensors in these files, and their models' folders, by length in bytes, file, and offset."""
    _digests: dict[int, dict[bytes, ExternalData]] = field(default_factory=dict)
    """The places of these tensors by length and SHA-256, for the lengths that were asked for."""

    def add_model(self, model: Model) -> None:
        """Add the files with a model's large weights, none where they are in the model itself."""
        if self.sharing != "copy" and model.heavy is None:
            self._add_tensors(model.structure.graph.initializer, model.folder)

    def add_package(self, folder: Path) -> None:
        """Add the weights of a package's models in a folder."""
        self._package = folder
        for path in sorted(folder.glob("*.onnx")):
            tensors = onnx.load(path, load_external_data=False).graph.initializer
            here = [each for each in tensors if _is_beside(each, folder)]
            self._add_tensors(here, folder)

    def _add_tensors(self, tensors: Iterable[TensorProto], folder: Path | None) -> None:
        known: dict[str, Path] = {}
        for tensor in tensors:
            external = find_external_data(tensor, folder, known)
            if external is not None and is_large(tensor):
                same_length = self._tensors.setdefault(external.length, {})
                same_length[external.path, external.offset] = tensor, folder

    def find(self, external: ExternalData | None) -> ExternalData | None:
        """Find a tensor in the shared files, by its file, offset and length.

        The result has a file's name in the folder, and the offset and length there in bytes. Returns
        None for a tensor that is in no file, or in none that is shared. Raises as `place_file`.
        """
        if external is None:
            return None
        known = (external.path, external.offset) in self._tensors.get(external.length, {})
        return self._place(external) if known else None

    def find_equal(self, length: int, digest: bytes) -> ExternalData | None:
        """Find bytes in the shared files by their number and SHA-256; returns and raises as `find`."""
        if length not in self._digests:
            self._digests[length] = self._hash_tensors(length)
        found = self._digests[length].get(digest)
        return None if found is None else self._place(found)

    def _hash_tensors(self, length: int) -> dict[bytes, ExternalData]:
        found: dict[bytes, ExternalData] = {}
        for (path, offset), (tensor, folder) in self._tensors.get(length, {}).items():
            if offset % _LEAST_ALIGNMENT == 0:
                digest = hashlib.sha256()
                write_raw_bytes(tensor, folder, digest.update)
                found.setdefault(digest.digest(), ExternalData(path, offset, length))
        return found

    def _place(self, external: ExternalData) -> ExternalData:
        """Return the file, offset and length in the bundle's folder; place the file there at first."""
        if external.path.parent == self._package:
            own = self.folder / external.path.name
            if not own.exists():
                place_file(external.path, own, may_copy=True)
            return ExternalData(own, external.offset, external.length)
        name = self._names.get(external.path)
        if name is None:
            numbered = (f"{_NAME}_{number}.bin" for number in count(1))
            name = self.choose_name(Variant(component=self.component), numbered)
            may_copy = self.sharing == "reference"
            how = place_file(external.path, self.folder / name, may_copy=may_copy)
            self._is_hard_linked |= how == "hard link"
            self._names[external.path] = name
        return ExternalData(Path(name), external.offset, external.length)

    def choose_name(self, variant: Variant, names: Iterable[str]) -> str:
        """Return the first name of a variant's file that no file here has, nor one of the package.

        There it may have belonged to a model of this name that was removed.
        """
        folders = [self.folder, *filter(None, [self._package])]
        return next(
            name
            for name in map(variant.name_file, names)
            if not any((folder / name).exists() for folder in folders)
        )

    @property
    def references(self) -> Mapping[str, str]:
        """The paths by which the bundle refers to the user's files, by their names in its folder."""
        if self.sharing != "reference":
            return {}
        return {name: name_path(source, self.bundle) for source, name in self._names.items()}

    def remove_references(self) -> None:
        """Remove the files that the bundle refers to from its folder."""
        for name in self.references:
            (self.folder / name).unlink()

    def describe(self) -> str:
        """Return a sentence on what is shared; empty where everything is copied."""
        if self.sharing == "copy":
            return ""
        if not self._names:
            places = [place for same in self._tensors.values() for place, _ in same]
            is_beside = any(place.parent != self._package for place in places)
            how = "are all changed" if is_beside else "are not in files beside the model"
            return f"--weights {self.sharing}: weights {how}, so they are copied"
        paths = ", ".join(f"'{path}'" for path in self._names)
        if self.sharing == "reference":
            return f"the bundle refers to {paths}, which it needs as it is, where it is"
        if self._is_hard_linked:
            return f"{paths} is linked into the bundle: onnx.load refuses a file with several hard links"
        return f"the bundle shares the blocks of {paths} (a reflink)"


def _is_beside(tensor: TensorProto, folder: Path) -> bool:
    """Return whether the file of a tensor's data is in its package, which may refer to it elsewhere."""
    names = [entry.value for entry in tensor.external_data if entry.key == "location"]
    return bool(names) and (folder / names[0]).is_file()


def name_path(source: Path, bundle: Path) -> str:
    """Return the path of a file from a bundle's folder where it is near, else the absolute one.

    Raises InputError for one that a manifest, which is text, cannot have.
    """
    try:
        relative = Path(os.path.relpath(source, bundle))
    except ValueError:  # another drive
        return source.as_posix()
    near = relative.parts.count("..") <= _MOST_LEVELS_UP
    name = relative.as_posix() if near else source.as_posix()
    if not is_utf8(name):
        raise InputError(
            f"--weights reference: '{name}' is not UTF-8 text, so no bundle can name it; take --weights "
            "copy or link"
        )
    return name


def place_file(source: Path, target: Path, *, may_copy: bool) -> FileCopy:
    """Let a file appear at another path, and return how: share its blocks, else link it, else copy it.

    Raises InputError, which names `--weights link`, instead of copying without `may_copy`; OSError where
    the file cannot be read, or copied.
    """
    if clone_file(source, target):
        return "reflink"
    try:
        os.link(source, target)
    except OSError as error:
        if may_copy:
            shutil.copyfile(source, target)
            return "copy"
        reason = error.strerror or error
        if error.errno == errno.EXDEV:
            reason = "it is on another file system than the bundle"
        raise InputError(
            f"--weights link: '{source}' cannot be linked into the bundle: {reason}; take --weights "
            "copy or reference"
        ) from None
    return "hard link"


# The weights of a bundle: one file for all of its models, with equal weights stored once.

WEIGHTS_FILE = "weights.bin"
# In bytes: enough for any vector load from a memory-mapped file.
_ALIGNMENT = 64


def align_offset(offset: int) -> int:
    """Return the first offset from there on, in bytes, at which a tensor may begin in a weight file."""
    return offset + -offset % _ALIGNMENT


class WeightFile:
    """A writer of tensors to `weights.bin` in a folder; use as a context manager, as often as needed.

    Tensors of equal bytes are stored once, whatever their names, types and models; those that stand in
    the user's files, which the bundle shares, not at all.
    """

    def __init__(self, folder: Path, originals: OriginalFiles | None = None) -> None:
        """Write to the file in a folder, which is made when it is first needed."""
        self.folder = folder
        self._path = folder / WEIGHTS_FILE
        self._stored: dict[bytes, ExternalData] = {}
        self._moved: dict[tuple[Path, int, int], ExternalData] = {}
        self.originals = originals or OriginalFiles(folder, folder, "copy")

    def begin_file(self, variant: Variant) -> "WeightFile":
        """Return a writer to a variant's own file; what is in this one is not stored again."""
        result = copy.copy(self)
        names = (f"{number}.{WEIGHTS_FILE}" for number in count(2))
        name = self.originals.choose_name(variant, chain([WEIGHTS_FILE], names))
        result._path = self.folder / name
        return result

    def __enter__(self) -> Self:
        """Open the file, and return itself."""
        self._file = self._path.open("ab")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def add(
        self, tensor: TensorProto, folder: Path | None, known: dict[str, Path] | None = None
    ) -> TensorProto:
        """Move a tensor's data into the file and return the tensor; `folder` holds its external data.

        `known` is as in `byoc.model.find_external_data`.
        """
        place = self._find_moved(tensor, folder, known)
        moved = TensorProto(
            name=tensor.name,
            data_type=tensor.data_type,
            dims=tensor.dims,
            doc_string=tensor.doc_string,
            data_location=TensorProto.EXTERNAL,
        )
        moved.metadata_props.extend(tensor.metadata_props)
        fields = {"location": place.path.name, "offset": place.offset, "length": place.length}
        for key, value in fields.items():
            moved.external_data.add(key=key, value=str(value))
        return moved

    def _find_moved(
        self, tensor: TensorProto, folder: Path | None, known: dict[str, Path] | None
    ) -> ExternalData:
        """Return the new location of a tensor's data; what variants read of one file is read once."""
        own = find_external_data(tensor, folder, known)
        if own is None:
            return self._write(tensor, folder)
        key = own.path, own.offset, own.length
        if key not in self._moved:
            self._moved[key] = self.originals.find(own) or self._write(tensor, folder)
        return self._moved[key]

    def _write(self, tensor: TensorProto, folder: Path | None) -> ExternalData:
        """Write a tensor's bytes, and return where they are.

        They are hashed while they are written, since external data may be too large for memory; bytes
        that are there already are cut off again.
        """
        before = self._file.tell()
        self._file.write(bytes(align_offset(before) - before))
        offset = self._file.tell()
        hashed = hashlib.sha256()

        def write(block: bytes | memoryview) -> None:
            hashed.update(block)
            self._file.write(block)

        length = write_raw_bytes(tensor, folder, write)
        digest = hashed.digest()
        found = self._stored.get(digest) or self.originals.find_equal(length, digest)
        if found is not None:
            self._file.truncate(before)
            self._file.seek(before)
        self._stored[digest] = found or ExternalData(self._path, offset, length)
        return self._stored[digest]


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
    embed_external_data(walk_tensors(result), folder)
    known: dict[str, Path] = {}
    for name, tensor in [*((t.name, t) for t in model.graph.initializer), *lifted]:
        moved = weights.add(tensor, folder, known) if is_large(tensor) else _embed(tensor, folder)
        result.graph.initializer.add().CopyFrom(moved)
        result.graph.initializer[-1].name = name
    return result


def _embed(tensor: TensorProto, folder: Path | None) -> TensorProto:
    if tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    result = TensorProto()
    result.CopyFrom(tensor)
    embed_external_data((result,), folder)
    return result


# Files outside of a bundle that its manifest refers to: found, checked, placed beside the others.
#
# No reader of ONNX's external data follows a path out of a model's folder, nor a symbolic link, so
# a bundle with references is opened in a hidden folder in which all of its files appear.


def find_references(manifest: Manifest, bundle: Path, shown: Path) -> dict[str, Path]:
    """Return the files that a bundle at a path refers to, by their names in its folder.

    Errors call the bundle `shown`. Raises InputError for a file that is not there, or not as it was.
    """
    found = {}
    for name, entry in manifest.references.items():
        what = f"{shown}: the weights that it refers to, {quote_name(entry.path)},"
        try:
            path = resolve_path(resolve_path(bundle) / entry.path)
            if not path.is_file():
                raise InputError(f"{what} are not there: the file was moved or removed")
            size = path.stat().st_size
            changed = "size" if size != entry.bytes else ""
            if not changed and describe_file(path).sha256 != entry.sha256:
                changed = "hash"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no file can have this name"
            raise InputError(f"{what} cannot be read: {reason}") from None
        if changed:
            raise InputError(
                f"{what} are not as they were when the bundle was written: the {changed} differs"
            )
        found[name] = path
    return found


@contextmanager
def open_whole_folder(
    bundle: Path, manifest: Manifest, references: Mapping[str, Path], shown: Path
) -> Iterator[Path]:
    """Provide a folder with all files of a bundle, those that it refers to as well.

    They share blocks with the others or are links where one file system holds both, else copies. Raises
    InputError, which calls the bundle `shown`, where the folder cannot be made.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(open_workspace(_choose_place(bundle, references))) / "bundle"
            folder.mkdir()
            for name, source in _list_files(bundle, manifest, references):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                place_file(source, target, may_copy=True)
        except OSError as error:
            raise InputError(
                f"{shown}: its files cannot be put into one folder: {error.strerror or error}"
            ) from None
        yield folder


def _choose_place(bundle: Path, references: Mapping[str, Path]) -> Path:
    """Return a folder for all files: where they are on one file system, so that none is copied."""
    temporary = Path(tempfile.gettempdir())
    devices = {path.stat().st_dev for path in references.values()}
    for place in (temporary, resolve_path(bundle).parent):
        if {place.stat().st_dev} == devices and os.access(place, os.W_OK):
            return place
    return temporary


def _list_files(
    bundle: Path, manifest: Manifest, references: Mapping[str, Path]
) -> Iterator[tuple[str, Path]]:
    """Yield the name of each file of a bundle, and where it is."""
    yield from references.items()
    for name in (*manifest.files, MANIFEST_FILE, SIGNATURE_FILE):
        if (bundle / name).is_file():
            yield name, bundle / name
