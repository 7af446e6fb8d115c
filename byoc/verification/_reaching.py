"""Samples that reach regions: other inputs, ends of ranges, values for a region alone.

An If runs one of its branches, and a Loop may run no trip at all. Regions in the other branch,
or in such a Loop, have then not been compared with anything. A region that belongs to no bundle is
compared on values for it alone, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from byoc.bundle import Bundle
from byoc.codegen import Executor, Region
from byoc.errors import InputError
from byoc.model import GraphIndex, Model, inline_functions, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.rules import ArithmeticContract
from byoc.samples import find_domains, model_samples, sample_inputs
from byoc.verification._quantization_noise import Thresholds
from byoc.verification._region_cutter import open_region
from byoc.verification._region_verification import (
    LayerChecker,
    RecordedRuns,
    compare_recorded,
    find_outer_names,
)
from byoc.verification._rounding_noise import expose_tensors
from byoc.verification._special_check import SpecialCheck
from byoc.verification._special_samples import Ends
from byoc.verification._verification_result import RegionError, SampleKind

# The ends of what inputs can be: from the roles of the model's inputs, and from ranges of values.

Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class InputEnds:
    """The least and the largest value of inputs: of a model, and of the regions of a bundle of it."""

    bundle: Bundle
    model: Model

    def find_of_model(self, name: str, value: Any) -> tuple[float, float]:
        """Return the ends of an input of the model, which has a value in a realistic sample."""
        domain = self._domains.get(name, (-inf, inf))
        return _find_ends(value) if domain is None else domain

    def find_of_region(self, region: str, name: str, value: Any) -> tuple[float, float]:
        """Return the ends of an input of a region, which has a value in a realistic sample."""
        outer = self._outer.get(region, {}).get(name, "")
        low, high = self.find_of_model(outer, value) if outer in self._domains else (-inf, inf)
        if np.asarray(value).dtype.kind not in "iu":
            return low, high
        ranges = next((each.value_ranges for each in self._graphs if outer in each.types), None)
        if ranges is None:
            return _find_ends(value)
        found = ranges.find_interval(outer)
        return max(low, found.low), min(high, found.high)

    @cached_property
    def _domains(self) -> Mapping[str, tuple[float, float] | None]:
        try:
            return find_domains(self.model.index)
        except InputError:  # inputs that no sample can be made for
            return dict.fromkeys(self.model.index.inputs)

    @cached_property
    def _graphs(self) -> Sequence[GraphIndex]:
        """The partitioned model's graphs, with regions in place of their calls."""
        try:
            flat = inline_functions(self.bundle.model())
            return tuple(prepare_model(flat, self.model.source, self.bundle.folder).index.walk())
        except InputError:  # ONNX's inliner confuses names in bodies
            return ()

    @cached_property
    def _outer(self) -> Mapping[str, Mapping[str, str]]:
        names = {entry.name for entry in self.bundle.variant.regions}
        return find_outer_names(GraphIndex(self.bundle.model(), {}), names)


def _find_ends(value: Any) -> tuple[float, float]:
    """Return the ends of the values of an array, which stays as it is where it has none."""
    array = np.asarray(value)
    if not array.size or array.dtype.kind in "OUSc":
        return 0.0, 0.0
    return float(array.min()), float(array.max())


# Samples of a model as they reach its regions, for codegens that calibrate.


