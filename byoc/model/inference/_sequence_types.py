"""Sequences as lists of types: what a node puts into one, and what another takes out.

ONNX types a sequence by one element type. Exporters write lists of a known length (`out.append(...)`),
of tensors whose shapes differ, so each element is followed. Where a position or a length is known only
when the model runs, the list is not known.
"""

from collections.abc import Callable, Mapping, Sequence

from byoc.model._tensor_types import Dim, TensorType
from byoc.model._walk import get_input
from byoc.model.inference._extents import add_dims
from byoc.model.inference._scope_values import describe_node, find_value, read_values
from byoc.model.inference._scopes import TensorScope

Elements = tuple[TensorType | None, ...]

MOST_ELEMENTS = 1024
"""The longest list that is followed, as the values of small tensors are."""


def follow_sequence(scope: TensorScope, number: int) -> None:
    """Enter the elements of the sequence that a node makes, where they are known."""
    rule = _MAKERS.get(scope.kinds[number].operator)
    made = scope.outputs[number][0] if scope.outputs[number] else ""
    if rule is None or not made:
        return
    found = rule(scope, number)
    if found is not None and len(found) <= MOST_ELEMENTS:
        scope.sequences[made] = found


def infer_from_sequence(scope: TensorScope, number: int) -> Sequence[TensorType | None]:
    """Return the types of what a node takes out of a sequence; none where that is not known."""
    rule = _READERS.get(scope.kinds[number].operator)
    return [] if rule is None else rule(scope, number)


def _find_elements(scope: TensorScope, number: int) -> Elements | None:
    return scope.find_sequence(get_input(scope.nodes[number], 0))


def _find_position(scope: TensorScope, number: int, place: int, default: int | None) -> int | None:
    """Return the number that an input of a node has, `default` where it is left out."""
    name = get_input(scope.nodes[number], place)
    if not name:
        return default
    value = find_value(scope, name)
    if value is None or value.size != 1 or value.dtype == object:
        return None
    return int(value.reshape(-1)[0])


def _construct(scope: TensorScope, number: int) -> Elements | None:
    return tuple(scope.find_type(name) for name in scope.inputs[number])


def _insert(scope: TensorScope, number: int) -> Elements | None:
    elements = _find_elements(scope, number)
    if elements is None:
        return None
    position = _find_position(scope, number, 2, len(elements))
    added = scope.find_type(get_input(scope.nodes[number], 1))
    if position is None:  # one of equals may stand anywhere
        return (*elements, added) if all(each == added for each in elements) else None
    if not -len(elements) <= position <= len(elements):
        return None
    place = position + len(elements) if position < 0 else position
    return (*elements[:place], added, *elements[place:])


def _erase(scope: TensorScope, number: int) -> Elements | None:
    elements = _find_elements(scope, number)
    if not elements:
        return None
    position = _find_position(scope, number, 1, -1)
    if position is None:
        return elements[1:] if len(set(elements)) == 1 else None
    if not -len(elements) <= position < len(elements):
        return None
    place = position % len(elements)
    return (*elements[:place], *elements[place + 1 :])


def _split(scope: TensorScope, number: int) -> Elements | None:
    """Return the parts of a tensor: of one position each, of so many, or of those in a list."""
    kind = scope.find_type(get_input(scope.nodes[number], 0))
    attributes = describe_node(scope, number, read_values(scope, number, ())).attributes
    axis = attributes.get("axis", 0)
    if kind is None or kind.shape is None or not -len(kind.shape) <= axis < len(kind.shape):
        return None
    axis %= len(kind.shape)
    extent, name = kind.shape[axis], get_input(scope.nodes[number], 1)
    sizes: list[Dim] | None = None
    if not name:
        sizes = [1] * extent if isinstance(extent, int) and extent <= MOST_ELEMENTS else None
    elif (value := find_value(scope, name)) is not None and value.dtype != object:
        if value.ndim:
            sizes = [int(each) for each in value.reshape(-1)]
        elif isinstance(extent, int) and value.item() > 0 and extent <= MOST_ELEMENTS * value.item():
            step = int(value.item())
            sizes = [min(step, extent - start) for start in range(0, extent, step)]
    if sizes is None:
        return None
    drops = not name and not attributes.get("keepdims", 1)
    behind = kind.shape[axis + 1 :]
    return tuple(
        TensorType(kind.dtype, (*kind.shape[:axis], *([] if drops else [size]), *behind))
        for size in sizes
    )


_MAKERS: Mapping[str, Callable[[TensorScope, int], Elements | None]] = {
    "Identity": _find_elements,
    "SequenceConstruct": _construct,
    "SequenceEmpty": lambda scope, number: (),
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SplitToSequence": _split,
}


def _take_at(scope: TensorScope, number: int) -> list[TensorType | None]:
    elements = _find_elements(scope, number)
    if not elements:
        return []
    position = _find_position(scope, number, 1, None)
    if position is None:
        return [elements[0]] if len(set(elements)) == 1 else []
    return [elements[position]] if -len(elements) <= position < len(elements) else []


def _count(scope: TensorScope, number: int) -> list[TensorType | None]:
    return [TensorType("int64", ())]


def _join(scope: TensorScope, number: int) -> list[TensorType | None]:
    """Return the type of ConcatFromSequence: elements along an axis that they have, or a new one."""
    elements = _find_elements(scope, number)
    shapes = [each.shape for each in elements or () if each is not None and each.shape is not None]
    if not elements or len(shapes) < len(elements) or len({len(shape) for shape in shapes}) > 1:
        return []
    attributes = describe_node(scope, number, read_values(scope, number, ())).attributes
    new, axis, first = bool(attributes.get("new_axis", 0)), attributes.get("axis", 0), shapes[0]
    rank = len(first) + new
    if not -rank <= axis < rank:
        return []
    axis %= rank
    extents: list[Dim] = [_agree([shape[i] for shape in shapes]) for i in range(len(first))]
    if new:
        extents.insert(axis, len(shapes))
    else:
        extents[axis] = add_dims(*(shape[axis] for shape in shapes))
    assert elements[0] is not None  # all have a shape
    return [TensorType(elements[0].dtype, tuple(extents))]


def _agree(extents: Sequence[Dim]) -> Dim:
    """Return the extent that all of an axis share: a number before a name, None if none is known."""
    known = [extent for extent in extents if extent is not None]
    return next((each for each in known if isinstance(each, int)), known[0] if known else None)


_READERS: Mapping[str, Callable[[TensorScope, int], list[TensorType | None]]] = {
    "ConcatFromSequence": _join,
    "SequenceAt": _take_at,
    "SequenceLength": _count,
}
