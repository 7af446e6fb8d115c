"""What all cost models in files have: a name, launch and link, energy, the machine, a fallback."""

from math import isnan, nan
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from byoc.costs.model import THOUSAND_YEARS, Price
from byoc.costs.work import Work
from byoc.yamlfile import Strict


def _bounded(seconds: float) -> float:
    if not seconds <= THOUSAND_YEARS:  # NaN fails too
        raise ValueError("expected seconds, fewer than a thousand years have")
    return seconds


def _finite(value: float) -> float:
    if not value < float("inf"):
        raise ValueError("expected a finite number")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool):  # Python takes true for a 1
        raise ValueError("expected a number")
    return value


Number = BeforeValidator(_number)
Positive = Annotated[float, Number, Field(gt=0)]
Seconds = Annotated[float, Number, Field(ge=0), AfterValidator(_bounded)]
Amount = Annotated[float, Number, Field(ge=0), AfterValidator(_finite)]


class Link(Strict):
    """What lies between the host and the device."""

    bandwidth: Positive
    """bytes per second"""
    latency: Seconds = 0.0
    """seconds per transfer"""
    conversion: Positive | None = None
    """bytes per second that get another dtype or layout on the way; the host's costs where not given"""


class Energy(Strict):
    """Joules: for each operation, byte, second of work, byte moved over the link, and launch."""

    operation: Amount = 0.0
    byte: Amount = 0.0
    second: Amount = 0.0
    moved: Amount = 0.0
    launch: Amount = 0.0

    def of(self, work: Work, seconds: float) -> float:
        """Return the joules of some work that takes so long."""
        spent = min(seconds, THOUSAND_YEARS)  # as its price is: no joules a second stay none
        return self.operation * work.operations + self.byte * work.bytes + self.second * spent


class Machine(Strict):
    """Where a model was measured. Nothing in it says whose machine it was."""

    cpu: str = ""
    cores: Annotated[int, Number, Field(ge=0)] = 0
    os: str = ""
    versions: dict[str, str] = Field(default_factory=dict)


class CostFile(Strict):
    """What every kind of file shares."""

    name: str
    description: str = ""
    launch: Seconds = 0.0
    """seconds for each region"""
    link: Link | None = None
    """absent for the host"""
    energy: Energy | None = None
    otherwise: str | None = Field(None, alias="else")
    """the model that is asked for what this one does not know: a path from this file, or a name"""

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return latency plus size over the link's bandwidth; nothing without a link."""
        if self.link is None:
            return Price(0.0, 0.0)
        seconds = self.link.latency + size / self.link.bandwidth
        if self.link.conversion is not None:
            seconds += converted / self.link.conversion
        return Price(seconds, self.energy.moved * size if self.energy else nan)

    def converting(self) -> bool:
        """Return whether the link says what conversions take."""
        return self.link is not None and self.link.conversion is not None

    def launching(self) -> Price:
        """Return what starting a region costs."""
        return Price(self.launch, self.energy.launch if self.energy else nan)

    def priced(self, work: Work, seconds: float, joules: float = nan) -> Price:
        """Return a price; where joules are not given, those that the file's energy makes of it."""
        if isnan(joules) and self.energy is not None:
            joules = self.energy.of(work, seconds)
        return Price(seconds, joules)


class Measured(CostFile):
    """What the kinds that were measured share."""

    machine: Machine | None = None
    together: Annotated[Positive, AfterValidator(_finite)] = 1.0
    """what operators take together over the sum of what each takes alone; every cost is times this"""
