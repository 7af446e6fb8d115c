"""Verification of a bundle: the model on plain onnxruntime against the bundle on its executors."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from byoc.bundle import Bundle
from byoc.codegen import Executor
from byoc.errors import InputError, shorten_text
from byoc.model import Model, get_stated_types, read_tensor_types
from byoc.onnxrt import without_optimizations
from byoc.runtime import (
    Session,
    collect_contradictions,
    describe_mismatch,
    load_bundle,
    load_executors,
)
from byoc.samples import model_samples, sample_inputs
from byoc.verification._noise import NoiseGauge
from byoc.verification._plain_models import PlainModel, open_original
from byoc.verification._quantized_tensors import find_quantized_tensors
from byoc.verification._reaching import compare_alone, vary_inputs
from byoc.verification._region_verification import (
    NotVerifiableError,
    RecordedRuns,
    compare_boundary,
    compare_recorded,
    record_reference_runs,
    worst_errors,
)
from byoc.verification._tensor_comparison import compare_tensors, measure_accuracy
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._verification_result import Accuracy, OutputError, RegionError, Verification

_MOST_SHOWN = 80

Values = Mapping[str, Any]


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
    boundary: bool = False,
) -> Verification:
    """Compare the outputs of a bundle with those of the model that it was made from, on one sample.

    The sample is seeded unless `inputs` are given. Everything else is as in `verify_on_samples`.
    """
    models = VerificationModels(model, original, computed)
    samples = (("", inputs),)
    return verify_on_samples(bundle, models, samples, thresholds, regions, boundary)


def verify_on_samples(  # noqa: PLR0913, PLR0917 - each has a default
    bundle: Bundle,
    models: VerificationModels,
    samples: Sequence[tuple[str, Values | None]] = (("", None),),
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = False,
    boundary: bool = False,
) -> Verification:
    """Compare the outputs of a bundle with those of the model that it was made from.

    `samples` are inputs with names for messages; None stands for the seeded ones of the model. The
    errors are the worst over all of them, and `models.original`, which has a higher precision, is
    compared without a limit. Where regions compute in a lower precision, the tolerance is that of its
    dtype. An error beyond its tolerance is compared with the noise of its tensor. With `regions`, each
    region alone is compared, too: on what reaches it, and one that nothing reaches on other samples;
    with `boundary`, every boundary tensor on the first sample. onnxruntime runs without optimizations,
    since these change results.

    Raises MissingRuntimeError; NotVerifiableError if the model does not run on a sample, or its outputs
    have no elements on any; InputError if the bundle does not run, or has other inputs.
    """
    model, original = models.model, models.original
    with _errors_as(NotVerifiableError, model.source):
        plain = open_original(model.proto, model)
        precise = None if original is None else open_original(original.proto, original)
    runs: _BundleRuns | None = None
    outputs = _OutputComparison(model, thresholds.for_computation_in(models.computed))
    errors: list[tuple[OutputError, ...]] = []
    accuracy: dict[str, Accuracy] = {}
    recorded: dict[str, RecordedRuns] = {}
    tensors: tuple[OutputError, ...] = ()
    not_compared = ""
    first: Values = {}
    notes: dict[str, None] = {}
    has_elements = False
    for name, inputs in samples:
        with _errors_as(NotVerifiableError, f"{name}: {model.source}" if name else model.source):
            given = _make_samples(model, plain) if inputs is None else inputs
            expected = plain.run(given)
            exact = {} if precise is None else precise.run(given)
        runs = runs or _BundleRuns.load(bundle)
        _check_inputs(model, given, runs.session)
        actual = runs.run(given, notes)
        has_elements = has_elements or any(map(_has_elements, expected.values()))
        notes.update(_find_contradictions(model, expected))
        errors.append(outputs.compare(given, expected, actual))
        for one in measure_accuracy(exact, actual):
            if one.signal_to_noise < accuracy.setdefault(one.name, one).signal_to_noise:
                accuracy[one.name] = one
        taken = runs.take_recorded()
        if boundary and not recorded:
            try:
                reference = record_reference_runs(bundle, given)
                tensors = compare_boundary(bundle, given, reference, taken, outputs.thresholds)
            except InputError as error:
                not_compared = str(error)
        first = first or given
        for region, found in taken.items():
            recorded.setdefault(region, RecordedRuns()).add(found)
    assert runs is not None  # there is a sample
    compared: dict[str, RegionError] = {}
    if regions and not not_compared:
        try:
            compared = {
                region.name: compare_recorded(region, recorded[region.name], outputs.thresholds)
                for _, region, _ in bundle.regions()
            }
            tried = vary_inputs(model, first, samples[0][1] is None)
            errors += _reach_others(bundle, runs, plain, outputs, tried, compared)
        except InputError as error:
            not_compared = str(error)
    verification = Verification(
        model.source,
        worst_errors(errors),
        "" if original is None else original.source,
        tuple(accuracy.values()),
        tensors,
        tuple(compared.values()),
        not_compared,
        len(samples),
        plain.judge,
        tuple(notes),
    )
    if verification.outputs and not has_elements and verification.passed:
        raise NotVerifiableError(f"{model.source}: its outputs have no elements on any sample")
    return verification


@dataclass(frozen=True, eq=False)
class _OutputComparison:
    """The comparison of the outputs of a model with a bundle's, for any inputs."""

    model: Model
    thresholds: Thresholds

    @cached_property
    def _quantized(self) -> frozenset[str]:
        return find_quantized_tensors(self.model.proto)

    def compare(
        self, inputs: Mapping[str, Any], expected: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> tuple[OutputError, ...]:
        """Return the error of each output."""
        gauge = NoiseGauge(self.model.proto, self.model.folder, inputs, expected)
        errors = compare_tensors(expected, actual, self.thresholds, self._quantized)
        return gauge.allow(errors, actual, self.thresholds)


@dataclass(eq=False)
class _BundleRuns:
    """A loaded bundle whose regions record what they read and make."""

    session: Session
    executors: Mapping[str, Executor]
    recorded: dict[str, RecordedRuns]

    @classmethod
    def load(cls, bundle: Bundle) -> "_BundleRuns":
        """Load a bundle. Raise InputError if that fails."""
        recorded = {region.name: RecordedRuns() for region in bundle.manifest.regions}
        with _errors_as(InputError, "the bundle does not run"), without_optimizations():
            executors = load_executors(bundle)
            watched = {
                name: lambda inputs, name=name, run=run: recorded[name].record(run)(inputs)
                for name, run in executors.items()
            }
            return cls(load_bundle(bundle, watched), executors, recorded)

    def run(self, inputs: Values, notes: dict[str, None] | None = None) -> dict[str, Any]:
        """Return the outputs, and add contradictions to `notes`.

        Raise InputError if the bundle does not run.
        """
        with collect_contradictions() as found, _errors_as(InputError, "the bundle does not run"):
            outputs = self.session(inputs)
        if notes is not None:
            notes.update(found)
        return outputs

    def take_recorded(self) -> dict[str, RecordedRuns]:
        """Return the runs recorded since the last time."""
        taken = dict(self.recorded)
        self.recorded.update((name, RecordedRuns()) for name in taken)
        return taken


def _reach_others(  # noqa: PLR0913, PLR0917 - one step of `verify_bundle`
    bundle: Bundle,
    runs: _BundleRuns,
    plain: PlainModel,
    outputs: _OutputComparison,
    samples: Iterable[Mapping[str, Any]],
    errors: dict[str, RegionError],
) -> Iterator[tuple[OutputError, ...]]:
    """Compare the regions that were not reached on other samples, in place, at last on their own.

    Yield the errors of the outputs on each sample. One that the original does not run on is left out.
    """
    regions = {region.name: region for _, region, _ in bundle.regions()}
    missing = [name for name in regions if errors[name].sample == "none"]
    for inputs in samples if missing else ():
        try:
            expected = plain.run(inputs)
        except InputError:
            continue
        yield outputs.compare(inputs, expected, runs.run(inputs))
        recorded = runs.take_recorded()
        for name in [name for name in missing if recorded[name].values]:
            missing.remove(name)
            errors[name] = compare_recorded(regions[name], recorded[name], outputs.thresholds, "other")
        if not missing:
            return
    for name in missing:
        errors[name] = compare_alone(regions[name], runs.executors[name], outputs.thresholds)


def _has_elements(value: Any) -> bool:
    """Return whether there is something to compare in an output; an optional without content is."""
    parts = value if isinstance(value, list) else [value]
    return not parts or any(part is None or np.size(part) for part in parts)


def _find_contradictions(model: Model, outputs: Values) -> Iterator[tuple[str, None]]:
    """Yield a note for each output of another shape than the file states."""
    for name, kind in read_tensor_types(get_stated_types(model.proto)).items():
        made = describe_mismatch(outputs[name], kind) if outputs.get(name) is not None else ""
        if made:
            yield f"the model says that '{name}' is {kind}, but it is {made}", None


def _make_samples(model: Model, plain: PlainModel) -> Mapping[str, Any]:
    """Return seeded inputs, at sizes that onnxruntime runs the model with unless another judge does."""
    if plain.judge and model.make_samples is None:
        return sample_inputs(model.index)
    return model_samples(model)


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
