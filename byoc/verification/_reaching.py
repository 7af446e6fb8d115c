"""Samples for regions that no sample reached: other inputs of the model, or values for a region alone.

An If runs one of its branches, and a Loop may run no trip at all. Regions in the other branch,
or in such a Loop, have then not been compared with anything. A region that belongs to no bundle is
compared on values for it alone, too.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from byoc.codegen import Executor, Region
from byoc.errors import InputError
from byoc.model import GraphIndex, Model
from byoc.rules import ArithmeticContract
from byoc.samples import model_samples, sample_inputs
from byoc.verification._plain_models import open_region
from byoc.verification._region_verification import RecordedRuns, compare_recorded, heed_contract
from byoc.verification._special_check import SpecialCheck
from byoc.verification._special_samples import Ends
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._verification_result import RegionError

Values = Mapping[str, Any]

_SEEDS = (1, 2, 3)
_MAX_FLIPS = 8


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


def compare_alone(region: Region, run: Executor, thresholds: Thresholds) -> RegionError:
    """Compare a region that no sample reached on seeded values of the types of its boundary tensors.

    Where neither plain onnxruntime nor the codegen runs it on such values, it stays uncompared.
    """
    for inputs, _ in run_alone(region):
        recorded = RecordedRuns()
        try:
            recorded.record(run)(inputs)
            return compare_recorded(region, recorded, thresholds, "made")
        except InputError:
            continue
    return RegionError(region.name, runs=0, sample="none")


def compare_under_contract(
    region: Region, run: Executor, contract: ArithmeticContract, find_ends: Ends
) -> RegionError | None:
    """Compare a region with its ONNX on seeded and on special values, as far as a contract promises.

    `find_ends` says what its inputs can be. Returns None where plain onnxruntime does not run it on
    seeded values. Raises InputError where it cannot be opened there.
    """
    thresholds = heed_contract(contract, DEFAULT_THRESHOLDS, region)
    plain = open_region(region)

    def compare(runs: RecordedRuns) -> RegionError:
        return compare_recorded(region, runs, thresholds, "made", None, plain)

    for inputs, _ in run_alone(region):
        recorded = RecordedRuns()
        try:
            made = recorded.record(run)(inputs)
        except InputError as error:
            return RegionError(region.name, problem=f"it does not run: {error}", sample="made")
        found = compare(recorded)
        if not found.within:
            return found
        check = SpecialCheck(
            region, run, plain.run, inputs, made, contract, find_ends, thresholds, compare
        )
        return check.compare(found)[0]
    return None


def run_alone(region: Region) -> Iterator[tuple[Values, Values]]:
    """Yield seeded values of the types of a region's inputs, and what it makes of them run plainly."""
    index = GraphIndex.of_model(region.model)
    for seed in (0, *_SEEDS):
        try:
            inputs = sample_inputs(index, seed)
            yield inputs, open_region(region).run(inputs)
        except InputError:
            continue
