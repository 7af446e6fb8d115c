"""Functions of single operators compared with the operator's definition, on samples that reach far.

A compiled function is run elsewhere. A trial has the inputs that it is asked with, and judges what it
made of them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from onnx import ModelProto

from byoc.codegen import Executor
from byoc.errors import InputError
from byoc.model import RANDOM_OPERATORS, prepare_model
from byoc.rules import ArithmeticContract
from byoc.samples import find_domains, sample_inputs
from byoc.verification._noise import compare_tensors
from byoc.verification._quantization_noise import TOLERANCE, Thresholds
from byoc.verification._region_cutter import PlainModel, open_plain, open_reference
from byoc.verification._special_check import SpecialRun, find_scales
from byoc.verification._special_samples import SpecialTraits, make_special_samples
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import SPECIAL_NAMES, SpecialKind

Values = Mapping[str, Any]
_SEEDS = (0, 1, 2)
_DEFINITION = ArithmeticContract()  # without a clause: what ONNX defines
# A function adds in another order than onnxruntime: as for whole programs, 1e-5 of the range in float32.
_THRESHOLDS = Thresholds(relative={**TOLERANCE, "float32": 1e-5, "float64": 1e-9})
_ROUNDED = frozenset(
    {"QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QLinearAveragePool", "QLinearConcat"}
)
"""Operators whose integers are rounded floats, in which right results may be a unit apart."""


@dataclass(frozen=True, eq=False)
class FunctionTrial:
    """The trial of a function that computes a model of one operator.

    `samples` are inputs by name with the kind of their values: realistic ones first, of which the kind is
    None, then special values as regions are asked with.
    """

    model: ModelProto
    plain: PlainModel
    traits: SpecialTraits
    samples: tuple[tuple[SpecialKind | None, Values], ...]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the model and all its samples."""
        found = hashlib.sha256(self.model.SerializeToString(deterministic=True))
        for _, inputs in self.samples:
            for name, value in inputs.items():
                array = np.ascontiguousarray(value)
                found.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        return found.hexdigest()

    def judge(self, made: Sequence[Values]) -> str:
        """Return what is wrong with what a function made of the samples, empty if nothing is.

        onnxruntime is asked first. Where it differs, `onnx.reference` decides if it has the operator:
        a library alone is no definition.
        """
        problem = self._judge_by(self.plain.run, made)
        if not problem or self.plain.judge:
            return problem
        try:
            return self._judge_by(open_reference(self.model).run, made)
        except InputError:
            return problem

    def _judge_by(self, run: Executor, made: Sequence[Values]) -> str:
        for (kind, inputs), actual in zip(self.samples, made, strict=True):
            try:
                with np.errstate(all="ignore"):
                    expected = run(inputs)
            except InputError:
                if kind is None:
                    raise
                continue  # the judge does not run on them, so nothing is defined
            for error in self._compare(kind, inputs, run, expected, actual):
                if not error.within:
                    where = "realistic values" if kind is None else SPECIAL_NAMES[kind]
                    what = error.problem or f"is off by {error.relative:.3g} of the range"
                    return f"on {where} its result {what}"
        return ""

    def _compare(
        self, kind: SpecialKind | None, inputs: Values, run: Executor, expected: Values, actual: Values
    ) -> Iterable[OutputError]:
        if kind is None or (kind == "ends" and not self.traits.is_flat):
            finite = kind is None or all(np.isfinite(_widen(each)).all() for each in expected.values())
            return compare_tensors(expected, actual, _THRESHOLDS, self._rounded) if finite else ()
        judged = SpecialRun(
            *(kind, self.traits, run, inputs, _DEFINITION.loosest(self.traits.promised_for)),
            *(_THRESHOLDS, self._rounded, find_scales(expected), (_DEFINITION,)),
        )
        return judged.compare(expected, actual)[0]

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
        return (float(np.min(value)), float(np.max(value))) if domain is None else domain

    failed = InputError(f"{name}: there are no inputs")
    for seed in _SEEDS:
        try:
            base = sample_inputs(index, seed)
            plain.run(base)
        except InputError as error:
            failed = error
            continue
        promises = _DEFINITION.loosest(traits.promised_for)
        special = make_special_samples(traits, base, promises, find_ends, _DEFINITION)
        return FunctionTrial(
            model, plain, traits, ((None, base), *((each.kind, each.inputs) for each in special))
        )
    raise failed


def _widen(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind in "fiub" or "float" in str(array.dtype) else 0
