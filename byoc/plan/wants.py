"""Requirements of a target for the tensors that cross its boundary, from its rule file."""

from byoc.boundary.border import BoundaryFormat
from byoc.errors import InputError
from byoc.graph.layout import TensorLayout, parse_layout
from byoc.rules.load import Target


def read_requirements(target: Target) -> BoundaryFormat:
    """Return the requirements for the tensors that cross to or from a target.

    Raises InputError when its layout is none.
    """
    rules = target.rules
    layout = _read_layout(target, "activations", rules.layout.activations)
    return BoundaryFormat(layout, rules.quantization.convert or "host", target.compute_dtype)


def read_weight_layout(target: Target) -> TensorLayout | None:
    """Return the layout of convolution weights for a target, None for the layout of ONNX.

    Raises InputError when its layout is none.
    """
    return _read_layout(target, "weights", target.rules.layout.weights)


def _read_layout(target: Target, key: str, word: str | None) -> TensorLayout | None:
    try:
        layout = None if word is None else parse_layout(word)
    except ValueError as error:
        place = target.locate(f"layout.{key}")
        raise InputError(f"{target.source}: {place}: {error}") from None
    return None if layout is None or layout.is_plain else layout
