"""The memory report as data, printed by `byoc plan-memory --format json`."""

from typing import TypedDict

from byoc.memory.reading import CONVENTIONS
from byoc.memory.report._memory_picture import find_shown_ranges
from byoc.memory.report._memory_report import STRIPED_COUNTS, MemoryReport, ReportRow
from byoc.memory.report._striped_report import StripedModel
from byoc.memory.scratchpad import ScratchpadPlan


class RowDocument(TypedDict):
    """One way to plan, in bytes; `ratio` is arena over bound, None if both are 0.

    Striped execution has no bound of its own, hence neither `ratio` nor `proof`; `of_c_bound` is its
    arena over the bound of convention C, None for all others.
    """

    name: str
    convention: str
    method: str
    arena: int
    bound: int | None
    ratio: float | None
    proof: str | None
    of_c_bound: float | None
    fits: bool | None


class BufferDocument(TypedDict):
    """A buffer: its tensors, its bytes, and its live range in positions of the order from 0 on.

    `over` is the name of the buffer that it overwrites.
    """

    name: str
    tensors: list[str]
    offset: int
    bytes: int
    first: int
    last: int
    over: str | None


class StepDocument(TypedDict):
    """A step, in order of execution; `scratch` are bytes at `scratch_offset` while it runs."""

    name: str
    nodes: list[int]
    scratch: int
    scratch_offset: int


class PlanDocument(TypedDict):
    """The plan asked for; `links` are names of buffers that are adjacent.

    `witness` is the step of the minimum cut that proves the bound, if one does.
    """

    convention: str
    counts: str
    alignment: int
    arena: int
    bound: int
    proof: str
    witness: str | None
    minimal: bool
    steps: list[StepDocument]
    buffers: list[BufferDocument]
    links: list[list[str]]


class PlaceDocument(TypedDict):
    """A tensor of a striped plan: row `r` of `rows` is at `offset + (r % window) * row_bytes`."""

    tensor: str
    offset: int
    window: int
    rows: int
    row_bytes: int


class StripedDocument(TypedDict):
    """Striped execution: what counts, the layers of each cascade, the number of bands, windows.

    `live` is the peak of the bytes in use, scratch included.
    """

    counts: str
    arena: int
    live: int
    cascades: list[list[str]]
    bands: int
    places: list[PlaceDocument]


class LevelsDocument(TypedDict):
    """Bytes that move between a scratchpad of `size` bytes and system memory.

    `loaded` and `stored` are whole buffers, `loads` and `stores` their number; `streamed` passes through
    in pieces. `bound` is a lower bound for this order; `unkept` moves if nothing is kept. `arena` are
    the bytes of system memory.
    """

    size: int
    moved: int
    bound: int
    proven: bool
    loads: int
    loaded: int
    stores: int
    stored: int
    streamed: int
    unkept: int
    arena: int


class MemoryDocument(TypedDict):
    """One model: all ways to plan it, and the plan asked for."""

    name: str
    rows: list[RowDocument]
    plan: PlanDocument
    striped: StripedDocument | None
    levels: LevelsDocument | None
    notes: list[str]


def describe_conventions() -> dict[str, str]:
    """Describe each convention, by letter."""
    return {letter: str(convention) for letter, convention in CONVENTIONS.items()}


def build_memory_document(report: MemoryReport, size: int | None = None) -> MemoryDocument:
    """Return a report as data; with `size`, in bytes, each row tells whether its arena fits."""
    return MemoryDocument(
        name=report.name,
        rows=[_build_row(row, size) for row in report.rows],
        plan=_build_plan(report),
        striped=None if report.striped is None else _build_striped(report.striped),
        levels=None if report.scratchpad is None else _build_scratchpad(report.scratchpad),
        notes=list(report.notes),
    )


def _build_row(row: ReportRow, size: int | None) -> RowDocument:
    return RowDocument(
        name=row.name,
        convention=row.convention,
        method=row.method,
        arena=row.size,
        bound=row.bound,
        ratio=row.ratio,
        proof=row.proof,
        of_c_bound=row.ratio_to_c,
        fits=None if size is None else row.size <= size,
    )


def _build_striped(made: StripedModel) -> StripedDocument:
    plan = made.plan
    return StripedDocument(
        counts=STRIPED_COUNTS,
        arena=plan.size,
        live=plan.live,
        cascades=[list(group) for group in plan.groups],
        bands=len(plan.bands),
        places=[
            PlaceDocument(
                tensor=tensor.name,
                offset=plan.places[tensor.name].offset,
                window=plan.places[tensor.name].window,
                rows=tensor.rows,
                row_bytes=plan.places[tensor.name].row_bytes,
            )
            for tensor in made.model.tensors
        ],
    )


def _build_scratchpad(levels: ScratchpadPlan) -> LevelsDocument:
    return LevelsDocument(
        size=levels.size,
        moved=levels.moved,
        bound=levels.bound,
        proven=levels.moved == levels.bound,
        loads=levels.loads,
        loaded=levels.loaded,
        stores=levels.stores,
        stored=levels.stored,
        streamed=levels.streamed,
        unkept=levels.unkept,
        arena=levels.arena,
    )


def _build_plan(report: MemoryReport) -> PlanDocument:
    plan, model = report.plan, report.model
    problem = plan.problem
    return PlanDocument(
        convention=model.convention.name,
        counts=str(model.convention),
        alignment=problem.alignment,
        arena=plan.size,
        bound=plan.bound,
        proof=plan.proof,
        witness=None if plan.witness is None else problem.steps[plan.witness].name,
        minimal=plan.is_minimal,
        steps=[
            StepDocument(
                name=problem.steps[step].name,
                nodes=list(model.nodes[step]),
                scratch=problem.steps[step].scratch,
                scratch_offset=plan.scratch[step],
            )
            for step in plan.order
        ],
        buffers=[
            BufferDocument(
                name=problem.names[buffer],
                tensors=list(model.tensors_of[buffer]),
                offset=plan.offsets[buffer],
                bytes=problem.sizes[buffer],
                first=first,
                last=last,
                over=None if under is None else problem.names[under],
            )
            for buffer, ((first, last), under) in enumerate(
                zip(find_shown_ranges(plan), plan.overwrites, strict=True)
            )
        ],
        links=[[problem.names[buffer] for buffer in row] for row in problem.links],
    )
