"""Layers of a quantized region, each alone on onnxruntime's tensors, and how far integers are apart."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from byoc.codegens.dla import DLA
from byoc.codegens.dla.dla_options import DLAOptions
from dla_exact import exact

from byoc.codegen import Region, read_region
from byoc.errors import InputError
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification._part_trials import find_weight_layout, save_part
from byoc.verification._region_cutter import RegionCutter

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Units:
    """How far integers are apart: the most, in units, and how many of all elements differ."""

    most: int = 0
    different: int = 0
    elements: int = 0

    def __add__(self, other: "Units") -> "Units":
        """Return the same over both."""
        return Units(
            max(self.most, other.most),
            self.different + other.different,
            self.elements + other.elements,
        )

    @property
    def share(self) -> float:
        """The share of elements that differ."""
        return self.different / max(self.elements, 1)


def apart(one: Values, other: Values) -> Units:
    """Return how far the integers among some tensors are apart."""
    assert one.keys() == other.keys()
    found = Units()
    for name, array in one.items():
        if array.dtype.kind in "iu":
            assert (array.shape, array.dtype) == (other[name].shape, other[name].dtype), name
            off = np.abs(array.astype(np.int64) - other[name].astype(np.int64))
            found += Units(int(off.max(initial=0)), int(np.count_nonzero(off)), off.size)
    return found


@dataclass(frozen=True)
class Gaps:
    """How far results are apart of which each is right in its way.

    `machine`, `kernels` and `exact` are what the dla, onnxruntime's own integer kernels and exact
    arithmetic have against onnxruntime's QDQ result, that is, with its optimizations off. The others are
    the dla against exact arithmetic and against the integer kernels.
    """

    machine: Units = Units()
    kernels: Units = Units()
    exact: Units = Units()
    machine_exact: Units = Units()
    machine_kernels: Units = Units()

    def __add__(self, other: "Gaps") -> "Gaps":
        """Return the same over both."""
        return Gaps(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def gaps(region: Region, inputs: Values) -> Gaps:
    """Return how far the results of a region are apart."""
    written = unoptimized_outputs(region, inputs)
    machine, kernels = dla_outputs(region, inputs), _try_kernels(region, inputs)
    real = exact(region, inputs)
    return Gaps(
        apart(machine, written),
        apart(kernels, written) if kernels else Units(),
        apart(real, written),
        apart(machine, real),
        apart(machine, kernels) if kernels else Units(),
    )


def _try_kernels(region: Region, inputs: Values) -> Values:
    """Return what onnxruntime's integer kernels make, nothing where scales differ by channel."""
    try:
        return optimized_outputs(region, inputs)
    except InputError as error:
        if "must be a scalar or 1D tensor" not in str(error):
            raise
        return {}


def unoptimized_outputs(region: Region, inputs: Values) -> Values:
    """Return what onnxruntime makes of a region as it is written: in float32 between the integers."""
    with without_optimizations():
        return run_session(open_session(region.path), inputs)


def optimized_outputs(region: Region, inputs: Values) -> Values:
    """Return what onnxruntime makes of a region with its own integer kernels, such as QLinearConv."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdqisint8allowed", "1")  # else it is for uint8 alone here
    return run_session(onnxruntime.InferenceSession(region.path, options), inputs)


def dla_outputs(region: Region, inputs: Values) -> Values:
    """Return what the machine makes of a region."""
    codegen = DLA()
    run: Callable[[Values], Values] = codegen.load(region, codegen.compile(region, DLAOptions()))
    return run(inputs)


def layers_alone(region: Region, inputs: Values) -> Iterator[tuple[str, Region, Values]]:
    """Yield each layer as a region of its own: what it is called, and what reaches it.

    A layer is what makes an integer tensor of integer tensors. What reaches it is what onnxruntime makes
    of all before, optimizations off. The region is on disk only until the next one is asked for.
    """
    cutting = RegionCutter(region, inputs)
    for number in cutting.operations:
        layer = _layer(cutting, number)
        part = cutting.make_part(layer) if layer else None
        if part is None:
            continue
        with TemporaryDirectory(prefix="byoc-") as folder:
            path = Path(folder) / f"{region.name}.onnx"
            save_part(part.model, path)
            alone = read_region(path, region.name, region.target, None, find_weight_layout(region))
            yield cutting.operation_name(number), alone, part.inputs


def _layer(cutting: RegionCutter, last: int) -> set[int]:
    """Return the operations that make what one makes of integers; none where that are no integers."""
    index, everything = cutting.index, set(cutting.operations)
    if not any(_is_integer(cutting, name) for name in index.nodes[last].output):
        return set()
    found, waiting = set(), [last]
    while waiting:
        number = waiting.pop()
        found.add(number)
        made = (name for name in index.reads[number] if not _is_integer(cutting, name))
        before = (index.producers.get(name) for name in made)
        waiting += [each for each in before if each in everything - found]
    return found


def _is_integer(cutting: RegionCutter, name: str) -> bool:
    value = cutting.values.get(name)
    return value is not None and value.dtype.kind in "iu"
