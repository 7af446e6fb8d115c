"""Cost models with other values of single parameters, such as `launch` or `link.latency`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from byoc.costs._cost_file import CostFile
from byoc.costs._cost_model import CostModel
from byoc.costs._model_wrappers import Fallback
from byoc.errors import InputError
from byoc.support import validate_content


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
