"""Bundles that onnxruntime runs whole, with byoc's provider and drivers in C for the regions."""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import onnx

from byoc.bundle import CONTEXT_MODEL_FILE, MODEL_TEXT, Bundle, hash_region_model, require_consent
from byoc.codegen import Executor, has_driver, has_model_driver
from byoc.codegen.drivers import DriverLibrary, build_driver
from byoc.errors import InputError
from byoc.model import GraphIndex
from byoc.onnxrt import open_provider_session, output_types, session_runner
from byoc.runtime._runtimes import DRIVER_RUNTIME
from byoc.runtime._session import Session
from byoc.runtime._stage_program import Stage, StageProgram

_given: ContextVar[Mapping[str, Path]] = ContextVar("given", default=MappingProxyType({}))


@contextmanager
def use_drivers(libraries: Mapping[str, str | Path]) -> Iterator[None]:
    """Run the regions of codegens by these libraries, instead of drivers that are built for them."""
    token = _given.set({name: Path(path) for name, path in libraries.items()})
    try:
        yield
    finally:
        _given.reset(token)


@dataclass(frozen=True, eq=False)
class RegionDrivers:
    """The drivers of a bundle's codegens: those of `use_drivers`, and others built when first needed."""

    bundle: Bundle
    _folder: Path = field(init=False)

    def __post_init__(self) -> None:
        """Make the folder that they are built in, which goes with this object."""
        folder = TemporaryDirectory(prefix="byoc-")
        weakref.finalize(self, folder.cleanup)
        object.__setattr__(self, "_folder", Path(folder.name))

    @cached_property
    def libraries(self) -> Mapping[str, Path]:
        """The libraries by codegen. Raises InputError for a codegen without a driver.

        It is raised, too, for a library in `use_drivers` of a codegen that the bundle does not have.
        """
        require_consent(self.bundle)
        names = {region.codegen for region in self.bundle.variant.regions}
        for name in _given.get():
            if name not in names:
                raise InputError(
                    f"{self.bundle.display_path}: a driver of codegen {name} is given, but its regions "
                    f"are of {', '.join(sorted(names)) or 'none'}"
                )
        found: dict[str, Path] = {}
        for region in self.bundle.variant.regions:
            if region.codegen in found:
                continue
            if region.codegen in _given.get():
                found[region.codegen] = _given.get()[region.codegen]
                continue
            codegen = self.bundle.codegens.find(region.codegen)
            if has_model_driver(codegen):
                raise InputError(
                    f"{self.bundle.display_path}: region {region.name}: a driver of codegen "
                    f"{region.codegen} is made of the bundle: make one (byoc make-driver), and name it "
                    f"(--driver {region.codegen}=FILE)"
                )
            if not has_driver(codegen):
                raise InputError(
                    f"{self.bundle.display_path}: region {region.name}: codegen {region.codegen} has no "
                    f"driver, by which {DRIVER_RUNTIME} runs regions"
                )
            library = self._folder / f"{region.codegen}.so"
            found[region.codegen] = build_driver(codegen.driver(), library)
        return found

    def open_regions(self) -> dict[str, Executor]:
        """Open each region alone in its driver; return the executors by name. Raises as `libraries`."""
        opened = {name: DriverLibrary(path) for name, path in self.libraries.items()}
        models = self._list_models()
        return {
            region.name: opened[codegen].open_region(
                region, replace(artifact, metadata={**artifact.metadata, **models.get(region.name, {})})
            )
            for codegen, region, artifact in self.bundle.regions()
        }

    def _list_models(self) -> dict[str, dict[str, str]]:
        """Return by region the text for a driver that is made of models, as `model_ctx.onnx` has it."""
        entries = {entry.name: entry for entry in self.bundle.manifest.regions}
        firsts = {
            entry.name: entries[entry.same_as or entry.name]
            for entry in self.bundle.variant.regions
            if has_model_driver(self.bundle.codegens.find(entry.codegen))
        }
        return {
            name: {MODEL_TEXT: hash_region_model(self.bundle.folder, first)}
            for name, first in firsts.items()
        }


def load_with_provider(bundle: Bundle, drivers: RegionDrivers | None = None) -> Session:
    """Load a bundle's `model_ctx.onnx` in onnxruntime, with byoc's provider and drivers of its regions.

    Its only stage is the whole model. Raises InputError where the bundle has no such model, or a region
    no driver, and as `open_provider_session`.
    """
    name = bundle.variant.variant.name_file(CONTEXT_MODEL_FILE)
    if name not in bundle.manifest.files:
        raise InputError(
            f"{bundle.display_path}: it has no {name}, which {DRIVER_RUNTIME} runs: "
            "partition the model with --emit epcontext"
        )
    drivers = drivers or RegionDrivers(bundle)
    path = bundle.folder / name
    proto = onnx.load(path, load_external_data=False)
    known = GraphIndex.of_model(proto).types
    session = open_provider_session(path, drivers.libraries)
    inputs = tuple(value.name for value in session.get_inputs())
    types = output_types(session)
    stage = Stage("onnxruntime", inputs, session_runner(session), types)
    program = StageProgram((stage,), {}, tuple(types), types)
    return Session(inputs, {name: known[name] for name in inputs if name in known}, program, bundle)
