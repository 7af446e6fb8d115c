"""The quantized layers of a region one by one, and the smallest part of it that shows a fault.

A trial may be inconclusive, since a compiler may refuse a part although it accepts the whole.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import onnx

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import Bundle, RegionCompiler
from byoc.codegen import (
    Executable,
    Executor,
    Region,
    can_trace,
    drop_executing_options,
    limit_trial,
    read_region,
    trace_region,
)
from byoc.errors import InputError
from byoc.long_calls import waiting_for
from byoc.model import TensorLayout, parse_layout
from byoc.runtime import CheckedExecutor, load_executor
from byoc.support import report_step
from byoc.verification._layer_probe import LayerProbe, LayerRun, measure_layer
from byoc.verification._quantization_noise import Thresholds
from byoc.verification._region_cutter import RegionCutter, RegionPart, Values, make_reference_executor
from byoc.verification._region_verification import RunJudge, compare_run, worst_errors
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import LayerCheck

T = TypeVar("T")


class TrialOutcome(Enum):
    """The outcome of a trial."""

    RIGHT = "right"
    WRONG = "off"
    UNKNOWN = "unknown"


def find_shortest_wrong(count: int, trial: Callable[[int], TrialOutcome]) -> int:
    """Find a wrong prefix whose next shorter prefix with a known outcome is right; return its length.

    `trial` tries a prefix of a length from 1 to `count`; the whole is known to be wrong. It is called
    about log2(count) times if no outcome is unknown.
    """
    low, high = 0, count
    unknown: set[int] = set()
    while True:
        untried = [length for length in range(low + 1, high) if length not in unknown]
        if not untried:
            return high
        middle = untried[len(untried) // 2]
        match trial(middle):
            case TrialOutcome.WRONG:
                high = middle
            case TrialOutcome.RIGHT:
                low = middle
            case _:
                unknown.add(middle)


def minimize_wrong(items: Sequence[T], trial: Callable[[Sequence[T]], TrialOutcome]) -> list[T]:
    """Reduce items that are wrong together, in order, until none of them can be left out.

    `items` are known to be wrong. This is ddmin: A. Zeller, R. Hildebrandt, Simplifying and Isolating
    Failure-Inducing Input, IEEE Transactions on Software Engineering 28 (2), 2002.
    """
    reduced = list(items)
    parts = 2
    while len(reduced) > 1:
        smaller = _find_smaller(reduced, parts, trial)
        if smaller is not None:
            reduced, parts = smaller
        elif parts == len(reduced):
            break
        else:
            parts = min(2 * parts, len(reduced))
    return reduced


def _find_smaller(
    items: list[T], parts: int, trial: Callable[[Sequence[T]], TrialOutcome]
) -> tuple[list[T], int] | None:
    """Return a part, or all but a part, that is wrong, and the next number of parts."""
    bounds = [len(items) * i // parts for i in range(parts + 1)]
    slices = list(itertools.pairwise(bounds))
    for first, last in slices:
        if trial(items[first:last]) is TrialOutcome.WRONG:
            return items[first:last], 2
    if parts > 2:  # of two parts, each is all but the other
        for first, last in slices:
            rest = items[:first] + items[last:]
            if trial(rest) is TrialOutcome.WRONG:
                return rest, max(parts - 1, 2)
    return None


# Larger models are saved with external weights, since protobuf files are limited to 2 GiB.
_LARGE = 1 << 30


@dataclass(frozen=True, eq=False)
class PartTrial:
    """The actual and expected outputs of a part, and their errors; `layers` if it is quantized layers.

    Layers are there where none of them reads what another one makes.
    """

    part: RegionPart
    expected: Values
    actual: Values
    errors: tuple[OutputError, ...]
    layers: LayerCheck | None = None

    @property
    def outcome(self) -> TrialOutcome:
        """Right if all outputs are within their tolerance, and no layer is off."""
        layers = self.layers is None or not self.layers.wrong
        right = layers and all(error.within for error in self.errors)
        return TrialOutcome.RIGHT if right else TrialOutcome.WRONG


@dataclass(frozen=True)
class NotTried:
    """The reason why a part could not be tried."""

    reason: str

    @property
    def outcome(self) -> TrialOutcome:
        """Unknown."""
        return TrialOutcome.UNKNOWN


@dataclass(frozen=True, eq=False)
class TrialBench:
    """The trials of parts of a region, each made once."""

    cutting: RegionCutter
    compiler: RegionCompiler
    thresholds: Thresholds
    judge: RunJudge = compare_run
    trials: dict[frozenset[int], PartTrial | NotTried] = field(default_factory=dict)
    earlier_count: int = 0

    @property
    def count(self) -> int:
        """The number of trials, those on other inputs included."""
        return self.earlier_count + len(self.trials)

    def move_to(self, cutting: RegionCutter) -> "TrialBench":
        """Return a bench for parts of the region on other inputs, whose trials are made anew."""
        return replace(self, cutting=cutting, trials={}, earlier_count=self.count)

    def try_outcome(self, operations: Collection[int]) -> TrialOutcome:
        """Try some operations, and return only the outcome."""
        return self.try_operations(operations).outcome

    def try_operations(self, operations: Collection[int]) -> PartTrial | NotTried:
        """Try some operations; return the reason if that is not possible."""
        key = frozenset(operations)
        if key not in self.trials:
            self.trials[key] = self._run_trial(key)
        return self.trials[key]

    def _run_trial(self, operations: frozenset[int]) -> PartTrial | NotTried:
        part = self.cutting.make_part(operations)
        if part is None:
            return NotTried("nothing reads what they make")
        whole = self.cutting.region
        with TemporaryDirectory(prefix="byoc-") as folder:
            path = Path(folder) / f"{whole.name}.onnx"
            save_part(part.model, path)
            region = read_region(path, whole.name, whole.target, None, find_weight_layout(whole))
            try:
                return run_trial(part, region, self.compiler, self.thresholds, self.judge)
            except InputError as error:
                return NotTried(str(error))


def run_trial(
    part: RegionPart,
    region: Region,
    compiler: RegionCompiler,
    thresholds: Thresholds,
    judge: RunJudge = compare_run,
) -> PartTrial:
    """Try a part that is on disk as a region.

    Raise InputError if the codegen refuses it, or it does not run there or in plain onnxruntime.
    """
    run = compile_and_load(compiler, region)
    expected, actual = make_reference_executor(region)(part.inputs), run(part.inputs)
    errors = judge(region, part.inputs, expected, actual, thresholds)
    layers = None
    if judge is compare_run:
        layers = _measure_layers(region, part.inputs, actual, thresholds)
    return PartTrial(part, expected, actual, errors, layers)


def _measure_layers(
    region: Region, inputs: Values, actual: Values, thresholds: Thresholds
) -> LayerCheck | None:
    """Return the errors of a part's quantized layers; None where one reads what another one makes."""
    probe = LayerProbe(RegionCutter(region, inputs))
    if not probe.layers or probe.exposed:
        return None
    try:
        computed = probe.compute_layers(inputs, probe.cutter.read_outputs(actual))
    except ValueError:  # of another shape, which the errors of the outputs say
        return None
    errors = (
        measure_layer(layer, [computed.runs[layer.tensor]], thresholds.units) for layer in probe.layers
    )
    return LayerCheck(tuple(errors))


