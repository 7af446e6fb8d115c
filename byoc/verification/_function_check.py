"""Functions of single operators compared with the operator's definition, on samples that reach far.

A compiled function is run elsewhere. A trial has the inputs that it is asked with, and judges what it
made of them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto

from byoc._dataclasses import dataclass, replace
from byoc.codegen import Executor
from byoc.errors import InputError
from byoc.model import RANDOM_OPERATORS, GraphIndex, prepare_model
from byoc.rules import ArithmeticContract
from byoc.samples import find_domains, sample_inputs
from byoc.verification._noise import compare_tensors
from byoc.verification._quantization_noise import DEFAULT_THRESHOLDS
from byoc.verification._region_cutter import PlainModel, open_plain, open_reference
from byoc.verification._special_check import SpecialRun, find_scales
from byoc.verification._special_samples import make_special_samples
from byoc.verification._special_traits import SpecialTraits
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import SPECIAL_NAMES, SpecialKind

Values = Mapping[str, Any]
_SEEDS = (0, 1, 2)
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_FEW_STEPS = 32  # of a recurrence, in which roundings stay small whatever its weights
_DEFINITION = ArithmeticContract()  # without a clause: what ONNX defines
_ROUNDED = frozenset(
    {"QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QLinearAveragePool", "QLinearConcat"}
)
"""Operators whose integers are rounded floats, in which right results may be a unit apart."""


@dataclass(frozen=True, eq=False)
class TrialSample:
    """Inputs by name, the kind of their values, None for realistic ones, and what they should give."""

    kind: SpecialKind | None
    inputs: Values
    expected: Values


class FunctionVerdict(NamedTuple):
    """The first error in a function's results, empty if there is none.

    `is_overruled` says that they are right by ONNX's definition, and that onnxruntime computes others
    of ordinary values.
    """

    problem: str
    is_overruled: bool = False


@dataclass(frozen=True, eq=False)
class FunctionTrial:
    """The trial of a function that computes a model of one operator.

    Samples are realistic ones first, then special values as regions are asked with: those on which
    the judge runs the model, and makes results of the extents that the model states.
    """

    model: ModelProto
    plain: PlainModel
    traits: SpecialTraits
    samples: tuple[TrialSample, ...]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the model and all its samples."""
        found = hashlib.sha256(self.model.SerializeToString(deterministic=True))
        for sample in self.samples:
            for name, value in sample.inputs.items():
                array = np.ascontiguousarray(value)
                found.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        return found.hexdigest()

    def judge(self, made: Sequence[Values]) -> FunctionVerdict:
        """Return the first error in a function's results for the samples, and who found them right.

        onnxruntime is asked first. Where it differs, `onnx.reference` decides if it has the operator:
        a library alone is no definition.
        """
        reference: PlainModel | None = None
        is_overruled = False
        for sample, actual in zip(self.samples, made, strict=True):
            problem = self._compare(sample, self.plain.run, actual)
            if problem and not self.plain.judge:
                try:
                    reference = reference or open_reference(self.model)
                    expected = _run(reference.run, sample.inputs)
                    problem = self._compare(replace(sample, expected=expected), reference.run, actual)
                    is_overruled |= sample.kind is None
                except InputError:
                    pass
            if problem:
                where = "realistic values" if sample.kind is None else SPECIAL_NAMES[sample.kind]
                return FunctionVerdict(f"on {where} its result {problem}")
        return FunctionVerdict("", is_overruled)

    def _compare(self, sample: TrialSample, run: Executor, actual: Values) -> str:
        """Return the error of a result, empty if there is none."""
        expected = sample.expected
        is_sum = sample.kind == "ends" and not self.traits.is_flat
        if sample.kind is None or is_sum:
            finite = all(np.isfinite(_widen(each)).all() for each in expected.values())
            plain = [
                each
                for each in compare_tensors(expected, actual, DEFAULT_THRESHOLDS, self._rounded)
                if not each.within
            ]
            if not plain or (is_sum and not finite):
                return ""
            if sample.kind is None:
                return _describe_error(plain[0])
        assert sample.kind is not None
        judged = SpecialRun(
            sample.kind,
            self.traits,
            run,
            sample.inputs,
            *(_DEFINITION.loosest(self.traits.promised_for), DEFAULT_THRESHOLDS, self._rounded),
            find_scales(expected),
            (_DEFINITION,),
        )
        wrong = [each for each in judged.compare(expected, actual)[0] if not each.within]
        return _describe_error(wrong[0]) if wrong else ""

    @property
    def _rounded(self) -> frozenset[str]:
        found = [node for node in self.model.graph.node if node.op_type in _ROUNDED]
        return frozenset(name for node in found for name in node.output)


