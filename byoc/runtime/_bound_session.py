"""Sessions bound to arrays of the caller: inputs are read from them, outputs are written to them."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import CONTEXT_MODEL_FILE, MODEL_TEXT, Bundle, hash_region_model, require_consent
from byoc.codegen import Artifact, Region
from byoc.codegen.drivers import DriverCounters, DriverError, DriverLibrary, OpenedRegion, build_driver
from byoc.errors import InputError, suggest_nearest
from byoc.model import GraphIndex, TensorType, read_type
from byoc.onnxrt import open_provider_session, output_types, session_runner
from byoc.runtime._loading import load_bundle
from byoc.runtime._runtimes import DRIVER_RUNTIME
from byoc.runtime._session import Session, SessionCalls, bind_stages
from byoc.runtime._stage_program import Stage, StageProgram, StageValues
from byoc.runtime._state_binding import HeldTensors, find_inner_types, hold_tensors
from byoc.runtime._trace import Trace
from byoc.runtime._variant_session import VariantSession
from byoc.samples import describe_mismatch


@dataclass(frozen=True, eq=False)
class DriverExecutor:
    """An executor that runs a region by a driver, for any number of threads at once.

    A region that is open serves one call at a time; a call opens one more where others have them all.
    `options` are the driver's.
    """

    library: DriverLibrary
    region: Region
    artifact: Artifact
    options: Mapping[str, str] = field(default_factory=dict)
    _opened: list[OpenedRegion] = field(default_factory=list)
    _free: list[OpenedRegion] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Open the region once, so that a driver which refuses it says so. Raises as `open_region`."""
        with self._take():
            pass

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by name. Raises InputError for a wrong input, and if the driver fails."""
        return self.run(inputs)

    def run(self, inputs: Mapping[str, Any], on_device: Sequence[str] = ()) -> Mapping[str, Any]:
        """Run the region, and leave the outputs in `on_device` there. Raises as a call does."""
        with self._take() as opened:
            try:
                return opened(inputs, on_device)
            except DriverError as error:
                raise InputError(str(error)) from error

    def read_counters(self) -> DriverCounters:
        """Return the sums over all open regions. Raises InputError where the driver does not count."""
        counted = [opened.read_counters() for opened in self._opened]
        return DriverCounters(*(sum(each) for each in zip(*map(_list_counts, counted), strict=True)))

    @contextmanager
    def _take(self) -> Iterator[OpenedRegion]:
        with self._lock:
            opened = self._free.pop() if self._free else None
        if opened is None:
            opened = self.library.open_region(self.region, self.artifact, self.options)
            self._opened.append(opened)
        try:
            yield opened
        finally:
            with self._lock:
                self._free.append(opened)


def _list_counts(counters: DriverCounters) -> Sequence[int]:
    return tuple(vars(counters).values())


def load_on_executors(bundle: Bundle, executors: Mapping[str, DriverExecutor]) -> Session:
    """Load a bundle whose regions run by drivers; tensors stay on the device where they can.

    A tensor does that only regions of one driver read and make, in the main graph, if the driver has
    buffers: it then passes from region to region without the host's memory.
    """
    session = load_bundle(bundle, executors)
    program = session.program
    makers = {name: stage.name for stage in program.stages for name in stage.output_names}
    readers: dict[str, list[Stage]] = {name: [] for name in makers}
    for stage in program.stages:
        for name in stage.inputs:
            readers.get(name, []).append(stage)

    def stays(stage: Stage, name: str) -> bool:
        library = executors[stage.name].library
        return (
            library.has_buffers
            and name not in program.outputs
            and bool(readers[name])
            and all(
                each.name in executors and executors[each.name].library is library
                for each in readers[name]
            )
        )

    stages = [
        _keep_on_device(stage, executors[stage.name], [*map(partial(stays, stage), stage.output_names)])
        if stage.name in executors
        else stage
        for stage in program.stages
    ]
    return replace(session, program=replace(program, stages=stages))


def _keep_on_device(stage: Stage, executor: DriverExecutor, stay: Sequence[bool]) -> Stage:
    """Return a region's stage that leaves some outputs on the device; others are as they were."""
    if not any(stay):
        return stage
    region = executor.region
    kept = [each.name for each, stays in zip(region.outputs, stay, strict=True) if stays]

    def run(values: StageValues) -> StageValues:
        given = (values[name] for name in stage.inputs)
        inside = {each.name: value for each, value in zip(region.inputs, given, strict=True)}
        made = executor.run(inside, kept)
        return {
            name: made[each.name] for each, name in zip(region.outputs, stage.output_names, strict=True)
        }

    return replace(stage, run=run)


