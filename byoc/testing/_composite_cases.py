"""Models that contain a composite of a rule file, generated from its pattern."""

from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType

from onnx import helper

from byoc.errors import InputError
from byoc.patterns import Pattern, PatternForm, PatternLine
from byoc.testing._case_compiler import CaseCompiler, NotTakenError, PlannedCase
from byoc.testing._cases import Case, GraphSketch

_SHAPES = ((1, 4, 8, 8), (8, 8), (1, 8, 8))
_MAX_ATTEMPTS = 12  # attempts

# The operands of operators after the first, in the notation of `GraphSketch.add_node`. The default is
# another tensor of the same shape.
_OPERANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Conv": ("w=4x4x3x3", "b=4"),
        "ConvTranspose": ("w=4x4x1x1", "b=4"),
        "BatchNormalization": ("scale=4", "b=4", "mean=4", "var=4"),
        "InstanceNormalization": ("s=4", "b=4"),
        "LayerNormalization": ("s=8", "b=8"),
        "Gemm": ("w=8x8", "b=8"),
        "MatMul": ("w=8x8",),
        "Clip": ("lo=", "hi="),
    }
)
_DEFAULT_ATTRIBUTES = MappingProxyType(
    {
        "Conv": "<kernel_shape=[3,3], pads=[1,1,1,1]>",
        "MaxPool": "<kernel_shape=[3,3], pads=[1,1,1,1]>",
        "AveragePool": "<kernel_shape=[3,3], pads=[1,1,1,1]>",
    }
)


def plan_composite(workshop: CaseCompiler, name: str) -> PlannedCase:
    """Return a model with the composite in a region. Raises NotTakenError when none is found."""
    pattern = next(each for each in workshop.target.patterns if each.name == name)
    tried = 0
    for case in _composite_models(pattern, workshop.dtypes[0]):
        for precision in workshop.precisions:
            try:
                found = workshop.plan_case(case, precision)
            except (NotTakenError, InputError):
                continue
            if any(called == name or called.startswith(f"{name}_") for called in found.composites):
                return found
        tried += 1
        if tried == _MAX_ATTEMPTS:
            break
    raise NotTakenError("this kit makes none from its pattern; name a model of the zoo that has it")


def _composite_models(pattern: Pattern, dtype: str) -> Iterator[Case]:
    for form, shape, constant in product(pattern.forms, _SHAPES, (False, True)):
        try:
            yield _composite_model(pattern.name, form, dtype, shape, constant)
        except Exception:  # these operands do not suit the pattern; onnx raises various exceptions
            continue


def _composite_model(
    name: str, form: PatternForm, dtype: str, shape: tuple[int, ...], constant: bool
) -> Case:
    """Return the nodes of a form as a model; with `constant`, all but first operands are constants."""
    sketch = GraphSketch(dtype)
    for node in form.nodes:
        operator = node.ops[0]
        operands = [
            _operand_text(sketch, form, node, position, shape, constant)
            for position in range(len(node.operands))
        ]
        makes = [output or f"unread_{number}" for number, output in enumerate(node.outputs)]
        text = f"{operator}{_DEFAULT_ATTRIBUTES.get(operator, '')}({', '.join(operands)})"
        sketch.add_node(text, ", ".join(makes))
        _set_attributes(sketch, node)
    return sketch.build_case(f"composite {name}", form.outputs)


def _operand_text(  # noqa: PLR0913, PLR0917 - where the operand stands
    sketch: GraphSketch,
    form: PatternForm,
    node: PatternLine,
    position: int,
    shape: tuple[int, ...],
    constant: bool,
) -> str:
    operand = node.operands[position]
    if operand.name in form.makers or operand.name in sketch.inputs:
        return operand.name
    if operand.value is not None:
        raise ValueError("a literal")
    known = _OPERANDS.get(node.ops[0], ())
    if position and position <= len(known):
        return known[position - 1]
    if (constant or operand.constant) and position:
        return f"c={'x'.join(map(str, shape))}"
    return sketch.add_input(operand.name, shape)


def _set_attributes(sketch: GraphSketch, node: PatternLine) -> None:
    """Set the attributes that the pattern's line requires to fixed values."""
    made = sketch.nodes[-1]
    for asked in node.attributes:
        if asked.values and asked.name not in [attribute.name for attribute in made.attribute]:
            made.attribute.append(helper.make_attribute(asked.name, asked.values[0]))
