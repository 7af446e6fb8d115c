"""The same accelerator behind another link: what researchers vary."""

from dataclasses import dataclass, replace

from byoc.costs.fallback import Fallback
from byoc.costs.file import CostFile, Link
from byoc.costs.model import CostModel, Estimating, Price, Unknown
from byoc.costs.task import Task


def with_link(model: CostModel, bandwidth: float) -> CostModel:
    """Return a cost model whose link carries so many bytes a second; its latency stays what it was."""
    if isinstance(model, Fallback):
        return replace(model, first=with_link(model.first, bandwidth))
    if isinstance(model, CostFile) and model.link is not None:
        link = Link(bandwidth=bandwidth, latency=model.link.latency, conversion=model.link.conversion)
        return model.model_copy(update={"link": link})
    return (
        _GuessingRelinked(model, bandwidth)
        if isinstance(model, Estimating)
        else _Relinked(model, bandwidth)
    )


@dataclass(frozen=True)
class _Relinked:
    """Somebody else's cost model, of which only transfers change."""

    model: CostModel
    bandwidth: float

    @property
    def name(self) -> str:
        return self.model.name

    def execution(self, task: Task) -> Price | Unknown:
        return self.model.execution(task)

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the latency of an empty transfer and the bytes at the new bandwidth."""
        before, empty = self.model.transfer(size, converted), self.model.transfer(0)
        return Price(empty.seconds + size / self.bandwidth, before.joules)

    def launching(self) -> Price:
        return self.model.launching()


class _GuessingRelinked(_Relinked):
    """One that makes guesses, too."""

    def estimate(self, task: Task) -> Price:
        if not isinstance(self.model, Estimating):
            raise NotImplementedError(f"{self.name} makes no estimates")
        return self.model.estimate(task)
