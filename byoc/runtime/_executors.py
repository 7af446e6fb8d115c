"""Executors of regions: a codegen's executor is third-party code, so its outputs are checked."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property, partial
from operator import is_
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from byoc import bundle
from byoc._dataclasses import dataclass, field, replace
from byoc.boundary.contracts import TensorContract
from byoc.codegen import (
    Artifact,
    BindableExecutor,
    Codegen,
    CodegenFailedError,
    Codegens,
    DeviceState,
    Examine,
    Executable,
    Executor,
    Measure,
    NotHereError,
    Region,
    Stamped,
    StatefulExecutor,
    ask_compatible,
    ask_fit,
    drop_executing_options,
    examine_executor,
    find_call_limit,
    load_region,
    measure_executor,
    open_region_session,
    run_executor,
    wait_for_codegen,
)
from byoc.errors import ByocError, InputError, MissingRuntimeError, get_error_text, must_propagate
from byoc.long_calls import is_watching
from byoc.model import TensorType, make_native
from byoc.onnxrt import without_optimizations
from byoc.samples import ArrayForm, describe_mismatch
from byoc.support import describe_failure

# Shapes of a region's tensors at run time, compared with the stated or inferred ones.
#
# Files state wrong shapes, and shape inference has mistakes. So a shape that differs from the contract
# is an error of the codegen only where plain onnxruntime makes another one of the same inputs; otherwise
# it is a contradiction in the model, which is noted.

_TensorTest = tuple[str, Callable[[Any], bool]]
"""A tensor's name, and whether a value of it needs no closer look."""

_notes: ContextVar[dict[str, None] | None] = ContextVar("contradictions", default=None)


@contextmanager
def collect_contradictions() -> Iterator[Mapping[str, None]]:
    """Collect the contradictions that runs inside find: sentences, each once, in order."""
    found: dict[str, None] = {}
    token = _notes.set(found)
    try:
        yield found
    finally:
        _notes.reset(token)


