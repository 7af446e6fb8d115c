"""Whether a bundle runs on this machine, asked without loading it, and the choice among its variants.

Variants with the same dimensions are alternatives: they take the same inputs on other accelerators.
Loading takes one of them. What is asked here, loading asks of each region, too (`load_executor`).
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from byoc._dataclasses import asdict, dataclass, field, replace
from byoc.bundle import Bundle, Consent, Manifest, RegionEntry, VariantEntry, read_only_manifest
from byoc.codegen import Codegens, Fit, ask_fit, find_wrong_options, list_load_options
from byoc.console import format_quantity
from byoc.errors import (
    YES,
    ByocError,
    InputError,
    Verdict,
    get_error_text,
    must_propagate,
    refuse,
    suggest_nearest,
)
from byoc.onnxrt import INSTALL_HINT, describe_runtime
from byoc.runtime._executors import find_executable
from byoc.support import check_type, describe_failure
from byoc.support.trust import Trust, find_interpreter, judge_signature

HOST_NAME = "host"
"""The name by which a preference means a variant that runs on the host alone."""


@dataclass(frozen=True)
class RegionFit:
    """Whether a region runs here, by the codegen of its target."""

    region: str
    target: str
    codegen: str
    fit: Fit


@dataclass(frozen=True)
class VariantFit:
    """Whether a variant runs here: its regions, and onnxruntime for what is on the host.

    `seconds` are the predicted ones of a run. `name` is empty in a bundle without variants. `consent`
    says whether the user allows what loading it executes: native code needs a maker who is trusted.
    """

    name: str
    seconds: float
    host: Fit
    regions: tuple[RegionFit, ...]
    consent: Verdict = YES

    @property
    def verdict(self) -> Verdict:
        """Whether all of it loads here, or the first reason why not, that of the user last."""
        for each in self.regions:
            if not each.fit.verdict:
                return refuse(f"{each.region} ({each.codegen}): {each.fit.verdict}")
        return self.host.verdict if not self.host.verdict else self.consent


@dataclass(frozen=True)
class VariantChoice:
    """The variants of a bundle that are loaded, and for each alternative why it was chosen or not.

    `reasons` has the variants that have alternatives; where there are none it is empty.
    """

    chosen: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """Return a sentence for each variant that was chosen from several, and for each that was not."""
        return [
            f"variant {name} {'was chosen' if name in self.chosen else 'was not chosen'}: {why}"
            for name, why in self.reasons.items()
        ]


NO_CHOICE = VariantChoice(())
"""The choice of a session that was not loaded from a bundle's variants."""


