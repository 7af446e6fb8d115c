"""A case of a study: a model placed by a strategy, as plain data that any process can be given."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from byoc.options import PlanOptions
from byoc.rules import split_generation
from byoc.support import is_file
from byoc.zoo import ZOO


@dataclass(frozen=True, kw_only=True)
class Case:
    """One placement of a study: texts, numbers, and mappings of them.

    Names are those of `PlanOptions`. Relative paths are relative to `folder`. `link` is in GB/s, None
    for the cost model's own; `parameters` are values in cost files, as `load_settings` takes them;
    `limits` are limits of the accelerators in place of those in the rule files; `planning` has further
    fields of `PlanOptions`. A strategy's `seed` is its option of that name. `case_seconds` is the most
    that the case may take by the clock, and decides no number. `digests` are those of the contents.
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
    def from_json(cls, text: str) -> "Case":
        """Return the case that a line of JSON describes."""
        content = json.loads(text)
        return cls(**content | {"rules": tuple(content["rules"])})

    @property
    def key(self) -> str:
        """The digest of all that its numbers follow from, as 64 hexadecimal digits."""
        asked = asdict(self)
        del asked["case_seconds"], asked["folder"]
        return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    @property
    def problem_key(self) -> str:
        """The text of all that the placement problem follows from: alike for all strategies."""
        asked = asdict(self)
        for name in ("strategy", "strategy_options", "seed", "time_limit", "repetition", "case_seconds"):
            del asked[name]
        del asked["digests"]
        return json.dumps(asked, sort_keys=True)

    @property
    def preparation_key(self) -> str:
        """The text of all that the units of the model follow from, before anything is priced."""
        sizes = [self.planning.get(name) for name in ("dims", "shapes", "trips", "no_passes")]
        return json.dumps([self.folder, self.model, list(self.rules), sizes], sort_keys=True)

    @property
    def model_path(self) -> str:
        """The model as `load_model` takes it."""
        return self.model if self.model.startswith(ZOO) else self.find(self.model)

    @property
    def options(self) -> PlanOptions:
        """The options of planning, without those of the strategy."""
        costs = self.cost_model
        if isinstance(costs, str):
            costs = self.find(costs)
        elif costs is not None:
            costs = {target: self.find(name) for target, name in costs.items()}
        given: dict[str, Any] = {**self.planning, "cost_model": costs}
        if self.host_cost_model is not None:
            given["host_cost_model"] = self.find(self.host_cost_model)
        return PlanOptions(
            tuple(self.find_rules(name) for name in self.rules),
            objective=self.objective,
            cost_options={name: self._find_value(text) for name, text in self.cost_options.items()},
            strategy_options={f"{self.strategy}:{n}": v for n, v in self.own_options.items()},
            time_limit=self.time_limit,
            **given,
        )

    @property
    def own_options(self) -> dict[str, str]:
        """The options of the strategy, the seed among them."""
        seed = {} if self.seed is None else {"seed": str(self.seed)}
        return {**self.strategy_options, **seed}

    def find(self, name: str) -> str:
        """Return the path of a file in the folder of the study; any other name as it is."""
        return find_beside(self.folder, name)

    def find_rules(self, name: str) -> str:
        """Return the path of a rule file in the folder of the study, its generation kept."""
        found = self.find(name)
        file, generation = split_generation(name)
        return f"{self.find(file)}:{generation}" if found == name and generation else found

    def _find_value(self, text: str) -> str:
        """Return an option's value; the path of a file in the folder, where it names one."""
        return self.find(text) if text.endswith((".yaml", ".yml", ".json")) else text


def find_beside(folder: str, name: str) -> str:
    """Return the path of a file in a folder if there is one of that name, else the name."""
    if not folder or Path(name).is_absolute() or not is_file(Path(folder, name)):
        return name
    return str(Path(folder, name))


def format_value(value: object) -> str:
    """Return an option's value as the text that the command line takes: text as it is, else JSON."""
    return value if isinstance(value, str) else json.dumps(value)
