"""A session runs a bundle: host segments on onnxruntime, regions on their codegens' executors."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import Bundle
from byoc.errors import ByocError, InputError, suggest_nearest
from byoc.model import (
    Dim,
    TensorType,
    make_native,
    read_type,
)
from byoc.runtime._fitting import NO_CHOICE, VariantChoice
from byoc.runtime._stage_program import (
    HOST,
    MAX_AT_ONCE,
    Stage,
    StageProgram,
    StageValues,
    Steps,
    run_in_pipeline,
)
from byoc.runtime._trace import Trace, current_trace, record_into
from byoc.samples import ArrayForm, describe_mismatch, fits_types


@dataclass(frozen=True)
class SessionTensor:
    """An input or output as `get_inputs` and `get_outputs` tell it, in onnxruntime's form.

    `type` is such as `tensor(float)`, empty where it is not known; `shape` has a number or a name for
    each extent, and is None where the rank is not known.
    """

    name: str
    type: str = ""
    shape: list[Dim] | None = None


class SessionCalls:
    """The calls that all sessions take: by name, or in the form of onnxruntime's sessions.

    A kind of session has `inputs`, `outputs`, `get_types` and `_run_named`.
    """

    if TYPE_CHECKING:  # else a dataclass would take a property for the default of its field

        @property
        def inputs(self) -> tuple[str, ...]:
            """The names of the inputs that a call takes, in order."""

        @property
        def fallbacks(self) -> Mapping[str, str]:
            """Regions that run on the host in place of their accelerator, each with the reason."""

        @property
        def outputs(self) -> tuple[str, ...]:
            """The names of the outputs of a call, in order."""

    def __call__(self, inputs: Any = None) -> dict[str, Any]:
        """Return the outputs by name for inputs by name, or for the array of the only input.

        Raises InputError naming an input that is missing, unknown or has a wrong dtype or shape, or the
        stage that failed.
        """
        return self._run_named(inputs, None) if type(inputs) is dict else self.run(inputs)

    @overload
    def run(self, inputs: StageValues | None = None, trace: Trace | None = None) -> dict[str, Any]: ...

    @overload
    def run(self, inputs: Sequence[str] | None, trace: StageValues) -> list[Any]: ...

    @overload
    def run(
        self, *, output_names: Sequence[str] | None = None, input_feed: StageValues
    ) -> list[Any]: ...

    def run(
        self,
        inputs: Any = None,
        trace: Any = None,
        *,
        output_names: Sequence[str] | None = None,
        input_feed: StageValues | None = None,
    ) -> Any:
        """Return the outputs by name for inputs by name, and record each stage in a `trace`.

        `run(output_names, inputs)`, as onnxruntime's sessions have it, returns a list of the named
        outputs, of all for None. Raises as a call does, and InputError for an unknown output.
        """
        if type(inputs) is dict and trace is None:  # nearly all calls
            return self._run_named(inputs, None)
        if input_feed is not None:
            inputs, trace = output_names, input_feed
        if isinstance(trace, Mapping):
            wanted = self._read_output_names(inputs)
            found = self._run_named(trace, None)
            return [found[name] for name in wanted]
        return self._run_named(self._name_inputs(inputs), trace)

    def get_inputs(self) -> list[SessionTensor]:
        """Return the inputs that a call takes, in order."""
        types = self.get_types()
        return [_describe_tensor(name, types.get(name)) for name in self.inputs]

    def get_outputs(self) -> list[SessionTensor]:
        """Return the outputs of a call, in order."""
        types = self.get_types()
        return [_describe_tensor(name, types.get(name)) for name in self.outputs]

    def describe_fallbacks(self) -> list[str]:
        """Return a sentence for each region that runs on the host, with the reason."""
        return [f"region {name} runs on the host: {why}" for name, why in self.fallbacks.items()]

    def _run_named(self, inputs: StageValues, trace: Trace | None) -> dict[str, Any]:
        raise NotImplementedError

    def get_types(self) -> Mapping[str, TensorType]:
        """Return the known types of inputs and outputs."""
        raise NotImplementedError

    def _read_output_names(self, names: Any) -> Sequence[str]:
        outputs = self.outputs
        if names is None:
            return outputs
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InputError(
                "outputs are a list of names, or None for all: run(None, inputs); "
                f"the model has {', '.join(outputs)}"
            )
        for name in names:
            if name not in outputs:
                hint = suggest_nearest(str(name), outputs)
                raise InputError(f"no output '{name}'{hint}; the outputs: {', '.join(outputs)}")
        return names

    def _name_inputs(self, inputs: Any) -> StageValues:
        """Return inputs by name from what a caller gave; raises InputError for another form."""
        if isinstance(inputs, Mapping):
            return inputs
        names = self.inputs
        if inputs is None and not names:
            return {}
        if isinstance(inputs, np.ndarray | np.generic) or hasattr(inputs, "__dlpack__"):
            if len(names) == 1:
                return {names[0]: inputs}
            reason = "an array without a name is for a model of one input"
        else:
            given = "nothing" if inputs is None else f"a {type(inputs).__name__}"
            reason = f"inputs are arrays by name, not {given}"
        listed = ", ".join(f"'{name}': ..." for name in names)
        raise InputError(f"{reason}; give {{{listed}}}")


def _describe_tensor(name: str, kind: TensorType | None) -> SessionTensor:
    if kind is None:
        return SessionTensor(name)
    dtype = {"float32": "float", "float64": "double"}.get(kind.dtype, kind.dtype)
    return SessionTensor(name, f"tensor({dtype})", None if kind.shape is None else list(kind.shape))


@dataclass(frozen=True, eq=False)
class Session(SessionCalls):
    """A loaded bundle. Call it with inputs by name to get outputs by name.

    `types` holds the types of the inputs that are tensors. `bundle` is where it was loaded from,
    whose files it may still read, and `variant` the name of its variant, empty where it has none.
    """

    inputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    program: StageProgram
    bundle: Bundle | None = None
    variant: str = ""
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Regions that run on the host since their codegen cannot run them here, each with the reason."""
    choice: VariantChoice = NO_CHOICE
    """The variants that were loaded of the bundle, and why not the others."""

    def __repr__(self) -> str:
        """Return the names of inputs, outputs and stages."""
        stages = [stage.name for stage in self.stages]
        return f"Session(inputs={list(self.inputs)}, outputs={list(self.outputs)}, stages={stages})"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return self.program.outputs

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages of the main graph, in order."""
        return self.program.stages

    @property
    def boundary_tensors(self) -> tuple[str, ...]:
        """The boundary tensors of the main graph's regions, in order of execution.

        Regions in bodies of control flow are left out: their tensors have a value in each trip.
        """
        regions = [stage for stage in self.stages if stage.device != HOST]
        return tuple(dict.fromkeys(n for stage in regions for n in (*stage.inputs, *stage.output_names)))

    def get_types(self) -> Mapping[str, TensorType]:
        made = self.program.types
        types = {name: read_type(made[name]) for name in self.outputs if name in made}
        return {**{name: kind for name, kind in types.items() if kind is not None}, **self.types}

    def _run_named(self, inputs: StageValues, trace: Trace | None) -> dict[str, Any]:
        """Return the outputs, and record each stage in a trace; raises as a call does.

        A session may be called by several threads at once.
        """
        given = inputs if self.fits(inputs) else self.check_inputs(inputs)
        if trace is None and current_trace() is None:
            return self._name_outputs(self.program.run(given, pool=lambda: self._pool))
        with record_into(self._mark(trace)):
            found = self.program.run(given, pool=lambda: self._pool)
        return self._name_outputs(found)

    def __call__(self, inputs: Any = None) -> dict[str, Any]:
        """Return the outputs by name for inputs by name, or for the array of the only input.

        Raises InputError naming an input that is missing, unknown or has a wrong dtype or shape, or the
        stage that failed.
        """
        if self._call_at_once is not None and type(inputs) is dict:
            found = self._call_at_once(inputs)
            if found is not None:
                return found
        return super().__call__(inputs)

    @cached_property
    def _call_at_once(self) -> Callable[[dict[str, Any]], dict[str, Any] | None] | None:
        """A call of a bundle whose one stage on the host takes its inputs and makes its outputs.

        It gives None for inputs that need a closer look. A network of a tenth of a millisecond evicts
        all that is run here from the processor's caches, so that each step is half a percent of it.
        """
        program, forms = self.program, self._forms
        if len(program.stages) != 1 or program.constants or not forms:
            return None
        (stage,) = program.stages
        is_whole = {*stage.inputs} == {*self.inputs} and tuple(stage.output_names) == self.outputs
        if not is_whole or stage.device != HOST or any(form.is_open for form in forms.values()):
            return None
        run, count, array = stage.run, len(forms), np.ndarray
        wanted = [(name, form.dtype, form.shape) for name, form in forms.items()]

        def call(inputs: dict[str, Any]) -> dict[str, Any] | None:
            if len(inputs) != count or current_trace() is not None:
                return None
            for name, dtype, shape in wanted:
                value = inputs.get(name)
                if type(value) is not array or value.dtype is not dtype or value.shape != shape:
                    return None
                if not value.flags.c_contiguous:
                    return None
            try:
                return dict(run(inputs))
            except ByocError as error:
                raise InputError(f"{stage.name}: {error}") from error

        return call

    def _mark(self, trace: Trace | None) -> Trace | None:
        """Return a trace whose events say which variant of the bundle this is."""
        return trace.for_variant(self.variant) if trace is not None and self.variant else trace

    def run_pipeline(
        self, inputs: Iterable[StageValues], in_flight: int = 4, trace: Trace | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the outputs for each of several inputs, in their order, with several in flight.

        While an accelerator runs a region for one input, the host and the others run stages for the
        next ones; each device runs one stage at a time, earlier inputs first. The outputs are those of
        `run`. At most `in_flight` inputs are taken before the outputs of the first are yielded.

        Raises InputError when `in_flight` is below 1, and as `run` does in place of an input's outputs.
        """
        return run_in_pipeline(partial(self.list_steps, trace=trace), inputs, in_flight)

    def list_steps(self, inputs: StageValues, trace: Trace | None) -> Steps:
        """Yield the device of each stage before it runs there; return the outputs. Raises as `run`.

        Nothing is profiled: memory by stage is known only where one runs at a time.
        """
        given = self.check_inputs(inputs)
        marked = self._mark(trace)
        with record_into(marked and replace(marked, profiles=False)):
            found = yield from self.program.list_steps(given)
        return self._name_outputs(found)

    def _name_outputs(self, found: StageValues) -> dict[str, Any]:
        """Return the outputs by name, from all values that a run gave."""
        if not self.program.constants:
            return {name: found[name] for name in self.outputs}
        return {name: self._copy_constant(name, found[name]) for name in self.outputs}

    def tensors(self, inputs: StageValues, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the values of tensors by name, in the order of `names`, by default `boundary_tensors`.

        Only inputs, outputs and tensors between two stages of the main graph are available. Raises
        InputError for any other, and as a call does.
        """
        wanted = tuple(self.boundary_tensors if names is None else dict.fromkeys(names))
        known = {
            *self.inputs,
            *self.program.constants,
            *(n for stage in self.stages for n in stage.output_names),
        }
        for name in wanted:
            if name not in known:
                raise InputError(
                    f"no tensor '{name}' passes between stages{suggest_nearest(name, known)}"
                )
        found = self.program.run(self.check_inputs(inputs), wanted, lambda: self._pool)
        return {name: _fetch_tensor(found[name]) for name in wanted}

    def fits(self, inputs: StageValues) -> bool:
        """Return whether inputs are arrays that need neither a closer look nor a copy, as most are.

        A run of a small network evicts this code from the processor's caches, so the less there is of
        it the better: with the closer look a call takes a tenth of a millisecond more.
        """
        forms = self._forms
        if not forms or len(inputs) != len(forms):
            return False
        for name, form in forms.items():  # noqa: SIM110 - a generator is more code to run
            if not form.fits(inputs.get(name)):
                return False
        return True

    @cached_property
    def _forms(self) -> Mapping[str, ArrayForm]:
        """The forms of the inputs, none if an input has no form."""
        found = {name: ArrayForm.of(self.types.get(name)) for name in self.inputs}
        forms = {name: form for name, form in found.items() if form is not None}
        return forms if len(forms) == len(found) else {}

    def check_inputs(self, inputs: StageValues) -> dict[str, Any]:
        """Return the inputs, tensors as contiguous arrays. Raises InputError for a wrong input."""
        given = read_tensors(inputs)
        self.require_inputs(given)
        return {n: np.asarray(v, order="C") if n in self.types else v for n, v in given.items()}

    def accepts(self, inputs: StageValues) -> bool:
        """Return whether `require_inputs` would raise nothing, without a sentence that says why not."""
        known = self._input_names
        constants = self.program.constants
        return (
            all(name in known for name in inputs)
            and all(name in inputs or name in constants for name in known)
            and fits_types(inputs, self.types)
        )

    @cached_property
    def _input_names(self) -> frozenset[str]:
        return frozenset(self.inputs)

    def require_inputs(self, inputs: StageValues, made: Collection[str] = ()) -> None:
        """Raise InputError for an input that is missing, unknown, or of a wrong dtype or shape.

        The sentence does not name those that are `made`, which no caller gives.
        """
        missing = [name for name in self.inputs if name not in {**self.program.constants, **inputs}]
        unknown = [name for name in inputs if name not in self.inputs]
        if missing or unknown:
            names = [name for name in self.inputs if name not in made]
            known = ", ".join(names)
            if unknown:
                hint = suggest_nearest(unknown[0], names)
                raise InputError(f"no input '{unknown[0]}'{hint}; the model's inputs: {known}")
            raise InputError(f"missing input '{missing[0]}'; the model's inputs: {known}")
        for name, kind in self.types.items():
            given = describe_mismatch(inputs[name], kind) if name in inputs else ""
            if given:
                raise InputError(f"input '{name}' is {given}, the model takes {kind}")

    def _copy_constant(self, name: str, value: Any) -> Any:
        """Return an output; copy a stored constant, since the caller may write to its outputs."""
        return np.array(value) if value is self.program.constants.get(name) else value

    @cached_property
    def _pool(self) -> Pool:
        return ThreadPoolExecutor(MAX_AT_ONCE - 1, thread_name_prefix="byoc")


def read_tensors(inputs: StageValues) -> dict[str, Any]:
    """Return inputs with the tensors of other libraries as arrays of numpy, without a copy, by DLPack.

    Arrays of another byte order are copied into this machine's. Raises InputError for a tensor that
    numpy cannot read where it lies, such as one on a GPU.
    """
    return {name: _read_tensor(name, value) for name, value in inputs.items()}


def _read_tensor(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return make_native(value)
    if isinstance(value, np.generic) or not hasattr(value, "__dlpack__"):
        return value
    try:
        return np.from_dlpack(value)
    except Exception as error:  # it is the other library's code that runs
        raise InputError(f"input '{name}' cannot be read as an array: {error}") from None


def _fetch_tensor(value: Any) -> Any:
    """Return a value of a stage; a tensor that a driver left on its device as an array."""
    is_elsewhere = hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)
    return np.asarray(value) if is_elsewhere else value


def bind_stages(session: Session, stages: Sequence[Stage], inputs: StageValues) -> Session:
    """Return a session with other stages, and with some inputs in the same arrays in each run."""
    constants = {**session.program.constants, **inputs}
    return replace(
        session,
        inputs=tuple(name for name in session.inputs if name not in inputs),
        types={name: kind for name, kind in session.types.items() if name not in inputs},
        program=replace(session.program, stages=stages, constants=constants),
    )
