"""The user's own weights in a bundle: files of external data that are linked into it, or referred to.

Only bytes that stand in the user's files as they are can be shared. What byoc makes is in the bundle's
own weight file, and so is what the model holds itself.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from onnx import TensorProto

from byoc.errors import InputError
from byoc.model import ExternalData, Model, find_external_data, is_large, write_raw_bytes
from byoc.support import clone_file, is_utf8

Sharing = Literal["copy", "link", "reference"]
"""What a bundle does with weights in the user's files: copy them, link the files, or refer to them."""

FileCopy = Literal["reflink", "hard link", "copy"]
"""What a file at another path is: it shares the blocks of the first, is the same file, or a copy."""

_NAME = "original_weights"
_MOST_LEVELS_UP = 3
"""A file is named relative to the bundle where so many folders up lead to a common one."""
_ALIGNMENT = 8
"""In bytes: bytes that are found by their content may be of another dtype than the user's tensor."""


@dataclass(eq=False)
class OriginalFiles:
    """The user's files whose weights a bundle shares, as files of the bundle's folder.

    The bundle is written in `folder`, and `bundle` is where it will be. A user's file appears in
    `folder`, under a name of the bundle's, when a weight in it is first found.
    """

    folder: Path
    bundle: Path
    sharing: Sharing
    _names: dict[Path, str] = field(default_factory=dict)
    """The names in `folder` of the user's files that are there."""
    _is_hard_linked: bool = False
    """Whether one of these is a hard link."""
    _tensors: dict[int, dict[tuple[Path, int], TensorProto]] = field(default_factory=dict)
    """The tensors in the user's files by their length in bytes, their file, and their offset there."""
    _digests: dict[int, dict[bytes, ExternalData]] = field(default_factory=dict)
    """The places of these tensors by length and SHA-256, for the lengths that were asked for."""
    _model_folder: Path | None = None

    def add_model(self, model: Model) -> None:
        """Add the files with a model's large weights, none where they are in the model itself."""
        if self.sharing == "copy" or model.heavy is not None:
            return
        self._model_folder = model.folder
        known: dict[str, Path] = {}
        for tensor in model.structure.graph.initializer:
            external = find_external_data(tensor, model.folder, known)
            if external is not None and is_large(tensor):
                same_length = self._tensors.setdefault(external.length, {})
                same_length[external.path, external.offset] = tensor

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
        for (path, offset), tensor in self._tensors.get(length, {}).items():
            if offset % _ALIGNMENT == 0:
                digest = hashlib.sha256()
                write_raw_bytes(tensor, self._model_folder, digest.update)
                found.setdefault(digest.digest(), ExternalData(path, offset, length))
        return found

    def _place(self, external: ExternalData) -> ExternalData:
        """Return the file, offset and length in the bundle's folder; place the file there at first."""
        name = self._names.get(external.path)
        if name is None:
            name = f"{_NAME}_{len(self._names) + 1}.bin"
            may_copy = self.sharing == "reference"
            how = place_file(external.path, self.folder / name, may_copy=may_copy)
            self._is_hard_linked |= how == "hard link"
            self._names[external.path] = name
        return ExternalData(Path(name), external.offset, external.length)

    @property
    def references(self) -> Mapping[str, str]:
        """The paths by which the bundle refers to the user's files, by their names in its folder."""
        if self.sharing != "reference":
            return {}
        return {name: _name_path(source, self.bundle) for source, name in self._names.items()}

    def remove_references(self) -> None:
        """Remove the files that the bundle refers to from its folder."""
        for name in self.references:
            (self.folder / name).unlink()

    def describe(self) -> str:
        """Return a sentence on what is shared; empty where everything is copied."""
        if self.sharing == "copy":
            return ""
        if not self._names:
            how = "are not in files beside the model" if not self._tensors else "are all changed"
            return f"--weights {self.sharing}: weights {how}, so they are copied"
        paths = ", ".join(f"'{path}'" for path in self._names)
        if self.sharing == "reference":
            return f"the bundle refers to {paths}, which it needs as it is, where it is"
        if self._is_hard_linked:
            return f"{paths} is linked into the bundle: onnx.load refuses a file with several hard links"
        return f"the bundle shares the blocks of {paths} (a reflink)"


def _name_path(source: Path, bundle: Path) -> str:
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
