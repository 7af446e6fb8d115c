"""A bundle in the forms that onnxruntime loads: a model package, or a folder of onnxruntime-genai.

The format is that of onnxruntime's `model_package` library, schema 1.0 (model_package/README.md and
onnxruntime/core/session/model_package/README.md of its sources; its Python functions are in 1.32): a
component is a model, and a variant a model file for one provider.

manifest.json                     the components and their variants
app/npu/model.onnx                the variant `npu` of the component `app`
shared_assets/sha256-DIGEST/      the weights and artifacts of the variants of a bundle, or of a package
"""

import copy
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
from onnx import GraphProto, ModelProto

from byoc._dataclasses import dataclass, field
from byoc.bundle._epcontext import CONTEXT_OPERATOR, make_context_model
from byoc.bundle._manifest import VariantEntry
from byoc.bundle._reading import Bundle
from byoc.codegen import find_same_paths, is_plain_name
from byoc.errors import InputError, suggest_nearest
from byoc.model import walk_nodes, walk_tensors
from byoc.onnxrt import PROPAGATION_SETTING, PROVIDER_NAME
from byoc.support import describe_missing_folder, open_workspace, replace_path, resolve_path
from byoc.zoo import GENAI_CONFIG_FILE, find_genai_folder

_SCHEMA = "1.0"
_MODEL_FILE = "model.onnx"
_MANIFEST = "manifest.json"
_ASSETS = "shared_assets"
_HOST_NAMES = ("host", "onnxruntime", "plain")  # the first that no variant of the bundle has
HOST_PROVIDER = "CPUExecutionProvider"
_WEIGHTS_SETTING = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True)
class PackagedVariant:
    """A variant of a component in a model package, and the provider of onnxruntime that runs it."""

    component: str
    variant: str
    provider: str


@dataclass(frozen=True)
class ExportedPackage:
    """A model package that was written: its variants, and why others of the bundle are not in it.

    `left_out` maps `component/variant` to a reason.
    """

    folder: Path
    variants: tuple[PackagedVariant, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


def export_package(models: Mapping[str, Bundle], output: str | Path) -> ExportedPackage:
    """Write bundles as a model package of onnxruntime into a new folder `output`.

    `models` maps the names of the package's components to bundles.

    Each variant whose regions one provider of onnxruntime loads is in it, the fastest first, since
    onnxruntime takes the first of several for a provider; and each component has a variant for
    onnxruntime's own processor, whose regions are plain ONNX. Raises InputError for a folder that is
    there, for bundles with variants for several sizes, among which onnxruntime cannot choose, and for
    weights outside of a bundle.
    """
    for name in models:
        if not is_plain_name(name) or name.lower() in {_ASSETS, _MANIFEST}:
            raise InputError(
                f"{name!r} is no plain name of a file, or one that the package itself has, and so not "
                "the name of a component"
            )
    same = find_same_paths(models)
    if same is not None:
        raise InputError(f"components {same[0]} and {same[1]} cannot be told apart on every system")
    output = Path(output)
    with _stage_folder(output, models.values(), "a model package") as fresh:
        found = _Writer(fresh).write(models)
    return ExportedPackage(output, *found)


@contextmanager
def _stage_folder(output: Path, bundles: Iterable[Bundle], what: str) -> Iterator[Path]:
    """Provide a folder that becomes `output`, which is not there yet, when the block succeeds."""
    real = resolve_path(output)
    for bundle in bundles:
        if resolve_path(bundle.folder) in real.parents:
            raise InputError(
                f"{output}: cannot be written: it lies in what is exported, {bundle.display_path}"
            )
    if real.exists():
        raise InputError(f"{output}: is there already: {what} is written into a new folder")
    if not real.parent.is_dir():
        raise InputError(f"{output}: cannot be written: {describe_missing_folder(output.parent)}")
    try:
        with open_workspace(real.parent) as workspace:
            fresh = workspace / "new"
            fresh.mkdir()
            yield fresh
            replace_path(fresh, real)
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror or error}") from error


