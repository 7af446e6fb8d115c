"""Loading cost models from a path, the name of an installed file, or a plug-in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import onnx

from byoc.costs._cost_model import CostFile, CostModel, Price
from byoc.costs._graph_tasks import Fallback
from byoc.costs._measured_costs import CostTable, Linear
from byoc.costs._objective import LATENCY, Objective
from byoc.costs._roofline import Roofline
from byoc.errors import InputError, describe_error, suggest_nearest
from byoc.placement import Conditions
from byoc.support import (
    COST_MODELS,
    COSTS,
    find_beside,
    find_extended_file,
    find_files,
    find_installed_file,
    get_distribution,
    is_file,
    is_installed_name,
    is_utf8,
    list_installed,
    load_plugin,
    make_file_error,
    make_with_options,
    read_mapping,
    validate_content,
)

_HOST = "host"
_MAX_FALLBACKS = 8  # files in a chain of `else`

KINDS: Mapping[str, type[CostFile]] = {"roofline": Roofline, "table": CostTable, "linear": Linear}


class _TooDeepError(InputError):
    """Files refer to one another in a chain that is too long to list."""


FoundT = TypeVar("FoundT")
Options = Mapping[str, str]
_NO_OPTIONS: Options = MappingProxyType({})


def load_cost_model(name: str, options: Options = _NO_OPTIONS, threads: int | None = None) -> CostModel:
    """Return the cost model of a file (a path or an installed name) or of a plug-in.

    `options` are those of the plug-in, as text; those of a file go to the plug-in that it asks for what
    it does not know. `threads` is the number of threads of a run, None for all cores: a file may name
    other files for several. Raises InputError with a line for every mistake in the file, if its fallback
    or its file for so many threads cannot be loaded, if a plug-in is not a cost model, and for an option
    that it does not take.
    """
    return _load(name, _find(name), (), options, threads)


def read_cost_file(path: Path) -> CostFile:
    """Read a cost file with those that it extends, without its fallback.

    Raises InputError as `load_cost_model` does.
    """
    content = read_inherited(path)
    kind = content.get("kind")
    if "kind" not in content:
        raise make_file_error(path, [f"kind: must be given; known: {', '.join(KINDS)}"])
    if not isinstance(kind, str) or kind not in KINDS:
        text = str(kind)[:50]
        hint = suggest_nearest(text, KINDS)
        raise make_file_error(path, [f"kind: no such kind '{text}'{hint}; known: {', '.join(KINDS)}"])
    content, problems = expand_groups(content) if KINDS[kind] is Roofline else (content, [])
    result, others = validate_content(content, KINDS[kind])
    problems += others
    if result is None or problems:
        raise make_file_error(path, problems)
    if result.beside is not None:  # a path, which would else be looked for in the working directory
        beside = _find_named(path, "beside", result.beside, _find_installed)
        result = result.model_copy(update={"beside": str(beside)})
    return result


def _find(name: str) -> Path | str:
    """Return the file that a user names, or the name of a plug-in. Raises InputError for neither."""
    installed = name in list_installed(COSTS) or is_installed_name(COST_MODELS, name)
    return path if not installed and is_file(path := Path(name)) else _find_installed(name)


def _find_installed(name: str) -> Path | str:
    plugins = list_installed(COSTS)
    if name not in plugins:
        return find_installed_file(COST_MODELS, name, also=plugins)
    if clashing := [str(path) for path in find_files(COST_MODELS)[0].get(name, ())]:
        raise InputError(
            f"{name}: {get_distribution(plugins[name])} brings a cost model of this name, and so does "
            f"{clashing[0]}; give a path"
        )
    return name


def _find_installed_file(name: str) -> Path:
    return find_installed_file(COST_MODELS, name)


def _find_named(path: Path, key: str, name: str, find: Callable[[str], FoundT]) -> Path | FoundT:
    """Return the file, or what is installed, that a cost file names under a key.

    Raises InputError for neither, and for a file elsewhere than beside or below it.
    """
    if beside := find_named_file(path, key, name):
        return beside
    try:
        return find(name)
    except InputError as error:
        raise InputError(*(f"{path}: {key}: {line}" for line in error.lines)) from None


def _load(
    name: str,
    source: Path | str,
    asking: tuple[Path, ...],
    options: Options = _NO_OPTIONS,
    threads: int | None = None,
) -> CostModel:
    """Load a model from its file or plug-in; `asking` are the files whose fallbacks led to it."""
    if isinstance(source, str):
        return _load_plugin(source, options)
    path, real = source, source.resolve()
    if real in asking:
        circle = " -> ".join(p.name for p in (*asking[asking.index(real) :], real))
        raise InputError(f"the fallbacks go in a circle: {circle}")
    if len(asking) > _MAX_FALLBACKS:
        raise _TooDeepError(f"{asking[0]}: more than {_MAX_FALLBACKS} files ask one another (else)")
    path, found = _read_for_threads(path, threads)
    if options and found.otherwise is None:
        first = next(iter(options))
        raise InputError(f"cost model {name} has no option '{first}': it is a file, which has none")
    if found.otherwise is None:
        return _as_model(found)
    fallback = _find_named(path, "else", found.otherwise, _find_installed)
    try:
        second = _load(found.otherwise, fallback, (*asking, real), options, threads)
    except _TooDeepError:
        raise
    except InputError as error:
        raise InputError(*(f"{path}: else: {line}" for line in error.lines)) from None
    return Fallback(_as_model(found), second)


def _read_for_threads(path: Path, threads: int | None) -> tuple[Path, CostFile]:
    """Read a cost file, or the one that it names for so many threads; return its path, too.

    All files that it names are looked for. Raises InputError as `load_cost_model` does.
    """
    found = read_cost_file(path)
    others = {}
    for count, name in found.threads.items():
        others[name] = _find_named(path, f"threads.{count}", name, _find_installed_file)
    chosen = found.find_for_threads(threads)
    if chosen is None:
        return path, found
    other = read_cost_file(others[chosen])
    if other.threads:
        raise InputError(f"{path}: threads: {others[chosen]} names files for threads itself")
    if (other.link is None) != (found.link is None):
        which, own = ("no", "one") if other.link is None else ("a", "none")
        raise InputError(
            f"{path}: threads: {others[chosen]} has {which} link, the file itself has {own}"
        )
    return others[chosen], other


def check_fallback(path: Path, otherwise: str) -> None:
    """Raise InputError if a file about to be written could not be loaded with such an `else`."""
    if not is_utf8(otherwise):
        raise InputError(f"{path}: else: '{otherwise}' is not UTF-8 text, so no cost file can name it")
    real, beside = path.resolve(), path.parent / otherwise
    if beside.resolve() == real and (is_file(beside) or is_file(Path(otherwise))):
        raise InputError(
            f"{path}: cannot be asked for what it does not know itself: else is {otherwise}"
        )
    _load(otherwise, _find_named(path, "else", otherwise, _find_installed), (real,))


def _as_model(found: CostFile) -> CostModel:
    if not isinstance(found, CostModel):  # holds for every class in KINDS
        raise TypeError(f"{type(found).__name__} is no cost model")
    return found


def _load_plugin(name: str, options: Options) -> CostModel:
    found = load_plugin(COSTS, name, lambda kind: make_with_options(kind, options))
    source = f"cost model '{name}' of {get_distribution(list_installed(COSTS)[name])}"
    try:
        own_name = found.name if isinstance(found, CostModel) else None
    except Exception as error:  # a property of a plug-in can fail
        raise InputError(f"{source}: its name failed with {describe_error(error)}") from error
    if not isinstance(found, CostModel):
        raise InputError(
            f"{source} is not one: it needs a "
            "`name` and the methods `execution`, `transfer` and `launching`"
        )
    if not isinstance(own_name, str) or not own_name:
        raise InputError(f"{source}: its name is not a text")
    return found


def _cost_file(costs: CostModel) -> CostFile | None:
    """Return the file that defines a model's link and launch; None for a plug-in."""
    first = costs.first if isinstance(costs, Fallback) else costs
    return first if isinstance(first, CostFile) else None


