"""Regions compared on special values, each alone at its boundary.

A difference that the target's arithmetic contract allows is a note; any other is an error. What ONNX
leaves open is not compared: `SpecialTraits.list_defined` says of which outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import Executor, Region
from byoc.errors import InputError
from byoc.model import inline_functions, prepare_model, to_numpy_dtype
from byoc.rules import Arithmetic, ArithmeticContract, find_exceeded
from byoc.verification._noise import compare_tensors
from byoc.verification._quantization_noise import TOLERANCE, Thresholds, quantized_tensors_of
from byoc.verification._region_cutter import open_region
from byoc.verification._region_verification import RecordedRuns, compare_run
from byoc.verification._special_samples import (
    MOST_SUMMED,
    Ends,
    SpecialSample,
    is_too_large,
    make_empty_sample,
    make_special_samples,
    measure_whole,
)
from byoc.verification._special_traits import SpecialTraits
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import SPECIAL_NAMES, RegionError, SpecialKind

Array = NDArray[Any]
Values = Mapping[str, Any]
_PERTURBATION = 2.0**-21  # of what a sample has, relative: two units in the last place of float32
_NEAR_OVERFLOW = 1e30  # float32 overflows at 3.4e38
_NEAR_FLOAT16_OVERFLOW = 1e4  # float16 at 65504
_AMPLIFIED = 8.0  # more than that is no rounding of a few steps
_MOST_ROUNDED = 2.0**-18  # of the largest value around: what rounding explains at most


@dataclass(frozen=True, eq=False)
class SpecialJudge:
    """Judges the runs of a region, or of a part of one, on special values of a kind.

    `scales` are the ranges of outputs on realistic values. What it has met that the contract allows is
    in `allowed`, as sentences without their beginnings.
    """

    kind: SpecialKind
    contract: ArithmeticContract
    scales: Mapping[str, float] = field(default_factory=dict)
    allowed: set[str] = field(default_factory=set)
    _traits: dict[int, tuple[Region, SpecialTraits]] = field(default_factory=dict)

    def __call__(
        self, region: Region, inputs: Values, expected: Values, actual: Values, thresholds: Thresholds
    ) -> tuple[OutputError, ...]:
        """Return the errors of the outputs that ONNX defines; add what is allowed to `allowed`."""
        if self.kind == "empty":
            return compare_run(region, inputs, expected, actual, thresholds)
        if id(region) not in self._traits:
            self._traits[id(region)] = region, read_traits(region)
        _, traits = self._traits[id(region)]
        run = SpecialRun(
            self.kind,
            traits,
            lambda values: open_region(region).run(values),
            inputs,
            self.contract.loosest(traits.promised_for),
            thresholds,
            quantized_tensors_of(region),
            self.scales,
            (self.contract,),
        )
        errors, allowed = run.compare(expected, actual)
        self.allowed.update(allowed)
        return errors


def count_constants(region: Region) -> int:
    """Return the number of elements of a region's constants."""
    return sum(each.type.elements or 0 for each in region.constants)


def read_traits(region: Region) -> SpecialTraits:
    """Return the traits of a region's model, functions inlined."""
    flat = inline_functions(region.model)
    return SpecialTraits(prepare_model(flat, region.name, region.path.parent).index)


