"""Changes of layout as ONNX nodes: a Transpose for a permutation; Pad, Reshape and Slice for blocks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache

from onnx import NodeProto, TensorProto, helper

from byoc.graph.attributes import open_dtypes, schema_of
from byoc.graph.layout import Layout, Step
from byoc.graph.types import NUMBERS, TensorType, bits

Name = Callable[[str, TensorType], str]
"""Given what to call a tensor, and its type, gives a name that is not yet taken."""

# What these operators read as inputs, and not as attributes, is so from this version on: Pad's.
_INPUTS_OPSET = 11
# onnxruntime (1.31, operator sets 11 to 23) has no Pad for these, but for one that holds their values.
_PADDED_AS = {"int16": "int32", "uint16": "int32", "bfloat16": "float32"}


@cache
def can_lie(layout: Layout, kind: TensorType | None, opset: int) -> bool:
    """Return whether a tensor of a plain type can be brought into a layout and back by nodes.

    It cannot where `Layout.packed` has no type for it, several elements share a byte, or the operators
    of that version do not take its dtype.
    """
    if kind is None or layout.packed(kind) is None or bits(kind.dtype) < 8:
        return False
    steps = (*layout.forward(kind), *layout.inverse(kind))
    if layout.blocks and opset < _INPUTS_OPSET:
        return False
    schemas = [schema_of(step.op, "", opset) for step in steps]
    return all(schema is not None and kind.dtype in open_dtypes(schema, "T") for schema in schemas)


def layout_nodes(steps: Iterable[Step], source: str, target: str, name: Name) -> list[NodeProto]:
    """Return the nodes that make tensor `target` of `source` by steps, in order, with their constants.

    An Identity stands for no steps at all. Nodes are named after their output. Around a Pad of a dtype
    that onnxruntime has no Pad for are Casts to a wider one and back, which change no number.
    """
    nodes: list[NodeProto] = []
    steps = list(_runnable(steps))
    for i, step in enumerate(steps):
        output = target if i == len(steps) - 1 else name(f"{target}_{step.op.lower()}", step.kind)
        operands = [source]
        for key, values in _constants(step).items():
            operands.append(name(f"{output}_{key}", TensorType("int64", (len(values),))))
            value = helper.make_tensor(key, TensorProto.INT64, [len(values)], values)
            nodes.append(helper.make_node("Constant", [], operands[-1:], operands[-1], value=value))
        nodes.append(helper.make_node(step.op, operands, [output], output))
        if step.op == "Transpose":
            nodes[-1].attribute.append(helper.make_attribute("perm", step.argument))
        elif step.op == "Cast":
            nodes[-1].attribute.append(helper.make_attribute("to", NUMBERS[step.kind.dtype]))
        source = output
    return nodes or [helper.make_node("Identity", [source], [target], target)]


def _runnable(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield steps, each of a dtype that onnxruntime has its operator for."""
    for step in steps:
        wider = _PADDED_AS.get(step.kind.dtype) if step.op == "Pad" else None
        if wider is None:
            yield step
            continue
        shape = step.kind.shape or ()
        before = tuple(
            dim - more if isinstance(dim, int) else dim
            for dim, more in zip(shape, step.argument, strict=True)
        )
        yield Step("Cast", (), TensorType(wider, before))
        yield replace(step, kind=TensorType(wider, shape))
        yield Step("Cast", (), step.kind)


def _constants(step: Step) -> dict[str, tuple[int, ...]]:
    """Return what a step reads besides its data, in order."""
    rank = len(step.argument)
    if step.op == "Pad":
        return {"pads": (0,) * rank + step.argument}
    if step.op == "Slice":
        return {"starts": (0,) * rank, "ends": step.argument}
    return {"shape": step.argument} if step.op == "Reshape" else {}
