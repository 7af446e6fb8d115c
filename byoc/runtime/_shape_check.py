"""Shapes of a region's tensors at run time, compared with the stated or inferred ones.

Files state wrong shapes, and shape inference has mistakes. So a shape that differs from the contract is
an error of the codegen only where plain onnxruntime makes another one of the same inputs; otherwise it
is a contradiction in the model, which is noted.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from operator import is_
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.boundary.contracts import TensorContract
from byoc.codegen import CodegenFailedError, Executor, Region, open_region_session
from byoc.errors import InputError, MissingRuntimeError
from byoc.model import TensorType, make_native
from byoc.onnxrt import without_optimizations
from byoc.samples import ArrayForm, describe_mismatch

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
