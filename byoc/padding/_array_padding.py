"""Padding of arrays by a rule, and cutting of what comes out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.errors import InputError
from byoc.model import evaluate_dim
from byoc.padding._padding_rule import EDGE, PaddedInput, PaddingRule

Arrays = Mapping[str, Any]


def find_unpadded_sizes(rule: PaddingRule, inputs: Arrays) -> dict[str, int]:
    """Return the sizes of a rule's dimensions that inputs have.

    Raises InputError where an input has another rank, an extent that contradicts another or is beyond
    the largest, and where it is not at index 0 what the rule needs.
    """
    sizes: dict[str, int] = {}
    given = {name: each for name, each in rule.inputs.items() if name in inputs and not each.made}
    shapes = {name: np.shape(inputs[name]) for name in given}
    own_shapes = {name: each.own_shape for name, each in given.items()}
    for name, shape in shapes.items():
        expected = own_shapes[name]
        if len(shape) != len(expected):
            raise InputError(f"input '{name}' has {len(shape)} dimensions, not {len(expected)}")
        for dim, extent in zip(expected, shape, strict=True):
            if isinstance(dim, str) and dim in rule.dims and sizes.setdefault(dim, extent) != extent:
                raise InputError(f"input '{name}' has {dim}={extent}, another has {sizes[dim]}")
    for name, largest in rule.dims.items():
        if name not in sizes:
            raise InputError(f"no input says what {name} is")
        if not rule.least <= sizes[name] <= largest:
            raise InputError(f"{name} is {sizes[name]}, and may be {rule.least} to {largest}")
    for name, shape in shapes.items():
        own = tuple(evaluate_dim(dim, sizes) for dim in own_shapes[name])
        if shape != own:
            raise InputError(f"input '{name}' is {list(shape)}, not {list(own)}")
        _check_first(name, inputs[name], rule.inputs[name])
    return sizes


def _check_first(name: str, value: Any, padded: PaddedInput) -> None:
    first = padded.first
    if first is None:
        return
    if not bool(np.all(np.take(value, 0, first.axis) == first.value)):
        raise InputError(
            f"input '{name}' is padded only where it is {first.value:g} at index 0 of axis {first.axis}"
        )


def pad_inputs(rule: PaddingRule, inputs: Arrays, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return inputs at the largest sizes of a rule, with those that are made for it; others as they are.

    Along the last padded axis they are continued with the rule's value, along any other with their last
    entries. `sizes` are those that `find_unpadded_sizes` finds.
    """
    padded = dict(inputs)
    for name, each in rule.inputs.items():
        if each.made:
            shape = [evaluate_dim(dim, sizes) or 0 for dim in each.shape]
            padded[name] = _pad_array(np.ones(shape, bool), each, rule.dims)
        elif name in inputs:
            padded[name] = _pad_array(np.asarray(inputs[name]), each, rule.dims)
    return padded


def make_padded_shapes(rule: PaddingRule, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return arrays of the dtypes and shapes that padding gives inputs, which take no memory."""
    dtypes = {name: np.asarray(value).dtype for name, value in inputs.items() if name in rule.inputs}
    dtypes |= {name: np.dtype(bool) for name, each in rule.inputs.items() if each.made}
    shapes = {
        name: [evaluate_dim(dim, rule.dims) or 0 for dim in rule.inputs[name].shape] for name in dtypes
    }
    return {name: np.broadcast_to(np.zeros((), dtypes[name]), shapes[name]) for name in dtypes}


def _pad_array(array: NDArray[Any], padded: PaddedInput, sizes: Mapping[str, int]) -> NDArray[Any]:
    shape = [evaluate_dim(dim, sizes) for dim in padded.shape]
    missing = [(0, (whole or 0) - extent) for whole, extent in zip(shape, array.shape, strict=True)]
    open_axes = [axis for axis, dim in enumerate(padded.shape) if isinstance(dim, str)]
    if padded.value != EDGE and open_axes:
        last = open_axes[-1]
        widths = [(0, 0)] * array.ndim
        widths[last], missing[last] = missing[last], (0, 0)
        fill = np.array(padded.value).astype(array.dtype)
        array = np.pad(array, widths, constant_values=fill)
    return (
        np.pad(array, missing, mode="edge")
        if array.size
        else np.zeros([e or 0 for e in shape], array.dtype)
    )


def cut_outputs(rule: PaddingRule, outputs: Arrays, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return outputs without what padding added, by the sizes that the inputs have.

    Raises InputError where an output is not as long as the rule says.
    """
    found = dict(outputs)
    for name, dims in rule.outputs.items():
        if name not in outputs:
            continue
        array = np.asarray(outputs[name])
        shape = [evaluate_dim(dim, sizes) for dim in dims]
        if len(shape) != array.ndim or any(
            extent is None or not 0 <= extent <= whole
            for extent, whole in zip(shape, array.shape, strict=True)
        ):
            raise InputError(f"output '{name}' is {list(array.shape)}, too short for {shape}")
        found[name] = np.ascontiguousarray(array[tuple(slice(extent) for extent in shape)])
    return found
