"""The check that a pass left the inputs and outputs of a model as they were."""

from collections.abc import Iterable

from onnx import ModelProto, ValueInfoProto


def find_interface_change(before: ModelProto, after: ModelProto) -> str:
    """Describe the first change of a model's inputs and outputs, as a sentence's end; "" for none.

    Names, their order, types and stated shapes are compared. Inputs that have an initializer (as before
    IR version 4) are constants, and may go.
    """
    for what, old, new in (
        ("input", _list_inputs(before), _list_inputs(after)),
        ("output", before.graph.output, after.graph.output),
    ):
        problem = _compare(what, list(old), list(new))
        if problem:
            return problem
    return ""


def _list_inputs(model: ModelProto) -> Iterable[ValueInfoProto]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return (value for value in model.graph.input if value.name not in stored)


def _compare(what: str, old: list[ValueInfoProto], new: list[ValueInfoProto]) -> str:
    before, after = ([value.name for value in values] for values in (old, new))
    for name in before:
        if name not in after:
            return f"it removes the {what} '{name}'"
    for name in after:
        if name not in before:
            return f"it adds the {what} '{name}'"
    if before != after:
        return f"it changes the order of the {what}s"
    for one, other in zip(old, new, strict=True):
        if one.type != other.type:
            return f"it changes the type or shape of the {what} '{one.name}'"
    return ""
