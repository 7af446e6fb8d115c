"""Reports on a model: plans by every method of the table, striped execution, a scratchpad."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from byoc.errors import InputError
from byoc.memory.arena import ArenaPlan, plan_by_methods
from byoc.memory.reading import CONVENTIONS, Convention, MemoryModel, read_memory_model
from byoc.memory.report._striped_report import StripedModel, plan_striped
from byoc.memory.scratchpad import Access, AccessSchedule, ScheduledStep, ScratchpadPlan, plan_scratchpad
from byoc.model import GraphIndex, find_state_pairs
from byoc.numerics import round_up

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
    tell what does not count, and what is impossible.
    """

    name: str
    rows: tuple[ReportRow, ...]
    model: MemoryModel
    plan: ArenaPlan
    striped: StripedModel | None
    striping_refusal: str | None
    scratchpad: ScratchpadPlan | None
    notes: tuple[str, ...]

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
    )


def _plan_striped(
    index: GraphIndex, name: str, asked: MemoryOptions, groups: Sequence[Sequence[int]]
) -> StripedModel | str:
    if groups:
        return "steps of several nodes are not computed by rows, so there is no striped execution"
    return plan_striped(index, name, asked.alignment)
