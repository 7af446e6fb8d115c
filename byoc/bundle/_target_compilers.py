"""The compilers of targets: their codegens, found by name, with the options of rule files and users."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle._compiling import RegionCompiler
from byoc.bundle._packing import judge_trust
from byoc.bundle._reading import Bundle, open_bundle
from byoc.codegen import (
    Artifact,
    ArtifactCache,
    ArtifactStore,
    Codegen,
    Codegens,
    CompileError,
    Region,
    Stamped,
    TakesWeights,
    ask_compatible,
    find_alike,
    find_wrong_options,
    list_recovery_options,
    parse_codegen_options,
)
from byoc.errors import InputError
from byoc.rules import Target
from byoc.support import report_step, select_options
from byoc.support.cache import Cache

OptionTexts = Mapping[str, str]


def load_compilers(
    targets: Sequence[Target],
    names: Mapping[str, str],
    given: OptionTexts,
    codegens: Codegens,
    cache: Cache | None = None,
) -> dict[str, RegionCompiler]:
    """Return the compiler of each target, by target name.

    `names` has the name of each target's codegen, which `codegens` finds. `given` holds options by
    `name`, for all codegens, or by `target:name`, for one target's; both take precedence over the
    target's rule file. `cache` keeps what is compiled for later programs.

    Raises InputError when a codegen cannot be loaded, an option is wrong, or there is no such target.
    """
    known = [target.name for target in targets]
    own = {name: select_options(given, name, known, "codegen option", "target") for name in known}
    return {
        target.name: _load_compiler(target, codegens.find(names[target.name]), own[target.name], cache)
        for target in targets
    }


def _load_compiler(
    target: Target, codegen: Codegen, given: OptionTexts, cache: Cache | None
) -> RegionCompiler:
    options = {**read_rule_file_options(target, codegen), **given}
    recoveries: list[RegionCompiler] = []
    for other in list_recovery_options(codegen):
        changed = {**options, **other, **given}  # the user's own are demands
        if changed not in (options, *(each.options for each in recoveries)):
            recoveries.append(_make_compiler(codegen, changed, cache))
    return replace(_make_compiler(codegen, options, cache), recoveries=tuple(recoveries))


def _make_compiler(codegen: Codegen, options: OptionTexts, cache: Cache | None) -> RegionCompiler:
    parsed = parse_codegen_options(codegen, options)
    store = None if cache is None else ArtifactStore(cache, codegen, parsed)
    places_count = bool(getattr(codegen, "refers_to_weights", False))
    return RegionCompiler(codegen, options, ArtifactCache(store, places_count))


def read_rule_file_options(target: Target, codegen: Codegen) -> OptionTexts:
    """Return a rule file's options for a codegen; none when the file names another codegen.

    Raises InputError with a line for each wrong option.
    """
    if codegen.name != target.rules.codegen:
        return {}
    problems = find_rule_file_problems(target, codegen)
    if problems:
        raise InputError(*problems)
    return target.rules.codegen_options


def find_rule_file_problems(target: Target, codegen: Codegen) -> list[str]:
    """Return a sentence for each option in a rule file that its codegen refuses."""
    found = find_wrong_options(codegen, target.rules.codegen_options)
    return [
        f"{target.source}: {target.locate(f'codegen_options.{key}')}: codegen {codegen.name} {problem}"
        for key, problem in found.items()
    ]


@dataclass(frozen=True, eq=False)
class EarlierRegions:
    """The regions of a `bundle` that one codegen compiled, with their artifacts.

    `refitted` are the names of new regions that have such an artifact with weights of their own.
    """

    bundle: Bundle
    artifacts: Mapping[Region, Artifact]
    refitted: set[str] = field(default_factory=set)

    def refit(self, regions: Sequence[Region], compiler: RegionCompiler) -> dict[str, Artifact]:
        """Return the artifacts of those regions, by name, that an earlier one gives with other weights.

        Those that the codegen does not take in that way are left out.
        """
        twins = find_alike([*self.artifacts])
        alike = find_alike([*(each for each in self.artifacts if each.name not in twins), *regions])
        found = {}
        for region in regions:
            first = alike.get(region.name)
            if first is None or first not in self.artifacts:
                continue
            report_step(f"take the weights of {region.name} with {compiler.codegen.name}")
            with suppress(CompileError):
                made = compiler.take_weights(region, first, self.artifacts[first])
                if made is not None:
                    found[region.name] = made
        self.refitted.update(found)
        return found


def add_earlier_regions(
    compilers: Mapping[str, RegionCompiler], path: Path
) -> dict[str, RegionCompiler]:
    """Return compilers that give other weights to what is compiled in the bundle at a path.

    That goes for regions of the same target, codegen and options. Compilers without such regions stay
    as they are. Raises InputError where there is no such bundle, or its maker is not trusted: what is
    taken becomes part of a bundle of this user.
    """
    opened = open_bundle(path)
    if not (judged := judge_trust(opened)).trusted:
        raise InputError(f"{path}: nothing is taken from it: {judged.reason}")
    found: dict[str, dict[Region, Artifact]] = {}
    for entry in opened.manifest.regions:
        compiler = compilers.get(entry.target)
        if (
            compiler is not None
            and isinstance(compiler.codegen, TakesWeights)
            and not entry.same_as
            and compiler.codegen.name == entry.codegen
            and dict(compiler.options) == dict(entry.codegen_options)
        ):
            _, region, artifact = opened.open_compiled(entry.name)
            if not isinstance(compiler.codegen, Stamped) or ask_compatible(
                compiler.codegen, region, artifact
            ):
                found.setdefault(entry.target, {})[region] = artifact
    return {
        name: replace(each, earlier=EarlierRegions(opened, found[name])) if name in found else each
        for name, each in compilers.items()
    }


def require_earlier_regions(compilers: Iterable[RegionCompiler], path: Path) -> None:
    """Raise InputError unless one of the compilers gives other weights to a region of a bundle."""
    compilers = list(compilers)
    if any(each.earlier is not None for each in compilers):
        return
    if not any(isinstance(each.codegen, TakesWeights) for each in compilers):
        names = ", ".join(dict.fromkeys(each.codegen.name for each in compilers))
        raise InputError(f"--refit: {names} takes no weights (`take_weights`), so all would be compiled")
    regions = open_bundle(path).manifest.regions
    made = dict.fromkeys(f"{each.target} by {each.codegen}" for each in regions)
    raise InputError(
        f"{path}: no region in it is of a target, codegen and options that are asked for now; it "
        f"has {', '.join(made) or 'none'}"
    )