def load_host_costs(name: str, options: Options = _NO_OPTIONS, threads: int | None = None) -> CostModel:
    """Return a cost model for the host, which has no link and no launch cost.

    Raises InputError as `load_cost_model` does, and if the model is one of an accelerator.
    """
    costs = load_cost_model(name, options, threads)
    found = _cost_file(costs)
    if found is not None and (found.link is not None or found.launch):
        raise InputError(f"{name}: the host's cost model has neither link nor launch")
    return costs


def find_host_beside(devices: Iterable[CostModel]) -> str | None:
    """Return the host's cost model that the first of the accelerators' files names, if any."""
    return next((file.beside for file in map(_cost_file, devices) if file and file.beside), None)


def find_margin(devices: Iterable[CostModel]) -> float:
    """Return the largest share that a mixture has to save by the accelerators' files."""
    return max((file.margin for file in map(_cost_file, devices) if file), default=0.0)


def find_conditions(
    names: Sequence[str], devices: Sequence[CostModel], objective: Objective = LATENCY
) -> Conditions | None:
    """Return engines, replicas, contention and reloads of accelerators; None where no file has any.

    `names` are those of the accelerators, by which their files call one another; `host` is the host.
    What a file says of accelerators that there are none of is left out. A byte that is loaded anew
    costs by the objective.
    """
    files = [_cost_file(each) for each in devices]
    own = [None if file is None else file.engine for file in files]
    # An engine that no file names is that of its accelerator alone; `host` is the host's own.
    labels = [
        _HOST,
        *(
            name if engine is None else engine if engine == _HOST else f"/{engine}"
            for name, engine in zip(names, own, strict=True)
        ),
    ]
    counts = [1, *(1 if file is None else file.replicas for file in files)]
    engines = list(dict.fromkeys(labels))
    # Each replica is an engine, on which its accelerator computes for a part of the time.
    number = dict(zip((_HOST, *names), map(engines.index, labels), strict=True))
    copies = [max(n for n, own in zip(counts, labels, strict=True) if own == each) for each in engines]
    of = np.repeat(np.arange(len(engines)), copies)
    copy = np.concatenate([np.arange(each) for each in copies])
    slowdown = np.ones((len(of), len(of)))
    for name, file in zip(names, files, strict=True):
        for other, factor in file.interference.items() if file else ():
            if other in number and number[other] != number[name]:
                slowdown[np.ix_(of == number[name], of == number[other])] = factor
    is_shared = len(engines) < len(labels) or max(counts) > 1
    is_slowed = bool((slowdown > 1).any())
    prices = [price_reload(each) for each in devices]
    reload = np.array([objective.combine(each.seconds, each.joules) if each else inf for each in prices])
    reloads = bool(np.isfinite(reload).any())
    if not is_shared and not is_slowed and not reloads:
        return None
    shares = np.array(
        [
            np.where((of == number[name]) & (copy < count), 1 / count, 0.0)
            for name, count in zip((_HOST, *names), counts, strict=True)
        ]
    )
    return Conditions(
        engines=shares if is_shared else None,
        slowdown=slowdown if is_slowed else None,
        reload=reload if reloads else None,
    )