@dataclass(frozen=True)
class BundleFit:
    """The answer of `find_fitting`: each variant of a bundle, and those that `byoc.load` would take.

    `choice` is None where not all inputs could be served: of some alternatives none fits.
    """

    path: Path
    variants: tuple[VariantFit, ...]
    choice: VariantChoice | None

    def __bool__(self) -> bool:
        """Return whether the bundle loads here without falling back on the host."""
        return self.choice is not None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, each verdict as a text that is empty for yes."""
        return {
            "bundle": str(self.path),
            "fits": bool(self),
            "chosen": None if self.choice is None else list(self.choice.chosen),
            "reasons": {} if self.choice is None else dict(self.choice.reasons),
            "variants": [
                {
                    "name": each.name,
                    "refused": _write_refusal(each.verdict),
                    "predicted_seconds": each.seconds,
                    "host": _write_fit(each.host),
                    "regions": [
                        {"region": one.region, "target": one.target, "codegen": one.codegen}
                        | _write_fit(one.fit)
                        for one in each.regions
                    ],
                }
                for each in self.variants
            ],
        }


def _write_fit(fit: Fit) -> dict[str, Any]:
    rest = {name: value for name, value in asdict(fit).items() if name != "verdict"}
    return {"refused": _write_refusal(fit.verdict), **rest}


def _write_refusal(verdict: Verdict) -> str:
    return "" if verdict else str(verdict)


def find_fitting(
    bundle: str | Path, prefer: Sequence[str] | str = (), *, trust: bool = False
) -> BundleFit:
    """Return whether a `bundle`, the path of a folder or a packed file, runs on this machine.

    Each variant and each of its regions has its codegen, the driver or library that would run it, with
    its installed version, what that accepts, and yes or no with the reason. Only the manifest and its
    signature are read: no artifact is opened, and no library of a compiler or device is imported. What
    these alone know is said (`Fit.unknown`); whether all files are as they were written, `byoc.inspect`
    says.

    `prefer` and `trust` are as in `byoc.load`, which would choose what `choice` has. Raises InputError
    when it is no bundle, or `prefer` names what the bundle has not got.
    """
    consent = Consent.of(trust)
    (manifest, signature), codegens = read_only_manifest(bundle), Codegens()
    path = Path(bundle)
    preferred = Preference.of(prefer, manifest, path)

    def judge_maker() -> Trust:
        return judge_signature(signature, manifest.digest)

    def is_native(name: str) -> bool:
        try:  # one in another Python would be started to tell
            known = None if find_interpreter(name) is not None else codegens.find(name)
        except ByocError:
            return False
        return bool(getattr(known, "native", False))

    fits = {
        each.name: replace(
            find_variant_fit(manifest, each, codegens),
            consent=consent.judge(each.regions, is_native, judge_maker),
        )
        for each in manifest.variants
    }
    choice: VariantChoice | None = None
    with suppress(NoneFitsError):
        choice = choose_variants(
            manifest,
            preferred,
            judge=lambda entry: fits[entry.name].verdict,
            judge_consent=lambda entry: fits[entry.name].consent,
        )
    if choice is not None and not all(fits[name].verdict for name in choice.chosen):
        choice = None
    return BundleFit(path, tuple(fits.values()), choice)


def find_variant_fit(manifest: Manifest, entry: VariantEntry, codegens: Codegens) -> VariantFit:
    """Return whether a variant runs here, if the user allows what it executes."""
    regions = {region.name: region for region in manifest.regions}
    found = [
        RegionFit(
            region.name,
            region.target,
            region.codegen,
            _find_region_fit(regions.get(region.same_as, region), codegens),
        )
        for region in entry.regions
    ]
    return VariantFit(entry.name, entry.report.predicted.seconds, _find_host_fit(entry), tuple(found))


def _find_region_fit(region: RegionEntry, codegens: Codegens) -> Fit:
    """Return whether a region loads here, as its codegen says; all that loading says before is no."""
    name = region.codegen
    try:
        interpreter = find_interpreter(name)
        if interpreter is not None:  # which is started to run regions alone
            if shutil.which(interpreter.python) is None:
                return Fit(
                    "", refuse(f"codegen {name} runs in {interpreter.python}, which is not there")
                )
            return Fit(f"codegen {name} in {interpreter.python}", unknown="whether it loads there")
        codegen = find_executable(name, codegens)
        return ask_fit(codegen, [*region.artifact_files], region.artifact_metadata)
    except ByocError as error:
        return Fit("", refuse(get_error_text(error)))
    except BaseException as error:  # a plug-in can fail in any way, and then loading fails, too
        if must_propagate(error):
            raise
        return Fit("", refuse(f"codegen {name}: find_fit failed with {describe_failure(error)}"))


def _find_host_fit(entry: VariantEntry) -> Fit:
    """Return whether onnxruntime is here, where the variant has anything for the host."""
    runtime = describe_runtime()
    tensors = (each for region in entry.regions for each in (*region.inputs, *region.outputs))
    converts = any("host" in each.converts.values() for each in tensors)
    if runtime or not (entry.report.nodes.host or converts):
        return Fit(runtime)
    return Fit.without(INSTALL_HINT)


# The choice among alternatives.


class NoneFitsError(InputError):
    """Of some variants that are alternatives none runs here; the message has the reason of each.

    `may_fall_back` says whether the user allows one of them, so that it could run on the host.
    """

    def __init__(self, message: str, may_fall_back: bool) -> None:
        """Keep it beside the message."""
        super().__init__(message)
        self.may_fall_back = may_fall_back


@dataclass(frozen=True)
class Preference:
    """Names of variants, targets and codegens, the best first: which alternatives a user prefers.

    `path` is the bundle's, for messages, and `variants` are the names of all of its variants.
    """

    path: Path
    names: tuple[str, ...]
    variants: frozenset[str]

    @classmethod
    def of(cls, names: Iterable[str] | str, manifest: Manifest, path: Path) -> "Preference":
        """Return a preference among the variants of a bundle. Raises InputError for an unknown name."""
        check_type("prefer", names, str | Sequence[str])
        given = (names,) if isinstance(names, str) else tuple(names)
        known = dict.fromkeys(name for each in manifest.variants for name in _list_names(each) if name)
        for name in given:
            if name not in known:
                raise InputError(
                    f"{path}: prefer: no variant, target or codegen '{name}'"
                    f"{suggest_nearest(name, known)}; there are {', '.join(known) or 'none'}"
                )
        return cls(path, given, frozenset(each.name for each in manifest.variants))

    def find(self, entry: VariantEntry) -> str:
        """Return the first name that means a variant, empty where none does.

        A name of a variant means that one alone, whatever targets and codegens are called.
        """
        own = list_own_names(entry, self.variants)
        return next((name for name in self.names if name in own), "")

    def sort(self, entries: Iterable[VariantEntry]) -> list[VariantEntry]:
        """Return alternatives, the best first: by preference, then by predicted seconds."""

        def rank(entry: VariantEntry) -> tuple[int, float]:
            name = self.find(entry)
            place = self.names.index(name) if name else len(self.names)
            return place, entry.report.predicted.seconds

        return sorted(entries, key=rank)


def _list_names(entry: VariantEntry) -> tuple[str, ...]:
    """Return the names that mean a variant: its own, and its targets and codegens."""
    codegens = dict.fromkeys(region.codegen for region in entry.regions)
    return (entry.name, *entry.targets, *codegens, *(() if entry.regions else (HOST_NAME,)))


def list_own_names(entry: VariantEntry, variants: Collection[str]) -> list[str]:
    """Return the names that mean a variant in a preference, where all `variants` have these names."""
    return [entry.name, *(name for name in _list_names(entry)[1:] if name not in variants)]


def describe_seconds(seconds: float) -> str:
    """Return the predicted seconds of a variant as the sentences of a choice have them."""
    return f"predicted {format_quantity(seconds, 's')}"


def list_alternatives(manifest: Manifest) -> list[list[VariantEntry]]:
    """Return the variants that take the same inputs, together, in the order of the first of each."""
    found: dict[tuple[tuple[str, int | str], ...], list[VariantEntry]] = {}
    for entry in manifest.variants:
        found.setdefault(tuple(sorted(entry.dims.items())), []).append(entry)
    return [*found.values()]


def choose_variants(
    manifest: Manifest,
    preferred: Preference,
    judge: Callable[[VariantEntry], Verdict],
    judge_consent: Callable[[VariantEntry], Verdict],
    fall_back: bool = False,
) -> VariantChoice:
    """Choose one of each group of alternatives: the best that fits, as `judge` says.

    One that the user does not allow, as `judge_consent` says, is left out. None is judged after the
    first that fits, nor is a variant without alternatives. With `fall_back` the best that is allowed is
    taken where none fits; else that raises NoneFitsError.
    """
    chosen: list[str] = []
    reasons: dict[str, str] = {}
    for group in list_alternatives(manifest):
        if len(group) == 1:
            chosen.append(group[0].name)
            continue
        best, allowed = None, []
        for entry in preferred.sort(group):
            if best is not None:
                reasons[entry.name] = f"{best.name} comes before it, {_describe(entry, preferred)}"
                continue
            if not (verdict := judge_consent(entry)):
                reasons[entry.name] = str(verdict)
                continue
            allowed.append(entry)
            if verdict := judge(entry):
                best, reasons[entry.name] = entry, f"it fits, {_describe(entry, preferred)}"
            else:
                reasons[entry.name] = str(verdict)
        if best is None:
            if not (fall_back and allowed):
                told = "; ".join(f"{each.name}: {reasons[each.name]}" for each in group)
                sentence = f"{preferred.path}: none of its variants runs on this machine: {told}"
                raise NoneFitsError(sentence, bool(allowed))
            best = allowed[0]
            why = f"none fits, and what of it does not run here runs on the host: {reasons[best.name]}"
            reasons[best.name] = why
        chosen.append(best.name)
    names = [entry.name for entry in manifest.variants]
    return VariantChoice(
        tuple(name for name in names if name in chosen),
        {name: reasons[name] for name in names if name in reasons},
    )


def _describe(entry: VariantEntry, preferred: Preference) -> str:
    name = preferred.find(entry)
    seconds = describe_seconds(entry.report.predicted.seconds)
    return f"preferred as {name}, {seconds}" if name else seconds


# Options that are given when a bundle is loaded.


@dataclass(frozen=True)
class LoadChanges:
    """The changes by options given at load: of the threads of onnxruntime, and of codegens' options.

    `threads` is None where it stays as it is; `options` has texts by target.
    """

    threads: int | None = None
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, Any], bundle: Bundle) -> "LoadChanges":
        """Return the changes by options in a bundle, or in the variant that is chosen of it.

        They are named `name`, for all that have it, or `owner:name`, whose owner is a target or a
        codegen of the bundle, or `host`. Raises InputError for one that nothing in the bundle takes at
        load. The options of a codegen that is not installed, or may not be used, are not known: no
        error.
        """
        here = bundle.display_path
        if not isinstance(given, Mapping):
            raise InputError(f"{here}: options: {given!r} is not a mapping of names to values")
        pairs = dict.fromkeys((each.target, each.codegen) for each in bundle.variant.regions)
        whole = pairs | dict.fromkeys((each.target, each.codegen) for each in bundle.manifest.regions)
        owners = dict.fromkeys([HOST_NAME, *(name for pair in whole for name in pair)])
        taken = _TakenOptions(bundle)
        threads: int | None = None
        options: dict[str, dict[str, str]] = {}
        for key, value in given.items():
            owner, mark, option = str(key).rpartition(":")
            if mark and owner not in owners:
                raise InputError(
                    f"{here}: option {key}: no such target or codegen{suggest_nearest(owner, owners)}; "
                    f"there are {', '.join(owners)}"
                )
            is_host = option == _THREADS and (not mark or owner == HOST_NAME)
            those = [pair for pair in whole if not mark or owner in pair]
            if not is_host and not any(taken.may_take(name, option) for _, name in those):
                raise InputError(f"{here}: option {key}: {taken.describe(name for _, name in whole)}")
            takers = [pair for pair in those if pair in pairs and option in taken.list_known(pair[1])]
            if is_host:
                threads = _read_threads(value, f"{here}: option {key}")
            text = str(value).lower() if isinstance(value, bool) else str(value)
            for target, name in takers:
                wrong = find_wrong_options(bundle.codegens.find(name), {option: text})
                if wrong:
                    raise InputError(f"{here}: option {key}: codegen {name} {wrong[option]}")
                options.setdefault(target, {})[option] = text
        return cls(threads, options)

    def change(self, target: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return options of a target, or an artifact's metadata, with those that are given."""
        return {**options, **self.options.get(target, {})}


