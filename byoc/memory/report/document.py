"""The report as data: what `byoc plan-memory --format json` prints."""

from typing import TypedDict

from byoc.memory.model import CONVENTIONS
from byoc.memory.report.picture import lives
from byoc.memory.report.rows import MemoryReport, Row


class RowDocument(TypedDict):
    """One way to plan. Bytes; `ratio` is arena over bound, None where both are 0."""

    name: str
    convention: str
    method: str
    arena: int
    bound: int
    ratio: float | None
    proof: str
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
    """The plan that was asked for; `links` are names of buffers that lie right behind one another."""

    convention: str
    counts: str
    alignment: int
    arena: int
    bound: int
    proof: str
    minimal: bool
    steps: list[StepDocument]
    buffers: list[BufferDocument]
    links: list[list[str]]


class MemoryDocument(TypedDict):
    """One model: all ways to plan it, and the one that was asked for."""

    name: str
    rows: list[RowDocument]
    plan: PlanDocument
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
        fits=None if size is None else row.size <= size,
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
