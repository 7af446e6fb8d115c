"""The rows of the table: a model planned in several ways, each beside the bound that it faces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byoc.errors import InputError
from byoc.graph.index import GraphIndex
from byoc.memory.levels import Levels
from byoc.memory.model import CONVENTIONS, Convention, MemoryModel, read_memory
from byoc.memory.plan import plan
from byoc.memory.problem import Plan
from byoc.memory.report.levels import two_levels
from byoc.memory.report.striped import Striped, striped

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
class Row:
    """One way to plan: its arena in bytes, and bytes below which none can be under its convention.

    `proof` says how that bound is known, as in `Plan`.
    """

    name: str
    convention: str
    method: str
    size: int
    bound: int
    proof: str

    @property
    def ratio(self) -> float | None:
        """The arena over its bound; None for a model that needs no bytes."""
        return self.size / self.bound if self.bound else None


@dataclass(frozen=True)
class MemoryReport:
    """A graph planned in several ways.

    `rows` compare them; `model` and `plan` are what was asked for in full. `striped` and `levels` are
    there where they were asked for and can be. `notes` say what is not counted, and what cannot be.
    """

    name: str
    rows: tuple[Row, ...]
    model: MemoryModel
    plan: Plan
    striped: Striped | None
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
    plans = {wanted: plan(models[letter].problem, asked.method, asked.time_limit)}
    for _, convention, method in _WAYS:
        if (convention, method) not in plans:
            problem = models[convention].problem
            plans[convention, method] = plan(problem, method, asked.time_limit)
    ways = list(_WAYS)
    if not any(wanted == way[1:] for way in ways):
        ways.append((f"{asked.method}, as asked", *wanted))
    bounds = _bounds(plans)
    rows = [
        Row(called, convention, method, plans[convention, method].size, *bounds[convention])
        for called, convention, method in ways
    ]
    notes = list(models[letter].notes)
    banded: Striped | None = None
    if asked.striped and not groups:  # rows of what is inside a group are not known
        found = striped(flat or index, name, asked.alignment)
        if isinstance(found, str):
            notes.append(found)
        else:
            banded = found
            rows.append(Row("striped", "C", "striped", banded.plan.size, *bounds["C"]))
    levels = None
    if asked.size is not None:
        try:
            levels = two_levels(plans["C", "exact"], asked.size, asked.time_limit)
        except InputError as error:
            notes.append(f"no plan for two levels: {error}")
    return MemoryReport(name, tuple(rows), models[letter], plans[wanted], banded, levels, tuple(notes))


def _bounds(plans: Mapping[tuple[str, str], Plan]) -> dict[str, tuple[int, str]]:
    """Return for each convention the highest bound that a plan proved, and how."""
    found: dict[str, tuple[int, str]] = {}
    for (convention, _), made in plans.items():
        if convention not in found or made.bound > found[convention][0]:
            found[convention] = made.bound, made.proof
    return found
