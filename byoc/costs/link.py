"""The same accelerator with another link bandwidth, for studies."""

from dataclasses import dataclass, replace

from byoc.costs.fallback import Fallback
from byoc.costs.file import CostFile
from byoc.costs.model import CostModel, Estimating, Price, Unknown, includes_conversions
from byoc.costs.task import Task


def with_link(model: CostModel, bandwidth: float) -> CostModel:
    """Return a cost model whose link has a bandwidth in bytes per second; its latency is kept."""
    if isinstance(model, Fallback):
        return replace(model, first=with_link(model.first, bandwidth))
    if isinstance(model, CostFile) and model.link is not None:
        link = model.link.model_copy(update={"bandwidth": bandwidth})
        return model.model_copy(update={"link": link})
    return (
        _EstimatingWithBandwidth(model, bandwidth)
        if isinstance(model, Estimating)
        else _WithBandwidth(model, bandwidth)
    )


@dataclass(frozen=True)
class _WithBandwidth:
    """A plug-in's cost model with other transfer costs."""

    model: CostModel
    bandwidth: float

    @property
    def name(self) -> str:
        return self.model.name

    def execution(self, task: Task) -> Price | Unknown:
        return self.model.execution(task)

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the latency of an empty transfer, the bytes at the new bandwidth, and conversions."""
        before, empty = self.model.transfer(size, converted), self.model.transfer(0)
        more = before.seconds - self.model.transfer(size).seconds if converted else 0.0
        return Price(empty.seconds + size / self.bandwidth + more, before.joules)

    def converting(self) -> bool:
        return includes_conversions(self.model)

    def launching(self) -> Price:
        return self.model.launching()


class _EstimatingWithBandwidth(_WithBandwidth):
    """The same for a model that makes estimates."""

    def estimate(self, task: Task) -> Price:
        if not isinstance(self.model, Estimating):
            raise NotImplementedError(f"{self.name} makes no estimates")
        return self.model.estimate(task)
