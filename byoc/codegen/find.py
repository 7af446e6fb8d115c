"""Finding a codegen by name, and making sure that it is one."""

from byoc.codegen.api import Codegen
from byoc.errors import InputError
from byoc.plugins import CODEGENS, distribution, installed, load


def find_codegen(name: str) -> Codegen:
    """Return the codegen of that name.

    Raises InputError when none is installed under it, it cannot be loaded, or it is no codegen.
    """
    found = load(CODEGENS, name)
    if not isinstance(found, Codegen):
        source = distribution(installed(CODEGENS)[name])
        raise InputError(
            f"codegen '{name}' of {source} is not one: it needs a `name` and a method "
            "`compile(region, options)`"
        )
    return found
