"""The comparison of a bundle with its model: outputs, boundary, regions, sums of errors."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from byoc._dataclasses import dataclass, field
from byoc.bundle import Bundle
from byoc.codegen import Region
from byoc.errors import InputError
from byoc.model import Model, get_stated_types, inline_functions, prepare_model, read_tensor_types
from byoc.onnxrt import without_optimizations
from byoc.rules import Arithmetic
from byoc.runtime import load_bundle
from byoc.samples import describe_mismatch, model_samples, sample_inputs
from byoc.support import report_each, report_step
from byoc.verification._bundle_runs import (
    BundleRuns,
    InputEnds,
    SpecialScope,
    Values,
    compare_alone,
    compare_under_contract,
    load_all_executors,
    vary_inputs,
)
from byoc.verification._fidelity import FidelityCheck, SampleRun
from byoc.verification._noise import NoiseGauge, measure_accuracy
from byoc.verification._part_trials import BundleLayers, TrialOutcome, minimize_wrong
from byoc.verification._quantization_noise import DEFAULT_THRESHOLDS, Thresholds, find_quantized_tensors
from byoc.verification._region_cutter import (
    PlainModel,
    convert_errors,
    make_reference_executor,
    open_original,
)
from byoc.verification._region_verification import (
    NotVerifiableError,
    RecordedRuns,
    compare_boundary,
    heed_promises,
    record_reference_runs,
    worst_errors,
)
from byoc.verification._special_check import SpecialRun, find_scales
from byoc.verification._special_samples import MOST_SUMMED, make_special_samples
from byoc.verification._special_traits import SpecialTraits
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import Accuracy, RegionError, SampleKind, Verification


@dataclass(frozen=True, eq=False)
class VerificationModels:
    """The model that a bundle is compared with.

    `original` is the one of higher precision, if there is one, and `computed` the type that regions
    compute in.
    """

    model: Model
    original: Model | None = None
    computed: str = ""


@dataclass(eq=False)
class BundleComparison:
    """The comparison of a bundle with its model, which gathers what samples and regions show.

    Outputs are compared on one sample after the other (`add_sample`), then boundary tensors and regions
    on what was recorded meanwhile; `conclude` returns everything. The models are opened and the bundle
    is loaded when they are first needed. `thresholds` are those of the dtype that regions compute in;
    `runtime` is what runs the bundle, unless it is loaded in `runs` already.
    """

    bundle: Bundle
    models: VerificationModels
    thresholds: Thresholds
    runtime: str
    runs: BundleRuns | None = None
    _errors: list[tuple[OutputError, ...]] = field(default_factory=list)
    _accuracy: dict[str, Accuracy] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)
    _samples: int = 0
    _has_elements: bool = False
    _first: Values = field(default_factory=dict)
    _first_outputs: Values = field(default_factory=dict)
    _first_runs: Mapping[str, RecordedRuns] = field(default_factory=dict)
    _recorded: dict[str, RecordedRuns] = field(default_factory=dict)
    _boundary: tuple[OutputError, ...] = ()
    _regions: dict[str, RegionError] = field(default_factory=dict)
    _not_compared: str = ""
    _own: Thresholds = DEFAULT_THRESHOLDS
    _special: bool = False

    def __post_init__(self) -> None:
        """Heed what the targets of the bundle do not promise."""
        self._own = self.thresholds
        self.thresholds = heed_promises(self.bundle, self.thresholds)

    def add_sample(self, name: str, inputs: Values | None) -> None:
        """Compare the outputs on a sample; None stands for the seeded inputs of the model.

        Raises NotVerifiableError, which has the name, if the model does not run on it; InputError if the
        bundle does not run, or has other inputs.
        """
        model, plain, precise = self.models.model, self._plain, self._precise
        with convert_errors(NotVerifiableError, f"{name}: {model.source}" if name else model.source):
            given = self._make_inputs() if inputs is None else inputs
            expected = plain.run(given)
            exact = {} if precise is None else precise.run(given)
        self._runs.check_inputs(model, given)
        actual = self._runs.run(given, self._notes)
        self._notes.update(_find_contradictions(model, expected))
        self._has_elements = self._has_elements or any(map(_has_elements, expected.values()))
        self._errors.append(self._compare_outputs(given, expected, actual, exact))
        self._compare_accuracy(exact, actual)
        self._keep_runs(given, expected)
        self._samples += 1

    def add_special_samples(self) -> None:
        """Compare the outputs on finite special values, where the bundle promises what ONNX defines.

        A sample that the model does not run on is left out.
        """
        model = self.models.model
        if self.models.computed or count_stored(model) > MOST_SUMMED or not self._has_host:
            return
        if not all(error.within for errors in self._errors for error in errors):
            return  # that is said, and needs no rarer values
        try:
            flat = prepare_model(inline_functions(model.proto), model.source, model.folder)
        except InputError:  # ONNX's inliner confuses names in bodies
            return
        traits = SpecialTraits(flat.index)
        targets = dict.fromkeys(each.target for each in self.bundle.variant.regions)
        contracts = [self.bundle.manifest.read_arithmetic(target) for target in targets]
        promises = [contract.loosest(traits.promised_for) for contract in contracts]
        if any(each.overflow != "wraps" for each in promises):
            return
        joined = reduce(Arithmetic.join, promises, Arithmetic())
        samples = make_special_samples(traits, self._first, joined, self._ends.find_of_model)
        for sample in samples:
            if sample.kind != "ends" or self._runs.not_here:
                return
            try:
                expected = self._plain.run(sample.inputs)
            except InputError:
                continue
            actual = self._runs.run(sample.inputs)
            self._runs.take_recorded()
            defined = traits.list_defined(sample.kind)
            if traits.is_flat:
                run = SpecialRun(
                    *(sample.kind, traits, self._plain.run, sample.inputs, joined, self.thresholds),
                    self._quantized,
                    find_scales(self._first_outputs),
                    contracts,
                )
                errors, notes = run.compare(expected, actual)
                self._notes.update(dict.fromkeys(f"on special values: {note}" for note in notes))
            else:
                errors = self._compare_outputs(sample.inputs, expected, actual)
            self._errors.append(tuple(each for each in errors if _is_about(each, defined)))

    def compare_boundary(self) -> None:
        """Compare every boundary tensor on the first sample."""
        try:
            reference = record_reference_runs(self.bundle, self._first)
            not_here = self._runs.not_here
            ran = {name: run for name, run in self._first_runs.items() if name not in not_here}
            self._boundary = compare_boundary(self.bundle, self._first, reference, ran, self.thresholds)
        except InputError as error:
            self._not_compared = str(error)

    def compare_regions(self, seeded: bool, special: bool) -> None:
        """Compare each region alone on what reached it; one that nothing reached, on other inputs.

        With `special` each is compared on special values, too, unless it is off on others. Where the
        first sample was `seeded`, inputs of other seeds are among these. Nothing is compared if the
        boundary could not be.
        """
        if self._not_compared:
            return
        self._special = special
        try:
            not_here = self._runs.not_here
            regions = [each for _, each, _ in self.bundle.regions() if each.name not in not_here]
            self._regions = {
                region.name: self._compare_region(region, self._recorded[region.name])
                for region in report_each(regions, lambda region: f"compare {region.name}")
            }
            self._reach_others(vary_inputs(self.models.model, self._first, seeded))
        except InputError as error:
            self._not_compared = str(error)

    def conclude(self) -> Verification:
        """Return the verification. Raises NotVerifiableError if no sample has outputs with elements."""
        model, original = self.models.model, self.models.original
        verification = Verification(
            model.source,
            self._fidelity.judge(worst_errors(self._errors), self.thresholds),
            "" if original is None else original.source,
            tuple(self._accuracy.values()),
            self._boundary,
            tuple(self._regions.values()),
            self._not_compared,
            self._samples,
            self._plain.judge,
            tuple(self._notes),
            self._runs.not_here,
        )
        if verification.outputs and not self._has_elements and verification.passed:
            raise NotVerifiableError(f"{model.source}: its outputs have no elements on any sample")
        return verification

    @cached_property
    def _plain(self) -> PlainModel:
        """The model that the bundle is compared with. Raises NotVerifiableError."""
        model = self.models.model
        with convert_errors(NotVerifiableError, model.source):
            return open_original(model.proto, model)

    @cached_property
    def _precise(self) -> PlainModel | None:
        """The model of a higher precision, if there is one. Raises NotVerifiableError."""
        original = self.models.original
        with convert_errors(NotVerifiableError, self.models.model.source):
            return None if original is None else open_original(original.proto, original)

    @cached_property
    def _runs(self) -> BundleRuns:
        return self.runs or BundleRuns.load(self.bundle, self.runtime)

    @cached_property
    def _quantized(self) -> frozenset[str]:
        return find_quantized_tensors(self.models.model.proto)

    @cached_property
    def _fidelity(self) -> FidelityCheck:
        return FidelityCheck(self.models.model.proto, self.models.model.folder)

    def _make_inputs(self) -> Values:
        """Return seeded inputs, at sizes that onnxruntime runs unless something else runs the model."""
        model = self.models.model
        if self._plain.judge and model.make_samples is None:
            return sample_inputs(model.index)
        return model_samples(model)

    def _compare_outputs(
        self, inputs: Values, expected: Values, actual: Values, exact: Values = MappingProxyType({})
    ) -> tuple[OutputError, ...]:
        """Return the error of each output, with ties and noise where it is beyond its tolerance."""
        model = self.models.model
        gauge = NoiseGauge(model.proto, model.folder, inputs, expected)
        self._fidelity.runs.append(SampleRun(inputs, expected, actual, exact))
        return gauge.compare(actual, self.thresholds, self._quantized)

    def _compare_accuracy(self, exact: Values, actual: Values) -> None:
        """Keep the lowest accuracy of each output over all samples."""
        for one in measure_accuracy(exact, actual):
            if one.signal_to_noise < self._accuracy.setdefault(one.name, one).signal_to_noise:
                self._accuracy[one.name] = one

    def _keep_runs(self, given: Values, outputs: Values) -> None:
        """Keep what the regions read and made on a sample, and those of the first sample apart."""
        taken = self._runs.take_recorded()
        if not self._samples:
            self._first, self._first_runs = given, taken
            self._first_outputs = outputs
        for region, found in taken.items():
            self._recorded.setdefault(region, RecordedRuns()).add(found)

    def _reach_others(self, samples: Iterable[Values]) -> None:
        """Compare the regions that were not reached on other samples, at last on values for them alone.

        Outputs are compared on these samples, too; one that the model does not run on is left out.
        """
        regions = {region.name: region for _, region, _ in self.bundle.regions()}
        missing = {name: regions[name] for name, each in self._regions.items() if each.sample == "none"}
        for inputs in samples if missing else ():
            try:
                expected = self._plain.run(inputs)
            except InputError:
                continue
            self._errors.append(self._compare_outputs(inputs, expected, self._runs.run(inputs)))
            self._compare_reached(missing)
            if not missing:
                return
        for name, region in missing.items():
            thresholds = heed_promises(self.bundle, self._own, region)
            run, special = self._runs.executors[name], self._find_scope(region)
            self._regions[name], notes = compare_alone(
                region, run, thresholds, special, self._layers.check
            )
            self._notes.update(dict.fromkeys(notes))

    def _compare_region(
        self, region: Region, recorded: RecordedRuns, sample: SampleKind = "given"
    ) -> RegionError:
        found, notes = compare_under_contract(
            region,
            self._runs.executors[region.name],
            recorded,
            heed_promises(self.bundle, self._own, region),
            self._find_scope(region),
            sample,
            self._layers.check,
        )
        self._notes.update(dict.fromkeys(notes))
        return found

    def _find_scope(self, region: Region) -> SpecialScope | None:
        """Return the special values that a region is asked; None where it is asked none."""
        if not self._special:
            return None
        return SpecialScope(
            self.bundle.manifest.read_arithmetic(region.target),
            lambda name, value: self._ends.find_of_region(region.name, name, value),
        )

    @property
    def _has_host(self) -> bool:
        """Whether there is more than one region, whose inputs and outputs are the model's."""
        return len(self.bundle.model().graph.node) != 1

    @cached_property
    def _ends(self) -> InputEnds:
        return InputEnds(self.bundle, self.models.model)

    @cached_property
    def _layers(self) -> BundleLayers:
        return BundleLayers(self.bundle, self.thresholds)

    def _compare_reached(self, missing: dict[str, Region]) -> None:
        """Compare the missing regions that the last run reached, and remove them from `missing`."""
        recorded = self._runs.take_recorded()
        for name in [name for name in missing if recorded[name].values]:
            region = missing.pop(name)
            self._regions[name] = self._compare_region(region, recorded[name], "other")


