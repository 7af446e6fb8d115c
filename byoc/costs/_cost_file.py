"""Fields that all cost model files share: name, launch, link, energy, machine, and fallback."""

from collections.abc import Collection
from math import isnan, nan
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from byoc.costs._cost_model import THOUSAND_YEARS, Price, Task
from byoc.errors import suggest_nearest
from byoc.model import DTYPE_NUMBERS
from byoc.placement import Occupancy
from byoc.support import StrictModel


def _check_seconds(seconds: float) -> float:
    if not seconds <= THOUSAND_YEARS:  # false for NaN too
        raise ValueError("expected seconds, fewer than a thousand years have")
    return seconds


def _check_finite(value: float) -> float:
    if not value < float("inf"):
        raise ValueError("expected a finite number")
    return value


_LEAST_SEVERAL = 2  # threads: the file itself is for one

DEFAULT = "default"
"""The name, among data types, of all those that are not named."""


def check_dtypes(figures: dict[str, float]) -> dict[str, float]:
    """Return figures by data type. Raises ValueError for a name that is of none."""
    for name in figures:
        if name != DEFAULT and name not in DTYPE_NUMBERS:
            raise ValueError(
                f"no such data type '{name}'{suggest_nearest(name, (*DTYPE_NUMBERS, DEFAULT))}"
            )
    return figures


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):  # a bool is an int in Python
        raise ValueError("expected a number")
    return value


Number = BeforeValidator(_reject_bool)
Positive = Annotated[float, Number, Field(gt=0)]
Seconds = Annotated[float, Number, Field(ge=0), AfterValidator(_check_seconds)]
Count = Annotated[int, Field(strict=True)]  # a text '02' would be the same count as 2
Amount = Annotated[float, Number, Field(ge=0), AfterValidator(_check_finite)]


def _check_threads(models: dict[int, str]) -> dict[int, str]:
    for count in models:
        if count < _LEAST_SEVERAL:
            raise ValueError(f"{count}: the file itself is for fewer than 2 threads; expected 2 or more")
    return models


class HostLink(StrictModel):
    """The connection between the host and the device."""

    bandwidth: Positive
    """bytes per second"""
    latency: Seconds = 0.0
    """seconds per transfer"""
    conversion: Positive | None = None
    """bytes per second that change dtype or layout on the way; the host's costs if not given"""
    occupies: Occupancy = Occupancy.nothing
    """the resource that nothing else uses during a transfer"""


class Energy(StrictModel):
    """Joules: for each operation, byte, second of work, byte moved over the link, and launch."""

    operation: Amount = 0.0
    by_dtype: Annotated[dict[str, Amount], AfterValidator(check_dtypes)] = Field(default_factory=dict)
    """joules for each operation of these data types, in place of `operation`"""
    byte: Amount = 0.0
    second: Amount = 0.0
    moved: Amount = 0.0
    launch: Amount = 0.0

    def compute_joules(self, task: Task, seconds: float) -> float:
        """Return the joules of a task that takes so many seconds."""
        spent = min(seconds, THOUSAND_YEARS)  # as for prices; keeps 0 joules per second at 0
        each = self.by_dtype.get(task.dtype, self.by_dtype.get(DEFAULT, self.operation))
        work = task.work
        return each * work.operations + self.byte * work.bytes + self.second * spent


class MeasuredMachine(StrictModel):
    """The machine on which a model was measured; nothing here identifies its owner."""

    cpu: str = ""
    cores: Annotated[int, Number, Field(ge=0)] = 0
    threads: Annotated[int, Number, Field(ge=0)] = 0
    """number of threads that were measured; 0 for all cores, or where it is not known"""
    os: str = ""
    versions: dict[str, str] = Field(default_factory=dict)


class CostFile(StrictModel):
    """Fields shared by every kind of cost file."""

    name: str
    extends: str | None = None
    """the file that this one builds on, read before: a path relative to this file, or a name"""
    description: str = ""
    launch: Seconds = 0.0
    """seconds per region"""
    link: HostLink | None = None
    """absent for the host"""
    energy: Energy | None = None
    otherwise: str | None = Field(None, alias="else")
    """the model that answers what this one does not know: a path relative to this file, or a name"""
    beside: str | None = None
    """of an accelerator: the host's cost model, which holds unless the user names another"""
    margin: Annotated[float, Number, Field(ge=0, lt=1)] = 0.0
    """of an accelerator: the share of the time that a mixture has to save to be chosen"""
    threads: Annotated[dict[Count, str], AfterValidator(_check_threads)] = Field(default_factory=dict)
    """the models for runs on several threads, by the number that they begin at: a path or a name"""

    def find_for_threads(self, count: int | None) -> str | None:
        """Return the model for runs on so many threads; None where it is this one.

        None as the number stands for all cores, of which the model for the most threads is taken.
        """
        fitting = [least for least in self.threads if count is None or least <= count]
        return self.threads[max(fitting)] if fitting else None

    @property
    def operator_names(self) -> Collection[str]:
        """The operators and composites that the file has figures of, as it spells them."""
        return ()

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return latency plus size over the link's bandwidth; zero without a link."""
        if self.link is None:
            return Price(0.0, 0.0)
        seconds = self.link.latency + size / self.link.bandwidth
        if self.link.conversion is not None:
            seconds += converted / self.link.conversion
        return Price(seconds, self.energy.moved * size if self.energy else nan)

    def converting(self) -> bool:
        """Return whether the link states the cost of conversions."""
        return self.link is not None and self.link.conversion is not None

    def occupies(self) -> Occupancy:
        """Return the resource that a transfer keeps busy; nothing without a link."""
        return self.link.occupies if self.link else Occupancy.nothing

    def launching(self) -> Price:
        """Return the cost of starting a region."""
        return Price(self.launch, self.energy.launch if self.energy else nan)

    def make_price(self, task: Task, seconds: float, joules: float = nan) -> Price:
        """Return a price; joules that are not given are computed from the file's energy."""
        if isnan(joules) and self.energy is not None:
            joules = self.energy.compute_joules(task, seconds)
        return Price(seconds, joules)


class MeasuredCostFile(CostFile):
    """Fields shared by the kinds of measured cost files."""

    machine: MeasuredMachine | None = None
    together: Annotated[Positive, AfterValidator(_check_finite)] = 1.0
    """time of operators that run together over the sum of their separate times; scales every cost"""
