"""Ranges tensor by tensor: of several methods the one that leaves the least noise at the outputs.

Where a few tensors make most of the noise, what suits them decides, and it is not the same for all: rare
large values are what a detector looks for in one tensor, and spoil the scale of another. So tensors of
one scale are rounded alone in an otherwise float model, with the scales that each method gives, and the
noise at the outputs is compared sample by sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from byoc.model import (
    TENSOR_KEY,
    Model,
    NameAllocator,
    copy_without,
    get_metadata,
    is_inserted,
    is_quantize,
)
from byoc.numerics import compute_powers
from byoc.quantization._arithmetic import read_constant
from byoc.quantization._sensitivity import SampleValues, run_samples
from byoc.support import report_step

Float64Array = NDArray[np.float64]
_RANKED = 2  # samples that tensors are ranked on
_COMPARED = 8  # samples that methods are compared on
_LEAST_COMPARED = 4  # below, nothing is changed: what differs by chance cannot be told
_TENSORS = 12  # groups of tensors that methods are compared for, those of the most noise
_SHARE = 0.8  # of the noise is what another method may leave at most
_DEVIATIONS = 2.0  # standard errors by which the noise of a tensor has to fall, one of many


@dataclass(frozen=True, eq=False)
class Rounding:
    """The rounding of a tensor: arrays and attributes of its QuantizeLinear."""

    scale: NDArray[Any]
    zero_point: NDArray[Any]
    attributes: Mapping[str, Any]

    @property
    def key(self) -> tuple[bytes, bytes, str]:
        """A key that tensors of one scale and zero point have in common."""
        return self.scale.tobytes(), self.zero_point.tobytes(), str(self.zero_point.dtype)


Roundings = Mapping[str, Rounding]
"""By the names of tensors in the float model."""


def read_roundings(quantized: Model) -> dict[str, Rounding]:
    """Return the rounding of each tensor of a quantized model."""
    found: dict[str, Rounding] = {}
    for node in quantized.index.nodes:
        if is_quantize(node) and is_inserted(node):
            scale, point = (
                read_constant(quantized.index, name, quantized.folder) for name in node.input[1:3]
            )
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            found[get_metadata(node, TENSOR_KEY)] = Rounding(scale, point, attributes)
    return found


def round_tensors(model: Model, roundings: Roundings) -> ModelProto:
    """Return a float model that rounds some of its tensors, whoever reads them."""
    proto = copy_without(model.proto, "node")
    allocator = NameAllocator(proto.graph)
    made = {name for node in model.proto.graph.node for name in node.output}
    before = {name: allocator.new_tensor(f"{name}_float") for name in roundings if name in made}
    after = {name: allocator.new_tensor(f"{name}_rounded") for name in roundings if name not in made}

    def append_pair(name: str) -> None:
        rounding = roundings[name]
        parameters = [allocator.new_tensor(f"{name}_{what}") for what in ("scale", "zero_point")]
        for value, stored in zip((rounding.scale, rounding.zero_point), parameters, strict=True):
            proto.graph.initializer.append(numpy_helper.from_array(value, stored))
        integers = allocator.new_tensor(f"{name}_integers")
        for operator, source, result in (
            ("QuantizeLinear", before.get(name, name), integers),
            ("DequantizeLinear", integers, after.get(name, name)),
        ):
            inputs = [source, *parameters]
            proto.graph.node.append(helper.make_node(operator, inputs, [result], **rounding.attributes))

    for name in after:
        append_pair(name)
    for node in model.proto.graph.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [after.get(name, name) for name in node.input]
        copy.output[:] = [before.get(name, name) for name in node.output]
        proto.graph.node.append(copy)
        for name in filter(before.__contains__, node.output):
            append_pair(name)
    return proto


@dataclass(eq=False)
class RangeRefinement:
    """Choice of a method for each tensor of a float model.

    `roundings` are by method, and of each method those of the even and of the odd samples; the first
    method is what tensors have unless another is chosen. A sample is always run with the roundings of
    the other half.
    """

    floats: Model
    samples: Sequence[SampleValues]
    expected: Sequence[SampleValues]
    roundings: Mapping[str, Sequence[Roundings]]
    _signal: Float64Array = field(init=False)

    def choose(self) -> dict[str, str]:
        """Return the method of the tensors that have less noise with another than the first.

        Another method is chosen where it leaves 0.8 of the noise or less, and less on the single samples
        by two standard errors of the mean logarithm.
        """
        if len(self.samples) < _LEAST_COMPARED:
            return {}
        self._signal = np.sum([_measure_powers(one, one)[0] for one in self.expected], axis=0)
        plain, *others = self.roundings
        groups = self._find_groups()
        ranked = []
        for number, names in enumerate(groups, 1):
            report_step(f"noise of tensors of one scale ({number} of {len(groups)})")
            ranked.append(self._measure_noise(names, plain, _RANKED).sum())
        order = np.argsort(-np.asarray(ranked), kind="stable")[:_TENSORS]
        chosen: dict[str, str] = {}
        for number, at in enumerate(order, 1):
            report_step(f"ranges of noisy tensors ({number} of {len(order)})")
            names = groups[at]
            own = self._measure_noise(names, plain, _COMPARED)
            least = _SHARE * own.sum()
            for method in others:
                noise = self._measure_noise(names, method, _COMPARED)
                if noise.sum() <= least and falls_on_samples(own, noise, _DEVIATIONS):
                    least = noise.sum()
                    chosen.update(dict.fromkeys(names, method))
        return chosen

    def _find_groups(self) -> list[list[str]]:
        """Return the tensors in groups of one scale, those for which methods differ."""
        plain, *others = self.roundings
        known = self.roundings[plain][0]
        groups: dict[object, list[str]] = {}
        for name, rounding in known.items():
            same = [self.roundings[method][0].get(name) for method in others]
            if all(other is not None for other in same) and any(
                other.key != rounding.key for other in same if other is not None
            ):
                groups.setdefault(rounding.key, []).append(name)
        return [*groups.values()]

    def _measure_noise(self, names: Sequence[str], method: str, count: int) -> Float64Array:
        """Return the noise of tensors alone on the first samples, `[count]`.

        It is the sum over outputs of the power of the error, as shares of the signals of all samples.
        """
        noise = np.zeros(min(count, len(self.samples)))
        for half in range(2):
            given = self.roundings[method][1 - half]
            proto = round_tensors(self.floats, {name: given[name] for name in names})
            part = slice(half, len(noise), 2)
            made = run_samples(proto, self.floats, self.samples[part])
            errors = [
                _measure_powers(one, other)[1]
                for one, other in zip(self.expected[part], made, strict=True)
            ]
            noise[part] = (np.asarray(errors) / np.maximum(self._signal, 1e-30)).sum(axis=1)
        return noise


def _measure_powers(expected: SampleValues, actual: SampleValues) -> Float64Array:
    """Return the powers of the signal and of the error of each float output, `[2, outputs]`."""
    found = [
        compute_powers(value, actual[name])
        for name, value in expected.items()
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    ]
    return np.asarray(found, np.float64).reshape(-1, 2).T


def measure_noise_by_sample(
    expected: Sequence[SampleValues], actual: Sequence[SampleValues]
) -> Float64Array:
    """Return the noise of each sample, `[samples]`.

    It is the sum over float outputs of the power of the error, as shares of the signals of all samples.
    """
    if not expected:
        return np.zeros(0)
    powers = np.asarray([_measure_powers(*pair) for pair in zip(expected, actual, strict=True)])
    shares = powers[:, 1] / np.maximum(powers[:, 0].sum(axis=0), 1e-30)
    return np.asarray(shares.sum(axis=1))


def falls_on_samples(before: Float64Array, after: Float64Array, deviations: float) -> bool:
    """Return whether noise, `[samples]`, falls by more than chance.

    Its logarithm has to fall on average by some standard errors of that average.
    The noise of outputs with few numbers is mostly that of one sample, which says little of others.
    """
    if len(before) < _LEAST_COMPARED:
        return bool(after.sum() < before.sum())
    change = np.log(np.maximum(after, 1e-30)) - np.log(np.maximum(before, 1e-30))
    error = change.std(ddof=1) / np.sqrt(len(change))
    return bool(change.mean() + deviations * error < 0)
