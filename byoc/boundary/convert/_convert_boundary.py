"""The boundary stage: convert boundary tensors to the dtypes and layouts that targets take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, TypeProto

from byoc.boundary.convert._cast_regions import cast_regions
from byoc.boundary.convert._form_choice import choose_forms
from byoc.boundary.convert._form_rewrite import rewrite_graph
from byoc.boundary.convert._graph_tensors import GraphTensors
from byoc.boundary.convert._insert_layouts import insert_layouts
from byoc.boundary.convert._layout_graph import find_layout_graph
from byoc.boundary.convert._merge_steps import merge_steps
from byoc.boundary.convert._model_editor import ModelEditor
from byoc.boundary.convert._tensor_transfers import RegionBoundary
from byoc.boundary.convert._tidy_quantization import tidy_quantization


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
    layouts = dict.fromkeys(b.format.activations for b in boundaries if b.format.activations is not None)
    if not layouts:
        return
    for scope in edit.scopes:
        replaced: set[str] = set()
        for layout in layouts:
            if layout.blocks or layout.is_plain:
                continue
            tensors = GraphTensors(edit, scope, boundaries)
            order = tuple(layout.plain_axes.index(axis) for axis in layout.axes)
            found = find_layout_graph(tensors, order)
            if found is not None:
                forms = choose_forms(tensors, found)
                replaced |= rewrite_graph(tensors, found, forms, (layout.plain_axes, str(layout)))
        merge_steps(GraphTensors(edit, scope, boundaries), replaced)


@dataclass(frozen=True)
class ConvertedModel:
    """A partitioned model whose boundary tensors are converted.

    `values` gives the types of all inserted tensors, in the graphs and in the regions' functions, and
    `origins` the user's tensor whose content each one holds. `notes` are sentences for the user.
    """

    proto: ModelProto
    values: Mapping[str, TypeProto]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()


def convert_boundary(
    model: ModelProto, boundaries: Sequence[RegionBoundary], folder: Path | None = None
) -> ConvertedModel:
    """Convert the boundary tensors of an outlined model, which is edited in place.

    `boundaries` has one entry for each region of the model, in any order; `folder` is the directory of
    external data. Raises InputError if a region is to compute in a type that the model's operator set
    lacks.
    """
    edit = ModelEditor(model)
    cast_regions(edit, boundaries, folder)
    tidy_quantization(edit, boundaries)
    insert_layouts(edit, boundaries)
    minimize_transposes(edit, boundaries)
    return ConvertedModel(edit.finish(), edit.values, edit.origins, tuple(edit.notes))
