"""Layout conversions as ONNX nodes: Transpose for permutations; Pad, Reshape and Slice for blocks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache

from onnx import NodeProto, TensorProto, helper

from byoc.graph.attributes import get_allowed_dtypes, get_schema
from byoc.graph.layout import TensorLayout, LayoutStep
from byoc.graph.types import DTYPE_NUMBERS, TensorType, count_bits

NameMaker = Callable[[str, TensorType], str]
"""A function from the wanted name and the type of a tensor to a name that is not in use."""

# From this version on Pad has its numbers as an input and not as an attribute, as the others do.
_PAD_INPUTS_OPSET = 11
# onnxruntime (1.31, operator sets 11 to 23) has no Pad for these, but has one for a wider type.
_PAD_DTYPES = {"int16": "int32", "uint16": "int32", "bfloat16": "float32"}


@cache
def can_convert_layout(layout: TensorLayout, kind: TensorType | None, opset: int) -> bool:
    """Return whether nodes can convert a tensor of a plain type to a layout and back.

    They cannot where `Layout.packed` gives None, several elements share a byte, or the operators of that
    version do not accept the dtype.
    """
    if kind is None or layout.pack_type(kind) is None or count_bits(kind.dtype) < 8:
        return False
    steps = (*layout.make_pack_steps(kind), *layout.make_unpack_steps(kind))
    if layout.blocks and opset < _PAD_INPUTS_OPSET:
        return False
    schemas = [get_schema(step.op, "", opset) for step in steps]
    return all(schema is not None and kind.dtype in get_allowed_dtypes(schema, "T") for schema in schemas)


def make_layout_nodes(steps: Iterable[LayoutStep], source: str, target: str, name: NameMaker) -> list[NodeProto]:
    """Make the nodes for conversion steps from tensor `source` to `target`, with their constants.

    No steps give an Identity. Nodes are named after their output. A Pad of a dtype that onnxruntime
    cannot pad is done in a wider type, between two Casts that change no number.
    """
    nodes: list[NodeProto] = []
    steps = list(_make_runnable(steps))
    for i, step in enumerate(steps):
        output = target if i == len(steps) - 1 else name(f"{target}_{step.op.lower()}", step.output_type)
        operands = [source]
        for key, values in _list_constant_inputs(step).items():
            operands.append(name(f"{output}_{key}", TensorType("int64", (len(values),))))
            value = helper.make_tensor(key, TensorProto.INT64, [len(values)], values)
            nodes.append(helper.make_node("Constant", [], operands[-1:], operands[-1], value=value))
        nodes.append(helper.make_node(step.op, operands, [output], output))
        if step.op == "Transpose":
            nodes[-1].attribute.append(helper.make_attribute("perm", step.argument))
        elif step.op == "Cast":
            nodes[-1].attribute.append(helper.make_attribute("to", DTYPE_NUMBERS[step.output_type.dtype]))
        source = output
    return nodes or [helper.make_node("Identity", [source], [target], target)]


def _make_runnable(steps: Iterable[LayoutStep]) -> Iterator[LayoutStep]:
    """Yield steps whose operators onnxruntime has for their dtypes."""
    for step in steps:
        wider = _PAD_DTYPES.get(step.output_type.dtype) if step.op == "Pad" else None
        if wider is None:
            yield step
            continue
        shape = step.output_type.shape or ()
        before = tuple(
            dim - more if isinstance(dim, int) else dim
            for dim, more in zip(shape, step.argument, strict=True)
        )
        yield LayoutStep("Cast", (), TensorType(wider, before))
        yield replace(step, kind=TensorType(wider, shape))
        yield LayoutStep("Cast", (), step.output_type)


def _list_constant_inputs(step: LayoutStep) -> dict[str, tuple[int, ...]]:
    """Return the constant inputs of a step's operator in order, by a name for each."""
    rank = len(step.argument)
    if step.op == "Pad":
        return {"pads": (0,) * rank + step.argument}
    if step.op == "Slice":
        return {"starts": (0,) * rank, "ends": step.argument}
    return {"shape": step.argument} if step.op == "Reshape" else {}
