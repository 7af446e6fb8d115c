"""Packages of several models for several devices: what they are made of, and how they are written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from byoc import bundle, quantization
from byoc._dataclasses import dataclass, fields, replace
from byoc.codegen import find_same_paths, is_plain_name
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    VARIANT_NAME,
    Variant,
    evaluate_dim,
    list_dim_names,
    list_open_dims,
    parse_dim,
)
from byoc.pipeline._partition_options import Options, PackageOptions
from byoc.pipeline._plan_options import VARIANT_RULES, VariantValue, list_files
from byoc.pipeline._preparation_stages import Resolve
from byoc.pipeline._program import partition_request
from byoc.pipeline._results import Result
from byoc.pipeline._state import Request
from byoc.support import check_types, read_mapping, take_keywords
from byoc.zoo import Source, find_genai_folder, find_genai_model, load_model

PackagedModels = str | Path | Sequence[str | Path] | Mapping[str, Any]
_SUFFIXES = (".yaml", ".yml")
_TAKEN = "artifacts"  # a folder of every package
_FILES = {
    *("rules", "devices", "variants", "cost_model", "host_cost_model", "placement", "inputs"),
    *("calibration", "data", "cache_dir", "refit"),
}
"""Options that name files or folders."""
_OF_PACKAGE = ("output", "base", "sign", "progress")
"""Options of the whole package, which no model has of its own."""


@dataclass(frozen=True)
class PackagedModel:
    """A model of a package that is to be made, and its options with a variant for each device."""

    source: Source
    options: Options
    devices: tuple[str, ...]


@take_keywords(PackageOptions)
def package(models: PackagedModels, options: PackageOptions) -> dict[str, Result]:
    """Partition several models for several devices, and write them as one package.

    `models` is a sequence of sources, each a path or `zoo:NAME`, also as `NAME=PATH`; a mapping of names
    to sources, or to mappings with the source under `model` and options of its own beside it; or the
    path of a YAML file with such a mapping under `models` and options for all. Equal weights and equal
    artifacts are stored once over all models. Returns the result of each model by its name.

    Raises InputError as `partition` does, with the model's name in front, and for names of models or
    devices that are not allowed or given twice; nothing has been written.
    """
    chosen = list_packaged_models(models, options)
    if options.output is None:
        raise InputError("a package is written: say where (output; -o on the command line)")
    output = Path(options.output)
    results: dict[str, Result] = {}
    with bundle.stage_package(output) as writer:
        if options.base is not None:
            writer.take_over(Path(options.base), lambda _, manifest: manifest)
        writer.add_devices(device for each in chosen.values() for device in each.devices)
        requests = {name: _make_request(name, each, writer) for name, each in chosen.items()}
        _check_region_names(requests, writer)
        for name, request in requests.items():
            with _name_failed_bundle(name, writer):
                # All that is wrong in what is asked is said before anything is compiled.
                Resolve().run(replace(request, options=replace(request.options, output=output)))
        for name, request in requests.items():
            with _name_failed_bundle(name, writer):
                results[name] = partition_request(request)
            writer.add_model(name, writer.workspace / name)
        not_signed = writer.finish(options.sign)
    return {
        name: result.move_to(output / name, not_signed if name == next(iter(results)) else "")
        for name, result in results.items()
    }


def _make_request(name: str, chosen: PackagedModel, writer: bundle.PackageWriter) -> Request:
    """Return the request for a model's bundle on the way into a package, which alone is signed."""
    if name in writer.models:
        raise InputError(f"{name}: the package has a model of that name already")
    options = replace(chosen.options, output=writer.workspace / name, sign=False)
    if not options.cache:  # what is equal in several models is compiled once all the same
        options = replace(options, cache=True, cache_dir=writer.workspace / "cache")
    return Request(chosen.source, options, variant=Variant(component=name), package=writer.folder)


