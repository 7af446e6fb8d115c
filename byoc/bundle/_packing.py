"""A bundle as one file: a zip whose bytes depend on its contents only; signatures on disk.

Entries are not compressed, since weights hardly shrink and compressors differ between versions; they
are sorted by name and have equal times and permissions.

A zip from elsewhere may be malicious: names outside the folder, links, entries that unpack to huge
sizes. Names and sizes are checked before the first file is written.
"""

import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from byoc._dataclasses import dataclass
from byoc.bundle._manifest import (
    MANIFEST_FILE,
    Manifest,
    PackageManifest,
    RegionEntry,
    copy_and_hash,
)
from byoc.bundle._manifest_reading import (
    MAX_MANIFEST_BYTES,
    Package,
    ReadFile,
    check_file_entry,
    choose_model,
    list_files,
    parse_manifest,
    read_models,
    split_path,
)
from byoc.codegen import describe_path_problem, escape_line, quote_name
from byoc.errors import YES, InputError, MissingRuntimeError, Verdict, refuse
from byoc.support import check_type, read_limited
from byoc.support.trust import (
    MAX_SIGNATURE_BYTES,
    SIGNATURE_FILE,
    SignedKind,
    Trust,
    judge_signature,
    make_signature,
    open_or_create_key,
    remember_written,
)

if TYPE_CHECKING:
    from byoc.bundle._reading import Bundle


# Signatures on disk: `signature.json` beside a manifest or a `program.json`, which does not list
# it.


def sign_folder(folder: Path, digest: bytes, sign: bool = True, kind: SignedKind = "bundle") -> str:
    """Write the signature of a complete folder by the key of this machine, unless told not to.

    `digest` is the SHA-256 of its manifest or `program.json`. Returns why it is not signed, as a
    sentence; empty if it is, or was not to be.
    """
    remember_written(digest)
    if not sign:
        return ""
    try:
        content = make_signature(digest, open_or_create_key(), kind)
    except (InputError, MissingRuntimeError) as error:
        return f"the {kind} is not signed: {error}"
    (folder / SIGNATURE_FILE).write_bytes(content)
    return ""


def read_signature(folder: Path) -> bytes | None:
    """Return the content of a folder's signature, cut where it is too long; None where there is none."""
    path = folder / SIGNATURE_FILE
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # a pipe would not end
            return b""
        with path.open("rb") as file:
            return file.read(MAX_SIGNATURE_BYTES + 1)
    except OSError:
        return None


PACKED_SUFFIX = ".zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip
_UNIX = 3  # the code of zip for entries with POSIX permissions
_PERMISSIONS = stat.S_IFREG | 0o644


def is_packed_name(path: Path) -> bool:
    """Return whether a path's name, such as `m.byoc.zip`, asks for a packed bundle."""
    return path.suffix.lower() == PACKED_SUFFIX


