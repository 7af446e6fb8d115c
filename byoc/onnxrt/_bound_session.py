"""Running a session of onnxruntime with some tensors in arrays that stay the same from run to run."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.onnxrt._onnxruntime import describe_runtime_error, finish_run
from byoc.onnxrt._ort_values import is_foreign_type
from byoc.onnxrt._stoppable import run_stoppable

_CPU = ("cpu", 0)
_LARGE = 1 << 16
"""Bytes of an input from which on a binding lets it go after a run, so that its memory is free."""

Arrays = Mapping[str, NDArray[Any]]


def bind_session(
    session: Any, inputs: Arrays, outputs: Arrays
) -> Callable[[Arrays], dict[str, Any]] | None:
    """Return a function that runs a session which reads `inputs` and writes `outputs` where they lie.

    The arrays are contiguous, and of the shapes that the tensors have in each run. One array may be an
    input and an output where the operators allow that. The function takes the inputs by name, contiguous
    too, of which it reads the others, and returns all outputs; one thread at a time may call it. It
    raises InputError when onnxruntime refuses to run.

    Returns None where a tensor is of a type that numpy lacks, or no tensor.
    """
    if not all(_is_bindable(value.type) for value in (*session.get_inputs(), *session.get_outputs())):
        return None
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, *_CPU, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, *_CPU, array.dtype.type, array.shape, array.ctypes.data)
    others = [value.name for value in session.get_inputs() if value.name not in inputs]
    made = [value.name for value in session.get_outputs() if value.name not in outputs]
    first = len(outputs)  # outputs come in the order in which they were bound
    for name in made:
        binding.bind_output(name)

    def run(given: Arrays) -> dict[str, Any]:
        for name in others:
            binding.bind_cpu_input(name, given[name])
        try:
            run_stoppable(lambda options: session.run_with_iobinding(binding, options))
        except Exception as error:  # onnxruntime's own exception types share no base but this
            raise InputError(
                f"onnxruntime cannot run the model: {describe_runtime_error(error)}"
            ) from None
        values = binding.get_outputs_as_ortvaluevector() if made else ()
        fresh = {name: values[first + i].numpy() for i, name in enumerate(made)}
        for name in made:  # without this, the next run would write over what this one gave
            binding.bind_output(name)
        for name in others:  # the binding keeps what it is given
            if given[name].nbytes > _LARGE:
                binding.bind_cpu_input(name, np.empty(0, given[name].dtype))
        finish_run()
        return {**outputs, **fresh}

    return run


def _is_bindable(kind: str) -> bool:
    """Return whether a type, as onnxruntime writes it, is that of a tensor that numpy can hold."""
    return kind.startswith("tensor(") and kind != "tensor(string)" and not is_foreign_type(kind)