class _Writer:
    """The content of a `folder` that is being written: variants, and the files that they share.

    Bundles call different files alike, so components share an asset where each path has one content in
    all of them: those of a package do, and bundles that were made apart do not.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._assets: list[tuple[Path, dict[str, str]]] = []  # folders, and the hash of each path
        self._written: list[PackagedVariant] = []
        self._left_out: dict[str, str] = {}

    def write(
        self, models: Mapping[str, Bundle]
    ) -> tuple[tuple[PackagedVariant, ...], Mapping[str, str]]:
        """Write all components and the manifest; return the variants, and why others are left out."""
        chosen = {name: self._choose_asset(each) for name, each in models.items()}
        components = {
            name: dict(self._write_component(name, each, chosen[name])) for name, each in models.items()
        }
        addresses = {asset: _name_asset(asset) for asset, _ in self._assets}
        for name, variants in components.items():
            for variant in variants.values():
                settings = variant["executor_info"]["ort"]["session_options"]
                settings[_WEIGHTS_SETTING] = addresses[chosen[name]]
        manifest = {
            "schema_version": _SCHEMA,
            "components": {name: {"variants": each} for name, each in components.items()},
        }
        content = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (self._folder / _MANIFEST).write_text(content, encoding="utf-8")
        return tuple(self._written), self._left_out

    def _choose_asset(self, bundle: Bundle) -> Path:
        """Return the folder for the shared files of a bundle, where no path has another content."""
        own = {path: entry.sha256 for path, entry in bundle.manifest.files.items()}
        for asset, known in self._assets:
            if all(known.get(path, digest) == digest for path, digest in own.items()):
                known.update(own)
                return asset
        asset = self._folder / _ASSETS / f"new{len(self._assets)}"
        asset.mkdir(parents=True)
        self._assets.append((asset, own))
        return asset

    def _write_component(
        self, component: str, bundle: Bundle, asset: Path
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        _require_own_weights(bundle)
        entries = _list_entries(bundle)
        for entry in entries:
            if not entry.regions:
                continue
            name = entry.name or entry.targets[0]
            try:
                provider, model = _make_provider_model(bundle, entry)
            except InputError as error:
                _require_not_named(bundle, error)
                self._left_out[f"{component}/{name}"] = str(error)
                continue
            files = {path for region in entry.regions for path in _list_artifacts(bundle, region.name)}
            _copy_shared(bundle, asset, model, files)
            yield name, self._write_variant(component, name, provider, model)
        plain = onnx.load(bundle.folder / entries[0].model, load_external_data=False)
        name = next(name for name in _HOST_NAMES if name not in {each.name for each in entries})
        _copy_shared(bundle, asset, plain, set())
        yield name, self._write_variant(component, name, HOST_PROVIDER, plain)

    def _write_variant(
        self, component: str, name: str, provider: str, model: ModelProto
    ) -> dict[str, Any]:
        """Write a variant's model; return its entry, but for where its weights are."""
        place = self._folder / component / name
        place.mkdir(parents=True)
        (place / _MODEL_FILE).write_bytes(model.SerializeToString(deterministic=True))
        self._written.append(PackagedVariant(component, name, provider))
        key, value = PROPAGATION_SETTING
        return {
            "variant_directory": f"{component}/{name}",
            "ep": provider,
            "executor_info": {"ort": {"model_file": _MODEL_FILE, "session_options": {key: value}}},
        }


def _require_own_weights(bundle: Bundle) -> None:
    if bundle.manifest.references:
        raise InputError(
            f"{bundle.display_path}: refers to weights outside of it, which a model package cannot: "
            "partition with --weights copy"
        )


def _require_not_named(bundle: Bundle, reason: InputError) -> None:
    """Raise InputError where the variant that is left out for a reason is the one that was asked for."""
    if bundle.chosen:
        raise InputError(f"{bundle.display_path}: variant {bundle.chosen}: {reason}")


def _make_provider_model(bundle: Bundle, entry: VariantEntry) -> tuple[str, ModelProto]:
    """Return the provider that loads the regions of a variant, and its model with EPContext nodes.

    Raises InputError, with the reason alone, where there is none, or more than one.
    """
    codegens = {region.target: bundle.codegens.find(region.codegen) for region in entry.regions}
    try:
        model = make_context_model(bundle.folder, entry, bundle.manifest.regions, codegens)
    except InputError as error:
        raise InputError(str(error).removeprefix("--emit epcontext: ")) from None
    providers = _list_providers(model.graph)
    if len(providers) != 1:
        listed = " and ".join(providers)
        raise InputError(f"its regions are of {listed}, and a variant has one provider")
    return providers[0], model


def _copy_shared(bundle: Bundle, asset: Path, model: ModelProto, artifacts: set[str]) -> None:
    """Copy artifacts of a bundle, and the files with a model's weights, to where they are shared."""
    stored = (each for tensor in walk_tensors(model) for each in tensor.external_data)
    weights = {each.value for each in stored if each.key == "location"}
    for path in sorted(weights | artifacts):
        target = asset / path
        if not target.exists():  # else another variant needs it too
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.folder / path, target)


def _name_asset(asset: Path) -> str:
    """Call a folder of shared files after its content, and return the address of that.

    It is the SHA-256 of a line `DIGEST  PATH` for each file, sorted by path.
    """
    files = sorted(
        (path.relative_to(asset).as_posix(), path) for path in asset.rglob("*") if path.is_file()
    )
    lines = [f"{_hash_file(path)}  {name}\n" for name, path in files]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    named = asset.with_name(f"sha256-{digest}")
    if named.exists():  # of bundles that differ in their models alone
        shutil.rmtree(asset)
    else:
        asset.rename(named)
    return f"sha256:{digest}"


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _list_entries(bundle: Bundle) -> list[VariantEntry]:
    """Return the variants to write, the fastest first. Raises InputError where they differ in sizes."""
    entries = [bundle.variant] if bundle.chosen or bundle.manifest.variants[0].automatic else []
    entries = entries or [*bundle.manifest.variants]
    if len({tuple(sorted(entry.dims.items())) for entry in entries}) > 1:
        names = ", ".join(entry.name for entry in entries)
        raise InputError(
            f"{bundle.display_path}: has variants for several sizes, and onnxruntime chooses by "
            f"provider alone: give --variant (in Python variant=) one of {names}"
        )
    return sorted(entries, key=lambda entry: entry.report.predicted.seconds)


