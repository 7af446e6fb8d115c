"""Consent to what a bundle executes: whether its maker is trusted, which codegens may load it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from byoc.bundle._packing import read_signature
from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.trust import Trust, judge_signature

if TYPE_CHECKING:
    from byoc.bundle._reading import Bundle


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

        Raises InputError for a text in which a name is missing.
        """
        if isinstance(codegens, str):
            codegens = [name.strip() for name in codegens.split(",")]
            if not all(codegens):
                raise InputError("codegens: a name is missing at a comma: dla,reference is a list")
        return cls(trust, None if codegens is None else frozenset(codegens))

    def require_allowed(self, name: str, what: str) -> None:
        """Raise InputError, which begins with `what`, unless a codegen may be used."""
        if self.codegens is not None and name not in self.codegens:
            names = ", ".join(sorted(self.codegens)) or "none"
            raise InputError(
                f"{what} codegen {quote_name(name)}, but only these may be used (--codegens): {names}"
            )


NO_CONSENT = Consent()


def judge_trust(bundle: "Bundle") -> Trust:
    """Return whether a bundle may run native code, and why: by the user's word, or by its signature."""
    if bundle.consent.trust:
        return Trust(True, "you said that you trust it")
    return judge_maker(bundle)


def judge_maker(bundle: "Bundle") -> Trust:
    """Return whether the maker of a bundle is trusted, whatever the user said about the bundle."""
    return judge_signature(read_signature(bundle.folder), bundle.manifest.digest)


def require_consent(bundle: "Bundle") -> None:
    """Raise InputError unless the user allows what loading the regions of a bundle executes.

    A codegen that executes what is in the bundle has the class attribute `native = True`; it needs a
    trusted bundle.
    """
    judged: Trust | None = None
    for region in bundle.manifest.regions:
        name = region.codegen
        bundle.consent.require_allowed(name, f"{bundle.display_path}: region {region.name} is for")
        if not getattr(bundle.codegens.find(name), "native", False):
            continue
        judged = judged or judge_trust(bundle)
        if not judged.trusted:
            raise InputError(
                f"{bundle.display_path}: region {region.name} is native code for codegen {name}, and "
                f"not loaded: {judged.reason}. {_advise_trust(judged)}"
            )


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
