"""Bisection of a wrong region: the first operation at fault, and the smallest model that shows it.

First, prefixes of the region are tried by binary search: the operation with which a prefix becomes wrong
is at fault. Then the number of operations is made as small as possible, down to that one alone.
Everything is compiled with the codegen and the options that the bundle was made with.
"""

from collections.abc import Callable, Collection, Sequence

from onnx import NodeProto

from byoc._dataclasses import dataclass, replace
from byoc.bundle import Bundle, require_consent
from byoc.codegen import Executable, Executor, Region
from byoc.errors import InputError
from byoc.model import get_metadata, is_qdq_node, prepare_model
from byoc.runtime import load_executor, rename_executor
from byoc.support import report_step
from byoc.verification._bundle_runs import InputEnds, run_alone
from byoc.verification._layer_probe import LayerProbe
from byoc.verification._part_trials import (
    BundleLayers,
    NotTried,
    PartTrial,
    TrialBench,
    TrialOutcome,
    find_shortest_wrong,
    find_weight_layout,
    make_compiler,
    minimize_wrong,
)
from byoc.verification._quantization_noise import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._region_cutter import RegionCutter, Values, open_region
from byoc.verification._region_verification import (
    RecordedRuns,
    RunJudge,
    compare_recorded,
    compare_region,
    compare_run,
    heed_promises,
    record_reference_runs,
)
from byoc.verification._special_check import SpecialCheck, SpecialJudge
from byoc.verification._unit_noise import OutputError
from byoc.verification._verification_result import LayerCheck, RegionError, SpecialKind


@dataclass(frozen=True, eq=False)
class Fault:
    """The smallest model that shows why a region is wrong.

    It was compiled with `codegen` and `options`; `weights` is the layout of its weights (empty: as ONNX
    has it). `operation` is the first wrong one, by its name or first output, `op` its operator or
    composite, and `inside` the nodes of a composite. `operations` are those of the model, in order: more
    than one if the fault does not show in any of them alone, as with a wrong fusion. `trial_count` is
    the number of models that were compiled. `alike` are other operations of the same operator that are
    off alone as well, where these were asked for.
    """

    region: str
    target: str
    codegen: str
    options: dict[str, str]
    weights: str
    operation: str
    op: str
    inside: str
    operations: tuple[str, ...]
    trial: PartTrial
    trial_count: int
    alike: tuple[str, ...] = ()

    @property
    def is_joint(self) -> bool:
        """True if no single operation shows the fault."""
        return len(self.operations) > 1

    @property
    def worst(self) -> OutputError:
        """The output of the smallest model with the largest error."""
        return max(self.trial.errors, key=OutputError.severity)

    def __str__(self) -> str:
        """Return the fault in one sentence."""
        worst = self.worst
        error = worst.problem or f"differs {worst.error_phrase}"
        layers = self.trial.layers
        if layers is not None and layers.wrong:
            return f"{self.region}: {layers.wrong[0]}"
        first = f"{self.region}: {self.op} '{self.operation}' is the first operation that is off"
        if self.inside:
            first += f" (it is {self.inside})"
        if not self.is_joint:
            return f"{first}: its output '{worst.name}' {error}"
        others = ", ".join(f"'{name}'" for name in self.operations if name != self.operation)
        return f"{first}, and right alone: together with {others}, output '{worst.name}' {error}"


