"""Small tensors between stages that stay in the same arrays from run to run.

Handing a tensor of a decoder's token from stage to stage takes longer than computing it: its array is
allocated, described to onnxruntime, and freed. A stage that is bound to arrays runs without that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.model import (
    TensorType,
    fix_type,
    get_stated_types,
    read_tensor_types,
    to_numpy_dtype,
)
from byoc.runtime._session import Session
from byoc.runtime._stage_program import Stage

Arrays = Mapping[str, NDArray[Any]]

_LARGEST = 1 << 16
"""Bytes of a tensor; handing over a larger one takes little beside computing it."""


@dataclass(eq=False)
class HeldTensors:
    """The tensors that may be held, by name with their fixed types, and the arrays of those that are."""

    types: Mapping[str, TensorType]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def bind(self, stage: Stage, inputs: Arrays, outputs: Arrays) -> Stage | None:
        """Return a stage bound to `inputs` and `outputs`, and to what is held; None where it cannot be.

        Stages come in their order, so that what a later one reads is held if an earlier one was bound.
        Raises InputError where an array of the caller does not fit.
        """
        if stage.bind is None:
            return None
        reads = {name: self.arrays[name] for name in stage.inputs if name in self.arrays}
        makes = {
            name: np.empty(_list_extents(kind), to_numpy_dtype(kind.dtype))
            for name in stage.output_names
            if name not in outputs and (kind := self.types.get(name)) is not None
        }
        if reads or makes:
            try:
                run = stage.bind({**reads, **inputs}, {**makes, **outputs})
            except InputError:  # the model states another shape than the stage has
                run = None
            if run is not None:
                self.arrays |= makes
                return replace(stage, run=run)
        run = stage.bind(inputs, outputs) if inputs or outputs else None
        return None if run is None else replace(stage, run=run)


def hold_tensors(kinds: Mapping[str, TensorType], sizes: Mapping[str, int]) -> HeldTensors:
    """Return the tensors between stages that may be held, where names in extents have some sizes.

    Those of open extents, of text, without elements and of more than 64 KiB are not.
    """
    fixed = {name: fix_type(kind, sizes) for name, kind in kinds.items()}
    return HeldTensors({name: kind for name, kind in fixed.items() if _may_be_held(kind)})


def find_inner_types(session: Session) -> Mapping[str, TensorType]:
    """Return the stated types of tensors between stages of a session's main graph that can be bound.

    A stage that cannot may give an array as it got it, which nobody may write to then.
    """
    if session.bundle is None or len(session.stages) < 2:
        return {}
    kinds = read_tensor_types(get_stated_types(session.bundle.model()))
    able = [stage for stage in session.stages if stage.bind is not None and stage.bind({}, {})]
    others = [stage for stage in session.stages if stage not in able]
    kept = {*session.outputs, *(name for stage in others for name in stage.inputs)}
    read = {name for stage in able for name in stage.inputs} - kept
    made = {name for stage in able for name in stage.output_names}
    return {name: kind for name in sorted(made & read) if (kind := kinds.get(name)) is not None}


def _may_be_held(kind: TensorType) -> bool:
    if kind.shape is None or kind.dtype == "string":
        return False
    extents = _list_extents(kind)
    if len(extents) < len(kind.shape):
        return False
    return 0 < prod(extents) * to_numpy_dtype(kind.dtype).itemsize <= _LARGEST


def _list_extents(kind: TensorType) -> list[int]:
    """Return the extents of a type that are numbers."""
    return [dim for dim in kind.shape or () if isinstance(dim, int)]