def _list_providers(graph: GraphProto) -> list[str]:
    """Return the providers that load a graph's EPContext nodes, those in bodies as well, sorted."""
    found = set[str]()
    for node in walk_nodes(graph.node):
        if node.op_type == CONTEXT_OPERATOR:
            found.update(each.s.decode() for each in node.attribute if each.name == "source")
    return sorted(found)


def _list_artifacts(bundle: Bundle, name: str) -> list[str]:
    own = bundle.identical_regions.get(name, name)
    entry = next(each for each in bundle.manifest.regions if each.name == own)
    return [*entry.artifact_files.values()]


# A folder of onnxruntime-genai whose models are those of bundles.


def export_genai(
    models: Mapping[str, Bundle],
    source: str | Path,
    output: str | Path,
    drivers: Mapping[str, str | Path] = MappingProxyType({}),
) -> ExportedPackage:
    """Write bundles as a folder of onnxruntime-genai into a new folder `output`.

    `models` maps keys of the configuration, such as `vision` and `decoder`, to bundles; the rest, the
    tokenizer, settings and models that are not among them, is that of the folder `source`. Of each model
    the fastest variant is taken whose regions one provider of onnxruntime loads, with that provider in
    the configuration, and the partitioned model for onnxruntime's own processor where none is.
    `drivers` maps codegens to the libraries of their drivers, for byoc's provider.

    Raises InputError for a `source` that is no such folder, a model that its configuration does not
    name, and as `export_package`.
    """
    genai = find_genai_folder(source)
    if genai is None:
        raise InputError(f"{source}: is no folder of onnxruntime-genai: it holds no {GENAI_CONFIG_FILE}")
    for name in models:
        if name not in genai.models:
            near = suggest_nearest(name, genai.models)
            raise InputError(f"{source}: its configuration names no model '{name}'{near}")
    output = Path(output)
    config = copy.deepcopy(genai.config)
    with _stage_folder(output, models.values(), "a folder of onnxruntime-genai") as fresh:
        written: list[PackagedVariant] = []
        left_out: dict[str, str] = {}
        for name, bundle in models.items():
            _require_own_weights(bundle)
            chosen = _choose_for_genai(bundle, name, left_out)
            _copy_shared(bundle, fresh, chosen.model, chosen.artifacts)
            section = config["model"][name]
            section["filename"] = f"{name}.onnx"
            _set_provider(section, config["model"]["decoder"], chosen.provider, drivers)
            (fresh / f"{name}.onnx").write_bytes(chosen.model.SerializeToString(deterministic=True))
            written.append(PackagedVariant(name, chosen.variant, chosen.provider))
        for path, real in genai.list_other_files(resolve_path(output), models):
            target = fresh / path
            if target.exists():
                raise InputError(
                    f"{genai.path / path}: is called as a file of the models that replace it"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(real, target)
        text = json.dumps(config, indent=4, ensure_ascii=False)
        (fresh / GENAI_CONFIG_FILE).write_text(f"{text}\n", encoding="utf-8")
    return ExportedPackage(output, tuple(written), left_out)


@dataclass(frozen=True, eq=False)
class _ChosenModel:
    """A variant of a bundle as it is written: its model, the files of its artifacts, its provider."""

    variant: str
    provider: str
    model: ModelProto
    artifacts: set[str]


def _choose_for_genai(bundle: Bundle, name: str, left_out: dict[str, str]) -> _ChosenModel:
    """Return the fastest variant that one provider loads, else the partitioned model."""
    entries = _list_entries(bundle)
    for entry in entries:
        if not entry.regions:
            continue
        try:
            provider, model = _make_provider_model(bundle, entry)
        except InputError as error:
            _require_not_named(bundle, error)
            left_out[f"{name}/{entry.name or entry.targets[0]}"] = str(error)
            continue
        files = {path for region in entry.regions for path in _list_artifacts(bundle, region.name)}
        return _ChosenModel(entry.name or entry.targets[0], provider, model, files)
    plain = onnx.load(bundle.folder / entries[0].model, load_external_data=False)
    return _ChosenModel(_HOST_NAMES[0], HOST_PROVIDER, plain, set())


def _set_provider(
    section: dict[str, Any],
    decoder: Mapping[str, Any],
    provider: str,
    drivers: Mapping[str, str | Path],
) -> None:
    """Have a section of a configuration name a provider; without settings it has the decoder's."""
    settings = section.get("session_options", decoder.get("session_options"))
    settings = copy.deepcopy(settings) if isinstance(settings, dict) else {}
    options = {f"driver.{name}": str(Path(path).absolute()) for name, path in drivers.items()}
    own = {provider: options if provider == PROVIDER_NAME else {}}
    if provider != HOST_PROVIDER:
        settings.update([PROPAGATION_SETTING])
    settings["provider_options"] = [] if provider == HOST_PROVIDER else [own]
    section["session_options"] = settings
