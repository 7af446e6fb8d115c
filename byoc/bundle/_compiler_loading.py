"""The compilers of targets: their codegens, found by name, with the options of rule files and users."""

from collections.abc import Mapping, Sequence

from byoc.bundle._compiling import RegionCompiler
from byoc.cache import Cache
from byoc.codegen import (
    ArtifactCache,
    ArtifactStore,
    Codegen,
    Codegens,
    find_wrong_options,
    parse_codegen_options,
)
from byoc.errors import InputError, suggest_nearest
from byoc.rules import Target

OptionTexts = Mapping[str, str]
_TARGET_SEPARATOR = ":"


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
    for key in given:
        target, mark, _ = key.partition(_TARGET_SEPARATOR)
        if mark and target not in known:
            raise InputError(f"codegen option {key}: no such target{suggest_nearest(target, known)}")
    return {
        target.name: _load_compiler(target, codegens.find(names[target.name]), given, cache)
        for target in targets
    }


def _load_compiler(
    target: Target, codegen: Codegen, given: OptionTexts, cache: Cache | None
) -> RegionCompiler:
    options = dict(rule_file_options(target, codegen))
    options |= {key: value for key, value in given.items() if _TARGET_SEPARATOR not in key}
    own = f"{target.name}{_TARGET_SEPARATOR}"
    options |= {key.removeprefix(own): value for key, value in given.items() if key.startswith(own)}
    parsed = parse_codegen_options(codegen, options)
    store = None if cache is None else ArtifactStore(cache, codegen, parsed)
    return RegionCompiler(codegen, options, ArtifactCache(store))


def rule_file_options(target: Target, codegen: Codegen) -> OptionTexts:
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
