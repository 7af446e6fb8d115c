"""A bundle that is run to be verified, on samples that reach its regions.

What its regions read and make is recorded. An If runs one of its branches, and a Loop may run no trip at
all. Regions in the other branch, or in such a Loop, have then not been compared with anything, so
other inputs are tried, and ends of ranges. A region that belongs to no bundle is compared on values for
it alone, too.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from byoc._dataclasses import dataclass
from byoc.bundle import MANIFEST_FILE, Bundle
from byoc.codegen import Executor, Region
from byoc.errors import InputError, shorten_text
from byoc.model import (
    ONLY_VARIANT,
    RANDOM_OPERATORS,
    GraphIndex,
    Model,
    Variant,
    freeze_initializers,
    inline_functions,
    is_onnx,
    make_variable,
    prepare_model,
    read_recorded_dimensions,
    walk_nodes,
)
from byoc.onnxrt import INSTALL_HINT, has_runtime, open_session, run_session, without_optimizations
from byoc.padding import PaddingRule, RowSplit, cut_outputs, find_unpadded_sizes, pad_inputs
from byoc.rules import ArithmeticContract
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
from byoc.samples import (
    Sample,
    describe_mismatch,
    find_domains,
    list_samples,
    model_samples,
    sample_inputs,
)
from byoc.verification._noise import NoiseGauge
from byoc.verification._quantization_noise import (
    DEFAULT_THRESHOLDS,
    Thresholds,
    find_quantized_tensors,
    quantized_tensors_of,
)
from byoc.verification._region_cutter import (
    convert_errors,
    make_reference_executor,
    open_original,
    open_region,
)
from byoc.verification._region_verification import (
    LayerChecker,
    NotVerifiableError,
    RecordedRuns,
    compare_recorded,
    find_outer_names,
    heed_contract,
    worst_errors,
)
from byoc.verification._rounding_noise import expose_tensors
from byoc.verification._special_check import SpecialCheck
from byoc.verification._special_samples import Ends
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import RegionError, RewriteComparison, SampleKind
from byoc.zoo import load_model

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


def compare_unit(
    region: Region, run: Executor, arithmetic: ArithmeticContract, find_ends: Ends
) -> tuple[RegionError, tuple[str, ...]]:
    """Compare a region as `compare_alone` does, by the usual thresholds and a target's `arithmetic`.

    `find_ends` gives the least and the greatest value that an input has, of its name and a sample.
    """
    thresholds = heed_contract(arithmetic, DEFAULT_THRESHOLDS, region)
    return compare_alone(region, run, thresholds, SpecialScope(arithmetic, find_ends))


def run_alone(region: Region) -> Iterator[tuple[Values, Values]]:
    """Yield seeded values of the types of a region's inputs, and what it makes of them run plainly."""
    index = GraphIndex.of_model(region.model)
    for seed in (0, *_SEEDS):
        try:
            inputs = sample_inputs(index, seed)
            yield inputs, open_region(region).run(inputs)
        except InputError:
            continue


# The original of a bundle, loaded again as the manifest says that it was asked for.


def load_recorded_model(bundle: Bundle, name: str, variant: Variant = ONLY_VARIANT) -> Model:
    """Load the original of a bundle, a path or `zoo:NAME`, at the dimensions of a variant.

    Its variable constants are inputs, and its initializers constants, as in the bundle. Raises
    InputError when it cannot be read, or the manifest does not say what was asked for.
    """
    asked = bundle.manifest.asked
    try:
        given = read_recorded_dimensions(asked, variant)
    except ValueError as error:
        raise InputError(f"{bundle.display_path}: in the manifest asked.{error}") from None
    variable = asked.get("variable") or []
    if not isinstance(variable, list) or not all(isinstance(each, str) for each in variable):
        raise InputError(f"{bundle.display_path / MANIFEST_FILE}: asked.variable is not a list of names")
    model = load_model(name, given.dims, given.shapes)
    return make_variable(
        freeze_initializers(model) if asked.get("freeze_initializers") else model, variable
    )


# A bundle that is run to be verified: what its regions read and make is recorded.

_MAX_SHOWN = 80  # characters of names in a sentence


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