def price_reload(costs: CostModel) -> Price | None:
    """Return the price of a byte that an accelerator loads anew; None where it loads none."""
    file = _cost_file(costs)
    if file is None or file.reload is None:
        return None
    return Price(1 / file.reload, file.energy.moved if file.energy else nan)


def load_device_costs(
    name: str, options: Options = _NO_OPTIONS, threads: int | None = None
) -> CostModel:
    """Return a cost model for an accelerator.
    Raises InputError as `load_cost_model` does, and if the model has no link, as every transfer would
    then be free without anyone having decided so.
    """
    costs = load_cost_model(name, options, threads)
    found = _cost_file(costs)
    if found is not None and found.link is None:
        raise InputError(
            f"{name}: an accelerator's cost model needs a link "
            "(of memory that both share, the bandwidth is .inf)"
        )
    return costs


# Cost files that build on another one, and figures that several operators share.
#
# A file with `extends` has what it does not state from the file that it names. Mappings are merged
# key by key, at any depth; everything else replaces what is inherited. `name`, `description`,
# `machine` and `threads` are not inherited. `groups` of a roofline name lists of operators: figures
# under the name of a group are those of each of its operators, which may have further figures of
# its own.

# What names a cost model and is inherited.
_NAMING = ("else", "beside")
_OWN = ("name", "description", "machine", "threads", "extends")

