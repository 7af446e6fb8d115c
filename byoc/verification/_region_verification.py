"""Verification of each region alone and of every boundary tensor, against plain onnxruntime."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import Bundle
from byoc.codegen import Executor, Region
from byoc.errors import InputError
from byoc.model import GraphIndex, Model, get_operator_name, inline_functions, prepare_model, walk_nodes
from byoc.onnxrt import without_optimizations
from byoc.rules import Arithmetic, ArithmeticContract
from byoc.runtime import data_inputs, load_bundle, load_executors
from byoc.samples import NoSampleError, model_samples
from byoc.support import report_each
from byoc.verification._noise import NoiseGauge, compare_tensors
from byoc.verification._quantization_noise import DEFAULT_THRESHOLDS, Thresholds, quantized_tensors_of
from byoc.verification._region_cutter import PlainModel, make_reference_executor, open_region
from byoc.verification._unit_noise import LARGEST_SHARE, SHARE, OutputError, TieBreak
from byoc.verification._verification_result import LayerCheck, RegionError, SampleKind

Values = Mapping[str, Any]
Pair = tuple[Values, Values]

LayerChecker = Callable[[Region, Sequence[Pair]], LayerCheck | None]
"""Compares the quantized layers of a region on some of its runs; None where it has none."""

RunJudge = Callable[[Region, Values, Values, Values, Thresholds], tuple[OutputError, ...]]
"""Judges a run of a region: its inputs, the outputs that are expected, and those that it made."""

LAYERS = "its quantized layers, each right alone"
"""What explains the error of an output whose region is right layer by layer."""

# A region in a Loop may run any number of times; the values of this many runs are kept.
_MAX_RUNS = 64


class NotVerifiableError(InputError):
    """The original model cannot be run here, so that there is nothing to compare a bundle with."""


@dataclass(eq=False)
class RecordedRuns:
    """The runs of a region: their number, and the inputs and outputs of the first ones."""

    runs: int = 0
    values: list[Pair] = field(default_factory=list)

    def add(self, other: "RecordedRuns") -> None:
        """Add the runs on another sample."""
        self.runs += other.runs
        self.values += other.values[: _MAX_RUNS - len(self.values)]

    def record(self, run: Executor) -> Executor:
        """Return an executor that does the same, and records its inputs and outputs."""

        def run_and_record(inputs: Values) -> Values:
            outputs = run(inputs)
            self.runs += 1
            if len(self.values) < _MAX_RUNS:
                self.values.append((dict(inputs), dict(outputs)))
            return outputs

        return run_and_record


def verify_regions(
    bundle: Bundle,
    model: Model | None = None,
    inputs: Values | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> tuple[RegionError, ...]:
    """Compute the error of each region alone, in order of execution.

    The inputs of a region are those that reach it when plain onnxruntime runs all regions, so that
    errors do not add up. `inputs` are those of the model; by default seeded ones of `model`, or of the
    bundle's own. Raise InputError if a codegen is missing, cannot run here or fails to load, and
    NotVerifiableError if plain onnxruntime cannot run the regions.
    """
    runs = load_executors(bundle)
    expected = record_reference_runs(bundle, inputs or bundle_samples(bundle, model))
    regions = [region for _, region, _ in bundle.regions()]
    return tuple(
        compare_region(
            region,
            runs[region.name],
            expected[region.name],
            heed_promises(bundle, thresholds, region),
        )
        for region in report_each(regions, lambda region: f"compare {region.name}")
    )


def find_arithmetic(bundle: Bundle, regions: Iterable[Region]) -> Arithmetic:
    """Return the weakest promises of the targets of some regions."""
    found = Arithmetic()
    for region in regions if bundle.manifest.arithmetic else ():
        found = found.join(_find_promised(bundle.manifest.read_arithmetic(region.target), region))
    return found


def _find_promised(contract: ArithmeticContract, region: Region) -> Arithmetic:
    return contract.loosest(_list_computed_types(region)) if contract.clauses else Arithmetic()


def _list_computed_types(region: Region) -> Iterator[tuple[str, str]]:
    """Yield the operators of a region, each with every dtype that a tensor of the region has."""
    contracts = (*region.inputs, *region.outputs, *region.constants)
    dtypes = {contract.type.dtype for contract in contracts}
    dtypes.update(kind.dtype for node in region.nodes for kind in map(region.type, node.output) if kind)
    functions = (function.node for function in region.model.functions)
    nodes = walk_nodes(chain(region.model.graph.node, *functions))
    yield from product({get_operator_name(node) for node in nodes}, sorted(dtypes))


def heed_promises(bundle: Bundle, thresholds: Thresholds, region: Region | None = None) -> Thresholds:
    """Return thresholds that demand no more than targets promise: those of all regions, or of one.

    Where they compute in a lower precision, the tolerance is that of its dtype; where they say so, equal
    keys may be selected in any order.
    """
    if not bundle.manifest.arithmetic:
        return thresholds
    variants = bundle.variants if region is None else ()
    regions = [each for one in variants for _, each, _ in one.regions()] if region is None else [region]
    return _demand(find_arithmetic(bundle, regions), thresholds)


def heed_contract(contract: ArithmeticContract, thresholds: Thresholds, region: Region) -> Thresholds:
    """Return thresholds for a region that demand no more than the contract of its target promises."""
    return _demand(_find_promised(contract, region), thresholds)


def _demand(promised: Arithmetic, thresholds: Thresholds) -> Thresholds:
    found = thresholds.for_computation_in(promised.computes)
    return replace(found, any_equal_keys=True) if promised.equal_keys == "any" else found


def bundle_samples(bundle: Bundle, model: Model | None = None) -> Values:
    """Return seeded inputs of a model, by default of the bundle's partitioned model.

    Raise NotVerifiableError if it runs on none.
    """
    if model is None:
        model = prepare_model(bundle.model(), f"its own {bundle.variant.model}", bundle.folder)
    try:
        return model_samples(model)
    except NoSampleError as error:
        raise NotVerifiableError(f"{model.source}: {error}") from error


def record_reference_runs(bundle: Bundle, inputs: Values | None = None) -> dict[str, RecordedRuns]:
    """Run a bundle with all regions on plain onnxruntime; return the runs of each region.

    Inputs are seeded unless given. Raise NotVerifiableError if it cannot run them.
    """
    found = {region.name: RecordedRuns() for _, region, _ in bundle.regions()}
    given = bundle_samples(bundle) if inputs is None else inputs
    try:
        plain = {
            r.name: found[r.name].record(make_reference_executor(r)) for _, r, _ in bundle.regions()
        }
        with without_optimizations():
            load_bundle(bundle, plain)(given)
    except InputError as error:
        raise NotVerifiableError(f"plain onnxruntime does not run the regions: {error}") from error
    return found


def compare_region(
    region: Region,
    run: Executor,
    expected: RecordedRuns,
    thresholds: Thresholds,
    judge: RunJudge | None = None,
) -> RegionError:
    """Compute the error of a region's executor against its expected outputs."""
    found = []
    for inputs, outputs in expected.values:
        try:
            actual = run(inputs)
        except InputError as error:
            return RegionError(region.name, (), expected.runs, f"does not run: {error}")
        found.append((judge or compare_run)(region, inputs, outputs, actual, thresholds))
    wrong = _find_wrong_inputs(found, expected.values)
    return RegionError(region.name, worst_errors(found), expected.runs, wrong_inputs=wrong)