def record_region_inputs(
    proto: ModelProto, folder: Path, inputs: Mapping[str, Sequence[str]], samples: Sequence[Values]
) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield the inputs of each region when plain onnxruntime runs a partitioned model on samples.

    `inputs` has the inputs of each region by its name; `folder` holds the external data. For a region
    of the main graph there is one row of arrays for each sample. Raises InputError when it does not run.
    """
    index = GraphIndex(proto, {})
    functions = {function.name: function for function in proto.functions}
    outer: dict[str, list[str]] = {}
    for node in index.nodes:
        if node.op_type in inputs and node.op_type in functions:
            read = dict(zip(functions[node.op_type].input, node.input, strict=False))
            outer[node.op_type] = [read[name] for name in inputs[node.op_type]]
    computed = {name for names in outer.values() for name in names if name in index.producers}
    runs = samples
    if computed:
        with without_optimizations():
            session = open_session(expose_tensors(inline_functions(proto), sorted(computed)), folder)
            runs = [{**sample, **run_session(session, sample)} for sample in samples]
    for region, names in outer.items():
        yield region, [[run[name] for name in names] for run in runs]


_SEEDS = (1, 2, 3)
_MAX_FLIPS = 8  # inputs that switch branches and are flipped in turn


def vary_inputs(model: Model, given: Values, seeded: bool) -> Iterator[Values]:
    """Yield other inputs of a model, most promising first.

    A switch is a boolean tensor, or an integer tensor of one element. In the first all switches are
    flipped, then one at a time; where the given inputs are `seeded`, those of other seeds follow.
    """
    switches = [name for name, value in given.items() if _is_switch(value)]
    if len(switches) > 1:
        yield {**given, **{name: _flip(given[name]) for name in switches}}
    for name in switches[:_MAX_FLIPS]:
        yield {**given, name: _flip(given[name])}
    for seed in _SEEDS if seeded else ():
        try:
            yield model_samples(model, seed)
        except InputError:
            return


def _is_switch(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.size == 1)


def _flip(value: Any) -> Any:
    """Return a boolean's opposite, 0 for any other integer, and 3 for 0, which may be a trip count."""
    array = np.asarray(value)
    if array.dtype.kind == "b":
        return np.logical_not(array, out=np.empty_like(array))
    return np.where(array == 0, 3, 0).astype(array.dtype)


@dataclass(frozen=True, eq=False)
class SpecialScope:
    """The contract of a target, and the ends of the values that inputs of a region can have."""

    contract: ArithmeticContract
    find_ends: Ends


def compare_under_contract(  # noqa: PLR0913, PLR0917 - some have a default
    region: Region,
    run: Executor,
    recorded: RecordedRuns,
    thresholds: Thresholds,
    special: SpecialScope | None,
    sample: SampleKind = "given",
    check_layers: LayerChecker | None = None,
) -> tuple[RegionError, tuple[str, ...]]:
    """Compare the recorded runs of a region with its ONNX; if they are right, ask it special values.

    `sample` says what it was run on; without `special` no special values are asked. Returns the error,
    and notes of what is off and allowed. Raises InputError where the region cannot be run plainly.
    """
    if not recorded.values:
        return RegionError(region.name, runs=0, sample="none"), ()
    plain = open_region(region)

    def compare(runs: RecordedRuns) -> RegionError:
        return compare_recorded(region, runs, thresholds, sample, check_layers, plain)

    found = compare(recorded)
    if special is None or not found.within:
        return found, ()
    check = SpecialCheck(
        *(region, run, plain.run, *recorded.values[0]),
        special.contract,
        special.find_ends,
        thresholds,
        compare,
    )
    return check.compare(found)


def compare_alone(
    region: Region,
    run: Executor,
    thresholds: Thresholds,
    special: SpecialScope | None,
    check_layers: LayerChecker | None = None,
) -> tuple[RegionError, tuple[str, ...]]:
    """Compare a region as `compare_under_contract` does, on seeded values made for it alone.

    Where plain onnxruntime runs it on none of these, it stays uncompared: its `sample` is "none".
    """
    recorded = RecordedRuns()
    for inputs, _ in run_alone(region):
        try:
            recorded.record(run)(inputs)
        except InputError as error:
            return RegionError(region.name, problem=f"does not run: {error}", sample="made"), ()
        break
    return compare_under_contract(region, run, recorded, thresholds, special, "made", check_layers)


def run_alone(region: Region) -> Iterator[tuple[Values, Values]]:
    """Yield seeded values of the types of a region's inputs, and what it makes of them run plainly."""
    index = GraphIndex.of_model(region.model)
    for seed in (0, *_SEEDS):
        try:
            inputs = sample_inputs(index, seed)
            yield inputs, open_region(region).run(inputs)
        except InputError:
            continue