def _check_region_names(requests: Mapping[str, Request], writer: bundle.PackageWriter) -> None:
    """Raise InputError for two variants whose regions would have the same names.

    These end in the names of the variant and of the model: `pc_x` of `net` is as `pc` of `x_net`.
    """
    there = [(model, each.name) for model, known in writer.models.items() for each in known.variants]
    new = [(model, each.name) for model, one in requests.items() for each in one.options.list_variants()]
    found: dict[str, tuple[str, str]] = {}
    for model, variant in there + new:
        end = Variant(variant, component=model).name_region("").lower()
        first, other = found.setdefault(end, (model, variant))
        if first != model:
            raise InputError(
                f"model {model}: its variant '{variant}' cannot be told from '{other}' of model {first} "
                f"by the names of regions, which both end in _{end}: give NAME=FILE"
            )


@contextmanager
def _name_failed_bundle(name: str, writer: bundle.PackageWriter) -> Iterator[None]:
    """Put the name of a model of a package in front of the message of an InputError.

    The bundle of the model on the way is called by the place where it is to be.
    """
    with name_failed_model(name):
        try:
            yield
        except InputError as error:
            if type(error) is not InputError:
                raise
            lines = (line.replace(str(writer.workspace), str(writer.place)) for line in error.lines)
            raise InputError(*lines) from error


def list_packaged_models(models: PackagedModels, options: PackageOptions) -> dict[str, PackagedModel]:
    """Return the models that are to be put into a package, by their names in it.

    `models` are sources, whose names are those of their files or stand before a `=`; a mapping of names
    to sources, or to mappings of options with the source under `model`; or the path of a YAML file with
    such a mapping under `models`, and options for all beside it, whose paths are relative to it.

    Raises InputError for names that are not allowed or given twice, and options that are wrong.
    """
    if isinstance(models, str | Path) and str(models).endswith(_SUFFIXES):
        file = Path(models)
        models, options = _read_file(file, options)
        try:
            return list_packaged_models(models, options)
        except InputError as error:
            raise InputError(*(f"{file}: {line}" for line in error.lines)) from None
    if isinstance(models, str | Path):
        models = [models]
    named = models if isinstance(models, Mapping) else _name_models(models)
    if not named:
        raise InputError("a package has at least one model, and none is given")
    found: dict[str, PackagedModel] = {}
    for name, given in ((one, each) for pair in named.items() for one, each in _list_inside(*pair)):
        if name in found:
            raise InputError(f"the package would have two models '{name}': give NAME=FOLDER/{name}")
        found[name] = _read_model(name, given, options)
    same = find_same_paths(found)
    if same is not None:
        raise InputError(f"models {same[0]} and {same[1]} cannot be told apart on every system")
    return _share_dimensions(found, options)


def _share_dimensions(
    models: dict[str, PackagedModel], options: PackageOptions
) -> dict[str, PackagedModel]:
    """Return the models, each with those of the dimensions given for all that it has.

    A relation to dimensions that a model lacks is its size there, where they are given. Raises
    InputError for a dimension that no model has.
    """
    shared = options.dims
    if not shared or len(models) < 2:
        return models
    open_dims = {}
    for name, each in models.items():
        with name_failed_model(name):
            open_dims[name] = set(list_open_dims(load_model(each.source, without_heavy=True).structure))
    known = sorted(set().union(*open_dims.values()))
    for dim in shared:
        if dim not in known:
            raise InputError(
                f"no model has an open dimension named '{dim}'{suggest_nearest(dim, known)}; open "
                f"dimensions: {', '.join(known) or 'none'}"
            )
    return {
        name: replace(each, options=replace(each.options, dims=_take_own(shared, open_dims[name])))
        if each.options.dims is shared
        else each
        for name, each in models.items()
    }


def _take_own(shared: Mapping[str, int | str], own: Collection[str]) -> dict[str, int | str]:
    """Return those of some dimensions that a model has."""
    sizes = {dim: size for dim, size in shared.items() if isinstance(size, int)}
    taken: dict[str, int | str] = {}
    for dim, size in shared.items():
        if dim in own:
            meaning = parse_dim(str(size))
            known = None if list_dim_names(meaning) <= set(own) else evaluate_dim(meaning, sizes)
            taken[dim] = size if known is None else known
    return taken