def _find_wrong_inputs(found: Sequence[Iterable[OutputError]], values: Sequence[Pair]) -> Values | None:
    """Return the inputs of the first run with an output that is off, None without one."""
    pairs = zip(found, values, strict=True)
    return next((run[0] for errors, run in pairs if not all(e.within for e in errors)), None)


def compare_recorded(  # noqa: PLR0913, PLR0917 - some have a default
    region: Region,
    actual: RecordedRuns,
    thresholds: Thresholds,
    sample: SampleKind = "given",
    check_layers: LayerChecker | None = None,
    plain: PlainModel | None = None,
) -> RegionError:
    """Compute the error of the recorded runs of a region: each against its ONNX on the same inputs.

    Where outputs are not equal, `check_layers` compares the quantized layers alone: if each is right, an
    output beyond its tolerance is as well. Where they cannot be compared, outputs are allowed what right
    layers, up to half of whose results are a unit off, add up to. `plain` is its ONNX, opened. Raise
    InputError if the region cannot be run plainly.
    """
    if not actual.values:
        return RegionError(region.name, runs=0, sample="none")
    plain = plain or open_region(region)
    runs = [(inputs, plain.run(inputs), outputs) for inputs, outputs in actual.values]
    quantized = quantized_tensors_of(region)
    found = [tuple(compare_tensors(wanted, made, thresholds, quantized)) for _, wanted, made in runs]
    layers = None
    if check_layers is not None and any(error.differing != 0 for errors in found for error in errors):
        layers = check_layers(region, actual.values)
    if layers is not None and layers.explains:
        found = [tuple(_explain_error(error, thresholds) for error in errors) for errors in found]
    elif layers is None or not layers.problem:
        share = SHARE if layers is None else LARGEST_SHARE
        found = [
            errors
            if all(error.within for error in errors)
            else compare_run(region, inputs, wanted, made, thresholds, share)
            for errors, (inputs, wanted, made) in zip(found, runs, strict=True)
        ]
    wrong = _find_wrong_inputs(found, actual.values)
    if wrong is None and layers is not None and layers.problem:
        wrong = actual.values[0][0]
    return RegionError(
        region.name, worst_errors(found), actual.runs, "", sample, plain.judge, layers, wrong
    )