def make_compiler(bundle: Bundle, region: str) -> RegionCompiler:
    """Return the compiler that made a region of a bundle.

    Of a bundle that was not made here and now it has the options that execute nothing.
    """
    own = bundle.identical_regions.get(region, region)
    entry = next(entry for entry in bundle.manifest.regions if entry.name == own)
    codegen = bundle.codegens.find(entry.codegen)
    options = entry.codegen_options
    if not bundle.just_compiled:
        options = drop_executing_options(codegen, options)
    return RegionCompiler(codegen, options)


def compile_and_load(compiler: RegionCompiler, region: Region) -> CheckedExecutor:
    """Compile a region in memory and load it. Raise InputError if the codegen cannot do either."""
    codegen = compiler.codegen
    if not isinstance(codegen, Executable):
        raise InputError(f"codegen {codegen.name} cannot run what it compiles here (it has no `load`)")
    return load_executor(codegen, codegen.name, region, compiler.compile(region))


def save_part(model: onnx.ModelProto, path: Path) -> None:
    """Write a model with its weights, in one file unless it is too large."""
    if model.ByteSize() < _LARGE:
        onnx.save(model, path)
    else:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.weights")


def find_weight_layout(region: Region) -> TensorLayout | None:
    """Return the layout that the target requires for convolution weights, according to the contracts."""
    words = {contract.layout for contract in region.constants if contract.layout}
    return parse_layout(words.pop()) if len(words) == 1 else None


