"""The cost model protocol: seconds, and joules if known, of tasks, transfers and launches."""

from dataclasses import dataclass
from math import nan
from typing import Literal, Protocol, runtime_checkable

from byoc.costs._task import Task
from byoc.placement import Occupancy

THOUSAND_YEARS = 3.2e10
"""Seconds; with larger costs, sums would not be finite."""

MAX_JOULES = 1e30
"""Joules; with larger costs, sums would not be finite."""


@dataclass(frozen=True, slots=True)
class Price:
    """A cost in seconds and joules; joules are NaN if the model does not give them."""

    seconds: float
    joules: float = nan


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer of a model that does not know a cost; `why` is a sentence. It is falsy."""

    why: str

    def __bool__(self) -> Literal[False]:
        """Return False."""
        return False


FREE = Price(0.0, 0.0)


@runtime_checkable
class CostModel(Protocol):
    """The costs of a device.

    A third-party model is a class registered by entry point under `byoc.costs`, made without arguments.
    Where it is a dataclass its fields are its options (`--cost-option`).
    """

    @property
    def name(self) -> str:
        """The name of the device."""
        ...

    def execution(self, task: Task) -> Price | Unknown:
        """Return the cost of a task. Not called for views (`task.view`), which are free."""
        ...

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the cost of sending a tensor of `size` bytes to the device, or back.
        `converted` is the number of bytes whose dtype or layout the host changes on the way; 0 for a
        model that leaves conversions to the host's costs (`Converting`).
        """
        ...

    def launching(self) -> Price:
        """Return the cost of starting one region."""
        ...


@runtime_checkable
class EstimatingCosts(Protocol):
    """A cost model that can estimate costs it does not know."""

    def estimate(self, task: Task) -> Price:
        """Return an estimate of the cost of a task."""
        ...


@runtime_checkable
class Converting(Protocol):
    """A cost model that states whether its transfers include conversions at the boundary."""

    def converting(self) -> bool:
        """Return False if the host's cost model must be asked for conversions instead."""
        ...


@runtime_checkable
class Occupying(Protocol):
    """A cost model that states what its transfers keep busy."""

    def occupies(self) -> Occupancy:
        """Return the resource that nothing else uses while a tensor is sent to the device, or back."""
        ...


def find_occupancy(model: CostModel) -> Occupancy:
    """Return the resource that a model's transfers keep busy; nothing if it does not state it."""
    return model.occupies() if isinstance(model, Occupying) else Occupancy.nothing


def includes_conversions(model: CostModel) -> bool:
    """Return whether a model's transfers include conversions; True if it does not state it."""
    return not isinstance(model, Converting) or bool(model.converting())


class _EstimatingModel(CostModel, EstimatingCosts, Protocol):
    """A cost model that makes estimates as well."""


def price_parts(model: _EstimatingModel, task: Task) -> Price:
    """Return the total cost of a composite's nodes, estimated where the model does not know."""
    found = [FREE if part.view else model.execution(part) or model.estimate(part) for part in task.parts]
    return Price(sum(price.seconds for price in found), sum(price.joules for price in found))