def _explain_error(error: OutputError, thresholds: Thresholds) -> OutputError:
    """Return an error of a region whose layers are each right alone; a limit of the user's holds."""
    asked = thresholds.is_asked(error.dtype, error.measure)
    if error.within or asked or not error.is_measurable:
        return error
    return replace(error, noise=error.absolute, noise_source=LAYERS)


def compare_run(  # noqa: PLR0913, PLR0917 - one has a default
    region: Region,
    inputs: Values,
    expected: Values,
    actual: Values,
    thresholds: Thresholds,
    share: float = SHARE,
) -> tuple[OutputError, ...]:
    """Compute the errors of the outputs of one run of a region.

    `share` is that of each layer's results which may be a unit off.
    """
    gauge = NoiseGauge(region.open_model, region.path.parent, inputs, expected, share=share)
    return gauge.compare(actual, thresholds, quantized_tensors_of(region))


def compare_boundary(
    bundle: Bundle,
    inputs: Values,
    expected: Mapping[str, RecordedRuns],
    actual: Mapping[str, RecordedRuns],
    thresholds: Thresholds,
) -> tuple[OutputError, ...]:
    """Compute the errors of the boundary tensors, by their names in the partitioned model.

    Regions are in order of execution, those that are not in `actual` left out, and of each its inputs
    and then its outputs; each tensor is there once. `inputs` are those of the model. Noise is measured
    for the tensors of the main graph, whose ties may be broken otherwise.
    """
    proto = bundle.model()
    index = GraphIndex(proto, {})
    names = find_outer_names(index, {region.name for _, region, _ in bundle.regions()})
    found: dict[str, OutputError] = {}
    values: dict[str, tuple[Any, Any]] = {}
    integers: set[str] = set()
    for _, region, _ in bundle.regions():
        if region.name not in actual:
            continue
        wanted, got = expected[region.name], actual[region.name]
        quantized = quantized_tensors_of(region)
        pairs = [
            ({**one[0], **one[1]}, {**other[0], **other[1]})
            for one, other in zip(wanted.values, got.values, strict=False)
        ]
        rounds = [tuple(compare_tensors(*pair, thresholds, quantized)) for pair in pairs]
        for error in worst_errors(rounds):
            name = names[region.name][error.name]
            integers |= {name} if error.name in quantized else set()
            if found.setdefault(name, new := replace(error, name=name)) is new:
                values[name] = pairs[0][0][error.name], pairs[0][1].get(error.name)
    wrong = [name for name in found if not found[name].within and name in index.producers]
    if wrong:
        model = inline_functions(proto)
        gauge = NoiseGauge(
            model, bundle.folder, inputs, {name: values[name][0] for name in wrong}, tuple(wrong)
        )
        made = {name: values[name][1] for name in wrong}  # those of a main graph are made once
        found |= {error.name: error for error in gauge.compare(made, thresholds, integers)}
    return tuple(found.values())


def worst_errors(rounds: Sequence[Iterable[OutputError]]) -> tuple[OutputError, ...]:
    """Return the worst error of each tensor over several runs, in the order of the first run.

    It has the ties of the run in which most rows were selected otherwise.
    """
    by_name: dict[str, list[OutputError]] = {}
    for errors in rounds:
        for error in errors:
            by_name.setdefault(error.name, []).append(error)
    return tuple(
        replace(max(errors, key=OutputError.severity), tie_break=_find_largest_tie_break(errors))
        for errors in by_name.values()
    )


def _find_largest_tie_break(errors: Iterable[OutputError]) -> TieBreak | None:
    found = [error.tie_break for error in errors if error.tie_break is not None]
    return max(found, key=lambda each: each.changes, default=None)


def find_outer_names(index: GraphIndex, regions: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the outer names of the boundary tensors, by region and inner name."""
    functions = {(f.domain, f.name): f for f in index.proto.functions}
    found = {}
    for graph in index.walk():
        for node in graph.nodes:
            function = functions.get((node.domain, node.op_type))
            if function is None or node.op_type not in regions:
                continue
            data = set(data_inputs(graph, node))
            reads = zip(function.input, node.input, strict=True)
            inner = {formal: name for formal, name in reads if name in data}
            found[node.op_type] = inner | dict(zip(function.output, node.output, strict=True))
    return found
