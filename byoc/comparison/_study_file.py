"""Study files and their cases: the axes of a study in YAML, and one placement as plain data."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from byoc._dataclasses import asdict, dataclass, field
from byoc.costs import Policy, Task, build_tasks, count_trips, find_device_tasks
from byoc.errors import InputError
from byoc.model import GraphIndex, Model
from byoc.patterns import Unit
from byoc.pipeline import PlanOptions, UnitOptions, list_files, load_targets
from byoc.placement import Measure
from byoc.planning import GraphUnits, find_graphs, load_units
from byoc.rules import Target, split_generation
from byoc.support import (
    ANNOTATIONS,
    COST_MODELS,
    StrictModel,
    find_beside,
    is_file,
    make_file_error,
    read_yaml,
    take_keywords,
)
from byoc.zoo import ZOO, Source

# The distinct units of a model as data, so that any tool can price them for a table of costs.

HOST = "host"

TASK_KEYS = (
    "device",
    "op",
    "types",
    "attributes",
    "dtype",
    "operations",
    "bytes",
    "count",
    "runs",
    "nodes",
)
"""The keys of a row."""


@dataclass(frozen=True, eq=False)
class TaskRow:
    """A distinct task of a device: what its cost model is asked when the model is partitioned.

    `device` is a target's name, or `host`. `types` and `attributes` are as cost tables write them, and
    `operations` and `bytes` are counted from the shapes. `count` is the number of units that have this
    task, `runs` how often these run for one run of the model, all together. `nodes` are the operators
    inside a composite or a QDQ group.
    """

    device: str
    task: Task
    count: int
    runs: float

    def to_json(self) -> dict[str, Any]:
        """Return the row as data, with the keys `TASK_KEYS`."""
        task = self.task
        values = (
            *(self.device, task.op, task.types, dict(task.attributes), task.dtype),
            *(task.work.operations, task.work.bytes, self.count, self.runs),
            [part.op for part in task.parts],
        )
        return dict(zip(TASK_KEYS, values, strict=True))


@take_keywords(UnitOptions)
def list_tasks(model: Source | Model, options: UnitOptions) -> tuple[TaskRow, ...]:
    """Return the distinct tasks that cost models are asked for when a model is partitioned.

    `model` is as `partition` takes it. For each accelerator these are the units that its rules
    accept, composites and QDQ groups whole; for the host every node. Left out is what nobody is asked
    for (views, constants, nodes with bodies) and what no table can have (tasks with unknown shapes).
    The bodies of an If, Loop or Scan are in it, with how often they run. No cost model is loaded, so
    the one that a rule file names need not be there yet.

    Raises InputError when the model, a rule file or an option is at fault.
    """
    targets = load_targets(list_files(options.rules))
    trips = options.trips or {}
    given = options.dims, options.shapes, trips, options.no_passes
    loaded, units = load_units(model, targets, *given)
    index = loaded.index
    runs = dict(_count_runs(index, trips, 1.0))
    found: dict[tuple[str, object], TaskRow] = {}
    for graph in find_graphs(index):
        for device, task in _find_tasks(graph, units[id(graph)], targets):
            if task.view or not task.sized:
                continue
            key = device, (*task.key, task.work)
            before = found.get(key)
            count, total = (before.count, before.runs) if before else (0, 0.0)
            found[key] = TaskRow(device, task, count + 1, total + runs[id(graph)])
    return tuple(sorted(found.values(), key=lambda row: row.device == HOST))


def _count_runs(
    index: GraphIndex, trips: Mapping[str, float], runs: float
) -> Iterator[tuple[int, float]]:
    """Yield the number of times that each graph runs, by the id of its index; this one runs `runs`."""
    yield id(index), runs
    for node, bodies in index.bodies.items():
        times = runs * count_trips(index, node, trips).count
        for body in bodies:
            yield from _count_runs(body.index, trips, times)


def _find_tasks(
    graph: GraphIndex, units: GraphUnits, targets: Sequence[Target]
) -> Iterator[tuple[str, Task]]:
    """Yield the device and the task of every unit and of every node on the host."""
    tasks = build_tasks(graph)
    for device, target in enumerate(targets):
        compute = target.compute_dtype
        accepted: list[Unit] = [
            part
            for unit in units.units
            if unit.is_supported(device) and unit.nodes[0] not in graph.bodies
            for part in unit.on_device[device]
        ]
        of_device = [each.unit for each in units.alternatives if each.device == device + 1]
        distinct, numbers = find_device_tasks(
            build_tasks(graph, compute) if compute else tasks, [*accepted, *of_device]
        )
        for each in numbers.tolist():
            if each >= 0:
                yield target.name, distinct[each]
    for number in range(len(graph.nodes)):
        if tasks.task_of_node[number] >= 0 and number not in graph.bodies:
            yield HOST, tasks[number]


FILE_SUFFIXES = (".yaml", ".yml", ".json")
"""How the value of an option ends that is taken for the path of a file."""
Scalar = StrictBool | StrictInt | StrictFloat | StrictStr
"""A value as YAML has it."""


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else (value,)


def _as_named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _as_costs(value: Any) -> Any:
    return {"accelerator": value} if isinstance(value, str) else value


Values = Annotated[tuple[Scalar, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
"""One value, or a list of values, each of which is a point of the axis."""
Names = Annotated[tuple[StrictStr, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
Positive = Annotated[float, Field(gt=0, lt=float("inf"))]


class StudiedStrategy(StrictModel):
    """A strategy with options."""

    name: Annotated[StrictStr, Field(description="Its name: see byoc strategies.")]
    options: Annotated[
        dict[str, Values],
        Field(description="Values of its options; a list of values is an axis."),
    ] = Field(default_factory=dict)
    seeds: Annotated[
        tuple[StrictInt, ...], Field(description="Values of its option seed, an axis.")
    ] = ()


class StudiedCosts(StrictModel):
    """Cost models, with options of plug-ins and parameters of files."""

    accelerator: Annotated[
        StrictStr | dict[str, StrictStr] | None,
        Field(
            description="The accelerator's cost model, or one by target; the rule file's if not given."
        ),
    ] = None
    host: Annotated[StrictStr | None, Field(description="The host's cost model.")] = None
    options: Annotated[
        dict[str, Values],
        Field(description="Values of options of plug-ins, as NAME, TARGET:NAME or host:NAME."),
    ] = Field(default_factory=dict)
    parameters: Annotated[
        dict[str, Values],
        Field(description="Values at keys of cost files: launch, link.latency, host:bandwidth."),
    ] = Field(default_factory=dict)


class StudiedLimits(StrictModel):
    """Limits: of the strategy's time, and of every accelerator, in place of the rule file's."""

    time: Annotated[
        Positive | None, Field(description="Seconds of the strategy, counted by its steps.")
    ] = None
    memory: Annotated[StrictInt | StrictStr | None, Field(description="Bytes, or 512KiB.")] = None
    regions: Annotated[Count | None, Field(description="The most regions.")] = None
    min_nodes: Annotated[Count | None, Field(description="The fewest nodes in a region.")] = None
    max_nodes: Annotated[Count | None, Field(description="The most nodes in a region.")] = None


class StudyFile(StrictModel):
    """A study: every combination of a point of each axis is a case.

    Paths are relative to the file's folder.
    """

    models: Annotated[
        Names, Field(description="Paths, zoo:NAME, and patterns of both: models/*.onnx, zoo:*net*.")
    ]
    rules: Annotated[
        tuple[Names, ...],
        BeforeValidator(_as_tuple),
        Field(min_length=1, description="Rule files; a list within it is several accelerators at once."),
    ]
    strategies: Annotated[
        tuple[Annotated[StudiedStrategy, BeforeValidator(_as_named)], ...],
        BeforeValidator(_as_tuple),
        Field(min_length=1, description="Strategies, by name or with options and seeds."),
    ]
    costs: Annotated[
        tuple[Annotated[StudiedCosts, BeforeValidator(_as_costs)], ...],
        BeforeValidator(_as_tuple),
        Field(min_length=1, description="Cost models; those of the rule files unless given."),
    ] = (StudiedCosts(),)
    links: Annotated[
        tuple[Positive | None, ...],
        BeforeValidator(_as_tuple),
        Field(min_length=1, description="Bandwidths in GB/s; null for the cost model's own."),
    ] = (None,)
    limits: Annotated[
        tuple[StudiedLimits, ...],
        BeforeValidator(_as_tuple),
        Field(min_length=1, description="Limits of time, memory and regions."),
    ] = (StudiedLimits(),)
    no_passes: Annotated[
        tuple[Annotated[tuple[StrictStr, ...], BeforeValidator(_as_tuple)], ...],
        BeforeValidator(_as_tuple),
        Field(
            min_length=1,
            description="Clean-up passes left out, or all; a list within it is several at once.",
        ),
    ] = ((),)
    objectives: Annotated[
        Names, Field(description="latency, energy, or weights: latency=1,energy=0.5.")
    ] = ("latency",)
    repetitions: Annotated[Count, Field(description="How often each case is solved.")] = 1
    case_seconds: Annotated[
        Positive | None, Field(description="The most that a case may take by the clock.")
    ] = None
    dims: Annotated[
        dict[str, StrictInt | StrictStr], Field(description="Open dimensions, as in byoc partition.")
    ] = Field(default_factory=dict)
    trips: Annotated[
        dict[str, float], Field(description="How often Loops and Scans run, by the name of the node.")
    ] = Field(default_factory=dict)
    unknown_costs: Annotated[
        Literal["refuse", "host", "estimate"], Field(description="What to do about unknown costs.")
    ] = Policy.estimate.value


def read_study(path: Path) -> StudyFile:
    """Read a study file. Raises InputError with a line for each mistake, each with its location.

    The rule files and cost models that it names are beside or below it, or installed, since messages
    show what is in them; models are data, and may lie anywhere.
    """
    study = read_yaml(path, StudyFile)
    problems = []
    for location, group, name in _list_named_files(study):
        try:
            if find_beside(group, path, name) is None and is_file(Path(name)):
                problems.append(f"{location}: {name}: it is beside the current folder, not the study")
        except InputError as error:
            problems.append(f"{location}: {error}")
    if problems:
        raise make_file_error(path, list(dict.fromkeys(problems)))
    return study


def _list_named_files(study: StudyFile) -> Iterator[tuple[str, str, str]]:
    """Yield the location, the group of plug-ins and the name of what may be a YAML file."""
    for number, names in enumerate(study.rules):
        for name in names:
            yield f"rules[{number}]", ANNOTATIONS, name
            yield f"rules[{number}]", ANNOTATIONS, split_generation(name)[0]
    for number, costs in enumerate(study.costs):
        given = costs.accelerator
        several = given.values() if isinstance(given, dict) else [given]
        for each in (*several, costs.host):
            if each is not None:
                yield f"costs[{number}]", COST_MODELS, each
        for name, values in costs.options.items():
            yield from _list_file_values(f"costs[{number}].options.{name}", values)
    for number, strategy in enumerate(study.strategies):
        for name, values in strategy.options.items():
            yield from _list_file_values(f"strategies[{number}].options.{name}", values)


def _list_file_values(location: str, values: Iterable[Scalar]) -> Iterator[tuple[str, str, str]]:
    for value in values:
        if isinstance(value, str) and value.endswith(FILE_SUFFIXES):
            yield location, COST_MODELS, value


def make_study_schema() -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of a study file, for editors."""
    schema = _allow_scalars(StudyFile.model_json_schema())
    start = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "byoc study file"}
    return {**start, **{key: schema[key] for key in schema if key != "title"}}


