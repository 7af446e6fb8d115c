"""A bundle that is run to be verified: what its regions read and make is recorded."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from byoc.bundle import MANIFEST_FILE, Bundle
from byoc.codegen import Executor, Region
from byoc.errors import InputError, shorten_text
from byoc.model import (
    ONLY_VARIANT,
    RANDOM_OPERATORS,
    Model,
    Variant,
    is_onnx,
    make_variable,
    read_recorded_dimensions,
    walk_nodes,
)
from byoc.onnxrt import INSTALL_HINT, has_runtime
from byoc.padding import PaddingRule, RowSplit, cut_outputs, find_unpadded_sizes, pad_inputs
from byoc.runtime import (
    DRIVER_RUNTIME,
    RUNTIMES,
    RegionDrivers,
    Session,
    collect_contradictions,
    load_bundle,
    load_executors,
    load_with_drivers,
    load_with_provider,
)
from byoc.samples import Sample, describe_mismatch, list_samples
from byoc.verification._noise import NoiseGauge
from byoc.verification._quantization_noise import (
    DEFAULT_THRESHOLDS,
    Thresholds,
    find_quantized_tensors,
    quantized_tensors_of,
)
from byoc.verification._reaching import run_alone
from byoc.verification._region_cutter import (
    convert_errors,
    make_reference_executor,
    open_original,
    open_region,
)
from byoc.verification._region_verification import NotVerifiableError, RecordedRuns, worst_errors
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import RewriteComparison
from byoc.zoo import load_model

# The original of a bundle, loaded again as the manifest says that it was asked for.


def load_recorded_model(bundle: Bundle, name: str, variant: Variant = ONLY_VARIANT) -> Model:
    """Load the original of a bundle, a path or `zoo:NAME`, at the dimensions of a variant.

    Its variable constants are inputs, as in the bundle. Raises InputError when it cannot be read, or the
    manifest does not say what was asked for.
    """
    asked = bundle.manifest.asked
    try:
        given = read_recorded_dimensions(asked, variant)
    except ValueError as error:
        raise InputError(f"{bundle.display_path}: in the manifest asked.{error}") from None
    variable = asked.get("variable") or []
    if not isinstance(variable, list) or not all(isinstance(each, str) for each in variable):
        raise InputError(f"{bundle.display_path / MANIFEST_FILE}: asked.variable is not a list of names")
    return make_variable(load_model(name, given.dims, given.shapes), variable)


_MAX_SHOWN = 80  # characters of names in a sentence

Values = Mapping[str, Any]


@dataclass(eq=False)
class BundleRuns:
    """A loaded bundle whose regions record what they read and make.

    Plain onnxruntime runs the regions that this machine cannot; `not_here` has their reasons. `whole`
    is the bundle in onnxruntime with byoc's provider, where that is verified; drivers are then the
    executors. With `padding` inputs are padded by a rule, and outputs cut; with `split` each row of a
    batch is a call.
    """

    session: Session
    executors: Mapping[str, Executor]
    recorded: dict[str, RecordedRuns]
    not_here: Mapping[str, str]
    whole: Session | None = None
    padding: PaddingRule | None = None
    split: RowSplit | None = None

    @classmethod
    def load(cls, bundle: Bundle, runtime: str = RUNTIMES[0]) -> "BundleRuns":
        """Load a bundle for a runtime, one of RUNTIMES.

        Raise InputError if that fails, and NotVerifiableError if plain onnxruntime cannot run a region
        in place of a machine that is not here.
        """
        recorded = {region.name: RecordedRuns() for region in bundle.variant.regions}
        not_here: dict[str, str] = {}
        whole: Session | None = None
        executors: Mapping[str, Executor]
        if runtime != RUNTIMES[0]:
            drivers = RegionDrivers(bundle)
            load_whole = load_with_provider if runtime == DRIVER_RUNTIME else load_with_drivers
            with convert_errors(InputError, "the bundle does not run"):
                whole, executors = load_whole(bundle, drivers), drivers.open_regions()
        else:
            executors = load_all_executors(bundle, not_here)
        with convert_errors(InputError, "the bundle does not run"):
            watched = {
                name: lambda inputs, name=name, run=run: recorded[name].record(run)(inputs)
                for name, run in executors.items()
            }
            return cls(load_bundle(bundle, watched), executors, recorded, not_here, whole)

    def run(self, inputs: Values, notes: dict[str, None] | None = None) -> dict[str, Any]:
        """Return the outputs, and add contradictions to `notes`.

        Raise InputError if the bundle does not run.
        """
        with collect_contradictions() as found, convert_errors(InputError, "the bundle does not run"):
            sizes = {} if self.padding is None else find_unpadded_sizes(self.padding, inputs)
            given = inputs if self.padding is None else pad_inputs(self.padding, inputs, sizes)
            if self.split is not None:
                calls = [self.session(rows) for rows in self.split.list_rows(given)]
                return self.split.join(calls, self.split.count_rows(given))
            outputs = self.session(given)
            if self.whole is not None:
                outputs = self.whole(given)
            if self.padding is not None:
                outputs = cut_outputs(self.padding, outputs, sizes)
        if notes is not None:
            notes.update(found)
        return outputs

    @property
    def _made(self) -> list[str]:
        """The inputs that padding makes."""
        padded = {} if self.padding is None else self.padding.inputs
        return [name for name, each in padded.items() if each.made]

    def take_recorded(self) -> dict[str, RecordedRuns]:
        """Return the runs recorded since the last time."""
        taken = dict(self.recorded)
        self.recorded.update((name, RecordedRuns()) for name in taken)
        return taken

    def check_inputs(self, model: Model, given: Values) -> None:
        """Raise InputError if the inputs of the bundle differ from those given to the model."""
        optional = {*self.session.program.constants, *self._made}
        wanted = [name for name in self.session.inputs if name in given or name not in optional]
        if set(wanted) != set(given):
            raise InputError(
                f"{model.source} has {_format_inputs(given)}, the bundle {_format_inputs(wanted, '')}"
            )
        padded = given if self.split is None else next(self.split.list_rows(given))
        if self.padding is not None:
            padded = pad_inputs(self.padding, given, find_unpadded_sizes(self.padding, given))
        for name, kind in self.session.types.items():
            found = describe_mismatch(padded[name], kind) if name in given else ""
            if found:
                raise InputError(f"{model.source} has input '{name}' as {found}, the bundle as {kind}")


def load_all_executors(bundle: Bundle, not_here: dict[str, str]) -> dict[str, Executor]:
    """Load the regions of a bundle by their codegens, on plain onnxruntime those that cannot run here.

    The reasons of these are entered in `not_here`. Raises InputError where a region cannot be loaded,
    and NotVerifiableError where plain onnxruntime cannot run one either.
    """
    with convert_errors(InputError, "the bundle does not run"):
        executors = dict(load_executors(bundle, not_here))
    for _, region, _ in bundle.regions() if not_here else ():
        if region.name in not_here:
            why = f"{region.name} cannot run on this machine: {not_here[region.name]}; otherwise"
            with convert_errors(NotVerifiableError, why):
                executors[region.name] = make_reference_executor(region)
    return executors


def _format_inputs(names: Collection[str], prefix: str = "input ") -> str:
    return prefix + shorten_text(", ".join(names), _MAX_SHOWN) if names else "no input"


# The comparison of a rewritten model or region with what it was before, on plain onnxruntime.

# Of the values made for a region so many are compared.
_REGION_SAMPLES = 2
_RANDOM = "the model is random: its outputs differ from one run to the next"


def compare_models(
    before: Model,
    after: Model,
    given: Sequence[Sample] = (),
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> RewriteComparison:
    """Compare a model with its rewritten form on samples, the user's (`given`) or made ones.

    A rewritten model that does not run has an error of its first output.
    """
    if not has_runtime():
        return RewriteComparison(not_compared=INSTALL_HINT)
    try:
        samples = [sample.inputs for sample in given or list_samples(before)]
        plain = open_original(before.proto, before)
        expected = [(inputs, plain.run(inputs)) for inputs in samples]
        if _draws(before) and not _are_equal((wanted, plain.run(inputs)) for inputs, wanted in expected):
            return RewriteComparison(not_compared=_RANDOM)
    except InputError as error:
        return RewriteComparison(not_compared=f"the model does not run: {error}")
    quantized = find_quantized_tensors(before.proto)
    try:
        rewritten = open_original(after.proto, after)
        actual = [rewritten.run(inputs) for inputs in samples]
    except InputError as error:
        return _make_failure(before.proto.graph.output[0].name, len(samples), error)
    errors = [
        NoiseGauge(before.proto, before.folder, inputs, wanted).compare(got, thresholds, quantized)
        for (inputs, wanted), got in zip(expected, actual, strict=True)
    ]
    pairs = zip((wanted for _, wanted in expected), actual, strict=True)
    return RewriteComparison(worst_errors(errors), len(samples), _are_equal(pairs))


def _draws(model: Model) -> bool:
    """Return whether a model has random nodes."""
    functions = (each.node for each in model.proto.functions)
    scopes = (model.proto.graph.node, *functions)
    return any(
        is_onnx(node) and node.op_type in RANDOM_OPERATORS
        for scope in scopes
        for node in walk_nodes(scope)
    )


def compare_regions(
    before: Region, after: Region, thresholds: Thresholds = DEFAULT_THRESHOLDS
) -> RewriteComparison:
    """Compare a region with its rewritten form on random values of the types of its inputs."""
    if not has_runtime():
        return RewriteComparison(not_compared=INSTALL_HINT)
    samples = list(islice(run_alone(before), _REGION_SAMPLES))
    if not samples:
        return RewriteComparison(not_compared="the region runs on no random values")
    quantized = quantized_tensors_of(before)
    try:
        rewritten = open_region(after)
        actual = [rewritten.run(inputs) for inputs, _ in samples]
    except InputError as error:
        return _make_failure(before.model.graph.output[0].name, len(samples), error)
    folder = before.path.parent
    errors = [
        NoiseGauge(before.open_model, folder, inputs, wanted).compare(got, thresholds, quantized)
        for (inputs, wanted), got in zip(samples, actual, strict=True)
    ]
    pairs = zip((wanted for _, wanted in samples), actual, strict=True)
    return RewriteComparison(worst_errors(errors), len(samples), _are_equal(pairs))


def _make_failure(output: str, samples: int, error: InputError) -> RewriteComparison:
    infinite = float("inf")
    failed = OutputError(output, "", infinite, infinite, 0.0, f"cannot be computed: {error}")
    return RewriteComparison((failed,), samples)


def _are_equal(pairs: Iterable[tuple[Values, Values]]) -> bool:
    """Return whether all outputs have the same types, shapes and bits."""
    return all(_has_same_bits(wanted[name], got.get(name)) for wanted, got in pairs for name in wanted)


def _has_same_bits(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, list) or isinstance(other, list):
        same_kind = isinstance(one, list) and isinstance(other, list) and len(one) == len(other)
        return same_kind and all(map(_has_same_bits, one, other))
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return (
        first.tolist() == second.tolist()
        if first.dtype.kind in "OUS"
        else first.tobytes() == second.tobytes()
    )
