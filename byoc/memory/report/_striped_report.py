"""Reports on striped execution: its plan, and a picture of its windows."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from byoc.memory.reading import RowwiseModel, read_row_model
from byoc.memory.report._memory_picture import (
    MemoryPicture,
    PictureBox,
    PictureLine,
    PictureSpan,
    choose_kind,
)
from byoc.memory.stripes import RowWindow, StripedPlan, stripe
from byoc.model import GraphIndex


@dataclass(frozen=True)
class StripedModel:
    """The row-wise layers of a graph, and their plan."""

    model: RowwiseModel
    plan: StripedPlan

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on limits of the search in a large graph."""
        if not self.plan.limits:
            return ()
        return (f"the striped execution may be improved: {'; '.join(self.plan.limits)}",)


# The search ends after so many operations, but what it cannot do without grows with layers, too.
_MAX_LAYERS = 3000


def plan_striped(index: GraphIndex, name: str, alignment: int) -> StripedModel | str:
    """Plan the striped execution of a graph, or return the reason why there is none.

    Raises InputError as `read_row_model` does.
    """
    model = read_row_model(index, name)
    rows = {tensor.name: tensor.rows for tensor in model.tensors}
    if not any(rows[name] > 1 for layer in model.layers for name in layer.writes):
        return "nothing is computed by rows, so there is no striped execution"
    if len(model.layers) > _MAX_LAYERS:
        return f"of {len(model.layers)} layers, no striped execution is searched: too many"
    return StripedModel(
        model, stripe(model.tensors, model.layers, model.inputs, model.outputs, alignment)
    )


def draw_striped(made: StripedModel, title: str) -> MemoryPicture:
    """Return the picture of a striped plan: steps are bands, boxes the windows of the tensors.

    Boxes may overlap, since rows of an operand die while those of a result are made.
    """
    plan, model = made.plan, made.model
    rows = {tensor.name: tensor.rows for tensor in model.tensors}
    boxes = [
        _window_box(made, name, plan.places[name], when, rows[name])
        for name, when in _tensor_band_ranges(made).items()
        if plan.places[name].row_bytes
    ]
    scratch = {layer.name: layer.scratch for layer in model.layers}
    for name, (first, last) in _band_ranges(plan).items():
        if name in plan.scratch and scratch[name]:
            detail = f"of {name}"
            boxes.append(
                PictureBox("scratch", first, last, plan.scratch[name], scratch[name], "scratch", detail)
            )
    return MemoryPicture(
        title=title,
        steps=len(plan.bands),
        unit="band",
        spans=tuple(_cascade_spans(plan)),
        boxes=tuple(boxes),
        lines=(PictureLine(plan.size, "arena", dashed=False),),
    )


def _window_box(
    made: StripedModel, name: str, place: RowWindow, when: tuple[int, int], rows: int
) -> PictureBox:
    kind = choose_kind(name, made.model.inputs, made.model.outputs)
    detail = f"{kind}, {place.window} of {rows} rows at a time"
    return PictureBox(name, *when, place.offset, place.window * place.row_bytes, kind, detail)


def _band_ranges(plan: StripedPlan) -> dict[str, tuple[int, int]]:
    """Return for each layer its first and last band."""
    found: dict[str, tuple[int, int]] = {}
    for number, band in enumerate(plan.bands):
        found[band.layer] = (found.get(band.layer, (number, number))[0], number)
    return found


def _tensor_band_ranges(made: StripedModel) -> dict[str, tuple[int, int]]:
    """Return for each tensor the first and last band at which one of its rows is live."""
    model, turns = made.model, _band_ranges(made.plan)
    found = dict.fromkeys(model.inputs, (0, 0))
    for layer in model.layers:
        first, last = turns[layer.name]
        for name in layer.writes:
            found[name] = (first, last)
        for name, _ in layer.reads:
            found[name] = (found[name][0], max(found[name][1], last))
    end = len(made.plan.bands) - 1
    return {n: (first, end if n in model.outputs else last) for n, (first, last) in found.items()}


def _cascade_spans(plan: StripedPlan) -> list[PictureSpan]:
    """Return the cascades as spans of bands."""
    of = {layer: number for number, group in enumerate(plan.groups) for layer in group}
    counts = [0] * len(plan.groups)
    for band in plan.bands:
        counts[of[band.layer]] += 1
    ends = pairwise(accumulate(counts, initial=0))
    return [
        PictureSpan(group[0] if len(group) == 1 else f"{group[0]} ... {group[-1]}", start, end - 1)
        for group, (start, end) in zip(plan.groups, ends, strict=True)
        if end > start
    ]