def pack_folder(folder: Path, files: Iterable[str], path: Path) -> None:
    """Write a zip of a folder's manifest, its signature if there is one, and the given files.

    Raises InputError when the folder cannot be read, and OSError when the zip cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        signature = [] if read_signature(folder) is None else [SIGNATURE_FILE]
        for name in sorted({MANIFEST_FILE, *signature, *files}):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = _UNIX
            info.external_attr = _PERMISSIONS << 16
            try:
                source = (folder / name).open("rb")
            except OSError as error:
                reason = error.strerror or error
                raise InputError(
                    f"{folder}: the file {quote_name(name)} cannot be read: {reason}"
                ) from None
            with source:
                info.file_size = (folder / name).stat().st_size  # selects Zip64 for sizes over 2 GiB
                with archive.open(info, "w") as entry:
                    shutil.copyfileobj(source, entry)


_ENCRYPTED_FLAG = 1  # a bit of an entry's flags (APPNOTE.TXT, 4.4.4)
_COMPRESSION_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The largest expansion: Deflate reaches a thousand, weights of mostly zeros only tens.
_MAX_EXPANSION = 100
# In bytes: what a manifest may unpack to however small it is packed.
_SMALL_MANIFEST = 1 << 20
_MAX_FILES = 200_000  # far more than a bundle has; a hostile zip may claim billions
# Exceptions of zipfile for damaged files.
_DAMAGED_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(struct.error, ValueError, LookupError, OverflowError),
)

ZipEntries = Mapping[str, zipfile.ZipInfo]


def unpack_bundle(path: Path, folder: Path) -> Manifest:
    """Unpack a bundle, or a model of a package, into an empty folder and return its manifest.

    Raises InputError with one sentence when a file differs from the manifest, or is not in the zip.
    """
    whole, _ = split_path(path)
    return _unpack(whole, folder, lambda found, read: choose_model(found, path, read))


def unpack_whole(path: Path, folder: Path) -> Manifest | Package:
    """Unpack a bundle or package with all of its models; returns and raises as `unpack_bundle`."""
    return _unpack(path, folder, lambda found, read: read_models(found, path, read))


UnpackedT = TypeVar("UnpackedT", Manifest, Manifest | Package)


def _unpack(
    path: Path,
    folder: Path,
    choose: Callable[[Manifest | PackageManifest, ReadFile], UnpackedT],
) -> UnpackedT:
    """Unpack the files of what is chosen of a zip into an empty folder, and return its manifest."""
    with _open_zip(path) as archive:
        reader = _ZipReader(archive, path)
        entries, content = reader.entries, reader(MANIFEST_FILE)
        manifest = choose(parse_manifest(content, path / MANIFEST_FILE), reader)
        if manifest.references:
            raise InputError(f"{path}: refers to files outside of it, which a packed bundle cannot")
        _check_sizes(manifest, entries, path, folder)
        for name, entry in manifest.files.items():
            target = folder / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entries[name]) as source, target.open("xb") as file:
                    found = copy_and_hash(source, file, entry.bytes)
            except OSError as error:
                reason = error.strerror or error
                raise InputError(f"{path}: {quote_name(name)} cannot be unpacked: {reason}") from None
            check_file_entry(path, name, found, entry)
        (folder / MANIFEST_FILE).write_bytes(content)
        signature = _read_packed_signature(archive, entries)
        if signature is not None:
            (folder / SIGNATURE_FILE).write_bytes(signature)
    return manifest


def read_packed_manifest(path: Path) -> tuple[Manifest | PackageManifest, bytes | None]:
    """Read a packed manifest, of a bundle or package, and its signature, if any. Raises InputError."""
    with _open_zip(path) as archive:
        reader = _ZipReader(archive, path)
        manifest = parse_manifest(reader(MANIFEST_FILE), path / MANIFEST_FILE)
        return manifest, _read_packed_signature(archive, reader.entries)


def choose_packed_model(path: Path) -> tuple[Manifest, bytes | None]:
    """Read the manifest of what a path means in a zip, and the signature. Raises InputError."""
    whole, _ = split_path(path)
    with _open_zip(whole) as archive:
        reader = _ZipReader(archive, whole)
        found = parse_manifest(reader(MANIFEST_FILE), whole / MANIFEST_FILE)
        return choose_model(found, path, reader), _read_packed_signature(archive, reader.entries)


def _read_packed_signature(archive: zipfile.ZipFile, entries: ZipEntries) -> bytes | None:
    if SIGNATURE_FILE not in entries:
        return None
    with archive.open(entries[SIGNATURE_FILE]) as source:
        return read_limited(source, MAX_SIGNATURE_BYTES)


def check_packed_files(path: Path) -> None:
    """Raise InputError when a file in a packed bundle differs from the manifest; unpacks nothing."""
    with _open_zip(path) as archive:
        reader = _ZipReader(archive, path)
        found = parse_manifest(reader(MANIFEST_FILE), path / MANIFEST_FILE)
        for name, entry in read_models(found, path, reader).files.items():
            if name not in reader.entries:
                raise InputError(f"{path}: the file {quote_name(name)} of the bundle is missing")
            with archive.open(reader.entries[name]) as source:
                check_file_entry(path, name, copy_and_hash(source), entry)


def list_packed_files(path: Path) -> tuple[set[str] | None, set[str]] | None:
    """Return the files that a packed bundle lists, as `list_files`, and has; None for another zip."""
    try:
        with _open_zip(path) as archive:
            reader = _ZipReader(archive, path)
            return list_files(reader), set(reader.entries)
    except InputError:
        return None


class _ZipReader:
    """Reads files of a zip, such as manifests, of at most the size of one."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self.entries = _zip_entries(archive, path)
        self._archive = archive
        self._path = path

    def __call__(self, name: str) -> bytes:
        """Return the content of a file. Raises InputError where there is none, or it is too large."""
        return _read_packed_manifest(self._archive, self.entries, self._path, name)


@contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip. Raises InputError with a sentence when it cannot be read."""
    try:
        with path.open("rb") as file:
            starts = file.read(2)
            try:
                archive = zipfile.ZipFile(file)
            except zipfile.BadZipFile:
                if starts != b"PK":
                    raise InputError(
                        f"{path}: not a bundle: neither a folder nor a zip; `byoc partition` makes "
                        "one of a model (-o)"
                    ) from None
                raise
            with archive:
                yield archive
    except _DAMAGED_ZIP_ERRORS as error:
        reason = escape_line(str(error) or type(error).__name__)
        raise InputError(f"{path}: a zip that is damaged or cut short: {reason}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _zip_entries(archive: zipfile.ZipFile, path: Path) -> ZipEntries:
    """Return the files of a zip by name. Raises InputError for entries that no bundle has."""
    found: dict[str, zipfile.ZipInfo] = {}
    if len(archive.infolist()) > _MAX_FILES:
        raise InputError(f"{path}: not a bundle: it holds more than {_MAX_FILES} files")
    for info in archive.infolist():
        name = info.orig_filename
        wrong = _entry_problem(info) or (name in found and "stands in it twice")
        if wrong:
            raise InputError(f"{path}: the file {quote_name(name)} {wrong}")
        if not name.endswith("/"):
            found[name] = info
    if sum(info.compress_size for info in found.values()) > path.stat().st_size:
        raise InputError(f"{path}: a zip that is damaged: its files are larger than it is")
    return found


def _entry_problem(info: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
    if info.flag_bits & _ENCRYPTED_FLAG:
        return "is encrypted"
    if info.compress_type not in _COMPRESSION_METHODS:
        return "is compressed in a way that is not read"
    return describe_path_problem(info.orig_filename.removesuffix("/"))


def _read_packed_manifest(
    archive: zipfile.ZipFile, entries: ZipEntries, path: Path, name: str = MANIFEST_FILE
) -> bytes:
    if name not in entries:
        what = "not a bundle: it holds no" if name == MANIFEST_FILE else "a package without its"
        raise InputError(f"{path}: {what} {name}")
    info = entries[name]
    if info.file_size > max(_SMALL_MANIFEST, _MAX_EXPANSION * info.compress_size):
        raise InputError(
            f"{path}: {info.compress_size} bytes of the {name} would unpack to "
            f"{info.file_size}, over {_MAX_EXPANSION} times as many"
        )
    with archive.open(info) as file:
        return read_limited(file, MAX_MANIFEST_BYTES)


def _check_sizes(manifest: Manifest | Package, entries: ZipEntries, path: Path, folder: Path) -> None:
    """Raise InputError unless all files exist, in the sizes of the manifest, and fit on the disk."""
    for name, entry in manifest.files.items():
        if name not in entries:
            raise InputError(f"{path}: the file {quote_name(name)} of the bundle is missing")
        if entries[name].file_size != entry.bytes:
            raise InputError(
                f"{path}: the file {quote_name(name)} is not as it was written: its size differs; "
                "copy the bundle anew"
            )
    total = sum(entry.bytes for entry in manifest.files.values())
    packed = path.stat().st_size
    if total > _MAX_EXPANSION * packed:
        raise InputError(
            f"{path}: its {packed} bytes would unpack to {total}, over {_MAX_EXPANSION} times as many"
        )
    free = shutil.disk_usage(folder).free
    if total > free:
        raise InputError(f"{path}: its {total} bytes do not fit into '{folder}', where {free} are free")


# Consent to what a bundle executes: whether its maker is trusted, which codegens may load it.


@dataclass(frozen=True)
class Consent:
    """The consent of a user to what a bundle executes.

    With `trust` it may run native code whoever made it. `codegens` are those that may load it, None for
    all that are installed.
    """

    trust: bool = False
    codegens: frozenset[str] | None = None

    @classmethod
    def of(cls, trust: bool = False, codegens: Iterable[str] | str | None = None) -> "Consent":
        """Return the consent for arguments of a user's; a text has names between commas.

        Raises InputError for a text in which a name is missing, and for values of other types.
        """
        check_type("trust", trust, bool)
        check_type("codegens", codegens, Iterable[str] | str | None)
        if isinstance(codegens, str):
            codegens = [name.strip() for name in codegens.split(",")]
            if not all(codegens):
                raise InputError("codegens: a name is missing at a comma: dla,reference is a list")
        return cls(trust, None if codegens is None else frozenset(codegens))

    def require_allowed(self, name: str, what: str) -> None:
        """Raise InputError, which begins with `what`, unless a codegen may be used."""
        if verdict := self._judge_name(name):
            return
        raise InputError(f"{what} {verdict}")

    def _judge_name(self, name: str) -> Verdict:
        if self.codegens is None or name in self.codegens:
            return YES
        names = ", ".join(sorted(self.codegens)) or "none"
        return refuse(f"codegen {quote_name(name)}, but only these may be used (--codegens): {names}")

    def judge(
        self,
        regions: Iterable[RegionEntry],
        is_native: Callable[[str], bool],
        judge_maker: Callable[[], Trust],
    ) -> Verdict:
        """Return whether regions may be loaded, or the reason against the first that may not.

        `is_native` says whether a codegen executes what is in the bundle: that needs a trusted maker.
        """
        judged = Trust(True, "") if self.trust else None
        for region in regions:
            if not (verdict := self._judge_name(region.codegen)):
                return refuse(f"region {region.name} is for {verdict}")
            if not is_native(region.codegen):
                continue
            judged = judged or judge_maker()
            if not judged.trusted:
                return refuse(
                    f"region {region.name} is native code for codegen {region.codegen}, and not loaded: "
                    f"{judged.reason}. {_advise_trust(judged)}"
                )
        return YES


NO_CONSENT = Consent()


def judge_trust(bundle: "Bundle") -> Trust:
    """Return whether a bundle may run native code, and why: by the user's word, or by its signature."""
    if bundle.consent.trust:
        return Trust(True, "you said that you trust it")
    return judge_maker(bundle)


