"""Run a compiled library on numpy arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from byoc.codegen import AnyArray, TensorContract, to_numpy_dtype


@dataclass(frozen=True, eq=False)
class TVMExecutor:
    """A compiled library as an executor; one run at a time, since TVM's virtual machine has state."""

    function: Any
    inputs: Sequence[TensorContract]
    outputs: Sequence[TensorContract]

    def __call__(self, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return the outputs by name, arrays of their own."""
        made = run_function(self.function, [inputs[value.name] for value in self.inputs])
        return {
            value.name: array.astype(to_numpy_dtype(value.type.dtype), copy=False)
            for value, array in zip(self.outputs, made, strict=True)
        }


def run_function(function: Any, arrays: Sequence[AnyArray]) -> list[AnyArray]:
    """Run a function of TVM's virtual machine, and return the arrays that it makes."""
    import tvm  # noqa: PLC0415 - optional

    made = function(*map(tvm.runtime.tensor, arrays))
    results = [made] if isinstance(made, tvm.runtime.Tensor | tvm.runtime.ShapeTuple) else made
    return [_to_array(each) for each in results]


def _to_array(result: Any) -> AnyArray:
    """Return a copy of a tensor, or of a shape, which TVM keeps as numbers."""
    return result.numpy() if hasattr(result, "numpy") else np.array([*result], np.int64)
