"""The report as data: what `byoc plan-memory --format json` prints."""

from typing import TypedDict

from byoc.memory.levels import Levels
from byoc.memory.model import CONVENTIONS
from byoc.memory.report.picture import lives
from byoc.memory.report.report import STRIPED_COUNTS, MemoryReport, Row
from byoc.memory.report.striped import Striped


class RowDocument(TypedDict):
    """One way to plan. Bytes; `ratio` is arena over bound, None where both are 0.

    Striped execution has no bound of its own, and so neither `ratio` nor `proof`: there `of_c_bound` is
    the arena over the bound of convention C, None for all others.
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
    """A buffer: the tensors in it, its bytes, and when it is there, in places of the order from 0 on.

    `over` is the name of the buffer that it is written over.
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
    """The plan that was asked for; `links` are names of buffers that lie right behind one another.

    `witness` is the step at which the minimum cut is that proves the bound, where one does.
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
    """Striped execution: what is counted, the layers of each cascade, the number of bands, windows.

    `live` are the most bytes of rows, scratch included, that are there at any moment.
    """

    counts: str
    arena: int
    live: int
    cascades: list[list[str]]
    bands: int
    places: list[PlaceDocument]


class LevelsDocument(TypedDict):
    """Two levels: bytes that move between a scratchpad of `size` bytes and system memory.

    `loaded` and `stored` are whole buffers, `loads` and `stores` how many; `streamed` passes through in
    pieces. No plan for this order moves fewer than `bound`; `unkept` moves when nothing is kept. `arena`
    are the bytes of system memory.
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
    """One model: all ways to plan it, and the one that was asked for."""

    name: str
    rows: list[RowDocument]
    plan: PlanDocument
    striped: StripedDocument | None
    levels: LevelsDocument | None
    notes: list[str]


def conventions_document() -> dict[str, str]:
    """Return what each convention counts, by letter."""
    return {letter: str(convention) for letter, convention in CONVENTIONS.items()}


def memory_document(report: MemoryReport, size: int | None = None) -> MemoryDocument:
    """Return a report as data; with `size`, in bytes, each row says whether its arena fits in it."""
    return MemoryDocument(
        name=report.name,
        rows=[_row(row, size) for row in report.rows],
        plan=_plan(report),
        striped=None if report.striped is None else _striped(report.striped),
        levels=None if report.levels is None else _levels(report.levels),
        notes=list(report.notes),
    )


def _row(row: Row, size: int | None) -> RowDocument:
    return RowDocument(
        name=row.name,
        convention=row.convention,
        method=row.method,
        arena=row.size,
        bound=row.bound,
        ratio=row.ratio,
        proof=row.proof,
        of_c_bound=row.of_c,
        fits=None if size is None else row.size <= size,
    )


def _striped(made: Striped) -> StripedDocument:
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


def _levels(levels: Levels) -> LevelsDocument:
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


def _plan(report: MemoryReport) -> PlanDocument:
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
                tensors=list(model.tensors[buffer]),
                offset=plan.offsets[buffer],
                bytes=problem.sizes[buffer],
                first=first,
                last=last,
                over=None if under is None else problem.names[under],
            )
            for buffer, ((first, last), under) in enumerate(zip(lives(plan), plan.over, strict=True))
        ],
        links=[[problem.names[buffer] for buffer in row] for row in problem.links],
    )
