"""The clean-up passes that run without being asked for, and those of them about shapes."""

from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    GraphIndex,
    KnownValues,
    build_node,
    get_constant_value,
    get_stated_attributes,
    rate_knowledge,
)
from byoc.passes._affine_folding import ExplicitPads, FoldBatchNormalization
from byoc.passes._cleaning import CleanPass, DropNanGuards
from byoc.passes._flat_forms import FlatForm
from byoc.passes._folded_scales import FoldScales
from byoc.passes._frame_forms import FrameForm
from byoc.passes._idle_clamps import DropClamps
from byoc.passes._narrow_forms import NarrowDoubles, NarrowIntegers
from byoc.passes._planar_forms import PlanarForm, PooledMean
from byoc.passes._quantized_operators import ReadQuantizedOperators
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import TwinForm

# Passes that drop what does nothing: Dropout that does not train, and Identity.

# Until operator set 6 an attribute says whether Dropout trains, from 12 on an input.
_ATTRIBUTE_OPSET, _INPUT_OPSET = 6, 12
_TRAINING_INPUT = 2  # position of Dropout's `training_mode`


@dataclass(frozen=True)
class DropIdentity(CleanPass):
    """Drop Identity nodes: their readers read what they copy.

    One between an input and an output of a graph stays, and so does one whose output says more of the
    type than its input.
    """

    name: ClassVar[str] = "drop-identity"
    operators: ClassVar[frozenset[str]] = frozenset({"Identity"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Drop the nodes that can be dropped."""
        for number in numbers:
            _drop(edits, number)


@dataclass(frozen=True)
class DropDropout(CleanPass):
    """Drop Dropout nodes that do not train and whose mask is not read."""

    name: ClassVar[str] = "drop-dropout"
    operators: ClassVar[frozenset[str]] = frozenset({"Dropout"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Drop the nodes that can be dropped."""
        index = edits.index
        for number in numbers:
            masks = index.node_outputs[number][1:]
            read = any(map(edits.is_read, filter(None, masks)))
            if read or _may_train(index, number):
                continue
            if _drop(edits, number):
                edits.drop_parameters(index.node_inputs[number][1:])


def _may_train(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    opset = index.get_opset(node)
    if opset <= _ATTRIBUTE_OPSET:
        return not get_stated_attributes(node).get("is_test", 0)
    names = index.node_inputs[number]
    if opset < _INPUT_OPSET or len(names) <= _TRAINING_INPUT or not names[_TRAINING_INPUT]:
        return False
    value = get_constant_value(index, names[_TRAINING_INPUT])
    return value is None or value.dtype != bool or bool(value.any())


def _drop(edits: GraphEdits, number: int) -> bool:
    """Drop a node whose first output is its first input; return whether that was possible."""
    index = edits.index
    given, made = index.node_inputs[number][0], index.node_outputs[number][0]
    if number in index.constant_nodes or not given or not made:
        return False
    types = index.type_protos
    if rate_knowledge(types.get(edits.find_root(given))) < rate_knowledge(types.get(made)):
        return False
    return edits.bypass(number, given, made)


# Arithmetic on shapes: what moves or combines integers exactly, on every runtime alike.
_ARITHMETIC = frozenset(
    [
        *("Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand"),
        *("Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max"),
        *("Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin", "ReduceProd"),
        *("ReduceSum", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Sub", "Tile"),
        *("Transpose", "Unsqueeze", "Where"),
    ]
)
_COUNTING = frozenset(["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))])
_MAX_MADE_ELEMENTS = 1 << 16
_RESHAPE_OPSET = 5  # before, the shape is an attribute


@dataclass(frozen=True)
class FoldShapes(CleanPass):
    """Replace shapes that are known, and integer arithmetic on them, by constants.

    Where the result would make something large constant that now is computed as the model runs, as
    ConstantOfShape or Expand may, the shape stays. So does what the condition of an If in a body is
    calculated from: two Ifs with stored conditions, one in a branch of the other, end the process that
    onnxruntime loads them in (1.32).
    """

    name: ClassVar[str] = "fold-shapes"
    operators: ClassVar[frozenset[str]] = frozenset({"Shape", "Size"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace the nodes whose values other nodes read, and drop those that only they read."""
        index = edits.index
        found = _leave_large(index, _leave_conditions(index, _find_values(edits, numbers)))
        read = [n for n in found if _is_read_elsewhere(edits, n, found)]
        for number in read:
            node = index.nodes[number]
            edits.note_replaced(number, "folded")
            edits.replace(number, *map(_make_constant, node.output, found[number]))
        edits.drop_parameters(name for n in found for name in index.node_inputs[n] if name)


Values = dict[int, list[NDArray[Any]]]
"""The values of the outputs of nodes, by node number."""


def _find_values(edits: GraphEdits, numbers: Sequence[int]) -> Values:
    """Return the nodes of shape arithmetic all of whose values are known."""
    index, known = edits.index, edits.known
    found: Values = {}
    if known is None:
        return found
    derived: set[str] = set()  # what follows from a shape, of which `exact` on any runtime alike:
    exact: set[str] = set()
    first = set(numbers)
    for number in range(min(numbers), len(index.nodes)):
        names, outputs = index.node_inputs[number], index.node_outputs[number]
        if number not in first and derived.isdisjoint(names):
            continue
        kind = index.node_kinds[number]
        derived.update(outputs)
        if not kind.is_onnx or kind.op_type not in _ARITHMETIC:
            continue
        if number in first or all(not name or name in exact or _is_plain(index, name) for name in names):
            exact.update(outputs)
            values = [_read_value(edits, known, name) for name in outputs]
            if number not in edits.removed and all(value is not None for value in values):
                found[number] = [value for value in values if value is not None]
    return found


def _is_plain(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor's value needs no calculation with rounding."""
    maker = index.producers.get(name)
    stored = maker is None or index.node_kinds[maker].op_type == "Constant"
    return stored or index.get_dtype(name) in _COUNTING


def _read_value(edits: GraphEdits, known: KnownValues, name: str) -> NDArray[Any] | None:
    """Return a value, None unless it is of integers or booleans and of the tensor's type."""
    kind = edits.index.types.get(name)
    if kind is None or kind.dtype not in _COUNTING or edits.is_output(name):
        return None
    value = known.find(name)
    fits = value is not None and (str(value.dtype), value.shape) == (kind.dtype, kind.shape)
    return value if fits else None


def _leave_conditions(index: GraphIndex, found: Values) -> Values:
    """Return the values without those that conditions of Ifs in bodies are calculated from."""
    if not index.bodies and index.outer is None:
        return found
    makers: dict[str, tuple[GraphIndex, int]] = {}
    pending: list[str] = []
    for each in index.walk():
        for number, kind in enumerate(each.node_kinds):
            if kind.is_onnx and kind.op_type in _ARITHMETIC:
                makers.update(dict.fromkeys(each.node_outputs[number], (each, number)))
            elif each.outer is not None and kind.is_onnx and kind.op_type == "If":
                pending.append(each.node_inputs[number][0])
    barred: set[int] = set()
    while pending:
        maker = makers.pop(pending.pop(), None)
        if maker is not None:
            graph, number = maker
            pending.extend(graph.node_inputs[number])
            barred.update([number] if graph is index else [])
    return {number: values for number, values in found.items() if number not in barred}


def _leave_large(index: GraphIndex, found: Values) -> Values:
    """Return the values without those that would make something large constant."""
    while True:
        constant = {name for number in found for name in index.node_outputs[number]}
        barred: set[int] = set()
        for number, kind in enumerate(index.node_kinds):
            names = index.reads[number]
            if number in found or number in index.constant_nodes or number in index.bodies:
                continue
            if not names or not kind.is_onnx or constant.isdisjoint(names):
                continue
            if not all(name in constant or index.is_constant(name) for name in names):
                continue
            if all(_is_small(index, name) for name in index.node_outputs[number]):
                constant.update(index.node_outputs[number])
            else:
                barred |= _find_makers(index, names, found)
        if not barred:
            return found
        found = {number: values for number, values in found.items() if number not in barred}


def _is_small(index: GraphIndex, name: str) -> bool:
    kind = index.types.get(name)
    elements = None if kind is None else kind.elements
    return not name or (elements is not None and elements <= _MAX_MADE_ELEMENTS)


def _find_makers(index: GraphIndex, names: Iterable[str], found: Values) -> set[int]:
    """Return the nodes with known values that some tensors follow from."""
    makers: set[int] = set()
    seen: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        number = index.producers.get(name)
        if number is None or name in seen:
            continue
        seen.add(name)
        if number in found:
            makers.add(number)
        pending.extend(index.reads[number])
    return makers


def _is_read_elsewhere(edits: GraphEdits, number: int, found: Values) -> bool:
    """Return whether a node that stays reads what a node makes."""
    names = edits.index.node_outputs[number]
    return any(reader not in found for name in names if name for reader in edits.list_readers(name))


def _make_constant(name: str, value: NDArray[Any]) -> NodeProto:
    return build_node("Constant", [], [name], value=numpy_helper.from_array(value))


@dataclass(frozen=True)
class FlattenToReshape(CleanPass):
    """Make each Flatten a Reshape, for targets that have no other name for it.

    One whose shape is open on both sides of the axis stays.
    """

    name: ClassVar[str] = "flatten-to-reshape"
    operators: ClassVar[frozenset[str]] = frozenset({"Flatten"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace the nodes whose shape is known."""
        index = edits.index
        for number in numbers:
            node = index.nodes[number]
            target = _find_target(edits, number)
            if target is None or number in index.constant_nodes:
                continue
            name = edits.names.new_tensor(f"{node.output[0]}_shape")
            shape = _make_constant(name, np.array(target, np.int64))
            reshape = build_node("Reshape", [node.input[0], name], node.output)
            edits.types[name] = helper.make_tensor_type_proto(TensorProto.INT64, [2])
            edits.note_replaced(number, "replaced")
            edits.replace(number, shape, reshape)


def _find_target(edits: GraphEdits, number: int) -> tuple[int, int] | None:
    """Return the shape for a Reshape: -1 where an extent is open, None where both may be or one is 0."""
    node = edits.index.nodes[number]
    if edits.index.get_opset(node) < _RESHAPE_OPSET:
        return None
    dims = None if edits.known is None else edits.known.find_shape(node.input[0])
    axis = get_stated_attributes(node).get("axis", 1)
    if dims is None or not -len(dims) <= axis <= len(dims):
        return None
    axis = axis + len(dims) if axis < 0 else axis
    sides = [_multiply(part) for part in (dims[:axis], dims[axis:])]
    if 0 in sides or sides == [None, None]:
        return None
    first, second = (-1 if side is None else side for side in sides)
    return first, second


def _multiply(dims: Sequence[Any]) -> int | None:
    return prod(dims) if all(isinstance(dim, int) for dim in dims) else None


# The clean-up passes that run without being asked for.


ALL_PASSES = "all"
# Dropout behind shapes: where a folded Shape alone read what reads its mask, it does nothing either.
_ALWAYS = (DropIdentity(), FoldShapes(), DropDropout(), ExplicitPads(), DropNanGuards())
_SOMETIMES = (FlattenToReshape(), FoldBatchNormalization(), ReadQuantizedOperators(), DropClamps())
_OFFERED: tuple[TwinForm, ...] = (
    PooledMean(),
    PlanarForm(),
    FrameForm(),
    FlatForm(),
    NarrowIntegers(),
    NarrowDoubles(),
)
FORM_NAMES = frozenset(form.name for form in _OFFERED)
"""The names of the forms of nodes that targets are offered."""
MOVING_FORM_NAMES = frozenset(form.name for form in _OFFERED if form.moves_data)
"""The names of those for which data is moved."""


def list_clean_passes(  # noqa: PLR0913 - one for each pass that only some targets want
    reshape: bool,
    batchnorm: bool,
    left_out: Collection[str] = (),
    *,
    quantized: bool = False,
    products: bool = False,
    clamps: Collection[str] | None = None,
) -> tuple[CleanPass, ...]:
    """Return the passes that clean a model, in their order.

    `reshape` says that Flatten is to become Reshape, `batchnorm` that BatchNormalization is to be
    folded, `quantized` that operators of integers are to be read as QDQ groups, `products` that only
    products of what is quantized as a model runs are to be read so. `clamps` are the clamping operators
    that targets have; clamps of quantized tensors stay where it is None. `left_out` are names of passes
    that are not wanted, or `all`. Raises InputError for a name that none of them has.
    """
    known = {each.name: each for each in (*_ALWAYS, *_SOMETIMES)}
    names = (*known, *(form.name for form in _OFFERED), ALL_PASSES)
    for name in left_out:
        if name not in names:
            there = ", ".join(names)
            hint = suggest_nearest(name, names)
            what = "no pass that runs without being asked for"
            raise InputError(f"{name}: {what}{hint}; there are {there}")
    if ALL_PASSES in left_out:
        return ()
    wanted = {
        FlattenToReshape.name: reshape,
        FoldBatchNormalization.name: batchnorm,
        ReadQuantizedOperators.name: quantized or products,
        DropClamps.name: clamps is not None,
    }
    known[DropClamps.name] = DropClamps(",".join(sorted(clamps or ())))
    if not quantized:
        known[ReadQuantizedOperators.name] = ReadQuantizedOperators(dynamic_only=True)
    return tuple(each for name, each in known.items() if name not in left_out and wanted.get(name, True))


def list_offered_forms(left_out: Collection[str] = ()) -> tuple[TwinForm, ...]:
    """Return the forms of nodes that targets are offered, but for those of some names, or `all`."""
    return () if ALL_PASSES in left_out else tuple(f for f in _OFFERED if f.name not in left_out)


def describe_clean_pass(name: str) -> str:
    """Return when a pass runs without being asked for; empty for one that has to be asked for."""
    if name in {each.name for each in _ALWAYS}:
        return "always"
    sometimes = {
        FlattenToReshape.name: "where rules speak of Reshape and not of Flatten",
        FoldBatchNormalization.name: "where rules want folded_batchnorm",
        FoldScales.name: "before a model is quantized",
        ReadQuantizedOperators.name: "where rules take QDQ groups, and none operators of integers, "
        "or rules want real_products",
        DropClamps.name: "where rules take quantized operators",
        **{form.name: "where rules take nodes in this form, and not as they are" for form in _OFFERED},
    }
    return sometimes.get(name, "")
