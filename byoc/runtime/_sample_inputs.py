"""Sample inputs for any model: seeded random arrays of the types of its inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.model import GraphIndex, Model, TensorType, to_numpy_dtype

# The size limit of one input. Samples are drawn in float64 first.
_MOST_BYTES = 2**30


def model_samples(model: Model, seed: int = 0) -> Mapping[str, Any]:
    """Return sample inputs for a model: its own where it brings some, otherwise seeded random ones.

    Raises InputError as `sample_inputs` does.
    """
    return sample_inputs(model.index, seed) if model.make_samples is None else model.make_samples(seed)


def sample_inputs(index: GraphIndex, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Return a seeded random array for each graph input without a default.

    Floats are standard normal, integers 0 or 1, booleans either; an unknown dimension gets extent 1.
    Raises InputError for an input that is not a tensor, is too large, or has strings or complex numbers.
    """
    generator = np.random.default_rng(seed)
    defaults = {tensor.name for tensor in index.proto.graph.initializer}
    return {
        name: _sample_input(name, index.types, generator)
        for name in index.inputs
        if name not in defaults
    }


def _sample_input(
    name: str, types: Mapping[str, TensorType], generator: np.random.Generator
) -> NDArray[np.generic]:
    kind = types.get(name)
    if kind is None or kind.shape is None or kind.dtype in ("string", "complex64", "complex128"):
        raise InputError(f"no sample input can be made for '{name}' ({kind or 'not a tensor'})")
    shape = tuple(dim if isinstance(dim, int) else 1 for dim in kind.shape)
    size = TensorType(kind.dtype, shape).bytes or 0
    if size > _MOST_BYTES:
        raise InputError(f"no sample input can be made for '{name}': {kind} takes {size} bytes")
    dtype = to_numpy_dtype(kind.dtype)
    if "int" in kind.dtype or kind.dtype == "bool":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)