# Bundles that onnxruntime runs whole, with byoc's provider and drivers in C for the regions.

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
        require_consent(self.bundle, by_drivers=True)
        # A session of one variant may be given drivers of others: `open` beside `fixed` has no regions.
        names = {region.codegen for entry in self.bundle.manifest.variants for region in entry.regions}
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
            if self.bundle.codegens.needs_model_driver(region.codegen):
                raise InputError(
                    f"{self.bundle.display_path}: region {region.name}: a driver of codegen "
                    f"{region.codegen} is made of the bundle: make one (byoc make-driver), and name it "
                    f"(--driver {region.codegen}=FILE)"
                )
            sources = self.bundle.codegens.find_driver(region.codegen)
            if sources is None:
                raise InputError(
                    f"{self.bundle.display_path}: region {region.name}: codegen {region.codegen} has no "
                    "driver that runs its regions in C"
                )
            library = self._folder / f"{region.codegen}.so"
            found[region.codegen] = build_driver(sources, library)
        return found

    def open_regions(
        self, options: Mapping[str, Mapping[str, str]] | None = None
    ) -> dict[str, DriverExecutor]:
        """Open each region alone in its driver; return the executors by name.

        `options` are those of drivers, by codegen. Raises as `libraries`, InputError for a driver of
        another codegen, and DriverError where a driver refuses a region or an option.
        """
        opened = {name: DriverLibrary(path) for name, path in self.libraries.items()}
        for name, library in opened.items():
            if library.name != name:
                raise InputError(
                    f"{library.path}: the driver is of codegen {library.name}, not of {name}"
                )
        models = self._list_models()
        return {
            region.name: DriverExecutor(
                opened[codegen],
                region,
                replace(artifact, metadata={**artifact.metadata, **models.get(region.name, {})}),
                (options or {}).get(codegen, {}),
            )
            for codegen, region, artifact in self.bundle.regions()
        }

    def _list_models(self) -> dict[str, dict[str, str]]:
        """Return by region the text for a driver that is made of models, as `model_ctx.onnx` has it."""
        entries = {entry.name: entry for entry in self.bundle.manifest.regions}
        firsts = {
            entry.name: entries[entry.same_as or entry.name]
            for entry in self.bundle.variant.regions
            if self.bundle.codegens.needs_model_driver(entry.codegen)
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
    own = {name: known[name] for name in inputs if name in known}
    return Session(inputs, own, program, bundle, bundle.variant.name)


def load_with_drivers(
    bundle: Bundle,
    drivers: RegionDrivers | None = None,
    options: Mapping[str, Mapping[str, str]] | None = None,
) -> Session:
    """Load a bundle, or the variant that is chosen of it, whose regions run by drivers in C.

    The host's segments run on onnxruntime as in `load`. A tensor that only regions of one driver read
    stays on its device. `options` are those of drivers, by codegen: `{"acme": {"priority": "high"}}`.
    Raises InputError where a region has no driver, or a driver refuses it.
    """
    try:
        executors = (drivers or RegionDrivers(bundle)).open_regions(options)
    except DriverError as error:
        raise InputError(str(error)) from error
    return load_on_executors(bundle, executors)


Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class BoundSession(SessionCalls):
    """A session that reads some inputs from, and writes some outputs to, the same arrays in each run.

    `bind_tensors` makes one. One thread at a time may call it.
    """

    session: Session

    def __repr__(self) -> str:
        """Return the names of the inputs that a call takes, and of the outputs."""
        return f"BoundSession(inputs={list(self.inputs)}, outputs={list(self.outputs)})"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs that a call takes, in order: those that are not bound."""
        return self.session.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of all outputs, in order."""
        return self.session.outputs

    def get_types(self) -> Mapping[str, TensorType]:
        return self.session.get_types()

    def _run_named(self, inputs: StageValues, trace: Trace | None) -> dict[str, Any]:
        """Return all outputs, the bound ones in their arrays, and record each stage in a trace.

        Raises InputError as `Session.run` does, and where an output has another shape than its array.
        """
        return self.session.run(inputs, trace)


def bind_tensors(
    session: Session | VariantSession, inputs: Arrays | None = None, outputs: Arrays | None = None
) -> BoundSession:
    """Bind `inputs` and `outputs` of a `session` to arrays, by name; others are given in each call.

    The arrays are C-contiguous, of the tensors' dtypes and of the shapes that they have in each run.
    What is in an input's array when a call begins is what is read. An output is written to its array by
    the stage that makes it where that can be (host segments, `reference`, codegens whose executors have
    `bind`), and is copied there otherwise.

    Raises InputError for a name that is no input or output, for an array that does not fit, for two that
    overlap where one is written, for an output that is a constant or an input as it is, and for a bundle
    of several variants: load one of them.
    """
    chosen = _get_only_session(session)
    given, wanted = inputs or {}, outputs or {}
    made = {name for stage in chosen.stages for name in stage.output_names}
    for name, array in given.items():
        _check_name(name, "input", chosen.inputs)
        _check_array(f"input '{name}'", array, chosen.types.get(name))
    for name, array in wanted.items():
        _check_name(name, "output", chosen.outputs)
        if name not in made:
            raise InputError(f"output '{name}' cannot be bound: no stage makes it")
        kind = read_type(chosen.program.types[name]) if name in chosen.program.types else None
        _check_array(f"output '{name}'", array, kind and TensorType(kind.dtype, None))
        if not array.flags.writeable:
            raise InputError(f"output '{name}': its array cannot be written to")
    _check_apart(given, wanted)
    held = hold_tensors(find_inner_types(chosen), _find_sizes(chosen, given))
    stages = [_bind_stage(held, stage, given, wanted) for stage in chosen.stages]
    return BoundSession(bind_stages(chosen, stages, given))


def _get_only_session(session: Session | VariantSession) -> Session:
    if isinstance(session, Session):
        return session
    if len(session.sessions) > 1:
        names = ", ".join(session.sessions)
        raise InputError(f"arrays are bound to one variant, load it by name: {names}")
    return next(iter(session.sessions.values()))


def _check_name(name: str, what: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InputError(f"no {what} '{name}'{suggest_nearest(name, known)}")


def _check_array(who: str, array: NDArray[Any], kind: TensorType | None) -> None:
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise InputError(f"{who}: only a contiguous array of numpy can be bound")
    if kind is None or kind.dtype == "string":
        raise InputError(f"{who} cannot be bound: it is no tensor of numbers")
    mismatch = describe_mismatch(array, kind)
    if mismatch:
        raise InputError(f"{who} is {mismatch}, the model takes {kind}")


def _check_apart(inputs: Arrays, outputs: Arrays) -> None:
    """Raise InputError where an output would be written over an input, or over another output."""
    written = [(f"output '{name}'", array) for name, array in outputs.items()]
    read = [(f"input '{name}'", array) for name, array in inputs.items()]
    pairs = [*combinations(written, 2), *((one, other) for one in read for other in written)]
    for (one, first), (other, second) in pairs:
        if np.may_share_memory(first, second):
            raise InputError(f"the arrays of {one} and {other} overlap")


def _bind_stage(held: HeldTensors, stage: Stage, inputs: Arrays, outputs: Arrays) -> Stage:
    """Return a stage that writes its outputs to arrays; one that cannot has them copied there."""
    makes = {name: outputs[name] for name in stage.output_names if name in outputs}
    reads = {name: inputs[name] for name in stage.inputs if name in inputs}
    bound = held.bind(stage, reads, makes)
    if bound is not None or not makes:
        return bound or stage

    def run_and_copy(values: StageValues) -> StageValues:
        found = stage.run(values)
        for name, array in makes.items():
            if found[name].shape != array.shape:
                shapes = f"{list(found[name].shape)}, its array {list(array.shape)}"
                raise InputError(f"output '{name}' is {shapes}")
            array[...] = found[name]
        return {**found, **makes}

    return replace(stage, run=run_and_copy)


def _find_sizes(session: Session, inputs: Arrays) -> dict[str, int]:
    """Return the sizes that names in extents have by the arrays of bound inputs."""
    return {
        dim: extent
        for name, array in inputs.items()
        for dim, extent in zip(session.types[name].shape or (), array.shape, strict=False)
        if isinstance(dim, str)
    }
