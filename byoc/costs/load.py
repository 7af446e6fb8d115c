"""Reading a cost model: a path, an installed file's name, or a plug-in's, to something that answers."""

from collections.abc import Mapping
from pathlib import Path

from byoc.costs.fallback import Fallback
from byoc.costs.file import CostFile
from byoc.costs.linear import Linear
from byoc.costs.model import CostModel
from byoc.costs.roofline import Roofline
from byoc.costs.table import Table
from byoc.errors import InputError, described, nearest
from byoc.plugins import COST_MODELS, COSTS, distribution, files, find_file, installed, is_file, load
from byoc.yamlfile import check, read_mapping, wrong

_MOST_FALLBACKS = 8

KINDS: Mapping[str, type[CostFile]] = {"roofline": Roofline, "table": Table, "linear": Linear}


class _TooDeepError(InputError):
    """Files name one another in a long row: which of them are on the way helps nobody."""


def load_cost_model(name: str) -> CostModel:
    """Return the cost model of a file, given by its path or an installed one's name, or of a plug-in.

    Raises InputError with a line for every mistake in the file, when its fallback cannot be loaded, or
    when a plug-in is none.
    """
    return _loaded(name, ())


def read_cost_file(path: Path) -> CostFile:
    """Return what a file says, its fallback not loaded. Raises InputError as `load_cost_model` does."""
    content = read_mapping(path)
    kind = content.get("kind")
    if "kind" not in content:
        raise wrong(path, [f"kind: must be given; known: {', '.join(KINDS)}"])
    if not isinstance(kind, str) or kind not in KINDS:
        told = str(kind)[:50]
        hint = nearest(told, KINDS)
        raise wrong(path, [f"kind: no such kind '{told}'{hint}; known: {', '.join(KINDS)}"])
    result, problems = check(content, KINDS[kind])
    if result is None:
        raise wrong(path, problems)
    return result


def _loaded(name: str, asking: tuple[Path, ...]) -> CostModel:
    """Return a model, asked for as a fallback by the files in `asking`."""
    plugins = installed(COSTS)
    if name in plugins and not Path(name).is_file():
        clashing = [str(path) for path in files(COST_MODELS)[0].get(name, ())]
        if clashing:
            raise InputError(
                f"{name}: {distribution(plugins[name])} brings a cost model of this name, and so does "
                f"{clashing[0]}; give a path"
            )
        return _plugin(name)
    path = find_file(COST_MODELS, name, also=plugins)
    real = path.resolve()
    if real in asking:
        circle = " -> ".join(p.name for p in (*asking[asking.index(real) :], real))
        raise InputError(f"the fallbacks go in a circle: {circle}")
    if len(asking) > _MOST_FALLBACKS:
        raise _TooDeepError(f"{asking[0]}: more than {_MOST_FALLBACKS} files ask one another (else)")
    found = read_cost_file(path)
    if found.otherwise is None:
        return _model(found)
    beside = path.parent / found.otherwise
    try:
        second = _loaded(str(beside) if is_file(beside) else found.otherwise, (*asking, real))
    except _TooDeepError:
        raise
    except InputError as error:
        raise InputError(
            "\n".join(f"{path}: else: {line}" for line in str(error).splitlines())
        ) from None
    return Fallback(_model(found), second)


def check_fallback(path: Path, otherwise: str) -> None:
    """Raise InputError where a file that is to be written could not be loaded with such an `else`."""
    real, beside = path.resolve(), path.parent / otherwise
    if beside.resolve() == real and (is_file(beside) or is_file(Path(otherwise))):
        raise InputError(
            f"{path}: cannot be asked for what it does not know itself: else is {otherwise}"
        )
    _loaded(str(beside) if is_file(beside) else otherwise, (real,))


def _model(found: CostFile) -> CostModel:
    if not isinstance(found, CostModel):  # every kind in KINDS is one
        raise TypeError(f"{type(found).__name__} is no cost model")
    return found


def _plugin(name: str) -> CostModel:
    found = load(COSTS, name)
    source = f"cost model '{name}' of {distribution(installed(COSTS)[name])}"
    try:
        called = found.name if isinstance(found, CostModel) else None
    except Exception as error:  # a name can be computed, and fail
        raise InputError(f"{source}: its name failed with {described(error)}") from error
    if not isinstance(found, CostModel):
        raise InputError(
            f"{source} is not one: it needs a "
            "`name` and the methods `execution`, `transfer` and `launching`"
        )
    if not isinstance(called, str) or not called:
        raise InputError(f"{source}: its name is not a text")
    return found


def _file(costs: CostModel) -> CostFile | None:
    """Return the file whose link and launch a model goes by, None for a plug-in."""
    first = costs.first if isinstance(costs, Fallback) else costs
    return first if isinstance(first, CostFile) else None


def load_host_costs(name: str) -> CostModel:
    """Return a cost model for the host, which is reached by no link and launches nothing.

    Raises InputError as `load_cost_model` does, and when the model is one of an accelerator.
    """
    costs = load_cost_model(name)
    found = _file(costs)
    if found is not None and (found.link is not None or found.launch):
        raise InputError(f"{name}: the host's cost model has neither link nor launch")
    return costs


def load_device_costs(name: str) -> CostModel:
    """Return a cost model for an accelerator.

    Raises InputError as `load_cost_model` does, and when the model has no link: then every transfer
    would be free without anybody having said so.
    """
    costs = load_cost_model(name)
    found = _file(costs)
    if found is not None and found.link is None:
        raise InputError(
            f"{name}: an accelerator's cost model needs a link "
            "(of memory that both share, the bandwidth is .inf)"
        )
    return costs
