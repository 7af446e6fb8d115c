"""Cost models: how many seconds a unit takes on a device, and what moving and launching cost."""

from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, Field

from byoc.costs.work import Work
from byoc.errors import nearest
from byoc.graph.types import NUMBERS
from byoc.yamlfile import Strict

_THOUSAND_YEARS = 3.2e10


def _bounded(seconds: float) -> float:
    if not seconds <= _THOUSAND_YEARS:  # beyond, sums of costs would not be finite; NaN fails too
        raise ValueError("expected seconds, fewer than a thousand years have")
    return seconds


_Positive = Annotated[float, Field(gt=0)]
_Seconds = Annotated[float, Field(ge=0), AfterValidator(_bounded)]
_DEFAULT = "default"


def _known(peak: dict[str, float]) -> dict[str, float]:
    for name in peak:
        if name != _DEFAULT and name not in NUMBERS:
            raise ValueError(f"no such data type '{name}'{nearest(name, (*NUMBERS, _DEFAULT))}")
    return peak


class CostModel(Protocol):
    """What the partitioner asks of a device. All answers are in seconds."""

    @property
    def name(self) -> str:
        """The device's name."""

    def execution(self, work: Work, dtype: str) -> float:
        """Return how long some work takes whose results are of the given dtype."""

    def transfer(self, size: int) -> float:
        """Return how long a tensor of `size` bytes takes to the device, or back."""

    @property
    def launch(self) -> float:
        """What starting one region costs."""


class Link(Strict):
    """What lies between the host and the device."""

    bandwidth: _Positive
    """bytes per second"""
    latency: _Seconds = 0.0
    """seconds per transfer"""


class Roofline(Strict):
    """A device bound by arithmetic or by memory (Williams, Waterman, Patterson 2009).

    seconds = overhead + max(operations / peak, bytes / bandwidth)
    """

    kind: Literal["roofline"]
    name: str
    description: str = ""
    peak: Annotated[dict[str, _Positive], Field(min_length=1), AfterValidator(_known)]
    """operations per second by dtype; `default` stands for the others"""
    bandwidth: _Positive
    """bytes per second to and from memory"""
    overhead: _Seconds = 0.0
    """seconds for each operator"""
    launch: _Seconds = 0.0
    """seconds for each region"""
    link: Link | None = None
    """absent for the host"""

    def execution(self, work: Work, dtype: str) -> float:
        """Return the roofline time; nothing for a view, which moves and computes nothing."""
        if not work.operations and not work.bytes:
            return 0.0
        peak = self.peak.get(dtype, self.peak.get(_DEFAULT, min(self.peak.values())))
        return self.overhead + max(work.operations / peak, work.bytes / self.bandwidth)

    def transfer(self, size: int) -> float:
        """Return latency plus size over the link's bandwidth; 0 without a link."""
        return 0.0 if self.link is None else self.link.latency + size / self.link.bandwidth