Content = dict[Any, Any]


def read_inherited(path: Path, chain: tuple[Path, ...] = ()) -> Content:
    """Return the content of a cost file with what it inherits, groups not yet expanded.

    `chain` are the files that led to this one. Raises InputError for a file that is not there, that
    builds on itself, or that is one of too many.
    """
    content = read_mapping(path)
    if "extends" not in content:
        return content
    found = _find_base(path, content["extends"], (*chain, path))
    base = read_inherited(found, (*chain, path))
    for key in _NAMING:
        if isinstance(base.get(key), str) and (file := find_named_file(found, key, base[key])):
            base = {**base, key: str(file)}  # a path is relative to its own file
    own = {key: value for key, value in content.items() if key != "extends"}
    return _merge({key: value for key, value in base.items() if key not in _OWN}, own)


def find_named_file(path: Path, key: str, name: str) -> Path | None:
    """Return the file beside or below a cost file that it names under a key, None if there is none.

    Raises InputError for a path that leads elsewhere.
    """
    try:
        return find_beside(COST_MODELS, path, name)
    except InputError as error:
        raise InputError(f"{path}: {key}: {error}") from None


def expand_groups(content: Content) -> tuple[Content, list[str]]:
    """Return content in which each operator has the figures of its group, and mistakes in groups."""
    groups = content.get("groups")
    if groups is None:
        return content, []
    if not isinstance(groups, dict):
        return content, ["groups: expected names, each with a list of operators"]
    operators = content.get("operators")
    own = dict(operators) if isinstance(operators, dict) else {}
    problems: list[str] = []
    shared: Content = {}
    owners: dict[str, str] = {}
    for key, members in groups.items():
        name = str(key)
        if not isinstance(members, list) or not all(isinstance(each, str) for each in members):
            problems.append(f"groups.{name}: expected a list of operators")
            continue
        if name in members or onnx.defs.has(name):
            problems.append(f"groups.{name}: this is the name of an operator; give the group another")
        for each in members:
            if each in owners:
                where = "there twice" if owners[each] == name else f"in the group {owners[each]}, too"
                problems.append(f"groups.{name}: '{each}' is {where}")
            owners[each] = name
        if key in own:
            shared |= dict.fromkeys(members, own.pop(key))
        else:
            problems.append(f"groups.{name}: there are no figures under this name in `operators`")
    rest = {key: value for key, value in content.items() if key != "groups"}
    return {**rest, "operators": _merge(shared, own)}, problems


def _merge(base: Mapping[Any, Any], own: Mapping[Any, Any]) -> Content:
    result = {**base, **own}
    for key, value in own.items():
        below = base.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            result[key] = _merge(below, value)
    return result


def _find_base(path: Path, name: object, chain: tuple[Path, ...]) -> Path:
    if not isinstance(name, str):
        raise make_file_error(path, ["extends: expected the path or the name of a cost model"])
    return find_extended_file(COST_MODELS, path, name, chain)
