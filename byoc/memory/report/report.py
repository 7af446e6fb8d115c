"""A model planned in every way of the table, and told in full in the one that was asked for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from byoc.errors import InputError
from byoc.graph.index import GraphIndex
from byoc.memory.levels import Access, Levels, Schedule, Turn, plan_levels
from byoc.memory.model import CONVENTIONS, Convention, MemoryModel, read_memory
from byoc.memory.plan import plans
from byoc.memory.problem import Plan
from byoc.memory.report.striped import Striped, striped

Way = tuple[str, str]
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
class Row:
    """One way to plan: its arena in bytes, and bytes below which none can be under its convention.

    `proof` says how that bound is known, as in `Plan`. Striped execution has none of its own: it is
    compared with `bound_of_c`, below which no plan with whole tensors is, and which it can be below.
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
    def of_c(self) -> float | None:
        """The arena of striped execution over the bound of convention C; None for all others."""
        return self.size / self.bound_of_c if self.bound_of_c else None


def ways(asked: Way) -> dict[str, list[str]]:
    """Return for each convention the methods by which it is planned."""
    found: dict[str, list[str]] = {}
    for convention, method in dict.fromkeys((asked, *(way[1:] for way in _WAYS))):
        found.setdefault(convention, []).append(method)
    return found


def rows(plans: Mapping[Way, Plan], asked: Way) -> Iterator[Row]:
    """Yield a row for each way of the table, and for what is asked where it is none of them."""
    table = [*_WAYS]
    if not any(asked == way[1:] for way in _WAYS):
        table.append((f"{asked[1]}, as asked", *asked))
    for name, convention, method in table:
        made = plans[convention, method]
        yield Row(name, convention, method, made.size, made.bound, made.proof)


def striped_row(size: int, bound_of_c: int) -> Row:
    """Return the row of striped execution: its arena, and the bound of convention C, in bytes."""
    return Row(STRIPED, "C", STRIPED, size, bound_of_c=bound_of_c)


# What is not kept in the scratchpad is streamed through a piece of it: a part of it, and at most so
# many bytes.
_PART, _MOST = 16, 4096


def two_levels(plan: Plan, size: int, seconds: float = 5.0) -> Levels:
    """Return what a plan's order moves with a scratchpad of `size` bytes, as few bytes as was found.

    Each step reads its operands and writes its results in the scratchpad, or streams them through a
    sixteenth of it (at most 4 KiB), once. Weights are not counted. Raises InputError where a step does
    not fit.
    """
    unit = plan.problem.alignment
    piece = max(min(size // _PART, _MOST) // unit, 1) * unit
    return plan_levels(schedule(plan, piece), size, seconds=seconds)


def schedule(plan: Plan, piece: int) -> Schedule:
    """Return a plan's steps in their order, with what each touches, `piece` bytes at a time or whole.

    Raises ValueError for a problem in which buffers have to lie in rows.
    """
    problem = plan.problem
    if problem.links:
        raise ValueError("a Concat in place has no plan for two levels")
    used = [buffer for buffer, size in enumerate(problem.sizes) if size]
    number = {buffer: place for place, buffer in enumerate(used)}

    def access(buffer: int, writes: bool) -> Access:
        return Access(number[buffer], writes, staging=min(problem.sizes[buffer], piece))

    turns = []
    for step in (problem.steps[place] for place in plan.order):
        over = [(step.makes[0], under) for under in step.over if step.makes[0] in number]
        turns.append(
            Turn(
                name=step.name,
                accesses=(
                    *(access(b, False) for b in dict.fromkeys(step.reads) if b in number),
                    *(access(b, True) for b in step.makes if b in number),
                ),
                staging=_rounded(step.scratch, problem.alignment),
                over=tuple((number[one], number[other]) for one, other in over),
            )
        )
    return Schedule(
        names=tuple(problem.names[buffer] for buffer in used),
        sizes=tuple(problem.sizes[buffer] for buffer in used),
        turns=tuple(turns),
        inputs=frozenset(number[b] for b in problem.inputs if b in number),
        outputs=frozenset(number[b] for b in problem.outputs if b in number),
        alignment=problem.alignment,
    )


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


@dataclass(frozen=True)
class Asked:
    """How to plan: `convention` and `method` of the plan that is told in full, the rest for all.

    `size` are the bytes of memory there are; with it two levels are planned, in convention C's best
    order. `time_limit` are seconds for each plan. Without `striped` there is no striped execution.
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

    `rows` compare them; `model` and `plan` are what was asked for in full. `striped` and `levels` are
    there where they were asked for and can be; where striped execution was and cannot be, `unstriped`
    says why. `notes` say what is not counted, and what cannot be, that included.
    """

    name: str
    rows: tuple[Row, ...]
    model: MemoryModel
    plan: Plan
    striped: Striped | None
    unstriped: str | None
    levels: Levels | None
    notes: tuple[str, ...]


def memory_report(
    index: GraphIndex,
    name: str,
    asked: Asked | None = None,
    groups: Sequence[Sequence[int]] = (),
    flat: GraphIndex | None = None,
) -> MemoryReport:
    """Plan a graph in every way of the table, and in the one that is asked for.

    `name` is what the model is called in messages, `groups` are steps of several nodes as `read_memory`
    takes them. `flat` is the same graph with its functions inlined, where it has some that are striped
    by what is inside them. Raises InputError as it does, and for a method that there is not.
    """
    asked = asked or Asked()
    models = {
        letter: read_memory(index, convention, asked.alignment, groups, name)
        for letter, convention in CONVENTIONS.items()
    }
    letter = asked.convention.name
    wanted = (letter, asked.method)
    made = {
        (convention, method): plan
        for convention, methods in ways(wanted).items()
        for method, plan in plans(models[convention].problem, methods, asked.time_limit).items()
    }
    table = list(rows(made, wanted))
    notes = list(models[letter].notes)
    best = made["C", "exact"]
    banded = _striped(flat or index, name, asked, groups) if asked.striped else None
    unstriped = banded if isinstance(banded, str) else None
    if unstriped is not None:
        notes.append(unstriped)
    if isinstance(banded, Striped):
        table.append(striped_row(banded.plan.size, best.bound))
        notes += banded.notes
    levels = None
    if asked.size is not None:
        try:
            levels = two_levels(best, asked.size, asked.time_limit)
        except InputError as error:
            notes.append(f"no plan for two levels: {error}")
    return MemoryReport(
        name=name,
        rows=tuple(table),
        model=models[letter],
        plan=made[wanted],
        striped=banded if isinstance(banded, Striped) else None,
        unstriped=unstriped,
        levels=levels,
        notes=tuple(notes),
    )


def _striped(
    index: GraphIndex, name: str, asked: Asked, groups: Sequence[Sequence[int]]
) -> Striped | str:
    if groups:
        return "steps of several nodes are not computed by rows, so there is no striped execution"
    return striped(index, name, asked.alignment)
