"""What quantizing costs a model of the zoo, at its outputs and at every border of its regions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import onnx
from helpers.cutting import planned
from helpers.support import VANILLA
from numpy.typing import NDArray
from onnx import ModelProto

import byoc
from byoc.boundary.contracts import RegionContext, TensorContract, check_contracts
from byoc.model import GraphIndex, Model, copy_without, parse_layout
from byoc.numerics import compute_powers, convert_to_db
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.placement import Strategy
from byoc.placement.strategies import AllSupported
from byoc.planning import Plan, PlannedRegion, read_weight_layout
from byoc.quantization import ChosenPrecision, Precision, calibrate, choose_precision
from byoc.quantization._accuracy_measures import measure_accuracy, run_samples
from byoc.quantization._accuracy_test import measure_sensitivities
from byoc.rules import Target, load_rules
from byoc.samples import model_samples

RULES = str(VANILLA)
ALL = """
target: any
cost_model: dla
dtype: any
layout: {activations: NHWC}
ops:
  - {op: '*'}
  - {op: '*', quantized: true}
"""
"""Rules that take everything, quantized or not, images with the channels last."""

_INTEGERS = ("int8", "uint8", "int32")
_FIRST_TESTED = 1001
"""The first seed that is tested on; calibration has those from 1 on."""


@dataclass(frozen=True)
class Numbers:
    """What is left of a model in int8: signal-to-noise ratios in dB, over some samples.

    `outputs` has that of each output, int8 partition against float partition; `border` the tensor at a
    region's border that is the farthest from the float model's, and its ratio. `same_class` is the share
    of rows of the outputs whose largest element is where it was. `costs` has the units that cost most,
    with what is left when they alone are quantized.
    """

    model: str
    units: int
    regions: int
    borders: int
    outputs: Mapping[str, float]
    border: tuple[str, float]
    same_class: float
    costs: Sequence[tuple[str, float]] = field(default_factory=tuple)

    @property
    def worst(self) -> float:
        """The ratio of the worst output."""
        return min(self.outputs.values(), default=inf)


def compared(name: str, calibrated: int = 8, tested: int = 4, enough: float = 30.0) -> Numbers:
    """Return what is left of a zoo model in int8; the costliest units where that is not `enough`."""
    model = byoc.load_model(f"zoo:{name}")
    target = load_rules(RULES)
    ranges = calibrate(model, "random", samples=calibrated)
    found = choose_precision(model, [target], Precision("int8", ranges))
    samples = [model_samples(model, _FIRST_TESTED + i) for i in range(tested)]
    floats = planned(model, target, AllSupported())
    integers = planned(found.model, target, AllSupported())
    expected = run_samples(floats.proto, model, samples)
    actual = run_samples(integers.proto, found.model, samples)
    each = {
        output: measure_accuracy(
            [{output: one[output]} for one in expected], [{output: one[output]} for one in actual]
        )
        for output in expected[0]
    }
    borders = dict(at_borders(model, integers, samples))
    numbers = Numbers(
        name,
        len(found.units),
        len(integers.regions),
        len(borders),
        {output: one.signal_to_noise for output, one in each.items()},
        min(borders.items(), key=lambda item: item[1], default=("", inf)),
        min(one.same_class for one in each.values()),
    )
    if numbers.worst >= enough:
        return numbers
    ratios = [
        measure_accuracy([one], [other]).signal_to_noise
        for one, other in zip(expected, actual, strict=True)
    ]
    hardest = samples[int(np.argmin(ratios))]
    return Numbers(**{**vars(numbers), "costs": _costs(found, [hardest])})


def _costs(found: ChosenPrecision, samples: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    assert found.float_model is not None
    expected = run_samples(found.float_model.proto, found.float_model, samples)
    alone = measure_sensitivities(found.model, found.units, expected, samples)
    ratios = [(name, one.signal_to_noise) for name, one in alone.items()]
    return sorted(ratios, key=lambda item: item[1])[:3]


def at_borders(
    original: Model, plan: Plan, samples: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, float]]:
    """Yield each tensor that crosses a border of the main graph, and what is left of the original's.

    What crosses is brought back to real values and to ONNX's layout first.
    """
    crossing = dict(crossings(plan))
    contracts = {given: contract for given, contract in crossing.items() if _is_real(contract, original)}
    sums = {given: np.zeros(2) for given in contracts}
    names = {contract.tensor for contract in contracts.values()}
    for sample in samples:
        real = values(original.proto, original, names, sample)
        here = values(plan.proto, plan.model, contracts, sample)
        for given, contract in contracts.items():
            wanted = real[contract.tensor]
            sums[given] += compute_powers(
                wanted, dequantized(plain(here[given], contract, wanted), contract)
            )
    for given, (signal, noise) in sums.items():
        yield given, convert_to_db(float(signal), float(noise))


def _is_real(contract: TensorContract, original: Model) -> bool:
    known = original.index.types.get(contract.tensor)
    return known is not None and known.dtype == "float32"


def crossings(plan: Plan) -> Iterator[tuple[str, TensorContract]]:
    """Yield what crosses a border of the main graph, by its name there, with its contract."""
    known = {r.name: _known(plan, r) for r in plan.regions}
    checked = check_contracts(plan.proto, {t.domain for t in plan.targets}, known, plan.model.folder)
    index = GraphIndex(plan.proto, {})
    for node in index.nodes:
        if node.op_type in checked:
            contracts = checked[node.op_type].contracts
            data = [name for name in node.input if not index.is_constant(name)]
            yield from zip(data, contracts.inputs, strict=True)
            yield from zip(node.output, contracts.outputs, strict=True)


def _known(plan: Plan, region: PlannedRegion) -> RegionContext:
    return RegionContext(
        region.index,
        region.interface,
        plan.values,
        plan.origins,
        weights=read_weight_layout(region.target),
    )


def integers_off(model: Model, target: Target, strategy: Strategy) -> tuple[int, list[str]]:
    """Return how many integer tensors cross borders of a model quantized by the user, and which differ.

    Both sides run in plain onnxruntime, optimizations off.
    """
    plan = planned(model, target, strategy)
    found = {
        given: contract
        for given, contract in crossings(plan)
        if contract.type.dtype in _INTEGERS and contract.tensor in model.index.types
    }
    sample = model_samples(model, _FIRST_TESTED)
    real = values(model.proto, model, {contract.tensor for contract in found.values()}, sample)
    here = values(plan.proto, model, found, sample)
    wrong = [
        given
        for given, contract in found.items()
        if not np.array_equal(*_both(here[given], real[contract.tensor], contract))
    ]
    return len(found), wrong


def _both(here: NDArray[Any], real: NDArray[Any], contract: TensorContract) -> tuple[Any, Any]:
    return plain(here, contract, real), real


def values(
    proto: ModelProto, model: Model, names: Sequence[str] | Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of some tensors of the main graph of a model, or of one made of it."""
    whole = copy_without(proto)
    given = {value.name for value in whole.graph.output} | set(inputs)
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(set(names) - given))
    with without_optimizations():
        session = open_session(whole, model.folder)
    return {**inputs, **run_session(session, inputs)}


def plain(array: NDArray[Any], contract: TensorContract, like: NDArray[Any]) -> NDArray[Any]:
    """Return what crosses in ONNX's layout, in the shape of what it has to be like."""
    if not contract.layout or like.ndim != 4:
        return array
    batch, channels, height, width = like.shape
    return parse_layout(contract.layout).unpack_array(array, (batch, channels, height, width))


def dequantized(array: NDArray[Any], contract: TensorContract) -> NDArray[Any]:
    """Return the real values of what crosses, by its contract (ONNX, DequantizeLinear)."""
    if contract.scale is None or array.dtype.kind == "f":
        return array
    scale, points = np.asarray(contract.scale), np.asarray(contract.zero_point)
    if contract.axis is not None:
        shape = [-1 if axis == contract.axis else 1 for axis in range(array.ndim)]
        scale, points = scale.reshape(shape), points.reshape(shape)
    result: NDArray[Any] = (array.astype(np.float64) - points) * scale
    return result
