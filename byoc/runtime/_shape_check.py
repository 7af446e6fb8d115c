"""Shapes of a region's tensors at run time, compared with the stated or inferred ones.

Files state wrong shapes, and shape inference has mistakes. So a shape that differs from the contract is
an error of the codegen only where plain onnxruntime makes another one of the same inputs; otherwise it
is a contradiction in the model, which is noted.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from byoc.boundary.contracts import TensorContract
from byoc.codegen import CodegenFailedError, Executor, Region, open_region_session
from byoc.errors import InputError, MissingRuntimeError
from byoc.model import TensorType
from byoc.onnxrt import without_optimizations
from byoc.samples import ArrayForm, describe_mismatch

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

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Note inputs of another shape. Raises InputError where the codegen needs the stated one."""
        for value in self._given_inputs:
            if value.name not in inputs or self._fits(value, inputs[value.name]):
                continue
            made = describe_mismatch(inputs[value.name], value.type)
            if made and not self.any_shape:
                wanted = f"{self.region.name} is compiled for {value.type}"
                raise InputError(f"input '{value.name}' is {made}, but {wanted}")
            _note_contradiction(value, inputs[value.name])

    def check_output(
        self, value: TensorContract, given: Mapping[str, Any], inputs: Mapping[str, Any]
    ) -> Any:
        """Return an output.

        Raises CodegenFailedError unless it has the stated type, or onnxruntime's shape.
        """
        if value.name not in given:
            raise CodegenFailedError(f"gave no output '{value.name}'")
        if value.name in self.bound and given[value.name] is self.bound[value.name]:
            return given[value.name]
        if self._fits(value, given[value.name]):
            return given[value.name]
        made = describe_mismatch(given[value.name], value.type)
        if made:
            whole = describe_mismatch(given[value.name], TensorType(value.type.dtype, None))
            shape = np.shape(given[value.name])
            if whole or self._find_plain_shapes(inputs).get(value.name) != shape:
                raise CodegenFailedError(
                    f"gave output '{value.name}' as {made}, but it is declared {value.type}"
                )
        _note_contradiction(value, given[value.name])
        return np.asarray(given[value.name], order="C")

    def _fits(self, value: TensorContract, given: Any) -> bool:
        """Return whether a tensor is as its contract and the file say, all extents known."""
        form = self._forms.get(value.name)
        return form is not None and form.fits(given)

    @cached_property
    def _given_inputs(self) -> Sequence[TensorContract]:
        return [value for value in self.region.inputs if value.name not in self.bound]

    @cached_property
    def _forms(self) -> Mapping[str, ArrayForm]:
        """The forms of the region's tensors, without those that the file states otherwise."""
        values = (*self.region.inputs, *self.region.outputs)
        agreed = [v for v in values if not _is_as_in_model(v) or v.logical == v.type]
        forms = {value.name: ArrayForm.of(value.type) for value in agreed}
        return {name: form for name, form in forms.items() if form is not None}

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