def bisect_region(  # noqa: PLR0913, PLR0917 - each has a default
    bundle: Bundle,
    region: str,
    inputs: Values | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    own_inputs: Values | None = None,
    special: SpecialKind | None = None,
    find_alike: bool = False,
) -> Fault:
    """Find the smallest part of a region that is wrong on the tensors that really reach it.

    `region` is its name, or the beginning of it where no other region's is the same. `inputs` are those
    of the model, seeded ones by default, or `own_inputs` those of the region, with `special` values or
    without; `thresholds` decide what is wrong. With `find_alike`, the other operations of the operator
    at fault are tried alone, too. Raises InputError if there is no such region, its codegen cannot run
    here, it is not wrong, or it is right when compiled again, and NotVerifiableError if plain
    onnxruntime cannot run the regions.
    """
    region = _complete_name(bundle, region)
    found, run = _open_region(bundle, region)
    thresholds = heed_promises(bundle, thresholds, found)
    entry = next(entry for entry in bundle.variant.regions if entry.name == region)
    compiler = make_compiler(bundle, region)
    runs = _list_runs(bundle, found, inputs, own_inputs)
    judge = _make_judge(bundle, found, special)
    layers = None
    if special is None and runs:
        made = [(inputs, _run_region(found, run, inputs)) for inputs, _ in runs]
        layers = BundleLayers(bundle, thresholds).check(found, made)
    if layers is not None and layers.explains:
        count = len(layers.errors)
        raise InputError(
            f"region {region} is not off on these inputs: each of its {count} quantized layers is right"
        )
    bench = TrialBench(RegionCutter(found, {}), compiler, thresholds, judge)
    smallest: list[int] = []
    if layers is not None and layers.wrong:
        bench, smallest = _find_wrong_layer(bench, runs, layers)
    if smallest:
        nodes = bench.cutting.index.nodes
        first = max(smallest, key=lambda number: (not is_qdq_node(nodes[number]), number))
    else:
        try:
            wrong = _first_wrong_inputs(found, run, runs, thresholds, judge)
        except _NotOffError:
            if own_inputs is not None or not runs:
                raise
            wrong, special = _find_special_inputs(bundle, found, run, runs[0], thresholds)
            bench = replace(bench, judge=_make_judge(bundle, found, special))
        bench = bench.move_to(RegionCutter(found, wrong))
        _require_reproducible(bench, entry.codegen)
        first, smallest = _narrow(bench)
    trial = bench.try_operations(smallest)
    assert isinstance(trial, PartTrial)
    node = bench.cutting.index.nodes[first]
    alike = _find_alike(bench, first) if find_alike and smallest == [first] else ()
    return Fault(
        region=region,
        target=found.target,
        codegen=entry.codegen,
        options=dict(compiler.options),
        weights=str(find_weight_layout(found) or ""),
        operation=bench.cutting.operation_name(first),
        op=get_metadata(node, "byoc.composite") or node.op_type,
        inside=get_metadata(node, "byoc.nodes"),
        operations=tuple(map(bench.cutting.operation_name, smallest)),
        trial=trial,
        trial_count=bench.count,
        alike=alike,
    )


def _list_runs(
    bundle: Bundle, region: Region, inputs: Values | None, own_inputs: Values | None
) -> list[tuple[Values, Values]]:
    """Return inputs of a region with its expected outputs: its own, or what reaches it."""
    if own_inputs is not None:
        return [(own_inputs, open_region(region).run(own_inputs))]
    return record_reference_runs(bundle, inputs)[region.name].values or list(run_alone(region))


class _NotOffError(InputError):
    """A region is not off on some inputs."""


def _make_judge(bundle: Bundle, region: Region, special: SpecialKind | None) -> RunJudge:
    """Return the function that judges runs of a region and its parts, on special values or others."""
    if special is None:
        return compare_run
    return SpecialJudge(special, bundle.manifest.read_arithmetic(region.target))


def _find_special_inputs(
    bundle: Bundle,
    region: Region,
    run: Executor,
    realistic: tuple[Values, Values],
    thresholds: Thresholds,
) -> tuple[Values, SpecialKind | None]:
    """Return special values on which a region is off, and their kind. Raises InputError for none."""
    contract = bundle.manifest.read_arithmetic(region.target)
    model = prepare_model(bundle.model(), bundle.display_path.name, bundle.folder)
    ends = InputEnds(bundle, model)
    check = SpecialCheck(
        region,
        run,
        open_region(region).run,
        *realistic,
        contract,
        lambda name, value: ends.find_of_region(region.name, name, value),
        thresholds,
        lambda runs: compare_recorded(region, runs, thresholds),
    )
    error, _ = check.compare(RegionError(region.name))
    if error.wrong_inputs is None:
        raise InputError(f"region {region.name} is not off on these inputs, nor on special values")
    return error.wrong_inputs, error.special


def _find_alike(bench: TrialBench, first: int) -> tuple[str, ...]:
    """Return the other operations of an operation's operator that are off alone, by name."""
    nodes = bench.cutting.index.nodes
    others = (i for i in bench.cutting.operations if i != first and _is_alike(nodes[i], nodes[first]))
    wrong = (i for i in others if bench.try_outcome([i]) is TrialOutcome.WRONG)
    return tuple(map(bench.cutting.operation_name, wrong))


def _is_alike(node: NodeProto, other: NodeProto) -> bool:
    """Return whether two nodes have one operator, or are instances of one composite."""
    return (node.domain, node.op_type) == (other.domain, other.op_type)


def _find_wrong_layer(
    bench: TrialBench, runs: Sequence[tuple[Values, Values]], layers: LayerCheck
) -> tuple[TrialBench, list[int]]:
    """Return the fewest operations that are off, of the first layer that is off alone, and their bench.

    Without any, there are none.
    """
    for inputs, _ in runs:
        bench = bench.move_to(RegionCutter(bench.cutting.region, inputs))
        probe = LayerProbe(bench.cutting)
        wrong = {error.tensor for error in layers.wrong}
        for layer in (layer for layer in probe.layers if layer.tensor in wrong):
            operations = probe.list_operations(layer)
            report_step(f"{bench.cutting.region.name}: {layer.op} '{layer.name}' alone")
            if bench.try_outcome(operations) is TrialOutcome.WRONG:
                return bench, minimize_wrong(operations, bench.try_outcome)
    return bench, []


