"""Minimization of the bytes transposed on the host."""

from collections.abc import Sequence

from onnx import GraphProto

from byoc.boundary.border import RegionBoundary
from byoc.boundary.edit import ModelEditor
from byoc.boundary.transposes.constants import RewriteContext
from byoc.boundary.transposes.facts import GraphTensors
from byoc.boundary.transposes.forms import choose_forms
from byoc.boundary.transposes.frames import find_layout_graph
from byoc.boundary.transposes.merge import merge_steps
from byoc.boundary.transposes.permutation import AxisOrder
from byoc.boundary.transposes.rename import RegionCalls
from byoc.boundary.transposes.rewrite import rewrite_graph
from byoc.graph.layout import TensorLayout


def minimize_transposes(edit: ModelEditor, boundaries: Sequence[RegionBoundary]) -> None:
    """Remove Transposes of layouts from the host's graphs; the model is edited in place.

    In each graph, and for each layout in turn, every operator that can run on transposed tensors does so
    if that helps; a minimum cut chooses them, so that no other choice transposes fewer bytes. The user's
    own Transposes between a layout and ONNX's order count like byoc's if movable operators connect them.
    Consecutive steps are merged afterwards. Steps of blocked layouts are not moved.

    Moved nodes bear the metadata `byoc.layout`. Elementwise operators, Concat, Pad and the like compute
    the same numbers in either order. A reduction of floats that adds or multiplies is not moved, since
    it would round differently in another order.
    """
    calls = RegionCalls(edit)
    layouts = dict.fromkeys(b.format.activations for b in boundaries if b.format.activations is not None)
    turns = {layout: turn for layout in layouts if (turn := _layout_order(layout)) is not None}
    if not layouts:
        return
    for scope in edit.scopes:
        if not isinstance(scope.proto, GraphProto):
            continue
        replaced: set[str] = set()
        for layout, turn in turns.items():
            room = RewriteContext(edit, scope, GraphTensors(edit, scope, boundaries), calls)
            found = find_layout_graph(scope, room.tensors, turn, calls.find_outputs())
            if found is not None:
                forms = choose_forms(scope, found, room.tensors.estimate_bytes)
                replaced |= rewrite_graph(room, found, forms, (layout.plain_axes, str(layout)))
        merge_steps(RewriteContext(edit, scope, GraphTensors(edit, scope, boundaries), calls), replaced)


def _layout_order(layout: TensorLayout) -> AxisOrder | None:
    """Return the permutation from ONNX's order into a layout, None if there is no such."""
    if layout.blocks or layout.is_plain:
        return None
    return tuple(layout.plain_axes.index(axis) for axis in layout.axes)
