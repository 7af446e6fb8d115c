"""A cost model that asks another one for costs it does not know (`else: host` in its file)."""

from dataclasses import dataclass

from byoc.costs.model import CostModel, Estimating, Price, Unknown, includes_conversions
from byoc.costs.task import Task


@dataclass(frozen=True)
class Fallback:
    """Asks `first`, and `second` for tasks unknown to it; launch and link are the first one's."""

    first: CostModel
    second: CostModel

    @property
    def name(self) -> str:
        """Name of the first model."""
        return self.first.name

    def execution(self, task: Task) -> Price | Unknown:
        """Return the first model's price, else the second's, else the first's reason."""
        return self.first.execution(task) or self.second.execution(task) or self.first.execution(task)

    def estimate(self, task: Task) -> Price:
        """Return an estimate of the second model, else of the first."""
        for model in (self.second, self.first):
            if isinstance(model, Estimating):
                return model.estimate(task)
        raise NotImplementedError(f"{self.name} makes no estimates")

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the first model's price."""
        return self.first.transfer(size, converted)

    def converting(self) -> bool:
        """Return whether the first model's transfers include conversions."""
        return includes_conversions(self.first)

    def launching(self) -> Price:
        """Return the first model's price."""
        return self.first.launching()