NO_CHANGES = LoadChanges()
_THREADS = "threads"


@dataclass(frozen=True)
class _TakenOptions:
    """The options that the codegens of a bundle take at load, each asked when it is first needed."""

    bundle: Bundle
    known: dict[str, list[str] | None] = field(default_factory=dict)

    def _ask(self, codegen: str) -> list[str] | None:
        """Return the options of a codegen, None where it is not installed, or may not be used."""
        if codegen not in self.known:
            self.known[codegen] = None
            with suppress(InputError):
                self.bundle.consent.require_allowed(codegen, "")
                self.known[codegen] = list_load_options(self.bundle.codegens.find(codegen))
        return self.known[codegen]

    def may_take(self, codegen: str, option: str) -> bool:
        """Return whether a codegen takes an option, or whether that is not known."""
        own = self._ask(codegen)
        return own is None or option in own

    def list_known(self, codegen: str) -> list[str]:
        """Return the options of a codegen, none where they are not known."""
        return self._ask(codegen) or []

    def describe(self, codegens: Iterable[str]) -> str:
        """Return the end of a sentence on what may be given at load."""
        every = [f"{name}:{option}" for name in codegens for option in self.list_known(name)]
        return f"nothing takes it at load; taken are {', '.join([f'{HOST_NAME}:{_THREADS}', *every])}"


def _read_threads(value: Any, where: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not (
        text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    ):
        most = 10**_MOST_DIGITS - 1
        raise InputError(
            f"{where} is {value!r}, and must be a whole number up to {most}; 0 means one for each core"
        )
    return int(text)


_MOST_DIGITS = 5  # of a number of threads; onnxruntime takes a C int
