"""What a cost model is: seconds, and joules where it knows them, for tasks, transfers and launches."""

from dataclasses import dataclass
from enum import StrEnum
from math import nan
from typing import Literal, Protocol, runtime_checkable

from byoc.costs.task import Task

THOUSAND_YEARS = 3.2e10
"""Seconds; beyond, sums of costs would not be finite."""

MOST_JOULES = 1e30
"""More than the sun gives in an hour; beyond, sums of costs would not be finite."""


@dataclass(frozen=True, slots=True)
class Price:
    """What something costs: seconds, and joules, which are NaN where the model does not give them."""

    seconds: float
    joules: float = nan


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer of a model that does not know; `why` is a sentence. Falsy, and never a number."""

    why: str

    def __bool__(self) -> Literal[False]:
        """Return False."""
        return False


FREE = Price(0.0, 0.0)


@runtime_checkable
class CostModel(Protocol):
    """What the partitioner asks of a device.

    A model from outside is a class made without arguments, registered by entry point under `byoc.costs`.
    """

    @property
    def name(self) -> str:
        """The device's name."""
        ...

    def execution(self, task: Task) -> Price | Unknown:
        """Return what a task costs. Views (`task.view`) are not asked for: they are free."""
        ...

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return what a tensor of `size` bytes costs to the device, or back.

        `converted` is how many bytes of it the host brings into another dtype or layout on the way; 0
        for a model that leaves these to the host's costs (`Converting`).
        """
        ...

    def launching(self) -> Price:
        """Return what starting one region costs."""
        ...


@runtime_checkable
class Estimating(Protocol):
    """A cost model that can guess at what it does not know."""

    def estimate(self, task: Task) -> Price:
        """Return a guess at what a task costs."""
        ...


@runtime_checkable
class Converting(Protocol):
    """A cost model that says whether its transfers have what conversions at the border take."""

    def converting(self) -> bool:
        """Return False where the host's cost model is to be asked for conversions instead."""
        ...


def converts(model: CostModel) -> bool:
    """Return whether a model's transfers have what conversions take; one that does not say has."""
    return not isinstance(model, Converting) or bool(model.converting())


class _Both(CostModel, Estimating, Protocol):
    """A cost model that guesses as well."""


def sum_of_parts(model: _Both, task: Task) -> Price:
    """Return what the nodes of a composite cost together, guesses where the model does not know."""
    found = [FREE if part.view else model.execution(part) or model.estimate(part) for part in task.parts]
    return Price(sum(price.seconds for price in found), sum(price.joules for price in found))


class Policy(StrEnum):
    """What is done where a cost is not known."""

    refuse = "refuse"
    """stop, and say which"""
    host = "host"
    """what an accelerator's model does not know stays on the host"""
    estimate = "estimate"
    """go by a guess, and count it"""

    @property
    def on_host(self) -> "Policy":
        """The policy for the host's own costs: what stays there anyhow is estimated."""
        return Policy.estimate if self is Policy.host else self
