"""Requirements of a target for the tensors that cross its boundary, from its rule file."""

from byoc.boundary.border import Wants
from byoc.errors import InputError
from byoc.graph.layout import Layout, parse_layout
from byoc.rules.load import Target


def wants_of(target: Target) -> Wants:
    """Return the requirements for the tensors that cross to or from a target.

    Raises InputError when its layout is none.
    """
    rules = target.rules
    layout = _read_layout(target, "activations", rules.layout.activations)
    return Wants(layout, rules.quantization.convert or "host", target.compute)


def weights_of(target: Target) -> Layout | None:
    """Return the layout of convolution weights for a target, None for the layout of ONNX.

    Raises InputError when its layout is none.
    """
    return _read_layout(target, "weights", target.rules.layout.weights)


def _read_layout(target: Target, key: str, word: str | None) -> Layout | None:
    try:
        layout = None if word is None else parse_layout(word)
    except ValueError as error:
        place = target.place(f"layout.{key}")
        raise InputError(f"{target.source}: {place}: {error}") from None
    return None if layout is None or layout.is_plain else layout
