"""Verification of a bundle: the model on plain onnxruntime against the bundle on its executors."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import onnx

from byoc.bundle import Bundle
from byoc.errors import InputError, shorten_text
from byoc.model import Model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.runtime import Session, describe_mismatch, load_bundle, load_executors
from byoc.samples import model_samples
from byoc.verification._region_verification import (
    NotVerifiableError,
    RecordedRuns,
    compare_boundary,
    compare_regions,
    find_quantized_tensors,
    record_reference_runs,
)
from byoc.verification._tensor_comparison import Verification, compare_tensors, measure_accuracy
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds

_MOST_SHOWN = 80


@dataclass(frozen=True, eq=False)
class VerificationModels:
    """The model that a bundle is compared with; the fields are the arguments of `verify_bundle`."""

    model: Model
    original: Model | None = None
    computed: str = ""


@dataclass(frozen=True)
class NotVerified:
    """The reason why there was no verification; `missing` says that one was to be made."""

    reason: str
    missing: bool = False


def verify_bundle(  # noqa: PLR0913, PLR0917 - each has a default
    bundle: Bundle,
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    original: Model | None = None,
    computed: str = "",
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = False,
) -> Verification:
    """Compare the outputs of a bundle with those of the model that it was made from.

    `computed` is the dtype of the computation if it is lower than the outputs' dtype, such as float16;
    the tolerance is then that of this dtype. `original` is a model of higher precision that `model` was
    made from: the accuracy compared with it is reported, without a limit. All run on the same inputs,
    seeded ones by default. The tolerance for outputs of a quantized model is larger, since single steps
    of integers, each correct, add up through a network. With `regions`, every boundary tensor and each
    region alone are compared, too. onnxruntime runs without optimizations, since these change results.
    Raise MissingRuntimeError, NotVerifiableError if the model does not run, and InputError if the bundle
    does not, or has other inputs.
    """
    thresholds = thresholds.for_computation_in(computed)
    integers = find_quantized_tensors(model.proto)
    whole = thresholds.for_quantized_network() if integers else thresholds
    given = make_inputs(model) if inputs is None else inputs
    with _errors_as(NotVerifiableError, model.source):
        expected = run_plain(model.proto, model, given)
        precise = {} if original is None else run_plain(original.proto, original, given)
    recorded = {region.name: RecordedRuns() for region in bundle.manifest.regions} if regions else {}
    with _errors_as(InputError, "the bundle does not run"), without_optimizations():
        runs = load_executors(bundle)
        recording = {name: runs_of.record(runs[name]) for name, runs_of in recorded.items()}
        session = load_bundle(bundle, {**runs, **recording})
    _check_inputs(model, given, session)
    with _errors_as(InputError, "the bundle does not run"):
        actual = session(given)
    verification = Verification(
        model.source,
        tuple(compare_tensors(expected, actual, whole, integers)),
        "" if original is None else original.source,
        tuple(measure_accuracy(precise, actual)),
    )
    if not regions:
        return verification
    try:
        plain = record_reference_runs(bundle, given)
    except NotVerifiableError as error:
        return replace(verification, not_compared=str(error))
    return replace(
        verification,
        boundary=compare_boundary(bundle, plain, recorded, thresholds),
        regions=compare_regions(bundle, runs, plain, thresholds),
    )


@contextmanager
def _errors_as(kind: type[InputError], prefix: str) -> Iterator[None]:
    """Raise an InputError again as `kind`, with a prefix."""
    try:
        yield
    except InputError as error:
        raise kind(f"{prefix}: {error}") from error


def make_inputs(model: Model, seed: int = 0) -> Mapping[str, Any]:
    """Return inputs of a model that depend on the seed only. Raise NotVerifiableError."""
    with _errors_as(NotVerifiableError, model.source):
        return model_samples(model, seed)


def run_plain(proto: onnx.ModelProto, model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model, given or derived from it, on plain onnxruntime without optimizations."""
    with without_optimizations():
        session = open_session(proto, model.folder)
    return run_session(session, inputs)


def _check_inputs(model: Model, given: Mapping[str, Any], session: Session) -> None:
    """Raise InputError if the inputs of a bundle differ from those given to the model."""
    optional = session.program.constants
    wanted = [name for name in session.inputs if name in given or name not in optional]
    if set(wanted) != set(given):
        raise InputError(
            f"{model.source} has {_format_inputs(given)}, the bundle {_format_inputs(wanted, '')}"
        )
    for name, kind in session.types.items():
        found = describe_mismatch(given[name], kind) if name in given else ""
        if found:
            raise InputError(f"{model.source} has input '{name}' as {found}, the bundle as {kind}")


def _format_inputs(names: Collection[str], prefix: str = "input ") -> str:
    return prefix + shorten_text(", ".join(names), _MOST_SHOWN) if names else "no input"
