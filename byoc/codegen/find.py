"""Finding a codegen by name, and making sure that it is one."""

from byoc.codegen.api import Codegen
from byoc.errors import InputError
from byoc.plugins import CODEGENS, distribution, installed, load


def find_codegen(name: str) -> Codegen:
    """Return the codegen of that name.

    Raises InputError when none is installed under it, it cannot be loaded, it is no codegen, or it
    has another `name`.
    """
    found = load(CODEGENS, name)
    if not isinstance(found, Codegen):
        source = distribution(installed(CODEGENS)[name])
        raise InputError(
            f"codegen '{name}' of {source} is not one: it needs a `name` and a method "
            "`compile(region, options)`"
        )
    if found.name != name:  # a bundle finds its codegen again by the name that it wrote down
        source = distribution(installed(CODEGENS)[name])
        raise InputError(f"codegen '{name}' of {source} calls itself '{found.name}': rename either")
    return found