def _narrow(bench: TrialBench) -> tuple[int, list[int]]:
    """Return the first operation with which a prefix of the region is wrong, and as few as are wrong."""
    region, operations = bench.cutting.region.name, bench.cutting.operations

    def prefix(length: int) -> TrialOutcome:
        report_step(f"{region}: the first {length} of {len(operations)} operations")
        return bench.try_outcome(operations[:length])

    length = find_shortest_wrong(len(operations), prefix)
    first = operations[length - 1]
    report_step(f"{region}: fewer operations than {length}")
    smallest = _smallest_part(bench, operations[:length], first)
    return first if first in smallest else smallest[-1], smallest


def _run_region(region: Region, run: Callable[[Values], Values], inputs: Values) -> Values:
    """Run a region on inputs. Raises InputError that names it."""
    try:
        return run(inputs)
    except InputError as error:
        raise InputError(f"region {region.name} does not run: {error}") from None


def _complete_name(bundle: Bundle, name: str) -> str:
    """Return the name of the region that is called so, or the only one that begins so."""
    names = [entry.name for entry in bundle.variant.regions]
    found = [name] if name in names else [each for each in names if name and each.startswith(name)]
    if len(found) == 1:
        return found[0]
    said = f"several regions begin with '{name}'" if found else f"no region '{name}'"
    there = ", ".join(found or names) or "none"
    raise InputError(f"{bundle.display_path}: {said}; there are: {there}")


def _open_region(bundle: Bundle, name: str) -> tuple[Region, Callable[[Values], Values]]:
    """Return a region of a bundle, and the function that runs it."""
    found = {region.name: (codegen, region, artifact) for codegen, region, artifact in bundle.regions()}
    require_consent(bundle)
    codegen, region, artifact = found[name]
    plugin = bundle.codegens.find(codegen)
    if not isinstance(plugin, Executable):
        raise InputError(
            f"region {name}: codegen {codegen} cannot run here what it compiles (it has no `load`), "
            "so that which of its operations are off cannot be tried"
        )
    first = bundle.identical_regions.get(name)
    own = region if first is None else bundle.open_compiled(first)[1]
    options = {entry.name: entry.codegen_options for entry in bundle.manifest.regions}
    run = load_executor(plugin, codegen, own, artifact, options[own.name])
    return region, run if own is region else rename_executor(run, own, region)


def _first_wrong_inputs(
    region: Region,
    run: Callable[[Values], Values],
    runs: Sequence[tuple[Values, Values]],
    thresholds: Thresholds,
    judge: RunJudge,
) -> Values:
    """Return the first inputs of a region on which it is wrong."""
    for values in runs:
        error = compare_region(region, run, RecordedRuns(1, [values]), thresholds, judge)
        if error.problem:
            raise InputError(f"region {region.name} {error.problem}")
        if not error.within:
            return values[0]
    raise _NotOffError(
        f"region {region.name} is not off on these inputs"
        if runs
        else f"region {region.name} is not reached by these inputs"
    )


def _require_reproducible(bench: TrialBench, codegen: str) -> None:
    """Raise InputError unless the whole region is wrong when it is compiled again."""
    name = bench.cutting.region.name
    found = bench.try_operations(bench.cutting.operations)
    if isinstance(found, NotTried):
        raise InputError(f"region {name} cannot be tried again: {found.reason}")
    if found.outcome is TrialOutcome.RIGHT:
        raise InputError(
            f"region {name} is right when it is compiled again: its artifact in the bundle is not what "
            f"codegen {codegen} makes of it here"
        )


def _smallest_part(bench: TrialBench, prefix: tuple[int, ...], first: int) -> list[int]:
    """Return as few operations of a prefix as are wrong together, connected and in order.

    This is the operation at fault alone, or ever more operations around it, which are then reduced.
    """
    around = {first}
    while bench.try_outcome(around) is not TrialOutcome.WRONG:
        wider = around | {n for i in around for n in bench.cutting.neighbours(i)} & {*prefix}
        if wider == around:
            around = {*prefix}
            break
        around = wider
    reduced = minimize_wrong(sorted(around), bench.try_outcome)
    for piece in _connected_groups(bench, reduced):
        if len(piece) < len(reduced) and bench.try_outcome(piece) is TrialOutcome.WRONG:
            return piece
    return reduced


def _connected_groups(bench: TrialBench, operations: Collection[int]) -> list[list[int]]:
    """Divide operations into connected groups, each in order."""
    pending, groups = [*operations], []
    while pending:
        group, reached = set[int](), {pending[0]}
        while reached:
            group |= reached
            reached = {n for i in reached for n in bench.cutting.neighbours(i)} & {*pending} - group
        groups.append(sorted(group))
        pending = [i for i in pending if i not in group]
    return groups