@dataclass(frozen=True, eq=False)
class ShapeCheck:
    """The check of a region's tensors; `any_shape` says that its codegen takes any extents.

    `bound` are the arrays that some tensors are in at each run: they were checked as they were bound.
    """

    region: Region
    any_shape: bool
    bound: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "ShapeCheck":
        """Return the check of a region that has some tensors in the same arrays at each run.

        Raises as `check_inputs`.
        """
        self.check_inputs(inputs)
        return replace(self, bound={**inputs, **outputs})

    def leave_out(self, names: Collection[str]) -> "ShapeCheck":
        """Return the check of a region's other tensors."""
        region = self.region
        kept_inputs = tuple(value for value in region.inputs if value.name not in names)
        kept_outputs = tuple(value for value in region.outputs if value.name not in names)
        return replace(self, region=replace(region, inputs=kept_inputs, outputs=kept_outputs))

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Note inputs of another shape. Raises InputError where the codegen needs the stated one."""
        if _all_fit(self._input_tests, inputs):
            return
        for value in self.region.inputs:
            if value.name in self.bound or value.name not in inputs:
                continue
            made = describe_mismatch(inputs[value.name], value.type)
            if made and not self.any_shape:
                wanted = f"{self.region.name} is compiled for {value.type}"
                raise InputError(f"input '{value.name}' is {made}, but {wanted}")
            _note_contradiction(value, inputs[value.name])

    def take_outputs(self, given: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs that an executor gave, without what else it gave.

        They are contiguous arrays, native as `make_native` has it. Raises CodegenFailedError for one
        that has neither the stated type nor onnxruntime's shape.
        """
        if len(given) == len(self.region.outputs) and _all_fit(self._output_tests, given):
            return given
        return {value.name: self._take_output(value, given, inputs) for value in self.region.outputs}

    def _take_output(
        self, value: TensorContract, given: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> Any:
        if value.name not in given:
            raise CodegenFailedError(f"gave no output '{value.name}'")
        array = make_native(np.asarray(given[value.name], order="C"))
        made = describe_mismatch(array, value.type)
        if made:
            whole = describe_mismatch(array, TensorType(value.type.dtype, None))
            shape = array.shape
            if whole or self._find_plain_shapes(inputs).get(value.name) != shape:
                raise CodegenFailedError(
                    f"gave output '{value.name}' as {made}, but it is declared {value.type}"
                )
        _note_contradiction(value, array)
        return array

    @cached_property
    def _input_tests(self) -> Sequence[_TensorTest]:
        given = [value for value in self.region.inputs if value.name not in self.bound]
        return list(map(self._make_test, given))

    @cached_property
    def _output_tests(self) -> Sequence[_TensorTest]:
        return list(map(self._make_test, self.region.outputs))

    def _make_test(self, value: TensorContract) -> _TensorTest:
        """Return the test of a tensor, which is passed by most arrays in most runs.

        The array that was bound passes, or one that is as both the contract and the file say.
        """
        if value.name in self.bound:
            return value.name, partial(is_, self.bound[value.name])
        agree = not _is_as_in_model(value) or value.logical == value.type
        form = ArrayForm.of(value.type) if agree else None
        return value.name, _always_needs_look if form is None else form.fits

    def _find_plain_shapes(self, inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of outputs as plain onnxruntime makes them, empty where it does not run."""
        try:
            made = self._run_plain(inputs)
        except (InputError, MissingRuntimeError):
            return {}
        return {name: np.shape(value) for name, value in made.items()}

    @cached_property
    def _run_plain(self) -> Executor:
        with without_optimizations():
            return open_region_session(self.region)


def _all_fit(tests: Sequence[_TensorTest], values: Mapping[str, Any]) -> bool:
    """Return whether all tensors are there and need no closer look, as in most runs.

    A run of a small network evicts this code from the processor's caches, so the less there is of it the
    better.
    """
    for name, fits in tests:  # noqa: SIM110 - a generator is more code to run
        if not fits(values.get(name)):
            return False
    return True


def _always_needs_look(value: Any) -> bool:
    """Return False: the test of a tensor that nothing can be said of beforehand."""
    return False


def _note_contradiction(value: TensorContract, given: Any) -> None:
    """Note a tensor of another shape than its contract has, or than the file states."""
    notes = _notes.get()
    if notes is None:
        return
    kinds = (value.type, value.logical) if _is_as_in_model(value) else (value.type,)
    for kind in kinds:
        made = describe_mismatch(given, kind)
        if made:
            notes[f"the model says that '{value.name}' is {kind}, but it is {made}"] = None
            return


def _is_as_in_model(value: TensorContract) -> bool:
    """Return whether a tensor has the layout and the dtype at the boundary that the file states."""
    return not value.layout and value.logical.dtype == value.type.dtype


# Executors of regions that are identical to others except for names.


@dataclass(frozen=True, eq=False)
class RenamedExecutor:
    """The executor of a region that is identical to another one except for names, whose own it calls.

    `inputs` and `outputs` map the names of this region's tensors to those of the other's.
    """

    run: Executor
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name. Raises as the other executor does."""
        made = self.run({theirs: inputs[mine] for mine, theirs in self.inputs.items()})
        return {mine: made[theirs] for mine, theirs in self.outputs.items()}

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "RenamedExecutor | None":
        """Return an executor that reads and writes some tensors where they lie, None if it cannot."""
        if not isinstance(self.run, BindableExecutor):
            return None
        run = self.run.bind(
            {self.inputs[name]: array for name, array in inputs.items()},
            {self.outputs[name]: array for name, array in outputs.items()},
        )
        return None if run is None else replace(self, run=run)

    def allocate(self, pairs: Mapping[str, str]) -> "RenamedState | None":
        """Make room for states on the device, None where it cannot keep them."""
        if not isinstance(self.run, StatefulExecutor):
            return None
        theirs = {self.inputs[past]: self.outputs[present] for past, present in pairs.items()}
        state = self.run.allocate(theirs)
        return None if state is None else RenamedState(state, self)


@dataclass(frozen=True, eq=False)
class RenamedState:
    """States of a region on a device, with the names that an identical one has there."""

    state: DeviceState
    executor: RenamedExecutor

    def reset(self, values: Mapping[str, Any]) -> None:
        """Send values to the device, by names of inputs."""
        self.state.reset({self.executor.inputs[mine]: value for mine, value in values.items()})

    def step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the region on the other inputs and return the other outputs."""
        renamed = self.executor.inputs
        made = self.state.step({renamed[mine]: value for mine, value in inputs.items()})
        return {m: made[theirs] for m, theirs in self.executor.outputs.items() if theirs in made}

    def read(self) -> dict[str, Any]:
        """Return copies of the states, by names of inputs."""
        found = self.state.read()
        return {m: found[theirs] for m, theirs in self.executor.inputs.items() if theirs in found}


def rename_executor(run: Executor, original: Region, other: Region) -> RenamedExecutor:
    """Return an executor of `other`, identical to `original` except for names, that calls `run`."""
    pairs = [(other.inputs, original.inputs), (other.outputs, original.outputs)]
    inputs, outputs = (
        {mine.name: theirs.name for mine, theirs in zip(own, others, strict=True)}
        for own, others in pairs
    )
    return RenamedExecutor(run, inputs, outputs)


T = TypeVar("T")

_NO_REASON = "it does not say why"


class RegionFailedError(InputError):
    """A region cannot be loaded or failed while running: its name, and the reason alone.

    `defect` says that its codegen is at fault: it did not refuse the artifact or the inputs.
    """

    def __init__(self, message: str, region: str, reason: str, defect: bool) -> None:
        """Keep them beside the message."""
        super().__init__(message)
        self.region = region
        self.reason = reason
        self.defect = defect


class RegionNotHereError(InputError):
    """This machine cannot run a region, whose artifact is right: its name, and the reason alone."""

    def __init__(self, who: str, region: str, reason: str) -> None:
        """Make the message, and keep its parts; `who` names the codegen."""
        super().__init__(f"{who}: {region} cannot run on this machine: {reason}")
        self.region = region
        self.reason = reason


def find_executable(name: str, codegens: Codegens) -> Executable:
    """Find a codegen that can run its artifacts. Raises InputError when it is missing or cannot."""
    codegen = codegens.find(name)
    if not isinstance(codegen, Executable):
        raise InputError(f"codegen {name} cannot run what it compiles here (it has no `load`)")
    return codegen


_NO_WAIT = nullcontext()
_CODEGEN_LOCKS: dict[str, RLock] = {}  # shared by all sessions of this process, by codegen


def needs_exclusive_calls(codegen: object) -> bool:
    """Return whether a codegen's executors must be called by one thread at a time.

    A codegen whose executors may run at the same time has the class attribute `concurrent = True`.
    """
    return not getattr(codegen, "concurrent", False)


@dataclass(frozen=True, eq=False)
class CheckedExecutor:
    """An executor of a region that checks types against the declared ones at each run."""

    run: Executor
    check: ShapeCheck
    who: str
    lock: AbstractContextManager[Any]

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by name. Raises RegionFailedError."""
        try:
            self.check.check_inputs(inputs)
            with self.lock, self.wait():
                given = run_executor(self.run, inputs)
            return self.check.take_outputs(given, inputs)
        except BaseException as error:  # a plug-in can fail in any way
            raise _make_failure(error, self.who, self.check.region, "failed") from error

    def wait(self, method: str = "run") -> AbstractContextManager[None]:
        """Return a context for one call of the executor, which reports a call that takes long."""
        if not is_watching():
            return _NO_WAIT  # the sentence alone takes as long as an empty region
        what = f"{method} of region {self.check.region.name}"
        return wait_for_codegen(self.who, what, find_call_limit(self.run))

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "CheckedExecutor | None":
        """Return an executor that reads and writes some tensors where they lie, None if it cannot.

        Raises RegionFailedError.
        """
        if not isinstance(self.run, BindableExecutor):
            return None
        try:
            with self.lock, self.wait("bind"):
                run = self.run.bind(inputs, outputs)
            check = self.check.bind(inputs, outputs)
        except BaseException as error:  # as above
            raise _make_failure(error, self.who, self.check.region, "binding failed") from error
        return None if run is None else replace(self, run=run, check=check)

    def allocate(self, pairs: Mapping[str, str]) -> "CheckedState | None":
        """Return states on the device, None where the executor keeps none. Raises RegionFailedError."""
        if not isinstance(self.run, StatefulExecutor):
            return None
        try:
            with self.lock, self.wait("allocate"):
                state = self.run.allocate(pairs)
        except BaseException as error:  # as above
            raise _make_failure(error, self.who, self.check.region, "allocating failed") from error
        return None if state is None else CheckedState(state, self, pairs)

    def measure(self, inputs: Mapping[str, Any], measure: Measure) -> list[float]:
        """Measure runs without checks, after a checked one; return the seconds of each.

        Raises RegionFailedError.
        """
        self(inputs)
        try:
            with self.lock, self.wait():
                return measure_executor(self.run, inputs, measure)
        except BaseException as error:  # as above
            raise _make_failure(error, self.who, self.check.region, "failed") from error

    def examine(self, inputs: Mapping[str, Any], examine: Examine) -> list[str]:
        """Examine the executor without checks, where its codegen is; return the sentences.

        Raises RegionFailedError.
        """
        try:
            with self.wait():
                return examine_executor(self.run, inputs, examine, self.lock)
        except BaseException as error:  # as above
            raise _make_failure(error, self.who, self.check.region, "failed") from error


@dataclass(frozen=True, eq=False)
class CheckedState:
    """States on a device; at each step the other tensors of its region are checked.

    `pairs` maps their names as inputs to those as outputs. All methods raise RegionFailedError.
    """

    state: DeviceState
    executor: CheckedExecutor
    pairs: Mapping[str, str]

    def reset(self, values: Mapping[str, Any]) -> None:
        """Send values to the device, by names of inputs."""
        self._call(lambda: self.state.reset(values))

    def step(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the region on the other inputs and return the other outputs."""

        def run() -> Mapping[str, Any]:
            self._check.check_inputs(inputs)
            return self._check.take_outputs(run_executor(self.state.step, inputs), inputs)

        return self._call(run)

    def read(self) -> Mapping[str, Any]:
        """Return copies of the states, by names of inputs."""
        return self._call(lambda: {name: make_native(v) for name, v in self.state.read().items()})

    @cached_property
    def _check(self) -> ShapeCheck:
        return self.executor.check.leave_out({*self.pairs, *self.pairs.values()})

    def _call(self, ask: Callable[[], T]) -> T:
        owner = self.executor
        try:
            with owner.lock, owner.wait():
                return ask()
        except BaseException as error:  # a plug-in can fail in any way
            raise _make_failure(error, owner.who, owner.check.region, "failed") from error


def load_executor(  # noqa: PLR0913, PLR0917 - `load_region`'s, and the choice to recompile
    codegen: Executable,
    codegen_name: str,
    region: Region,
    artifact: Artifact,
    options: Mapping[str, str] | None = None,
    recompile: bool = True,
) -> CheckedExecutor:
    """Load a region: return an executor that checks types against the declared ones at each run.

    A codegen whose executors take inputs of other extents than declared has the class attribute
    `open_shapes = True`; others get no such inputs.

    A codegen that says that the region would not load here (`find_fit`) is not asked to. A stored
    artifact comes with the `options` that it was compiled with, as text: where the codegen says that the
    artifact is not compatible with this machine, the region is recompiled in memory, unless
    `recompile` is False since it was compiled just now.

    Raises RegionNotHereError when this machine cannot run it, MissingRuntimeError when a library is not
    installed, and RegionFailedError when the codegen fails to load it; the executor raises this one when
    a run fails.
    """
    who = f"codegen {codegen_name}"
    try:
        fit = ask_fit(codegen, [*artifact.files], artifact.metadata)
        if not fit.verdict:
            raise (MissingRuntimeError if fit.missing else NotHereError)(str(fit.verdict))
        if options is not None:
            artifact = _fit_artifact(codegen, region, artifact, options, recompile)
        isolation = getattr(codegen, "isolation", None)
        limit = None if isolation is None else isolation.find_limit("load")
        with wait_for_codegen(who, f"load of region {region.name}", limit):
            run = load_region(codegen, region, artifact)
    except MissingRuntimeError:
        raise
    except NotHereError as error:
        raise RegionNotHereError(who, region.name, get_error_text(error) or _NO_REASON) from error
    except BaseException as error:  # a plug-in can fail in any way; name the one at fault
        raise _make_failure(error, f"{who}: {region.name}", region, "loading failed") from error

    exclusive = needs_exclusive_calls(codegen)
    lock = _CODEGEN_LOCKS.setdefault(codegen_name, RLock()) if exclusive else nullcontext()
    check = ShapeCheck(region, getattr(codegen, "open_shapes", False))
    return CheckedExecutor(run, check, who, lock)


def _make_failure(error: BaseException, who: str, region: Region, what: str) -> RegionFailedError:
    """Return the error for an exception of a codegen. Raises it again when it is not the codegen's."""
    if isinstance(error, ByocError):
        why = get_error_text(error) or _NO_REASON
    elif must_propagate(error):
        raise error
    else:
        why = f"{what} with {describe_failure(error)}"
    defect = isinstance(error, CodegenFailedError) or not isinstance(error, ByocError)
    return RegionFailedError(f"{who}: {why}", region.name, why, defect)


def _fit_artifact(
    codegen: Executable,
    region: Region,
    artifact: Artifact,
    options: Mapping[str, str],
    recompile: bool,
) -> Artifact:
    """Return the artifact, or a recompiled one where it does not fit the library or machine here.

    Raises NotHereError where the recompiled one does not fit either.
    """
    if not isinstance(codegen, Stamped) or getattr(codegen, "recompiles", False):
        return artifact
    verdict = ask_compatible(codegen, region, artifact)
    if verdict:
        return artifact
    if not recompile:
        raise NotHereError(str(verdict))
    try:
        assert isinstance(codegen, Codegen)
        recompiled = bundle.RegionCompiler(codegen, drop_executing_options(codegen, options)).compile(
            region
        )
    except ByocError as error:  # a compiler that is not installed included
        why = f"its artifact does not fit here ({verdict}) and recompiling it failed"
        raise InputError(f"{why}: {get_error_text(error) or _NO_REASON}") from error
    verdict = ask_compatible(codegen, region, recompiled)
    if not verdict:
        raise NotHereError(str(verdict))
    return recompiled