@dataclass(frozen=True, eq=False)
class SpecialCheck:
    """The comparison of one region on special values.

    `run` is its executor, `plain` runs its ONNX; `base` are inputs that reach it, and `made` what it
    makes of them. `compare_again` compares a run of it as one on realistic values.
    """

    region: Region
    run: Executor
    plain: Executor
    base: Values
    made: Values
    contract: ArithmeticContract
    find_ends: Ends
    thresholds: Thresholds
    compare_again: Callable[[RecordedRuns], RegionError]

    def compare(self, error: RegionError) -> tuple[RegionError, tuple[str, ...]]:
        """Return the region's error, that on special values where it is off there, and notes."""
        notes: dict[str, None] = {}
        if self._is_too_large:
            return replace(error, too_large=True), ()
        for sample in self._samples:
            known = {id(self.region): (self.region, self._traits)}
            judge = SpecialJudge(sample.kind, self.contract, self._scales, set(), known)
            found = self._compare_sample(error, sample, judge)
            notes.update(
                dict.fromkeys(
                    f"{self.region.name}, on {SPECIAL_NAMES[sample.kind]}: {text}"
                    for text in sorted(judge.allowed)
                )
            )
            if not found.within:
                return found, tuple(notes)
        return error, tuple(notes)

    @cached_property
    def _scales(self) -> Mapping[str, float]:
        return find_scales(self.made)

    @property
    def _is_too_large(self) -> bool:
        """Whether special values would take longer than all else."""
        if count_constants(self.region) > MOST_SUMMED:  # each is in an operation, at least
            return True
        try:
            return is_too_large(self._traits)
        except InputError:
            return False

    @property
    def _samples(self) -> Iterator[SpecialSample]:
        try:
            _ = self._traits
        except InputError:  # ONNX's inliner confuses names in bodies
            return
        promises = self.contract.loosest(self._traits.promised_for)
        yield from make_special_samples(self._traits, self.base, promises, self.find_ends, self.contract)
        if not self._traits.is_flat:  # onnxruntime aborts on some windows and products without elements
            return
        shapes = {each.name: each.type.shape for each in self.region.inputs}
        empty = make_empty_sample(shapes, self.base)
        if empty is not None:
            yield empty

    @cached_property
    def _traits(self) -> SpecialTraits:
        return read_traits(self.region)

    def _compare_sample(
        self, before: RegionError, sample: SpecialSample, judge: SpecialJudge
    ) -> RegionError:
        """Return the region's error on a sample, that of `before` where it is right.

        Finite values whose sums are rounded are compared as realistic ones. A sample that plain
        onnxruntime does not run on is left out.
        """
        try:
            with np.errstate(all="ignore"):
                expected = self.plain(sample.inputs)
        except InputError:
            return before
        wrong = replace(before, wrong_inputs=sample.inputs, special=sample.kind, layers=None)
        try:
            actual = self.run(sample.inputs)
        except InputError as error:
            return replace(wrong, problem=f"does not run on {SPECIAL_NAMES[sample.kind]}: {error}")
        ends = sample.kind == "ends"
        if ends and not self._traits.is_flat:
            # What is near zero in one order of sums is zero in another, and then divides.
            if not all(map(_is_finite, expected.values())):
                return before
            defined = self._traits.list_defined(sample.kind)
            open_results = {name: value for name, value in expected.items() if name not in defined}
            again = self._repeat(sample, {**actual, **open_results})
            return before if again.within else again
        errors = judge(self.region, sample.inputs, expected, actual, self.thresholds)
        right = all(error.within for error in errors)
        if not right and ends and self._traits.dequantizes:
            # Behind a DequantizeLinear a step of an integer, which may be right, is no rounding.
            again = self._repeat(sample, actual)
            wrong = replace(wrong, layers=again.layers)
            right = again.within
        return before if right else replace(wrong, outputs=errors)

    def _repeat(self, sample: SpecialSample, actual: Values) -> RegionError:
        """Return the region's error on a sample as if it were a realistic one."""
        return self.compare_again(RecordedRuns(1, [(sample.inputs, actual)]))


