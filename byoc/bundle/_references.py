"""Files outside of a bundle that its manifest refers to: found, checked, placed beside the others.

No reader of ONNX's external data follows a path out of a model's folder, nor a symbolic link, so a
bundle with references is opened in a hidden folder in which all of its files appear.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from byoc.bundle._manifest import MANIFEST_FILE, Manifest, describe_file
from byoc.bundle._original_weights import place_file
from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.support import open_workspace, resolve_path
from byoc.trust import SIGNATURE_FILE


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
