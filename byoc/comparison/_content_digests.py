"""Digests of what a case is computed from: the model, the rules, the costs, the strategy's code."""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from functools import lru_cache
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
from pydantic import BaseModel

from byoc.costs import CostModel, Fallback
from byoc.errors import InputError
from byoc.model import find_external_data, read_model_file, walk_tensors
from byoc.planning import PlanSettings
from byoc.zoo import ZOO, find_path, list_entries

_DIGITS = 16


@lru_cache(maxsize=1)
def list_versions() -> dict[str, str]:
    """Return the versions that results depend on, by distribution."""
    return {name: version(name) for name in ("onnx-byoc", "onnx", "numpy", "scipy")}


def digest_model(source: str) -> str:
    """Return the digest of a model: of its file and the files of its weights.

    That of a model of the zoo that has no file is of its name, its source and the versions of `byoc` and
    `onnx`, which decide what it is. Raises InputError when there is no such model.
    """
    if not source.startswith(ZOO):
        return _digest_file(Path(source))
    name = source.removeprefix(ZOO)
    path = find_path(name)
    if path is not None:
        return _digest_file(path)
    entry = next(entry for entry in list_entries() if entry.name == name)
    made = [name, entry.source, *(list_versions()[each] for each in ("onnx-byoc", "onnx"))]
    return _digest_text("\n".join(made))


def digest_settings(settings: PlanSettings) -> dict[str, str]:
    """Return the digests of the rules, the costs, and the strategy of settings.

    Files are read with all that they extend. A plug-in's digest is of its options and the source
    of its module, so that another version of it is another strategy.
    """
    rules = [target.rules.model_dump_json() for target in settings.targets]
    costs = [_describe_costs(each) for each in (*settings.costs, settings.host)]
    return {
        "rules": _digest_text("\n".join(rules)),
        "costs": _digest_text("\n".join(costs)),
        "strategy": _digest_text(_describe_plugin(settings.strategy)),
    }


def _digest_text(text: str) -> str:
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]


def _digest_file(path: Path) -> str:
    """Return the digest of a model file, which may be large, and of the files with its weights."""
    try:
        with path.open("rb") as file:
            digests = [file_digest(file, "sha256").hexdigest()]
        for other in sorted(_find_weight_files(path)):
            with other.open("rb") as file:
                digests.append(f"{other.name} {file_digest(file, 'sha256').hexdigest()}")
    except (OSError, ValueError) as error:  # as reading it says
        read_model_file(path)
        raise InputError(f"{path}: cannot be read: {error}") from None
    return digests[0][:_DIGITS] if len(digests) == 1 else _digest_text("\n".join(digests))


def _find_weight_files(path: Path) -> set[Path]:
    found: set[Path] = set()
    if not any(other != path for other in path.parent.iterdir()):
        return found
    proto = read_model_file(path)
    known: dict[str, Path] = {}
    for tensor in walk_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            find_external_data(tensor, path.parent, known)
    return set(known.values())


def _describe_costs(model: CostModel) -> str:
    if isinstance(model, Fallback):
        return f"{_describe_costs(model.first)} else {_describe_costs(model.second)}"
    if isinstance(model, BaseModel):
        return f"{type(model).__name__} {model.model_dump_json()}"
    return _describe_plugin(model)


def _describe_plugin(plugin: Any) -> str:
    """Return the type, the source of its module, and the options of a plug-in."""
    kind = type(plugin)
    options = asdict(plugin) if is_dataclass(plugin) and not isinstance(plugin, type) else {}
    described = _describe_value(options)
    return "\n".join((f"{kind.__module__}.{kind.__qualname__}", *_list_sources(kind), described))


def _describe_value(value: Any) -> str:
    """Return a value as text that is the same in every process, whatever order its sets have there."""
    match value:
        case dict():
            pairs = (f"{key!r}: {_describe_value(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_describe_value, value))}]"
        case set() | frozenset():
            return f"set({', '.join(sorted(map(_describe_value, value)))})"
    return repr(value)


def _list_sources(kind: type) -> Iterator[str]:
    """Yield the source of the module of a class that is not byoc's, whose version says what it is."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__.partition(".")[0] == "byoc":
        return
    try:
        yield inspect.getsource(module)
    except (OSError, TypeError):  # a module without source, or from the prompt
        return
