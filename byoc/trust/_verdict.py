"""Whether the maker of a bundle is trusted, and why."""

from dataclasses import dataclass

from byoc.errors import InputError, MissingRuntimeError
from byoc.trust._machine_key import read_key
from byoc.trust._signature import SignatureError, SignedKind, check_signature
from byoc.trust._trusted_keys import read_trusted_keys

# SHA-256 of the manifests and programs that this process wrote: where nothing can be signed, it trusts
# its own.
_WRITTEN: set[bytes] = set()


@dataclass(frozen=True)
class Trust:
    """Whether a bundle's maker is trusted; `reason` is the end of a sentence about the bundle.

    `key` is the public key whose signature fits, in hex, and empty where there is none.
    """

    trusted: bool
    reason: str
    key: str = ""


def remember_written(digest: bytes) -> None:
    """Trust the manifest or program with a SHA-256 until this process ends, which wrote it."""
    _WRITTEN.add(digest)


def judge_signature(signature: bytes | None, digest: bytes, kind: SignedKind = "bundle") -> Trust:
    """Judge the content of a `signature.json`, None without one, for the SHA-256 of what it signs."""
    key, reason = "", "it is not signed"
    if signature is not None:
        try:
            key = check_signature(signature, digest, kind)
        except (SignatureError, MissingRuntimeError) as error:
            reason = str(error)
    if not key:
        return Trust(True, "this process wrote it") if digest in _WRITTEN else Trust(False, reason)
    problems = []
    try:
        own = read_key()
        if own is not None and own.public == key:
            return Trust(True, "it was made here", key)
    except InputError as error:
        problems.append(str(error))
    try:
        known = read_trusted_keys()
        if key in known:
            name = f" ({known[key]})" if known[key] else ""
            return Trust(True, f"it is signed by a key that you trust, {key}{name}", key)
    except InputError as error:
        problems.append(str(error))
    if digest in _WRITTEN:
        return Trust(True, "this process wrote it", key)
    reason = f"it is signed by a key that you do not trust, {key}"
    return Trust(False, "; ".join([reason, *problems]), key)
