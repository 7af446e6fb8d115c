"""The pipeline: load, annotate, group, place, outline; then emit, verify, pack.

One direction, each stage taking a value and giving a new one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from byoc.bundle.read import Bundle, open_bundle
from byoc.bundle.staging import check_destination, staged
from byoc.bundle.write import make_manifest, write_bundle, write_manifest
from byoc.codegen import Codegen, Executable, find_codegen
from byoc.costs.load import load_cost_model
from byoc.costs.pose import Posed, pose
from byoc.errors import InputError
from byoc.graph.load import Model, prepare, read_file
from byoc.graph.outline import Cut, Group, interface, outline
from byoc.patterns.group import Unit, group
from byoc.placement import Placement, Strategy
from byoc.placement.strategies.host_only import HostOnly
from byoc.plan import Plan, PlannedRegion, host_reason
from byoc.plugins import STRATEGIES
from byoc.plugins import load as load_plugin
from byoc.report.document import document
from byoc.rules.annotate import annotate
from byoc.rules.load import Target, load_rules
from byoc.runtime.onnxrt import HOW_TO_GET_IT, has_runtime
from byoc.verify.compare import Verification
from byoc.verify.run import verify as verify_bundle
from byoc.zoo import load as load_zoo

Progress = Callable[[str], None]
_ZOO = "zoo:"


@dataclass(frozen=True, eq=False)
class Result:
    """What `partition` gives back.

    `report` is the JSON document of the command line, `bundle` where it was written (None without an
    output), `verification` the comparison with the original (None when there was none).
    """

    plan: Plan
    report: Mapping[str, Any]
    bundle: Path | None = None
    verification: Verification | None = None

    @property
    def model(self) -> onnx.ModelProto:
        """The partitioned model: plain ONNX, regions as functions."""
        return self.plan.proto


def load_model(source: str | Path | onnx.ModelProto, dims: Mapping[str, int] | None = None) -> Model:
    """Return a checked model from a path, `zoo:NAME`, or a protobuf, which is left as it is.

    `dims` gives symbolic dimensions a size. Raises InputError when there is no such model, it is not
    valid ONNX, or has no such dimension.
    """
    if isinstance(source, onnx.ModelProto):
        return prepare(source, source.graph.name or "model", dims=dims)
    name = str(source)
    if name.startswith(_ZOO):
        return prepare(load_zoo(name.removeprefix(_ZOO)), name, dims=dims)
    return prepare(read_file(Path(name)), name, Path(name).parent, dims)


def partition(  # noqa: PLR0913 - each is a choice of the caller's, and has a default
    model: str | Path | onnx.ModelProto,
    rules: str | Path,
    *,
    output: str | Path | None = None,
    strategy: str = "min-cut",
    cost_model: str | None = None,
    host_cost_model: str = "host",
    codegen: str | None = None,
    codegen_options: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    verify: bool = True,
    progress: Progress = lambda stage: None,
) -> Result:
    """Cut a model between the host and the accelerator that a rule file describes.

    Args:
        model: a path, `zoo:NAME`, or a protobuf (never changed).
        rules: a rule file's path, or the name of a built-in one.
        output: where to write the bundle; without it nothing is compiled or verified. An existing
            bundle is replaced, whole; anything else that is there is left alone.
        strategy: the placement strategy's name (`byoc.strategies` entry points).
        cost_model: the accelerator's cost model, a path or a name; the rule file's unless given.
        host_cost_model: the host's.
        codegen: the codegen's name; the rule file's unless given.
        codegen_options: passed to the codegen as they are.
        dims: sizes for symbolic dimensions.
        verify: run the bundle and the original on seeded inputs and compare, if onnxruntime is there.
        progress: called with the name of each step as it begins.

    Raises:
        InputError: the model, the rules, an option, a codegen or the outcome of the verification is at
            fault; nothing has been written.
    """
    asked = {
        "model": model if isinstance(model, str) else getattr(model, "name", "a model in memory"),
        "rules": str(rules),
        "strategy": strategy,
        "cost_model": cost_model,
        "host_cost_model": host_cost_model,
        "codegen": codegen,
        "codegen_options": dict(codegen_options or {}),
        "dims": dict(dims or {}),
    }
    if output is not None:
        check_destination(Path(output))
    target = load_rules(str(rules))
    compiler = find_codegen(codegen or target.rules.codegen)
    solver: Strategy = load_plugin(STRATEGIES, strategy)
    progress("load model")
    loaded = load_model(model, dims)
    plan = make_plan(
        loaded, target, solver, (host_cost_model, cost_model or target.rules.cost_model), asked, progress
    )
    if output is None:
        return Result(plan, document(plan, "nothing was compiled, since no output was given (-o)"))
    return _emit(plan, Path(output), compiler, codegen_options or {}, verify, progress)


def make_plan(  # noqa: PLR0913, PLR0917 - the pipeline's parts, all needed
    model: Model,
    target: Target,
    strategy: Strategy,
    cost_models: tuple[str, str],
    asked: Mapping[str, Any],
    progress: Progress,
) -> Plan:
    """Return the plan for a model: annotate, group, place, outline. `cost_models`: host, device."""
    host, device = map(load_cost_model, cost_models)
    index = model.index
    progress("annotate")
    marks = annotate(index, target.rules)
    units = group(index, target.patterns, marks)
    posed = pose(index, units, host, device, connected=target.rules.regions == "connected")
    progress(f"place {len(units)} units")
    placement = strategy.solve(posed.problem)
    regions = _regions(model, target, units, posed, placement)
    progress("outline")
    labels = zip(units, placement.labels, strict=True)
    stay = {
        node: {"byoc.device": "host", "byoc.reason": str(host_reason(unit))}
        for unit, label in labels
        if label == 0
        for node in unit.nodes
    }
    cuts = [_cut(index.nodes, target, region) for region in regions]
    return Plan(
        asked=asked,
        model=model,
        target=target,
        units=tuple(units),
        posed=posed,
        placement=placement,
        host_only=HostOnly().solve(posed.problem).cost,
        regions=regions,
        proto=outline(index, cuts, stay),
    )


def _regions(
    model: Model, target: Target, units: Sequence[Unit], posed: Posed, placement: Placement
) -> tuple[PlannedRegion, ...]:
    regions = []
    for number in range(int(placement.regions.max(initial=-1)) + 1):
        rows = (placement.regions == number).nonzero()[0]
        members = tuple(units[row] for row in rows)
        device = int(placement.labels[rows[0]])
        seconds = posed.problem.seconds[rows, device].sum() + posed.problem.launch[device - 1]
        nodes = sorted(node for unit in members for node in unit.nodes)
        border = interface(model.index, nodes)
        regions.append(PlannedRegion(f"{target.name}_{number}", members, border, float(seconds)))
    return tuple(regions)


def _cut(nodes: Sequence[onnx.NodeProto], target: Target, region: PlannedRegion) -> Cut:
    return Cut(
        name=region.name,
        domain=target.domain,
        groups=tuple(_group(nodes, unit) for unit in region.units),
        metadata={
            "byoc.target": target.name,
            "byoc.units": str(len(region.units)),
            "byoc.predicted_seconds": f"{region.seconds:.3e}",
        },
    )


def _group(nodes: Sequence[onnx.NodeProto], unit: Unit) -> Group:
    rules = {"byoc.rules": ", ".join(unit.rules)}
    if unit.match is None:
        return Group(unit.nodes, metadata=rules)
    names = ", ".join(nodes[i].name or nodes[i].output[0] for i in unit.nodes)
    return Group(unit.nodes, unit.match.as_composite(nodes), rules | {"byoc.nodes": names})


def _emit(  # noqa: PLR0913, PLR0917 - as above
    plan: Plan,
    output: Path,
    codegen: Codegen,
    options: Mapping[str, str],
    verify: bool,
    progress: Progress,
) -> Result:
    """Write the bundle, verify it where it stands, and put it in its place only then."""
    with staged(output) as folder:
        regions = write_bundle(plan, folder, codegen, options, progress)
        manifest = make_manifest(folder, plan, regions)
        outcome = _outcome(plan, Bundle(folder, manifest), codegen, verify, progress)
        manifest = manifest.model_copy(update={"report": document(plan, outcome)})
        write_manifest(folder, manifest)
    verification = None if isinstance(outcome, str) else outcome
    return Result(plan, document(plan, outcome, output), output, verification)


def _outcome(
    plan: Plan, bundle: Bundle, codegen: Codegen, verify: bool, progress: Progress
) -> Verification | str:
    """Return the verification, which has passed, or why there is none."""
    if not verify:
        return "verification was turned off"
    if not has_runtime():
        return HOW_TO_GET_IT
    if plan.regions and not isinstance(codegen, Executable):
        return f"codegen {codegen.name} cannot run here what it compiles"
    progress("verify")
    verification = verify_bundle(bundle, plan.model)
    require(verification)
    return verification


def verify_against(bundle: str | Path, against: str | Path | None = None) -> Verification:
    """Compare a bundle with its original on seeded inputs, and return the errors of all outputs.

    `against` is the original, a path or `zoo:NAME`. Without it a zoo model is found by the name in the
    manifest; for any other, the bundle is compared with its own partitioned model, run whole on plain
    onnxruntime. Raises InputError when either cannot be read or run, and MissingRuntimeError.
    """
    opened = open_bundle(Path(bundle))
    asked = opened.manifest.asked
    name = str(against or asked.get("model", ""))
    if against is None and not name.startswith(_ZOO):
        own = prepare(opened.model(), f"its own {opened.manifest.model}", opened.folder)
        return verify_bundle(opened, own)
    return verify_bundle(opened, load_model(name, asked.get("dims")))


def require(verification: Verification) -> None:
    """Raise InputError when an output is off by more than its tolerance, naming the worst."""
    worst = verification.worst
    if worst is None or worst.within:
        return
    raise InputError(
        f"verification failed: output '{worst.name}' differs from {verification.against} by "
        f"{worst.relative:.2g} of its range, at most {worst.tolerance:g} is allowed for {worst.dtype}"
    )
