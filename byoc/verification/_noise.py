"""Noise: how far two right results of a tensor may lie apart, measured where an error is not allowed.

Eight things make noise, each measured on the same inputs: the rounding of the tensor's last operators,
onnxruntime's optimizations, the order in which contractions add up, the rounding of activations that
MatMulNBits lets be, casts to short floats before that are one unit off, the rounding of quantized
activations to integers, quantized layers before that are one unit off, and, where none of the last two
can be measured, what a signal-to-noise ratio of 20 dB lets pass. Operators that compute in bfloat16,
which onnxruntime hardly has, make as much as is allowed for tensors of it.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import ModelProto

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.model import GraphIndex, inline_functions
from byoc.numerics import compute_cosine, compute_same_class_share, compute_signal_to_noise
from byoc.onnxrt import open_session, run_session, with_session_mode, without_optimizations
from byoc.samples import read_map_values
from byoc.verification._quantization_noise import (
    DEFAULT_THRESHOLDS,
    LEAST_SIGNAL_TO_NOISE,
    QUANTIZED_NETWORK_TOLERANCE,
    TOLERANCE,
    Thresholds,
    has_quantized_activations,
    make_exact_products,
    read_qdq_groups,
    run_float_twin,
)
from byoc.verification._rounding_noise import AccumulationNoise, RoundingNoise, expose_tensors
from byoc.verification._row_selection import SelectionRuns
from byoc.verification._tie_breaks import break_ties
from byoc.verification._unit_noise import (
    SHARE,
    Difference,
    OutputError,
    TieBreak,
    TieNoise,
    UnitNoise,
    find_computed_in,
    measure_difference,
    measure_shift,
)
from byoc.verification._verification_result import Accuracy

# Comparison of tensors: the largest error of each, and the accuracy that lower precision left.


def compare_tensors(
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    quantized: Collection[str] = frozenset(),
) -> Iterable[OutputError]:
    """Yield the error of each expected output; a sequence is compared element by element.

    Maps must have the same keys, in a sequence of maps each; their values are compared as one tensor.
    Integers must be equal, except in the outputs named in `quantized`.
    """
    for name, value in expected.items():
        got = actual.get(name)
        if value is None and name in actual:  # an optional that holds nothing
            nothing = OutputError(name, "optional", 0.0, 0.0, 0.0)
            yield nothing if got is None else _incomparable(name, "optional", "is not empty")
        elif got is None:
            dtype = "sequence" if isinstance(value, list) else str(np.asarray(value).dtype)
            allowed = thresholds.relative.get(dtype, 0.0)
            yield _incomparable(name, dtype, "is empty" if name in actual else "is missing", allowed)
        elif _list_maps(value):
            yield _map_error(name, _list_maps(value), _list_maps(got), thresholds)
        elif isinstance(value, list) and isinstance(got, list) and len(value) == len(got):
            for i, (one, other) in enumerate(zip(value, got, strict=True)):
                yield _tensor_error(f"{name}[{i}]", one, other, thresholds, name in quantized)
        elif isinstance(value, list) or isinstance(got, list):
            yield _incomparable(name, "sequence", "is a sequence of another length, or none")
        else:
            yield _tensor_error(name, value, got, thresholds, name in quantized)


def _tensor_error(
    name: str, expected: Any, actual: Any, thresholds: Thresholds, quantized: bool
) -> OutputError:
    """Compute the error of one tensor."""
    wanted, got = _as_array(expected), _as_array(actual)
    dtype = str(wanted.dtype)
    tolerance, measure = thresholds.limit_for(dtype, quantized)
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        found, expects = (f"{a.dtype}{list(a.shape)}" for a in (got, wanted))
        return _incomparable(name, dtype, f"is {found} instead of {expects}", tolerance)
    if dtype not in TOLERANCE and measure != "units":
        if not _arrays_equal(wanted, got):
            return _incomparable(
                name, dtype, f"is not equal, as {dtype} must be", share=_differing_share(wanted, got)
            )
        return OutputError(name, dtype, 0.0, 0.0, tolerance, differing=0.0)
    share = _differing_share(wanted, got)
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], got[~finite], equal_nan=True) or not np.all(
        np.isfinite(got[finite])
    ):
        return _incomparable(name, dtype, "has NaN or infinity in other places", tolerance, share)
    values, found = wanted[finite], got[finite]
    absolute = float(np.max(np.abs(values - found), initial=0.0))
    span = float(np.ptp(values)) if values.size else 0.0
    scale = thresholds.error_scale(dtype, span, float(np.max(np.abs(values), initial=0.0)))
    ratio, cosine = compute_signal_to_noise(values, found), compute_cosine(values, found)
    return OutputError(
        name, dtype, absolute, absolute / scale, tolerance, "", measure, ratio, cosine, share
    )


def _list_maps(value: Any) -> list[dict[Any, Any]]:
    """Return a map, or those of a sequence of maps, empty for any other value."""
    maps = value if isinstance(value, list) else [value]
    return maps if all(isinstance(each, dict) for each in maps) else []


def _map_error(
    name: str, expected: list[dict[Any, Any]], actual: list[dict[Any, Any]], thresholds: Thresholds
) -> OutputError:
    """Compute the error of the values of maps, of all maps together."""
    values = read_map_values(expected)
    if [sorted(each) for each in expected] != [sorted(each) for each in actual]:
        dtype = str(values.dtype)
        return _incomparable(name, dtype, "has other keys", thresholds.relative.get(dtype, 0.0))
    ordered = [{key: other[key] for key in each} for each, other in zip(expected, actual, strict=True)]
    return _tensor_error(name, values, read_map_values(ordered).astype(values.dtype), thresholds, False)


def _differing_share(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    """Return the share of elements that are not equal; NaN equals NaN."""
    if not wanted.size:
        return 0.0
    same = wanted == got
    if wanted.dtype.kind != "O":
        same |= (wanted != wanted) & (got != got)  # noqa: PLR0124 - NaN, of ml_dtypes' too
    return float(np.mean(~np.asarray(same, bool)))


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array; strings as objects, since numpy's string types have a fixed length."""
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array