@contextmanager
def name_failed_model(name: str) -> Iterator[None]:
    """Put the name of a model in front of the message of an InputError."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError:  # others say more than a message
            raise
        raise InputError(*(f"model {name}: {line}" for line in error.lines)) from error


def _list_inside(name: str, given: Any) -> Iterator[tuple[str, Any]]:
    """Yield a model of a package, or instead of a folder of onnxruntime-genai each model in it.

    These are called after the keys of the configuration.
    """
    source = given.get("model") if isinstance(given, Mapping) else given
    genai = None if source is None else find_genai_folder(source)
    if genai is None:
        yield name, given
        return
    for key in genai.models:
        path = str(genai.path / key)
        yield key, {**given, "model": path} if isinstance(given, Mapping) else path


def _name_models(models: Sequence[str | Path]) -> dict[str, str | Path]:
    found: dict[str, str | Path] = {}
    for given in models:
        name, sign, source = str(given).partition("=")
        if not sign or not re.fullmatch(VARIANT_NAME, name):
            source = str(given)
            name = re.split(r"[:/\\]", source.rstrip("/\\"))[-1].partition(".")[0]
        if name in found:
            raise InputError(f"{source}: the package has a model '{name}' already: give NAME={source}")
        found[name] = source
    return found


def _read_file(path: Path, options: PackageOptions) -> tuple[Mapping[str, Any], PackageOptions]:
    """Read a YAML file of a package: its models, and the options of all with those that it gives."""
    content = read_mapping(path)
    models = content.pop("models", None)
    merged = _change_options(options, content, str(path), path.parent)
    if not isinstance(models, dict) or not models:
        raise InputError(f"{path}: models: expected a mapping of names to models")
    found = {}
    for name, given in models.items():
        if not isinstance(name, str):  # YAML reads on, no and 1 as something else
            raise InputError(f"{path}: models: the name {name!r} is not text: quote it")
        own = given if isinstance(given, dict) else {"model": given}
        where = f"{path}: models.{name}"
        rest = {key: value for key, value in own.items() if key != "model"}
        changed = _change_options(merged, rest, where, path.parent)
        if not isinstance(own.get("model"), str):
            raise InputError(f"{where}.model: expected the path of a model, or zoo:NAME")
        found[name] = {"model": _find_file(own["model"], path.parent), "options": changed}
    return found, merged


def _change_options(
    options: PackageOptions, given: Mapping[Any, Any], where: str, folder: Path | None = None
) -> PackageOptions:
    """Return options with some changed, as `byoc.partition` calls them; `quantize` and its like, too.

    Files and folders are looked for in `folder` first. Raises InputError, which begins with `where`.
    """
    lowering = {each.name for each in fields(quantization.Precision)}
    known = {each.name for each in fields(PackageOptions)} - {*_OF_PACKAGE} | lowering
    wrong = next((key for key in given if key not in known), None)
    if wrong is not None:
        near = suggest_nearest(str(wrong), {*known, "model", "models"})
        raise InputError(f"{where}: no option '{wrong}'{near}")
    found = {k: _find_file(value, folder) if k in _FILES else value for k, value in given.items()}
    of_precision = {key: found.pop(key) for key in [*found] if key in lowering}
    try:
        check_types(PackageOptions, found)
        check_types(quantization.Precision, of_precision)
        precision = replace(found.pop("precision", options.precision), **of_precision)
        return replace(options, precision=precision, **found)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _find_file(value: Any, folder: Path | None) -> Any:
    """Return a value in which texts that name files or folders of `folder` are their paths."""
    if folder is None:
        return value
    if isinstance(value, dict):
        return {key: _find_file(each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [_find_file(each, folder) for each in value]
    if isinstance(value, str) and value:
        place = folder / value.partition(":")[0]
        if place.exists() or (place.parent != folder and find_genai_model(place) is not None):
            return str(folder / value)
    return value


def _read_model(name: str, given: Any, options: PackageOptions) -> PackagedModel:
    if re.fullmatch(VARIANT_NAME, name) and not is_plain_name(name):
        raise InputError(f"model '{name}': no file can have this name on every system: give NAME=FILE")
    if not re.fullmatch(VARIANT_NAME, name) or name == _TAKEN:
        raise InputError(
            f"model '{name}': a name in a package is a letter, and then at most 39 letters, digits or "
            f"underscores, and not '{_TAKEN}': give NAME=FILE"
        )
    if isinstance(given, Mapping):
        source = given.get("model")
        if source is None:
            raise InputError(f"model '{name}': its source is missing: give it under 'model'")
        rest = {key: value for key, value in given.items() if key not in ("model", "options")}
        options = given.get("options", options)
        if not isinstance(options, PackageOptions):
            raise InputError(f"model '{name}': no option 'options': give options beside 'model'")
        options = _change_options(options, rest, f"model '{name}'")
        given = source
    devices = tuple(options.devices or ())
    bundle.check_devices(devices)
    return PackagedModel(given, _spread_devices(options), devices)


def _spread_devices(options: PackageOptions) -> Options:
    """Return the options of a model, with a variant for each device, or for each and each variant."""
    own = {each.name: getattr(options, each.name) for each in fields(Options)}
    if not options.devices:
        if not options.rules and not all(each.rules for each in options.list_variants()):
            raise InputError("devices: none is given (--for DEVICE=RULES), nor rules for all (--rules)")
        return Options(**own)
    sizes: Mapping[str, Mapping[str, VariantValue]] = options.variants or {"": {}}
    for size, dims in sizes.items():
        if VARIANT_RULES in dims:
            raise InputError(f"variant '{size}': devices say what rule files it has, so it names none")
    variants: dict[str, Mapping[str, VariantValue]] = {}
    precisions: dict[str, quantization.Precision] = {}
    for device, given in options.devices.items():
        files, precision = _read_device(device, given, options.precision)
        for size, dims in sizes.items():
            name = "_".join(filter(None, (device, size)))
            variants[name] = {VARIANT_RULES: files, **dims}
            if precision != options.precision:
                precisions[name] = precision
    return Options(**{**own, "variants": variants, "precisions": precisions})


def _read_device(
    name: str, given: Any, precision: quantization.Precision
) -> tuple[Sequence[str | Path], quantization.Precision]:
    """Return the rule files of a device, and its precision: its own, or that of all.

    What it is `given` is a text such as `dla,quantize=int8`, or a mapping with files under `rules`.
    """
    known = {each.name for each in fields(quantization.Precision)}
    if isinstance(given, str):
        first, *parts = re.split(r",(?=\w+=)", given)
        pairs = [part.partition("=")[::2] for part in parts]
        counts = Counter(key for key, _ in pairs)
        if len(counts) < len(pairs):
            raise InputError(f"device '{name}': {counts.most_common(1)[0][0]} is given twice")
        given = {VARIANT_RULES: first, **dict(pairs)} if parts else first
    if not isinstance(given, Mapping):
        return list_files(given), precision
    rest = {key: value for key, value in given.items() if key != VARIANT_RULES}
    wrong = next((key for key in rest if key not in known), None)
    if wrong is not None:
        near = suggest_nearest(str(wrong), [VARIANT_RULES, *known])
        raise InputError(f"device '{name}': no option '{wrong}'{near}")
    if not all(list_files(given.get(VARIANT_RULES, ())) or [""]):
        raise InputError(f"device '{name}': {VARIANT_RULES} names no rule file")
    try:
        check_types(quantization.Precision, rest)
        return list_files(given[VARIANT_RULES]), replace(precision, **rest)
    except InputError as error:
        raise InputError(f"device '{name}': {error}") from None
