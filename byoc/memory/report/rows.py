"""The rows of the table: a model planned in several ways, each beside the bound that it faces."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from byoc.memory.problem import Plan

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
