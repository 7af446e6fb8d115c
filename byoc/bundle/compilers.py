"""The compiler of each target, from the codegens and options of users and rule files."""

from collections.abc import Mapping, Sequence

from byoc.bundle.compile import RegionCompiler
from byoc.codegen import Codegen, find_codegen
from byoc.codegen.options import find_option_problems
from byoc.errors import InputError, suggest_nearest
from byoc.rules.load import Target

OptionTexts = Mapping[str, str]
_TARGET_SEPARATOR = ":"


def load_compilers(
    targets: Sequence[Target], codegens: Mapping[str, str], given: OptionTexts
) -> dict[str, RegionCompiler]:
    """Return the compiler of each target, by target name.

    `codegens` names the codegen of each target. `given` holds options by `name`, for all codegens, or by
    `target:name`, for one target's; both take precedence over the target's rule file.

    Raises InputError when a codegen cannot be loaded, an option is wrong, or there is no such target.
    """
    names = [target.name for target in targets]
    for key in given:
        target, mark, _ = key.partition(_TARGET_SEPARATOR)
        if mark and target not in names:
            raise InputError(f"codegen option {key}: no such target{suggest_nearest(target, names)}")
    return {target.name: _load_compiler(target, codegens[target.name], given) for target in targets}


def _load_compiler(target: Target, name: str, given: OptionTexts) -> RegionCompiler:
    codegen = find_codegen(name)
    options = dict(rule_file_options(target, codegen))
    options |= {key: value for key, value in given.items() if _TARGET_SEPARATOR not in key}
    own = f"{target.name}{_TARGET_SEPARATOR}"
    options |= {key.removeprefix(own): value for key, value in given.items() if key.startswith(own)}
    compiler = RegionCompiler(codegen, options)
    _ = compiler.parsed_options
    return compiler


def rule_file_options(target: Target, codegen: Codegen) -> OptionTexts:
    """Return a rule file's options for a codegen; none when the file names another codegen.

    Raises InputError with a line for each wrong option.
    """
    if codegen.name != target.rules.codegen:
        return {}
    problems = find_rule_file_problems(target, codegen)
    if problems:
        raise InputError("\n".join(problems))
    return target.rules.codegen_options


def find_rule_file_problems(target: Target, codegen: Codegen) -> list[str]:
    """Return a sentence for each option in a rule file that its codegen refuses."""
    cls = getattr(codegen, "Options", None)
    if cls is None:
        return []
    found = find_option_problems(cls, target.rules.codegen_options)
    return [
        f"{target.source}: {target.locate(f'codegen_options.{key}')}: codegen {codegen.name} {problem}"
        for key, problem in found.items()
    ]
