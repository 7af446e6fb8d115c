"""Cost models made of others: with a fallback, another link, other values of single parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any, cast

from byoc.costs._cost_file import CostFile
from byoc.costs._cost_model import (
    CostModel,
    EstimatingCosts,
    Price,
    Task,
    Unknown,
    find_occupancy,
    includes_conversions,
)
from byoc.errors import InputError
from byoc.placement import Occupancy
from byoc.support import validate_content


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
            if isinstance(model, EstimatingCosts):
                return model.estimate(task)
        raise NotImplementedError(f"{self.name} makes no estimates")

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the first model's price."""
        return self.first.transfer(size, converted)

    def converting(self) -> bool:
        """Return whether the first model's transfers include conversions."""
        return includes_conversions(self.first)

    def occupies(self) -> Occupancy:
        """Return the occupancy of the first model's transfers."""
        return find_occupancy(self.first)

    def launching(self) -> Price:
        """Return the first model's price."""
        return self.first.launching()


def with_seconds(model: CostModel, seconds: Mapping[tuple[str, str, str], float]) -> CostModel:
    """Return a cost model with other seconds for some tasks, by their keys, instead of earlier ones."""
    base = model.model if isinstance(model, Priced) else model
    return (_EstimatingPriced if isinstance(base, EstimatingCosts) else Priced)(base, seconds)


@dataclass(frozen=True, eq=False)
class _Wrapper:
    """A cost model with the answers of another one."""

    model: CostModel

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    def execution(self, task: Task) -> Price | Unknown:
        """Return the model's price."""
        return self.model.execution(task)

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the model's price."""
        return self.model.transfer(size, converted)

    def converting(self) -> bool:
        """Return whether the model's transfers include conversions."""
        return includes_conversions(self.model)

    def occupies(self) -> Occupancy:
        """Return the occupancy of the model's transfers."""
        return find_occupancy(self.model)

    def launching(self) -> Price:
        """Return the model's price."""
        return self.model.launching()


class _EstimatingWrapper(_Wrapper):
    """The same of a model that makes estimates."""

    def estimate(self, task: Task) -> Price:
        """Return the model's estimate."""
        if not isinstance(self.model, EstimatingCosts):
            raise NotImplementedError(f"{self.name} makes no estimates")
        return self.model.estimate(task)


@dataclass(frozen=True, eq=False)
class Priced(_Wrapper):
    """A cost model with other seconds for some tasks, by their keys."""

    seconds: Mapping[tuple[str, str, str], float]

    def execution(self, task: Task) -> Price | Unknown:
        """Return the given seconds with the model's joules, else the model's price."""
        found = self.model.execution(task)
        if task.key not in self.seconds:
            return found
        return Price(self.seconds[task.key], found.joules if isinstance(found, Price) else nan)


class _EstimatingPriced(Priced, _EstimatingWrapper):
    """The same of a model that makes estimates."""


def with_link(model: CostModel, bandwidth: float) -> CostModel:
    """Return a cost model whose link has a bandwidth in bytes per second; its latency is kept."""
    if isinstance(model, Fallback):
        return replace(model, first=with_link(model.first, bandwidth))
    if isinstance(model, Priced):
        return replace(model, model=with_link(model.model, bandwidth))
    if isinstance(model, CostFile) and model.link is not None:
        link = model.link.model_copy(update={"bandwidth": bandwidth})
        return model.model_copy(update={"link": link})
    return (
        _EstimatingWithBandwidth(model, bandwidth)
        if isinstance(model, EstimatingCosts)
        else _WithBandwidth(model, bandwidth)
    )


@dataclass(frozen=True)
class _WithBandwidth(_Wrapper):
    """A plug-in's cost model with other transfer costs."""

    bandwidth: float

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the latency of an empty transfer, the bytes at the new bandwidth, and conversions."""
        before, empty = self.model.transfer(size, converted), self.model.transfer(0)
        more = before.seconds - self.model.transfer(size).seconds if converted else 0.0
        return Price(empty.seconds + size / self.bandwidth + more, before.joules)


class _EstimatingWithBandwidth(_WithBandwidth, _EstimatingWrapper):
    """The same of a model that makes estimates."""


# Cost models with other values of single parameters, such as `launch` or `link.latency`.


def with_parameters(model: CostModel, parameters: Mapping[str, Any]) -> CostModel:
    """Return the cost model of a file with other values at some keys.

    `parameters` has the new values by the keys of the file, with dots between those of nested mappings:
    `launch`, `link.latency`, `peak.int8`. Of a file with a fallback (`else`) they are the file's own.
    Raises InputError with a line for each mistake, and for a model that is a plug-in.
    """
    if not parameters:
        return model
    if isinstance(model, Fallback):
        return replace(model, first=with_parameters(model.first, parameters))
    if not isinstance(model, CostFile):
        raise InputError(
            f"cost model {model.name} is a plug-in, which has options and no parameters:"
            f" {', '.join(parameters)}"
        )
    fixed = [path for path in parameters if path.split(".")[0] in ("extends", "groups")]
    if fixed:
        raise InputError(f"cost model {model.name}: {fixed[0]}: can be stated in its file alone")
    content = model.model_dump(by_alias=True, exclude_unset=True)
    for path, value in parameters.items():
        _set_value(content, path.split("."), value)
    changed, problems = validate_content(content, type(model))
    if changed is None:
        raise InputError(*(f"cost model {model.name}: {problem}" for problem in problems))
    return cast("CostModel", changed)


def _set_value(content: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = content.get(key)
        content[key] = dict(inner) if isinstance(inner, Mapping) else {}
        content = content[key]
    content[keys[-1]] = value
