"""What a target wants at its borders, as its rule file says."""

from byoc.boundary.border import Wants
from byoc.errors import InputError
from byoc.graph.layout import parse_layout
from byoc.rules.load import Target


def wants_of(target: Target) -> Wants:
    """Return what has to be done to tensors that cross to or from a target.

    Raises InputError when its layout is none.
    """
    rules = target.rules
    word = rules.layout.activations
    try:
        layout = None if word is None else parse_layout(word)
    except ValueError as error:
        place = target.place("layout.activations")
        raise InputError(f"{target.source}: {place}: {error}") from None
    kept = layout is None or layout.is_plain
    return Wants(None if kept else layout, rules.quantization.convert or "host")