def count_stored(model: Model) -> int:
    """Return the number of elements of a model's constants."""
    return sum(prod(tensor.dims) for tensor in model.structure.graph.initializer)


def _has_elements(value: Any) -> bool:
    """Return whether there is something to compare in an output; an optional without content is."""
    parts = value if isinstance(value, list) else [value]
    return not parts or any(part is None or np.size(part) for part in parts)


def _is_about(error: OutputError, names: Collection[str]) -> bool:
    """Return whether an error is of one of some outputs, or of an element of it."""
    return error.name in names or error.name.rpartition("[")[0] in names


def _find_contradictions(model: Model, outputs: Values) -> Iterator[tuple[str, None]]:
    """Yield a note for each output of another shape than the file states."""
    for name, kind in read_tensor_types(get_stated_types(model.proto)).items():
        made = describe_mismatch(outputs[name], kind) if outputs.get(name) is not None else ""
        if made:
            yield f"the model says that '{name}' is {kind}, but it is {made}", None


# Errors of regions that are allowed in each, and add up in the outputs of the network.


def find_added_errors(
    bundle: Bundle,
    models: VerificationModels,
    samples: Sequence[tuple[str, Values | None]],
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> tuple[str, ...]:
    """Return as few regions as must run on plain onnxruntime for the outputs of a bundle to be right.

    None of them can be left out; there are none where the outputs are off with all regions there, so
    that the host's part is wrong. Raises as `verify_on_samples` does.
    """
    computed = thresholds.for_computation_in(models.computed)
    not_here: dict[str, str] = {}
    executors = load_all_executors(bundle, not_here)
    regions = {region.name: region for _, region, _ in bundle.regions() if region.name not in not_here}
    with convert_errors(NotVerifiableError, "plain onnxruntime does not run the regions"):
        plain = {name: make_reference_executor(region) for name, region in regions.items()}

    def is_right(names: Collection[str]) -> bool:
        report_step(f"compare with {len(names)} of {len(regions)} regions on onnxruntime")
        runs = {**executors, **{name: plain[name] for name in names}}
        recorded = {name: RecordedRuns() for name in runs}
        with without_optimizations():
            loaded = BundleRuns(load_bundle(bundle, runs), runs, recorded, not_here)
        comparison = BundleComparison(bundle, models, computed, "", loaded)
        for name, inputs in samples:
            comparison.add_sample(name, inputs)
        comparison.add_special_samples()
        return comparison.conclude().passed

    if not regions or not is_right(regions):
        return ()
    return tuple(
        minimize_wrong(
            [*regions], lambda names: TrialOutcome.WRONG if is_right(names) else TrialOutcome.RIGHT
        )
    )