@dataclass(frozen=True, eq=False)
class SpecialRun:
    """A run of a graph on special values, whose outputs are compared element by element.

    `plain` runs it on onnxruntime; `promises` are those for what it computes, `quantized` its quantized
    tensors, and `scales` the ranges of its outputs on realistic values, as far as they are known.
    `contracts` are those of the targets that compute it, of which the promises are.
    """

    kind: SpecialKind
    traits: SpecialTraits
    plain: Executor
    inputs: Values
    promises: Arithmetic
    thresholds: Thresholds
    quantized: frozenset[str]
    scales: Mapping[str, float] = field(default_factory=dict)
    contracts: Sequence[ArithmeticContract] = ()

    def compare(self, expected: Values, actual: Values) -> tuple[tuple[OutputError, ...], list[str]]:
        """Return the errors of the outputs that ONNX defines, and what is off and allowed."""
        defined = self.traits.list_defined(self.kind)
        found, allowed = [], []
        with np.errstate(all="ignore"):
            for name in expected:
                if name not in defined:
                    continue
                for error in self._compare_output(name, expected[name], actual.get(name)):
                    clause = "" if error.within else self._find_allowance(error)
                    if clause:
                        allowed.append(f"'{error.name}' {error.problem} ({clause})")
                        found.append(self._compare_others(error, expected[name], actual.get(name)))
                    else:
                        found.append(error)
        return tuple(found), allowed

    def _compare_others(self, allowed: OutputError, expected: Any, actual: Any) -> OutputError:
        """Return the error of the elements that no clause allows."""
        error = replace(allowed, absolute=0.0, relative=0.0, problem="")
        if not (self.traits.is_flat and self.traits.is_all_floats and _are_comparable(expected, actual)):
            return error
        # Elements are apart, and no comparison has seen what was lost.
        wanted, got = expected.astype(np.float64), actual.astype(np.float64)
        both = np.isfinite(wanted) & np.isfinite(got)
        return self._compare_finite(error, error.name, wanted, got, both)

    def _compare_output(self, name: str, expected: Any, actual: Any) -> Sequence[OutputError]:
        """Return the error of an output, of a sequence those of its elements.

        The `problem` says what is lost or off.
        """
        comparable = _are_comparable(expected, actual)
        dtype = str(expected.dtype) if comparable else ""
        if dtype in TOLERANCE:
            return [self._compare_floats(name, expected, actual)]
        made = {} if actual is None else {name: actual}
        errors = tuple(compare_tensors({name: expected}, made, self.thresholds, self.quantized))
        if not comparable:
            return errors
        return [
            each if each.within else replace(each, problem=_show_first(expected, actual))
            for each in errors
        ]

    def _compare_floats(self, name: str, expected: Array, actual: Array) -> OutputError:
        dtype = str(expected.dtype)
        plain = OutputError(name, dtype, 0.0, 0.0, self.thresholds.relative.get(dtype, TOLERANCE[dtype]))
        wanted, got = expected.astype(np.float64), actual.astype(np.float64)
        lost = self._find_lost(wanted, got)
        if lost:
            return replace(plain, absolute=np.inf, relative=np.inf, problem=lost)
        both = np.isfinite(wanted) & np.isfinite(got)
        if self.kind != "ends":
            both &= self.traits.is_flat
        return self._compare_finite(plain, name, wanted, got, both)

    def _find_lost(self, wanted: Array, got: Array) -> str:
        """Describe the NaN or infinities that are lost, or made of finite numbers; empty for none.

        NaN that appears beside NaN is no fault where floats are added up: it spreads within the tiles of
        fast convolutions. NaN that infinities make depends on the order of steps.
        """
        if self.kind == "ends" or (self.kind == "nan" and self.traits.is_flat):
            made = np.isfinite(wanted) & ~np.isfinite(got) & (np.abs(wanted) < self._overflow)
            if made.any():
                return f"is {got[made].flat[0]:g} instead of {wanted[made].flat[0]:.9g}"
        if self.kind == "nan":
            gone = np.isnan(wanted) & (~np.isnan(got) if self.traits.is_flat else np.isfinite(got))
            return f"loses NaN: it is {got[gone].flat[0]:g} where NaN is passed on" if gone.any() else ""
        # What overflows in one order of steps is near the largest float32 in another, and not below.
        gone = np.isinf(wanted) & (got != wanted) & ~np.isnan(got)
        if self.kind == "ends":
            gone &= self.traits.is_flat & (np.abs(got) < _NEAR_OVERFLOW)
        if gone.any():
            return f"loses infinities: it is {got[gone].flat[0]:g} instead of {wanted[gone].flat[0]:g}"
        return ""

    @property
    def _overflow(self) -> float:
        """The magnitude from which on a result may be infinite in what the target computes in."""
        return _NEAR_FLOAT16_OVERFLOW if self.promises.computes == "float16" else _NEAR_OVERFLOW

    def _compare_finite(
        self, plain: OutputError, name: str, wanted: Array, got: Array, both: Array
    ) -> OutputError:
        """Return the error of the elements that are finite on both sides, relative to each of them."""
        computes = TOLERANCE.get(self.promises.computes, 0.0)
        largest = float(np.max(np.abs(wanted[both]), initial=0.0))
        # Smaller results need be no more exact than those of realistic values, or of values around 1.
        scale = self.scales.get(name, min(largest, 1.0))
        allowed = max(plain.tolerance, computes) * np.maximum(np.abs(wanted), scale)
        error = np.where(both, np.abs(wanted - got), 0.0)
        off = error > allowed
        if self.thresholds.signal_to_noise is not None:
            off &= False  # a ratio is of realistic signals
        if off.any():
            off &= error > allowed + self._measure_rounding(name, wanted)
        if not off.any():
            return plain
        place = int(np.argmax(off.reshape(-1)))
        one, other = wanted.reshape(-1)[place], got.reshape(-1)[place]
        problem = f"is {other:.9g} instead of {one:.9g}"
        return replace(
            plain,
            absolute=float(np.max(error[off])),
            relative=np.inf,
            problem=problem,
        )

    def _measure_rounding(self, name: str, wanted: Array) -> Array:
        """Return by how much rounding on the way moves each element: inputs moved by two units."""
        largest = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
        moved = np.zeros_like(wanted)
        for sign in (1, -1):
            inputs = {
                each: (value * np.asarray(1 + sign * _PERTURBATION, value.dtype)).astype(value.dtype)
                if "float" in str(getattr(value, "dtype", ""))
                else value
                for each, value in self.inputs.items()
            }
            with np.errstate(all="ignore"):
                other = np.asarray(self.plain(inputs)[name]).astype(np.float64)
            if other.shape == wanted.shape:
                moved = np.maximum(moved, np.nan_to_num(np.abs(other - wanted), posinf=np.inf))
        scale = max([largest, *(_find_largest(value) for value in self.inputs.values())])
        return np.minimum(_AMPLIFIED * moved, _MOST_ROUNDED * scale)

    def _find_allowance(self, error: OutputError) -> str:
        """Return the clause that allows an error, empty for none."""
        promises = self.promises
        if self.kind == "nan" and promises.nan == "any":
            return "nan: any"
        if error.problem.startswith("loses infinities") and promises.infinities == "any":
            return "infinities: any"
        if error.name in self.traits.keyed and promises.equal_keys == "any" and self._has_equal_keys:
            return "equal_keys: any"
        whole = "int" in error.dtype or error.dtype == "bool"
        if self.kind == "ends" and whole:
            return self._find_exceeded()
        return ""

    @property
    def _has_equal_keys(self) -> bool:
        """Whether an input has equal elements, which may be keys, in what the target computes in."""
        arrays = [np.asarray(value) for value in self.inputs.values()]
        keys = [each for each in arrays if each.dtype.kind in "iuf"]
        if self.promises.computes:
            kind = to_numpy_dtype(self.promises.computes)
            keys = [
                each.astype(kind).astype(np.float64) if each.dtype.kind == "f" else each for each in keys
            ]
        return any(len(np.unique(each)) < each.size for each in keys)

    def _find_exceeded(self) -> str:
        """Return the clause that whole numbers may leave on these inputs, empty for none.

        Ranges of the inputs decide, so that what stays inside for all values between them is exact.
        """
        measured = {name: measure_whole(value) for name, value in self.inputs.items()}
        given = {name: each for name, each in measured.items() if each is not None}
        index = self.traits.index
        found = (find_exceeded(index, contract, given) for contract in self.contracts)
        exceeded = next(filter(None, found), "")
        if exceeded == "overflow":
            return f"overflow: {self.promises.overflow}"
        return f"exact_below: {self.promises.exact_below}" if exceeded else ""


def find_scales(made: Values) -> dict[str, float]:
    """Return the ranges of the floats among some outputs."""
    found = {}
    for name, value in made.items():
        array = np.asarray(value)
        if str(array.dtype) in TOLERANCE and array.size:
            numbers = array.astype(np.float64)
            numbers = numbers[np.isfinite(numbers)]
            found[name] = float(np.ptp(numbers)) if numbers.size else 0.0
    return found


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _are_comparable(expected: Any, actual: Any) -> bool:
    """Return whether both are tensors of one type."""
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return False
    return (expected.shape, expected.dtype) == (actual.shape, actual.dtype)


def _show_first(wanted: Array, got: Array) -> str:
    """Describe the first element that differs."""
    place = int(np.argmax((wanted != got).reshape(-1)))
    return f"is {got.reshape(-1)[place]} instead of {wanted.reshape(-1)[place]}"


def _find_largest(value: Any) -> float:
    array = np.asarray(value)
    if "float" not in str(array.dtype):
        return 0.0
    numbers = array.astype(np.float64)
    return float(np.max(np.abs(numbers[np.isfinite(numbers)]), initial=0.0))
