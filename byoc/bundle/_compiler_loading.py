"""The compilers of targets: their codegens, found by name, with the options of rule files and users."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from byoc.bundle._compiling import RegionCompiler
from byoc.cache import Cache
from byoc.codegen import (
    ArtifactCache,
    ArtifactStore,
    Codegen,
    Codegens,
    find_wrong_options,
    list_recovery_options,
    parse_codegen_options,
)
from byoc.errors import InputError
from byoc.rules import Target
from byoc.support import select_options

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