def make_function_trial(model: ModelProto, name: str) -> FunctionTrial:
    """Make the trial of a model of one operator with known types, whose constants are in it.

    Raises InputError where neither onnxruntime nor `onnx.reference` runs it on inputs made for it, and
    where it draws random numbers: then nothing can be proven.
    """
    index = prepare_model(model, name).index
    if any(node.op_type in RANDOM_OPERATORS and node.op_type != "Dropout" for node in index.nodes):
        raise InputError(f"{name}: it draws random numbers")
    plain = open_plain(model, None, lambda: model)
    traits, domains = SpecialTraits(index), find_domains(index)

    def find_ends(name: str, value: Any) -> tuple[float, float]:
        domain = domains.get(name, (-inf, inf))
        if domain is None:
            return (float(np.min(value)), float(np.max(value))) if np.size(value) else (0.0, 0.0)
        return domain

    failed = InputError(f"{name}: there are no inputs")
    for seed in _SEEDS:
        try:
            drawn = sample_inputs(index, seed)
            calm = _calm_recurrence(index, drawn)
            base = {**drawn, **calm}
            first = TrialSample(None, base, _run_as_stated(index, plain.run, base))
        except InputError as error:
            failed = error
            continue
        promises = _DEFINITION.loosest(traits.promised_for)
        found = [first]
        for each in make_special_samples(traits, base, promises, find_ends, _DEFINITION):
            if _is_left_open(index, each.kind):
                continue
            given = _keep_calm(calm, each.inputs)
            try:
                expected = _run_as_stated(index, plain.run, given)
            except InputError:
                continue  # the judge does not run on them, so nothing is defined
            found.append(TrialSample(each.kind, given, expected))
        return FunctionTrial(model, plain, traits, tuple(found))
    raise failed


def _calm_recurrence(index: GraphIndex, drawn: Values) -> Values:
    """Return the weights of long recurrences among inputs, as small as trained ones are.

    Of weights with a variance of 1 a recurrence is chaotic: two right functions, which round apart, give
    unrelated results after a hundred steps. A matrix of n columns has a spectral radius near sqrt(n)
    times its deviation (Girko's circular law), here one half.
    """
    calm = {}
    for node in index.nodes:
        read = index.types.get(node.input[0]) if node.op_type in _RECURRENT else None
        # By layout the first or the second extent is the number of steps.
        if read is None or all(isinstance(n, int) and n <= _FEW_STEPS for n in (read.shape or ())[:2]):
            continue
        for name in node.input[1:3]:
            if name in drawn:
                array = np.asarray(drawn[name])
                calm[name] = (array * (0.5 / max(1, array.shape[-1]) ** 0.5)).astype(array.dtype)
    return calm


def _keep_calm(calm: Values, special: Values) -> Values:
    """Return special inputs in which finite numbers among calm weights are the calm ones."""
    kept = dict(special)
    for name, small in calm.items():
        array = np.asarray(special[name])
        kept[name] = np.asarray(np.where(np.isfinite(array), small, array), array.dtype)
    return kept


def _is_left_open(index: GraphIndex, kind: SpecialKind) -> bool:
    """Return whether ONNX, or what its judges make of it, leaves open what an operator gives.

    The bound of a Clip that is left out is the limit of the type, or none; what is too large for an
    integer when it was raised to a power of floats is not said.
    """
    for node in index.nodes:
        whole = "int" in (index.get_dtype(node.output[0]) or "")
        if node.op_type == "Clip" and kind == "infinities":
            return True
        if node.op_type == "Pow" and whole and "float" in (index.get_dtype(node.input[1]) or ""):
            return True
    return False


def _run_as_stated(index: GraphIndex, run: Executor, inputs: Values) -> Values:
    """Run a judge on inputs. Raises InputError for results of other extents than stated."""
    made = _run(run, inputs)
    for name, value in made.items():
        kind = index.types.get(name)
        if kind is not None and tuple(np.shape(value)) != kind.shape:
            raise InputError(f"'{name}' is {kind}, but has the extents {list(np.shape(value))}")
    return made


def _run(run: Executor, inputs: Values) -> Values:
    with np.errstate(all="ignore"):
        return {name: np.asarray(value) for name, value in run(inputs).items()}


def _describe_error(error: OutputError) -> str:
    return error.problem or f"is off by {error.relative:.3g} of the range"


def _widen(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind in "fiub" or "float" in str(array.dtype) else 0
