"""The rows of the table: a model planned in several ways, each beside the bound that it faces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byoc.graph.index import GraphIndex
from byoc.memory.model import CONVENTIONS, Convention, MemoryModel, read_memory
from byoc.memory.plan import plan
from byoc.memory.problem import Plan

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
    """How to plan: `convention` and `method` of the plan that is told in full, the rest for all."""

    convention: Convention = CONVENTIONS["C"]
    method: str = "exact"
    alignment: int = 1
    time_limit: float = 10.0


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

    `rows` compare them; `model` and `plan` are what was asked for in full. `notes` say what is not
    counted.
    """

    name: str
    rows: tuple[Row, ...]
    model: MemoryModel
    plan: Plan

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not counted."""
        return self.model.notes


def memory_report(
    index: GraphIndex,
    name: str,
    asked: Asked | None = None,
    groups: Sequence[Sequence[int]] = (),
) -> MemoryReport:
    """Plan a graph in every way of the table, and in the one that is asked for.

    `name` is what the model is called in messages, `groups` are steps of several nodes as `read_memory`
    takes them. Raises InputError as it does, and for a method that there is not.
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
    rows = tuple(
        Row(called, convention, method, plans[convention, method].size, *bounds[convention])
        for called, convention, method in ways
    )
    return MemoryReport(name, rows, models[letter], plans[wanted])


def _bounds(plans: Mapping[tuple[str, str], Plan]) -> dict[str, tuple[int, str]]:
    """Return for each convention the highest bound that a plan proved, and how."""
    found: dict[str, tuple[int, str]] = {}
    for (convention, _), made in plans.items():
        if convention not in found or made.bound > found[convention][0]:
            found[convention] = made.bound, made.proof
    return found
