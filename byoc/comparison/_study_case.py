"""A case of a study: a model placed by a strategy, as plain data that can be sent to any process."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from byoc.comparison._study_file import FILE_SUFFIXES
from byoc.options import PlanOptions
from byoc.rules import split_generation
from byoc.support import is_file
from byoc.zoo import ZOO


@dataclass(frozen=True, kw_only=True)
class StudyCase:
    """One placement of a study: texts, numbers, and mappings of them.

    Fields that `PlanOptions` has too mean the same here. Paths are relative to `folder`.

    `link` is in GB/s, None for the cost model's own. `parameters` are values in cost files, as
    `load_settings` takes them. `limits` replace the limits in the rule files. `seed` is the strategy's
    option of that name. `planning` has further fields of `PlanOptions`. `case_seconds` is the most that
    the case may take by the clock; no result depends on it. `digests` are those of the model, the
    rules, the costs and the strategy.
    """

    model: str
    rules: tuple[str, ...]
    strategy: str
    folder: str = ""
    cost_model: str | Mapping[str, str] | None = None
    host_cost_model: str | None = None
    cost_options: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    link: float | None = None
    strategy_options: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    time_limit: float | None = None
    limits: Mapping[str, int | str] = field(default_factory=dict)
    objective: str = "latency"
    repetition: int = 0
    planning: Mapping[str, Any] = field(default_factory=dict)
    case_seconds: float | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the case as a line of JSON, which `from_json` reads."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "StudyCase":
        """Return the case that a line of JSON describes."""
        content = json.loads(text)
        return cls(**content | {"rules": tuple(content["rules"])})

    @property
    def key(self) -> str:
        """The digest of everything that decides the case's results, as 64 hexadecimal digits."""
        asked = asdict(self)
        del asked["case_seconds"], asked["folder"]
        return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    @property
    def problem_key(self) -> str:
        """A text that is equal for cases with the same placement problem, whatever the strategy."""
        asked = asdict(self)
        for name in ("strategy", "strategy_options", "seed", "time_limit", "repetition", "case_seconds"):
            del asked[name]
        del asked["digests"]
        return json.dumps(asked, sort_keys=True)

    @property
    def preparation_key(self) -> str:
        """A text that is equal for cases with the same model, rules and sizes: they share units."""
        sizes = [self.planning.get(name) for name in ("dims", "shapes", "trips", "no_passes")]
        return json.dumps([self.folder, self.model, list(self.rules), sizes], sort_keys=True)

    @property
    def model_path(self) -> str:
        """The model as `load_model` takes it."""
        return self.model if self.model.startswith(ZOO) else self.resolve(self.model)

    @property
    def options(self) -> PlanOptions:
        """The options of planning, those of the strategy among them."""
        costs = self.cost_model
        if isinstance(costs, str):
            costs = self.resolve(costs)
        elif costs is not None:
            costs = {target: self.resolve(name) for target, name in costs.items()}
        given: dict[str, Any] = {**self.planning, "cost_model": costs}
        if self.host_cost_model is not None:
            given["host_cost_model"] = self.resolve(self.host_cost_model)
        return PlanOptions(
            tuple(self.resolve_rules(name) for name in self.rules),
            objective=self.objective,
            cost_options={name: self._resolve_value(text) for name, text in self.cost_options.items()},
            strategy_options={f"{self.strategy}:{n}": v for n, v in self.options_of_strategy.items()},
            time_limit=self.time_limit,
            **given,
        )

    @property
    def options_of_strategy(self) -> dict[str, str]:
        """The options of the strategy, the seed among them."""
        seed = {} if self.seed is None else {"seed": str(self.seed)}
        return {**self.strategy_options, **seed}

    def resolve(self, name: str) -> str:
        """Return the path of a file in the folder of the study, or the name if there is none."""
        return _resolve_beside(self.folder, name)

    def resolve_rules(self, name: str) -> str:
        """Return the path of a rule file in the folder of the study, its generation kept."""
        found = self.resolve(name)
        file, generation = split_generation(name)
        return f"{self.resolve(file)}:{generation}" if found == name and generation else found

    def _resolve_value(self, text: str) -> str:
        """Return an option's value; the path of a file in the folder, where it names one."""
        return self.resolve(text) if text.endswith(FILE_SUFFIXES) else text


def _resolve_beside(folder: str, name: str) -> str:
    """Return the path of a file in a folder if there is one of that name, else the name."""
    if not folder or Path(name).is_absolute() or not is_file(Path(folder, name)):
        return name
    return str(Path(folder, name))


def format_value(value: object) -> str:
    """Return an option's value as the text that the command line takes: text as it is, else JSON."""
    return value if isinstance(value, str) else json.dumps(value)
