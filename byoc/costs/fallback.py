"""A cost model that asks another for what it does not know, as its file says (`else: host`)."""

from dataclasses import dataclass

from byoc.costs.model import CostModel, Estimating, Price, Unknown, converts
from byoc.costs.task import Task


@dataclass(frozen=True)
class Fallback:
    """`first`, and `second` for the tasks that it does not know; launch and link are the first's."""

    first: CostModel
    second: CostModel

    @property
    def name(self) -> str:
        """The first one's name."""
        return self.first.name

    def execution(self, task: Task) -> Price | Unknown:
        """Return the first one's price, else the second's."""
        return self.first.execution(task) or self.second.execution(task) or self.first.execution(task)

    def estimate(self, task: Task) -> Price:
        """Return a guess of the second's, else of the first's."""
        for model in (self.second, self.first):
            if isinstance(model, Estimating):
                return model.estimate(task)
        raise NotImplementedError(f"{self.name} makes no estimates")

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the first one's price."""
        return self.first.transfer(size, converted)

    def converting(self) -> bool:
        """Return whether the first one's transfers have what conversions take."""
        return converts(self.first)

    def launching(self) -> Price:
        """Return the first one's price."""
        return self.first.launching()