def judge_maker(bundle: "Bundle") -> Trust:
    """Return whether the maker of a bundle is trusted, whatever the user said about the bundle."""
    judged = bundle.judged_makers  # reading the keys and checking a signature take half a millisecond
    if not judged:
        judged.append(judge_signature(read_signature(bundle.folder), bundle.manifest.digest))
    return judged[0]


def require_consent(bundle: "Bundle", by_drivers: bool = False, without_missing: bool = False) -> None:
    """Raise InputError unless the user allows what loading the regions of a bundle executes.

    The arguments are those of `judge_consent`.
    """
    if verdict := judge_consent(bundle, by_drivers, without_missing):
        return
    raise InputError(f"{bundle.display_path}: {verdict}")


def judge_consent(bundle: "Bundle", by_drivers: bool = False, without_missing: bool = False) -> Verdict:
    """Return whether the user allows what loading the regions of a bundle executes, or why not.

    A codegen that executes what is in the bundle has the class attribute `native = True`; it needs a
    trusted bundle. With `by_drivers` its `load` is not called, and a codegen whose driver the user's
    settings name is not looked at, so that its interpreter need not be there. `without_missing`
    leaves out codegens that cannot be found: they load nothing; else that raises InputError.
    """

    def is_native(name: str) -> bool:
        if by_drivers and bundle.codegens.has_driver_in_settings(name):
            return False
        try:
            return bool(getattr(bundle.codegens.find(name), "native", False))
        except InputError:
            if without_missing:
                return False
            raise

    regions = (each for one in bundle.variants for each in one.variant.regions)
    return bundle.consent.judge(regions, is_native, lambda: judge_trust(bundle))


def require_trusted_references(bundle: "Bundle") -> None:
    """Raise InputError unless the files outside of a bundle that it refers to may be looked at.

    Whoever made it chose their paths: a message on what is there would tell of files that the user did
    not name.
    """
    references = bundle.manifest.references
    if not references or (judged := judge_trust(bundle)).trusted:
        return
    first = quote_name(next(iter(references.values())).path)
    raise InputError(
        f"{bundle.display_path}: it refers to weights outside of it, {first}, which are not looked at: "
        f"{judged.reason}. {_advise_trust(judged)}"
    )


def _advise_trust(judged: Trust) -> str:
    """Return a sentence on what a user does who trusts the maker of a bundle."""
    once = ", or run byoc trust on it once" if judged.key else ""
    return f"If you trust its maker, give --trust (in Python trust=True){once}"
