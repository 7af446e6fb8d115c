"""Minimization of the bytes transposed on the host."""

from collections.abc import Sequence

from onnx import GraphProto

from byoc.boundary.border import Border
from byoc.boundary.edit import Editing
from byoc.boundary.transposes.constants import Room
from byoc.boundary.transposes.facts import Facts
from byoc.boundary.transposes.forms import choose
from byoc.boundary.transposes.frames import frames
from byoc.boundary.transposes.merge import merge
from byoc.boundary.transposes.permutation import Order
from byoc.boundary.transposes.rename import Calls
from byoc.boundary.transposes.rewrite import rewrite
from byoc.graph.layout import Layout


def fewer(edit: Editing, borders: Sequence[Border]) -> None:
    """Remove Transposes of layouts from the host's graphs; the model is edited in place.

    In each graph, and for each layout in turn, every operator that can run on transposed tensors does so
    if that helps; a minimum cut chooses them, so that no other choice transposes fewer bytes. The user's
    own Transposes between a layout and ONNX's order count like byoc's if movable operators connect them.
    Consecutive steps are merged afterwards. Steps of blocked layouts are not moved.

    Moved nodes bear the metadata `byoc.layout`. Elementwise operators, Concat, Pad and the like compute
    the same numbers in either order. A reduction of floats that adds or multiplies is not moved, since
    it would round differently in another order.
    """
    calls = Calls(edit)
    layouts = dict.fromkeys(b.wants.activations for b in borders if b.wants.activations is not None)
    turns = {layout: turn for layout in layouts if (turn := _turn(layout)) is not None}
    if not layouts:
        return
    for scope in edit.scopes:
        if not isinstance(scope.proto, GraphProto):
            continue
        replaced: set[str] = set()
        for layout, turn in turns.items():
            room = Room(edit, scope, Facts(edit, scope, borders), calls)
            found = frames(scope, room.facts, turn, calls.given())
            if found is not None:
                forms = choose(scope, found, room.facts.bytes)
                replaced |= rewrite(room, found, forms, (layout.plain_axes, str(layout)))
        merge(Room(edit, scope, Facts(edit, scope, borders), calls), replaced)


def _turn(layout: Layout) -> Order | None:
    """Return the permutation from ONNX's order into a layout, None if there is no such."""
    if layout.blocks or layout.is_plain:
        return None
    return tuple(layout.plain_axes.index(axis) for axis in layout.axes)
