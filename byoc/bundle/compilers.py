"""What compiles each target's regions, by what the user and the rule files say: codegens, options."""

from collections.abc import Mapping, Sequence

from byoc.bundle.compile import Compiler
from byoc.codegen import Codegen, find_codegen
from byoc.codegen.options import option_problems
from byoc.errors import InputError, nearest
from byoc.rules.load import Target

Options = Mapping[str, str]
_MARK = ":"


def load_compilers(
    targets: Sequence[Target], codegens: Mapping[str, str], given: Options
) -> dict[str, Compiler]:
    """Return what compiles each target's regions, by the target's name.

    `codegens` has a codegen's name for each target. `given` are options by `name`, for all codegens, or
    by `target:name`, for that of one target; both win over the target's rule file.

    Raises InputError when a codegen cannot be loaded, an option is wrong, or there is no such target.
    """
    names = [target.name for target in targets]
    for key in given:
        target, mark, _ = key.partition(_MARK)
        if mark and target not in names:
            raise InputError(f"codegen option {key}: no such target{nearest(target, names)}")
    return {target.name: _compiler(target, codegens[target.name], given) for target in targets}


def _compiler(target: Target, name: str, given: Options) -> Compiler:
    codegen = find_codegen(name)
    options = dict(file_options(target, codegen))
    options |= {key: value for key, value in given.items() if _MARK not in key}
    own = f"{target.name}{_MARK}"
    options |= {key.removeprefix(own): value for key, value in given.items() if key.startswith(own)}
    compiler = Compiler(codegen, options)
    _ = compiler.chosen
    return compiler


def file_options(target: Target, codegen: Codegen) -> Options:
    """Return the options that a rule file has for a codegen; none when it is not the file's own.

    Raises InputError with a line for each one that is not right.
    """
    if codegen.name != target.rules.codegen:
        return {}
    problems = file_option_problems(target, codegen)
    if problems:
        raise InputError("\n".join(problems))
    return target.rules.codegen_options


def file_option_problems(target: Target, codegen: Codegen) -> list[str]:
    """Return a sentence for each option in a rule file that its codegen does not have or take."""
    cls = getattr(codegen, "Options", None)
    if cls is None:
        return []
    found = option_problems(cls, target.rules.codegen_options)
    return [
        f"{target.source}: {target.place(f'codegen_options.{key}')}: codegen {codegen.name} {problem}"
        for key, problem in found.items()
    ]
