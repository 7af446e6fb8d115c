"""Reports on a model's memory: plans by every method, stripes, a scratchpad; as JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.memory.arena import ArenaPlan, plan_by_methods
from byoc.memory.reading import (
    CONVENTIONS,
    Convention,
    MemoryModel,
    RowwiseModel,
    read_memory_model,
    read_row_model,
)
from byoc.memory.report._memory_picture import (
    MemoryPicture,
    PictureBox,
    PictureLine,
    PictureSpan,
    choose_kind,
    find_shown_ranges,
)
from byoc.memory.scratchpad import Access, AccessSchedule, ScheduledStep, ScratchpadPlan, plan_scratchpad
from byoc.memory.stripes import RowWindow, StripedPlan, stripe
from byoc.model import GraphIndex, find_state_pairs
from byoc.numerics import round_up

# Reports on striped execution: its plan, and a picture of its windows.


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


PlanKey = tuple[str, str]
"""The letter of a convention, and a method."""

STRIPED = "striped"
STRIPED_COUNTS = "as C, in bands of rows; scratch of kernels is counted, too, as in no other row"
"""What the row of striped execution counts: more than those above it."""

# What it is called, its convention and method, as they stand in the table.
_WAYS = (
    ("no reuse", "A", "no-reuse"),
    ("best-fit, given order", "A", "best-fit"),
    ("reordered", "A", "exact"),
    ("reordered, with inputs", "B", "exact"),
    ("in place", "C", "exact"),
    ("Concat in place", "D", "exact"),
)


@dataclass(frozen=True)
class ReportRow:
    """One way to plan: its arena in bytes, and the lower bound under its convention.

    `proof` is that of `Plan`. Striped execution has no bound of its own: it is compared with
    `bound_of_c`, the lower bound for whole tensors, and can be below it.
    """

    name: str
    convention: str
    method: str
    size: int
    bound: int | None = None
    proof: str | None = None
    bound_of_c: int | None = None

    @property
    def ratio(self) -> float | None:
        """The arena over its bound; None without one, and for a model that needs no bytes."""
        return self.size / self.bound if self.bound else None

    @property
    def ratio_to_c(self) -> float | None:
        """The arena of striped execution over the bound of convention C; None for other rows."""
        return self.size / self.bound_of_c if self.bound_of_c else None


def group_methods(asked: PlanKey) -> dict[str, list[str]]:
    """Return for each convention the methods to plan by."""
    found: dict[str, list[str]] = {}
    for convention, method in dict.fromkeys((asked, *(way[1:] for way in _WAYS))):
        found.setdefault(convention, []).append(method)
    return found


def build_rows(plans: Mapping[PlanKey, ArenaPlan], asked: PlanKey) -> Iterator[ReportRow]:
    """Yield the rows of the table, and one for the plan asked for if it is not among them."""
    table = [*_WAYS]
    if not any(asked == way[1:] for way in _WAYS):
        table.append((f"{asked[1]}, as asked", *asked))
    for name, convention, method in table:
        made = plans[convention, method]
        yield ReportRow(name, convention, method, made.size, made.bound, made.proof)


def build_striped_row(size: int, bound_of_c: int) -> ReportRow:
    """Return the row of striped execution from its arena and the bound of convention C, in bytes."""
    return ReportRow(STRIPED, "C", STRIPED, size, bound_of_c=bound_of_c)


# What is not kept in the scratchpad is streamed through a piece of it: a part of it, and at most so
# many bytes.
_PART, _MOST = 16, 4096


def plan_for_scratchpad(plan: ArenaPlan, size: int, seconds: float = 5.0) -> ScratchpadPlan:
    """Plan a scratchpad of `size` bytes for the order of a plan, and move as few bytes as possible.

    Each step accesses its operands and results in the scratchpad, or streams them once through a
    sixteenth of it (at most 4 KiB). Weights do not count. Raises InputError if a step does not fit.
    """
    unit = plan.problem.alignment
    piece = max(min(size // _PART, _MOST) // unit, 1) * unit
    return plan_scratchpad(build_schedule(plan, piece), size, seconds=seconds)


def build_schedule(plan: ArenaPlan, piece: int) -> AccessSchedule:
    """Return the scratchpad problem of a plan; buffers not resident are streamed in `piece` bytes.

    Raises ValueError for a problem with links.
    """
    problem = plan.problem
    if problem.links:
        raise ValueError("a Concat in place has no plan for two levels")
    used = [buffer for buffer, size in enumerate(problem.sizes) if size]
    number = {buffer: place for place, buffer in enumerate(used)}

    def build_access(buffer: int, writes: bool) -> Access:
        return Access(number[buffer], writes, staging=min(problem.sizes[buffer], piece))

    turns = []
    for step in (problem.steps[place] for place in plan.order):
        over = [(step.writes[0], under) for under in step.may_overwrite if step.writes[0] in number]
        turns.append(
            ScheduledStep(
                name=step.name,
                accesses=(
                    *(build_access(b, False) for b in dict.fromkeys(step.reads) if b in number),
                    *(build_access(b, True) for b in step.writes if b in number),
                ),
                staging=round_up(step.scratch, problem.alignment),
                may_overwrite=tuple((number[one], number[other]) for one, other in over),
            )
        )
    return AccessSchedule(
        names=tuple(problem.names[buffer] for buffer in used),
        sizes=tuple(problem.sizes[buffer] for buffer in used),
        turns=tuple(turns),
        inputs=frozenset(number[b] for b in problem.inputs if b in number),
        outputs=frozenset(number[b] for b in problem.outputs if b in number),
        alignment=problem.alignment,
    )


@dataclass(frozen=True)
class MemoryOptions:
    """Options of a report: `convention` and `method` select the plan reported in full.

    With `size`, the bytes of memory available, a scratchpad is planned for the best order of convention
    C. `time_limit` is in counted seconds for each plan. Without `striped` there is no striped execution.
    """

    convention: Convention = CONVENTIONS["C"]
    method: str = "exact"
    alignment: int = 1
    time_limit: float = 10.0
    size: int | None = None
    striped: bool = True


@dataclass(frozen=True)
class MemoryReport:
    """A graph planned in several ways.

    `rows` compare them; `model` and `plan` are the plan asked for. `striped` and `scratchpad` are given
    if asked for and possible; `striping_refusal` tells why striped execution is impossible. `notes`
    tell what does not count, and what is impossible. `dtypes` are the data types of the planned buffers
    with the bytes of all buffers of each, most bytes first: they say whether a plan is one in floating
    point or in integers.
    """

    name: str
    rows: tuple[ReportRow, ...]
    model: MemoryModel
    plan: ArenaPlan
    striped: StripedModel | None
    striping_refusal: str | None
    scratchpad: ScratchpadPlan | None
    notes: tuple[str, ...]
    dtypes: Mapping[str, int]

    def __repr__(self) -> str:
        """Return the name of the graph, and the bytes of the plan and of its lower bound."""
        return f"MemoryReport({self.name!r}, size={self.plan.size}, bound={self.plan.bound})"


def plan_report(
    index: GraphIndex,
    name: str,
    asked: MemoryOptions | None = None,
    groups: Sequence[Sequence[int]] = (),
    flat: GraphIndex | None = None,
) -> MemoryReport:
    """Plan a graph by every method of the table, and by the one asked for.

    `name` is the model's name in messages; `groups` are steps of several nodes, as in
    `read_memory_model`. `flat` is the same graph with its functions inlined, used for striped
    execution. A decoder's cache is planned in one buffer for past and present where its operator
    updates it. Raises InputError as `read_memory_model` does, and for an unknown method.
    """
    asked = asked or MemoryOptions()
    state = find_state_pairs(index.proto)
    models = {
        letter: read_memory_model(index, convention, asked.alignment, groups, name, state)
        for letter, convention in CONVENTIONS.items()
    }
    letter = asked.convention.name
    wanted = (letter, asked.method)
    made = {
        (convention, method): plan
        for convention, methods in group_methods(wanted).items()
        for method, plan in plan_by_methods(
            models[convention].problem, methods, asked.time_limit
        ).items()
    }
    table = list(build_rows(made, wanted))
    notes = list(models[letter].notes)
    best = made["C", "exact"]
    banded = _plan_striped(flat or index, name, asked, groups) if asked.striped else None
    unstriped = banded if isinstance(banded, str) else None
    if unstriped is not None:
        notes.append(unstriped)
    if isinstance(banded, StripedModel):
        table.append(build_striped_row(banded.plan.size, best.bound))
        notes += banded.notes
    levels = None
    if asked.size is not None:
        try:
            levels = plan_for_scratchpad(best, asked.size, asked.time_limit)
        except InputError as error:
            notes.append(f"no plan for two levels: {error}")
    return MemoryReport(
        name=name,
        rows=tuple(table),
        model=models[letter],
        plan=made[wanted],
        striped=banded if isinstance(banded, StripedModel) else None,
        striping_refusal=unstriped,
        scratchpad=levels,
        notes=tuple(notes),
        dtypes=_sum_dtypes(index, models[letter]),
    )


def _sum_dtypes(index: GraphIndex, model: MemoryModel) -> dict[str, int]:
    found = Counter[str]()
    for tensors, size in zip(model.tensors_of, model.problem.sizes, strict=True):
        if size:
            found[index.types[tensors[0]].dtype] += size
    return dict(found.most_common())


def _plan_striped(
    index: GraphIndex, name: str, asked: MemoryOptions, groups: Sequence[Sequence[int]]
) -> StripedModel | str:
    if groups:
        return "steps of several nodes are not computed by rows, so there is no striped execution"
    return plan_striped(index, name, asked.alignment)


# The memory report as data, printed by `byoc plan-memory --format json`. All sizes are in bytes.

Document = dict[str, Any]


def describe_conventions() -> dict[str, str]:
    """Describe each convention, by letter."""
    return {letter: str(convention) for letter, convention in CONVENTIONS.items()}


def build_memory_document(report: MemoryReport, size: int | None = None) -> Document:
    """Return a report as data that JSON can represent: all ways to plan, and the plan asked for.

    With `size`, in bytes, each row tells whether its arena fits.
    """
    return {
        "name": report.name,
        "rows": [_build_row(row, size) for row in report.rows],
        "dtypes": dict(report.dtypes),
        "plan": _build_plan(report),
        "striped": None if report.striped is None else _build_striped(report.striped),
        "levels": None if report.scratchpad is None else _build_scratchpad(report.scratchpad),
        "notes": list(report.notes),
    }


def _build_row(row: ReportRow, size: int | None) -> Document:
    """Return one way to plan; `ratio` is arena over bound, None if both are 0.

    Striped execution has no bound of its own, hence neither `ratio` nor `proof`; `of_c_bound` is its
    arena over the bound of convention C, None for all others.
    """
    return {
        "name": row.name,
        "convention": row.convention,
        "method": row.method,
        "arena": row.size,
        "bound": row.bound,
        "ratio": row.ratio,
        "proof": row.proof,
        "of_c_bound": row.ratio_to_c,
        "fits": None if size is None else row.size <= size,
    }


def _build_striped(made: StripedModel) -> Document:
    """Return the striped execution: what counts, the layers of each cascade, bands, and windows.

    `live` is the peak of the bytes in use, scratch included. Row `r` of the `rows` of a tensor is at
    `offset + (r % window) * row_bytes`.
    """
    plan = made.plan
    return {
        "counts": STRIPED_COUNTS,
        "arena": plan.size,
        "live": plan.live,
        "cascades": [list(group) for group in plan.groups],
        "bands": len(plan.bands),
        "places": [
            {"tensor": tensor.name, **vars(plan.places[tensor.name]), "rows": tensor.rows}
            for tensor in made.model.tensors
        ],
    }


_TRAFFIC = ("moved", "bound", "loads", "loaded", "stores", "stored", "streamed", "unkept", "arena")


def _build_scratchpad(levels: ScratchpadPlan) -> Document:
    """Return the bytes that move between a scratchpad of `size` bytes and system memory.

    `loaded` and `stored` are whole buffers, `loads` and `stores` their number; `streamed` passes through
    in pieces. `bound` is a lower bound for this order; `unkept` moves if nothing is kept. `arena` are
    the bytes of system memory.
    """
    traffic = {name: getattr(levels, name) for name in _TRAFFIC}
    return {"size": levels.size, "proven": levels.moved == levels.bound, **traffic}


def _build_plan(report: MemoryReport) -> Document:
    """Return the plan asked for; `links` are names of buffers that are adjacent.

    `witness` is the step of the minimum cut that proves the bound, if one does. A buffer is live from
    `first` to `last`, positions of the order from 0 on, and overwrites the buffer `over`. A step needs
    `scratch` bytes at `scratch_offset` while it runs.
    """
    plan, model = report.plan, report.model
    problem = plan.problem
    return {
        "convention": model.convention.name,
        "counts": str(model.convention),
        "alignment": problem.alignment,
        "arena": plan.size,
        "bound": plan.bound,
        "proof": plan.proof,
        "witness": None if plan.witness is None else problem.steps[plan.witness].name,
        "minimal": plan.is_minimal,
        "steps": [
            {
                "name": problem.steps[step].name,
                "nodes": list(model.nodes[step]),
                "scratch": problem.steps[step].scratch,
                "scratch_offset": plan.scratch[step],
            }
            for step in plan.order
        ],
        "buffers": [
            {
                "name": problem.names[buffer],
                "tensors": list(model.tensors_of[buffer]),
                "offset": plan.offsets[buffer],
                "bytes": problem.sizes[buffer],
                "first": first,
                "last": last,
                "over": None if under is None else problem.names[under],
            }
            for buffer, ((first, last), under) in enumerate(
                zip(find_shown_ranges(plan), plan.overwrites, strict=True)
            )
        ],
        "links": [[problem.names[buffer] for buffer in row] for row in problem.links],
    }
