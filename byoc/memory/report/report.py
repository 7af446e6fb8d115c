"""A model planned in every way of the table, and told in full in the one that was asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.errors import InputError
from byoc.graph.index import GraphIndex
from byoc.memory.levels import Levels
from byoc.memory.model import CONVENTIONS, Convention, MemoryModel, read_memory
from byoc.memory.plan import plans
from byoc.memory.problem import Plan
from byoc.memory.report.levels import two_levels
from byoc.memory.report.rows import Row, rows, striped_row, ways
from byoc.memory.report.striped import Striped, striped


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