# The quantized layers of a region, each compared alone on what the codegen computed before it.

Pair = tuple[Values, Values]

_MAX_RUNS = 8  # of a region, which layers are compared on


ShownTensors = tuple[dict[str, Any], bool]
"""The tensors of a region on one run, and whether its outputs had the bits that they had in the bundle.

They are the quantized ones and those that leave the region, by name, as ONNX has them.
"""


@dataclass(frozen=True, eq=False)
class BundleLayers:
    """The quantized layers of a bundle's regions, as their codegens compute them.

    A codegen shows them by `trace`. Where it has none, or what it shows does not suffice, the region is
    compiled once more, with each layer as an output.
    """

    bundle: Bundle
    thresholds: Thresholds

    def check(self, region: Region, runs: Sequence[Pair]) -> LayerCheck | None:
        """Compare each quantized layer of a region alone; None where it has none."""
        probe = LayerProbe(RegionCutter(region, runs[0][0]))
        not_traced = ""
        try:
            if not probe.layers:
                return None
            report_step(f"compare the layers of {region.name}")
            compiler = make_compiler(self.bundle, region.name)
            with limit_trial():
                try:
                    traced = self._trace_layers(probe, compiler, runs)
                    if traced is not None:
                        return traced
                except (InputError, ValueError) as error:
                    not_traced = f"; its trace: {error}"
                with (
                    waiting_for(f"the layers of {region.name}, compiled with each as an output"),
                    _compile_probe(probe, compiler) as show,
                ):
                    return check_layers(probe, itertools.starmap(show, runs), runs, self.thresholds)
        except (InputError, ValueError) as error:
            return LayerCheck(not_compared=f"{error}{not_traced}")

    def _trace_layers(
        self, probe: LayerProbe, compiler: RegionCompiler, runs: Sequence[Pair]
    ) -> LayerCheck | None:
        """Compare the layers that the codegen's trace shows; None where it has no `trace`.

        A layer that it leaves out is compared as a part of those that read it. Raises InputError where
        the trace fails, where such longer layers are off, which may be since roundings add up, or where
        outputs are not those that the region had in the bundle, since another run than the traced one is
        to be judged.
        """
        codegen = compiler.codegen
        if not can_trace(codegen):
            return None
        region = probe.cutter.region
        _, own, artifact = self.bundle.open_compiled(
            self.bundle.identical_regions.get(region.name, region.name)
        )
        names = _match_tensors(own, region)

        def show(inputs: Values, outputs: Values) -> ShownTensors:
            given = zip(own.inputs, region.inputs, strict=True)
            traced = trace_region(
                codegen, own, artifact, {theirs.name: inputs[mine.name] for theirs, mine in given}
            )
            made = {names.get(name, name): value for name, value in traced.items()}
            wanted = probe.cutter.read_outputs(outputs)
            lacking = [name for name in wanted if name not in made]
            if lacking:
                raise InputError(f"it leaves out '{lacking[0]}', which leaves the region")
            same = all(_has_same_bits(wanted[name], made[name]) for name in wanted)
            return {name: made[name] for name in (*probe.exposed, *wanted) if name in made}, same

        shown = [show(*pair) for pair in runs[:_MAX_RUNS]]
        left_out = [name for name in probe.exposed if not all(name in each for each, _ in shown)]
        used = LayerProbe(probe.cutter, frozenset(left_out)) if left_out else probe
        known = [({name: each[name] for name in each if name not in left_out}, s) for each, s in shown]
        found = check_layers(used, known, runs, self.thresholds)
        if not found.same:
            raise InputError("its outputs are not those of the run")
        if left_out and not found.passed:
            more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
            raise InputError(f"it leaves out '{left_out[0]}'{more}, without which {found.problem}")
        return replace(found, traced=True, left_out=tuple(left_out))