def _arrays_equal(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays are the same; NaN, which float8 and complex have too, equals NaN."""
    if wanted.dtype.name.startswith("float"):  # numpy does not know ml_dtypes' to be floats
        wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    return np.array_equal(wanted, got, equal_nan=wanted.dtype.kind in "fc")


def _incomparable(
    name: str, dtype: str, problem: str, tolerance: float = 0.0, share: float | None = None
) -> OutputError:
    return OutputError(name, dtype, np.inf, np.inf, tolerance, problem, differing=share)


def measure_accuracy(original: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterable[Accuracy]:
    """Yield the accuracy of each output that is an array of floats."""
    for name, value in original.items():
        got = actual.get(name)
        if (
            isinstance(value, np.ndarray)
            and isinstance(got, np.ndarray)
            and str(value.dtype) in TOLERANCE
        ):
            yield Accuracy(
                name, compute_signal_to_noise(value, got), compute_same_class_share(value, got)
            )


Values = Mapping[str, Any]
Array = NDArray[Any]

_NOISE_SIDES = 2.0  # onnxruntime is off by its noise to one side, the bundle to the other
ROUNDING = "rounding in the last operators"
_OPTIMIZATIONS = "onnxruntime's optimizations"
_ACCUMULATION = "the order in which contractions add up"
_ACTIVATIONS = "rounding the activations to integers"
_PRODUCTS = "rounding the activations of products, as accuracy_level lets them be"
_UNITS = "the layers before, one unit off"
_ANY_UNITS = "the layers before, up to half of their results one unit off"
_CASTS = "the casts before, one unit off"
_SHORT = "bfloat16"
_COMPUTED = f"computing in {_SHORT}"
_RATIO = f"a signal-to-noise ratio of {LEAST_SIGNAL_TO_NOISE:g} dB"


@dataclass(frozen=True, eq=False)
class NoiseGauge:
    """Measures the noise of tensors of a model for given inputs.

    Each run that this takes is made when it is first needed. `folder` holds the external data of the
    model, and `expected` what plain onnxruntime computes without optimizations. Where `exposed`, the
    tensors are not outputs of the model. `share` of each layer's results may be a unit off.
    """

    model: ModelProto
    folder: Path | None
    inputs: Values
    expected: Values
    exposed: tuple[str, ...] = ()
    share: float = SHARE

    @cached_property
    def quantized(self) -> bool:
        """Whether activations of the model are quantized."""
        return has_quantized_activations(self._flat)

    def compare(
        self, actual: Values, thresholds: Thresholds, quantized: Collection[str] = frozenset()
    ) -> tuple[OutputError, ...]:
        """Return the errors of a bundle's outputs, with the ties and the noise of those that are off.

        `quantized` names the outputs that are quantized integers.
        """
        errors = tuple(compare_tensors(self.expected, actual, thresholds, quantized))
        if all(error.within for error in errors):
            return errors
        tied = self._break_ties(actual, errors, thresholds, quantized)
        if tied:
            expected = {**self.expected, **{name: value for name, (value, _) in tied.items()}}
            errors = tuple(
                replace(error, tie_break=tied[error.name][1]) if error.name in tied else error
                for error in compare_tensors(expected, actual, thresholds, quantized)
            )
        return self.allow(errors, actual, thresholds, tied)

    def _break_ties(
        self,
        actual: Values,
        errors: Iterable[OutputError],
        thresholds: Thresholds,
        quantized: Collection[str] = frozenset(),
    ) -> dict[str, tuple[Any, TieBreak]]:
        """Return the outputs that change if ties are broken as in `actual`, with their ties."""
        wrong = [error.name for error in errors if not error.within]
        return {
            name: (value, found.tie_break)
            for found in break_ties(
                self._selection_runs, self.expected, actual, wrong, thresholds, quantized
            )
            for name, value in found.values.items()
        }

    def allow(
        self,
        errors: Iterable[OutputError],
        actual: Values,
        thresholds: Thresholds,
        tied: Mapping[str, tuple[Any, TieBreak]] = MappingProxyType({}),
    ) -> tuple[OutputError, ...]:
        """Return the errors; those beyond their tolerance have the noise of their tensor as well.

        Thresholds that the user set hold as they are. Outputs in `tied` were compared with the value
        there.
        """
        return tuple(
            replace(error, **self._measure(error, actual, thresholds, tied))
            if error.is_measurable
            and not error.within
            and error.name in self.expected
            and not thresholds.is_asked(error.dtype, error.measure)
            else error
            for error in errors
        )

    def _measure(
        self,
        error: OutputError,
        actual: Values,
        thresholds: Thresholds,
        tied: Mapping[str, tuple[Any, TieBreak]],
    ) -> dict[str, Any]:
        """Return the noise of a tensor, and what makes it."""
        expected = np.asarray(self.expected[error.name])
        most = self._find_most(error.name, thresholds)
        found = {ROUNDING: self._rounding.measure(error.name) if error.measure != "units" else 0.0}
        if not self.quantized:
            spread = self._measure_spread(error.name, self._optimized, thresholds)
            found[_OPTIMIZATIONS] = min(_NOISE_SIDES * spread.largest, most)
            if error.absolute > max(found.values()):
                found[_ACCUMULATION] = min(
                    self._measure_accumulation(error.name, actual, thresholds), most
                )
            if error.absolute > max(found.values()):
                found[_PRODUCTS] = min(self._measure_products(error.name, actual), most)
            if error.absolute > max(found.values()):
                found[_CASTS] = self._measure_casts(error.name, actual)
            if error.absolute > max(found.values()) and error.name in self._computed_short:
                found[_COMPUTED] = most * thresholds.relative[_SHORT] / QUANTIZED_NETWORK_TOLERANCE
        else:
            spreads = self.measure_quantized(error.name, thresholds)
            if _ACTIVATIONS not in spreads:
                power = float(np.mean(expected.astype(np.float64) ** 2)) if expected.size else 0.0
                spreads[_RATIO] = Difference(most, power * 10 ** (-LEAST_SIGNAL_TO_NOISE / 10))
            compared = tied[error.name][0] if error.name in tied else expected
            actual_error = measure_difference(compared, actual.get(error.name))
            for name, allowed in spreads.items():
                found[name] = allowed.largest if actual_error.power <= allowed.power else 0.0
            if error.measure == "units" and error.absolute > max(found.values()):
                largest = self._measure_units(compared, actual.get(error.name), error.name, thresholds)
                source = _UNITS if self.share == SHARE else _ANY_UNITS
                found[source] = min(largest, max(most, thresholds.units))
        source = max(found, key=lambda name: found[name])
        return {"noise": found[source], "noise_source": source if found[source] else ""}

    def measure_runtime(self, name: str, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Difference:
        """Return by how much right results lie apart by how onnxruntime evaluates the last operator.

        That is twice its distance from the exact result, and no more than 6e-2 of the range; 0 where it
        is not known.
        """
        distance = _NOISE_SIDES * self._rounding.measure_runtime(name)
        largest = min(distance, self._find_most(name, thresholds)) if distance else 0.0
        return Difference(largest, largest**2)

    def measure_quantized(
        self, name: str, thresholds: Thresholds = DEFAULT_THRESHOLDS
    ) -> dict[str, Difference]:
        """Return by how much right results of an output of a quantized network lie apart, by source.

        An error is explained by one of them if neither its largest nor its mean square is above that
        one's. No largest is above 6e-2 of the range. Empty where no activations are quantized.
        """
        if not self.quantized:
            return {}
        found = {_OPTIMIZATIONS: self._measure_spread(name, self._optimized, thresholds)}
        if name in self._float_twin:
            found[_ACTIVATIONS] = measure_difference(self.expected[name], self._float_twin[name])
        most = self._find_most(name, thresholds)
        return {source: replace(each, largest=min(each.largest, most)) for source, each in found.items()}

    def measure_ties(self, name: str) -> Difference:
        """Return by how much right results of an output lie apart by values in the middle of integers.

        Each is rounded up in one and down in the other where it is within a thousandth of a unit of the
        middle, in all layers. No largest is above 6e-2 of the range, and the least step of the output.
        """
        return self._ties.measure(self.expected[name], name, self._find_most(name, DEFAULT_THRESHOLDS))

    def run_float_twin(self) -> Values:
        """Return the outputs with activations in floating point, empty where that cannot be run."""
        return self._float_twin

    def run_optimized(self) -> Values:
        """Return the outputs with onnxruntime's optimizations, empty where it does not run so."""
        return self._optimized

    def run_right_executions(self) -> tuple[Values, ...]:
        """Return the outputs of other right executions of a quantized network.

        They are onnxruntime's with optimizations, and with an eighth of each layer's results moved by
        one unit, or a larger `share` of them.
        """
        return tuple(filter(None, (self._optimized, *self._unit_noise.runs)))

    def _measure_units(self, wanted: Any, got: Any, name: str, thresholds: Thresholds) -> float:
        """Return by how much integers move where layers before, and the last one, are a unit off.

        It is 0 where the error is none of that: its mean square, or the mean of a channel, is larger.
        """
        runs = [run.get(name) for run in self._unit_noise.runs]
        moved = [measure_difference(self.expected[name], run) for run in runs]
        largest = max((each.largest for each in moved), default=0.0)
        power = self.share * thresholds.units**2 + max((each.power for each in moved), default=0.0)
        shifts = (measure_shift(self.expected[name], run) for run in runs)
        shift = SHARE * thresholds.units + _NOISE_SIDES * max(shifts, default=0.0)
        if not largest or measure_difference(wanted, got).power > power:
            return 0.0
        return thresholds.units + _NOISE_SIDES * largest if measure_shift(wanted, got) <= shift else 0.0

    def _measure_spread(self, name: str, values: Values, thresholds: Thresholds) -> Difference:
        """Return by how much other right values are off, differences of tied rows left aside."""
        errors = tuple(compare_tensors({name: self.expected[name]}, values, thresholds))
        tied = self._break_ties(values, errors, thresholds)
        expected = tied[name][0] if name in tied else self.expected[name]
        return measure_difference(expected, values.get(name))

    def _measure_accumulation(self, name: str, actual: Values, thresholds: Thresholds) -> float:
        """Return twice the distance of contractions that add up otherwise.

        It is 0 where the mean square of the error is more than that of twice the distance: a sum that
        falls on the other side of a cast's half is a unit off, and not every element is.
        """
        spreads = [self._measure_spread(name, run, thresholds) for run in self._accumulation.runs]
        power = max((each.power for each in spreads), default=0.0)
        error = self._measure_spread(name, actual, thresholds)
        is_explained = error.power <= _NOISE_SIDES**2 * power
        return _NOISE_SIDES * max((each.largest for each in spreads), default=0.0) * is_explained

    def _measure_products(self, name: str, actual: Values) -> float:
        """Return twice the distance of products that do not round their activations.

        It is 0 where the mean square of the error is more than that of twice the distance.
        """
        exact = measure_difference(self.expected[name], self._exact_products.get(name))
        error = measure_difference(self.expected[name], actual.get(name))
        is_explained = error.power <= _NOISE_SIDES**2 * exact.power
        return _NOISE_SIDES * exact.largest if is_explained else 0.0

    def _measure_casts(self, name: str, actual: Values) -> float:
        """Return by how much a tensor moves where casts to short floats are a unit off in few elements.

        It is 0 where the mean square of the error is larger: then casts were left out, or more is wrong.
        A unit of float8 is an eighth of its number.
        """
        moved = [measure_difference(self.expected[name], run.get(name)) for run in self._cast_noise.runs]
        power = max((each.power for each in moved), default=0.0)
        is_explained = measure_difference(self.expected[name], actual.get(name)).power <= power
        return _NOISE_SIDES * max((each.largest for each in moved), default=0.0) if is_explained else 0.0

    def _find_most(self, name: str, thresholds: Thresholds) -> float:
        """Return the largest error that noise explains: 6e-2 of the range of the expected values."""
        expected = np.asarray(self.expected[name])
        values = expected.astype(np.float64)
        values = values[np.isfinite(values)]
        span = float(np.ptp(values)) if values.size else 0.0
        magnitude = float(np.max(np.abs(values), initial=0.0))
        scale = thresholds.error_scale(str(expected.dtype), span, magnitude)
        return QUANTIZED_NETWORK_TOLERANCE * scale

    @cached_property
    def _flat(self) -> ModelProto:
        """The model without functions, its tensors exposed."""
        flat = inline_functions(self.model)
        return expose_tensors(flat, self.exposed) if self.exposed else flat

    @cached_property
    def _selection_runs(self) -> SelectionRuns:
        return SelectionRuns(self._flat, self.folder, self.inputs)

    @cached_property
    def _rounding(self) -> RoundingNoise:
        return RoundingNoise(self._flat, self.folder, self.inputs)

    @cached_property
    def _accumulation(self) -> AccumulationNoise:
        return AccumulationNoise(self._flat, self.folder, self.inputs)

    @cached_property
    def _unit_noise(self) -> UnitNoise:
        """The noise of the layers; those that are operators of integers are read as QDQ groups."""
        try:
            groups = read_qdq_groups(self._flat, self.folder)
        except InputError:
            groups = None
        return UnitNoise(groups or self._flat, self.folder, self.inputs, share=self.share)

    @cached_property
    def _ties(self) -> TieNoise:
        try:
            groups = read_qdq_groups(self._flat, self.folder)
        except InputError:
            groups = None
        return TieNoise(groups or self._flat, self.folder, self.inputs)

    @cached_property
    def _computed_short(self) -> set[str]:
        return find_computed_in(GraphIndex(self._flat, {}), _SHORT)

    @cached_property
    def _cast_noise(self) -> UnitNoise:
        return UnitNoise(self._flat, self.folder, self.inputs, casts=True)

    @cached_property
    def _optimized(self) -> Values:
        """The outputs with onnxruntime's optimizations, empty where it does not run so."""
        try:
            model = self._flat if self.exposed else self.model
            with with_session_mode("fast"):
                return run_session(open_session(model, self.folder), self.inputs)
        except (InputError, EncodeError, ValueError):
            return {}

    @cached_property
    def _exact_products(self) -> Values:
        """The outputs of a model whose MatMulNBits do not round activations, empty without such."""
        try:
            exact = make_exact_products(self._flat)
            if exact is None:
                return {}
            with without_optimizations():
                return run_session(open_session(exact, self.folder), self.inputs)
        except (InputError, EncodeError, ValueError):
            return {}

    @cached_property
    def _float_twin(self) -> Values:
        """The outputs with activations in floating point, empty where that cannot be run."""
        try:
            return run_float_twin(self._flat, self.folder, self.inputs)
        except (InputError, EncodeError, ValueError):
            return {}