def _allow_scalars(schema: Any) -> Any:
    """Return pydantic's schema with a single value wherever a list may be one, without titles."""
    if isinstance(schema, list):
        return [_allow_scalars(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        key: {name: _allow_scalars(part) for name, part in value.items()}
        if key in {"properties", "$defs"}
        else _allow_scalars(value)
        for key, value in schema.items()
        if key not in {"title", "default"}
    }
    if result.get("type") == "array" and result.pop("minLength", 0):  # as pydantic calls it here
        items = _name_by_text(result.pop("items"))
        whole = {"type": result.pop("type"), "minItems": 1, "items": items}
        return {**result, "anyOf": [items, whole]}
    return result


def _name_by_text(items: Any) -> Any:
    """Return the schema of items; strategies and costs may be names alone."""
    named = items.get("$ref", "").rpartition("/")[2] in {"StudiedStrategy", "StudiedCosts"}
    return {"anyOf": [{"type": "string"}, items]} if named else items


# A case of a study: a model placed by a strategy, as plain data that can be sent to any process.

SAVED = {"case": "case.json", "problem": "problem.json", "placement": "placement.yaml"}
"""What is saved of a case, and how the names of the files end."""
_KEY_DIGITS = 16  # of a key in the names of files: 64 bits


@dataclass(frozen=True, kw_only=True)
class StudyCase:
    """One placement of a study: texts, numbers, and mappings of them.

    Fields that `PlanOptions` has too mean the same here. Paths are relative to `folder`.

    `link` is in GB/s, None for the cost model's own. `parameters` are values in cost files, as
    `load_settings` takes them. `limits` replace the limits in the rule files. `seed` is the strategy's
    option of that name. `planning` has further fields of `PlanOptions`. `case_seconds` is the most that
    the case may take by the clock; no result depends on it. `digests` are those of the model, the
    rules, the costs, the strategy and the versions of byoc and what it stands on. `save` is the folder
    to which the case, its problem and its placement are written, nowhere if empty. `placement` is the
    file of a saved placement that is priced, in place of a search for one.
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
    save: str = ""
    placement: str = ""

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
        del asked["case_seconds"], asked["folder"], asked["save"]
        return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def find_saved(self, what: str) -> Path:
        """Return the file in the folder `save` for one of `SAVED`, named by the key of the case."""
        return Path(self.save, f"{self.key[:_KEY_DIGITS]}.{SAVED[what]}")

    @property
    def problem_key(self) -> str:
        """A text that is equal for cases with the same placement problem, whatever the strategy."""
        asked = asdict(self)
        for name in ("strategy", "strategy_options", "seed", "time_limit", "repetition", "case_seconds"):
            del asked[name]
        for name in ("digests", "save", "placement"):
            del asked[name]
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


class SavedCase(StrictModel):
    """The file of a saved case: the case, and the measure of its placement."""

    measure: Measure
    case: StudyCase


def _resolve_beside(folder: str, name: str) -> str:
    """Return the path of a file in a folder if there is one of that name, else the name."""
    if not folder or Path(name).is_absolute() or not is_file(Path(folder, name)):
        return name
    return str(Path(folder, name))


def format_value(value: object) -> str:
    """Return an option's value as the text that the command line takes: text as it is, else JSON."""
    return value if isinstance(value, str) else json.dumps(value)