def _match_tensors(own: Region, other: Region) -> dict[str, str]:
    """Return the names that the tensors of a region have in one that is the same but for names."""
    if own is other or own.name == other.name:
        return {}
    nodes = zip(own.nodes, other.nodes, strict=True)
    pairs = (pair for mine, theirs in nodes for pair in zip(mine.output, theirs.output, strict=True))
    return {mine: theirs for mine, theirs in pairs if mine}


def check_layers(
    probe: LayerProbe, shown: Iterable[ShownTensors], runs: Sequence[Pair], thresholds: Thresholds
) -> LayerCheck:
    """Compare each quantized layer of a region alone, on what reached the region in some runs.

    `runs` are the inputs and outputs of the region in the bundle, of which the first are compared, and
    `shown` the tensors of these. Raises as iterating `shown` does, InputError when onnxruntime does not
    run the layers, and ValueError when what is shown has other shapes.
    """
    found: dict[str, list[LayerRun]] = {}
    floats, same = [], True
    for (inputs, _), (tensors, equal) in zip(runs[:_MAX_RUNS], shown, strict=False):
        same = same and equal
        computed = probe.compute_layers(inputs, tensors)
        for tensor, each in computed.runs.items():
            found.setdefault(tensor, []).append(each)
        floats.append(computed.compare_floats(thresholds))
    errors = (measure_layer(layer, found[layer.tensor], thresholds.units) for layer in probe.layers)
    return LayerCheck(tuple(errors), worst_errors(floats), same)


@contextmanager
def _compile_probe(
    probe: LayerProbe, compiler: RegionCompiler
) -> Iterator[Callable[[Values, Values], ShownTensors]]:
    """Compile a region with its layers as outputs, and show them by the inputs and outputs of a run.

    Raises InputError when the codegen does not compile that; what it gives raises it when a run fails.
    """
    cutter, part = probe.cutter, probe.make_part()
    reads, makes = cutter.match_inputs(part), cutter.match_outputs(part)
    with _compile_part(cutter.region, compiler, part) as run:

        def show(inputs: Values, outputs: Values) -> ShownTensors:
            made = run({**part.inputs, **{reads[name]: inputs[name] for name in reads}})
            same = all(_has_same_bits(outputs[name], made[makes[name]]) for name in makes)
            return probe.read_outputs(part, made), same

        yield show


@contextmanager
def _compile_part(region: Region, compiler: RegionCompiler, part: RegionPart) -> Iterator[Executor]:
    """Compile a part of a region and load it. Raises InputError when its codegen cannot do either."""
    with TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / f"{region.name}.onnx"
        save_part(part.model, path)
        alone = read_region(path, region.name, region.target, None, find_weight_layout(region))
        run = compile_and_load(compiler, alone)
        yield run


def _has_same_bits(one: Any, other: Any) -> bool:
    first, second = np.asarray(one), np.asarray(other)
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.tobytes() == second.tobytes()
    )
