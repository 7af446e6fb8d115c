"""The pipeline: load, plan (annotate, group, place, outline), emit (compile, verify, pack).

One direction, each stage taking a value and giving a new one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import onnx

from byoc import zoo
from byoc.bundle.compile import Compiler
from byoc.bundle.compilers import load_compilers
from byoc.bundle.epcontext import require_contexts
from byoc.bundle.read import Bundle, open_bundle
from byoc.bundle.staging import check_destination
from byoc.errors import InputError
from byoc.fallback import emit_working
from byoc.graph.load import Model, prepare, read_file
from byoc.loading import (
    DEFAULT_STRATEGY,
    for_each,
    load_settings,
    read_gate,
    read_isolation,
    told_gate,
)
from byoc.plan import Plan, saved_text
from byoc.precision.conclude import NATIVE, Precision
from byoc.precision.lower import Lowering
from byoc.report.document import document
from byoc.textfile import write_text
from byoc.verify.compare import Verification
from byoc.verify.run import Against
from byoc.verify.run import verify as verify_bundle
from byoc.verify.thresholds import DEFAULT as DEFAULT_THRESHOLDS
from byoc.verify.thresholds import Thresholds

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
        return _load_zoo(name, dims)
    model = prepare(read_file(Path(name)), name, Path(name).parent, dims)
    # Absolute: a codegen's code may change the working directory before weights are read again.
    return replace(model, folder=Path(name).parent.absolute())


def _load_zoo(source: str, dims: Mapping[str, int] | None) -> Model:
    """Return a model of the zoo, with the inputs that the zoo has for it unless dimensions are given."""
    name = source.removeprefix(_ZOO)
    path = zoo.path(name)
    if path is None:
        model = prepare(zoo.load(name), source, dims=dims)
    else:
        model = prepare(read_file(path), source, path.parent, dims)
    return model if dims else replace(model, samples=partial(zoo.sample_inputs, name))


def partition(  # noqa: PLR0913 - each is a choice of the caller's, and has a default
    model: str | Path | onnx.ModelProto,
    rules: str | Path | Sequence[str | Path],
    *,
    output: str | Path | None = None,
    strategy: str = DEFAULT_STRATEGY,
    objective: str = "latency",
    cost_model: str | Mapping[str, str] | None = None,
    host_cost_model: str = "host",
    unknown_costs: str = "estimate",
    codegen: str | Mapping[str, str] | None = None,
    codegen_options: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    trips: Mapping[str, float] | None = None,
    placement: str | Path | None = None,
    precision: Precision = NATIVE,
    verify: bool = True,
    strict: bool = False,
    isolate: bool = False,
    compile_timeout: float | None = None,
    gate: bool | float | Thresholds = False,
    emit: Literal["epcontext"] | None = None,
    progress: Progress = lambda stage: None,
) -> Result:
    """Cut a model between the host and the accelerators that rule files describe.

    Args:
        model: a path, `zoo:NAME`, or a protobuf (never changed).
        rules: a rule file's path, or the name of a built-in one; several for several accelerators.
        output: where to write the bundle; without it nothing is compiled or verified. An existing
            bundle is replaced, whole; anything else that is there is left alone.
        strategy: the placement strategy's name (`byoc.strategies` entry points).
        objective: `latency`, `energy`, or weights of both: `latency=1,energy=0.5`.
        cost_model: the accelerator's cost model, a path or a name, or one for each of several
            accelerators by name; the rule file's unless given.
        host_cost_model: the host's.
        unknown_costs: what is done about a cost that no model knows: `refuse`, `host` or `estimate`.
        codegen: the codegen's name, or one for each accelerator; the rule file's unless given.
        codegen_options: options by `name`, or by `target:name` for the codegen of one target; they win
            over those of the rule files.
        dims: sizes for symbolic dimensions.
        trips: how often Loops and Scans run, by node name, where the model does not say.
        placement: a file that says where some nodes are to be, as `save_placement` writes it.
        precision: what regions compute in, and what scales are concluded from.
        verify: run the bundle and the original on seeded inputs and compare, if onnxruntime is there.
        strict: a region that its codegen does not compile, load or run is an error; without this its
            nodes go elsewhere, the model is cut anew, and the report tells of it.
        isolate: compile each region in a process of its own, which may crash or be killed.
        compile_timeout: the most seconds that compiling a region may take, which implies `isolate`.
        gate: compare each region alone with plain onnxruntime; those that are off by more than this go
            elsewhere, as if they were refused. True takes verification's thresholds; a number is the
            largest error of floats as a share of the range.
        emit: `epcontext` puts `model_ctx.onnx` into the bundle, the host's model with an EPContext node
            for each region, which ONNX Runtime loads where the codegen's provider is.
        progress: called with the name of each step as it begins.

    Raises:
        InputError: the model, the rules, an option, a codegen or the outcome of the verification is at
            fault; nothing has been written.
    """
    files = [rules] if isinstance(rules, (str, Path)) else list(rules)
    isolation, allowed = read_isolation(isolate, compile_timeout), read_gate(gate)
    asked = {
        "model": _called(model),
        "rules": [_called(name) for name in files],
        "strategy": strategy,
        "objective": objective,
        "cost_model": _plain(cost_model),
        "host_cost_model": _called(host_cost_model),
        "unknown_costs": unknown_costs,
        "codegen": _plain(codegen),
        "codegen_options": dict(codegen_options or {}),
        "dims": dict(dims or {}),
        "trips": dict(trips or {}),
        "placement": None if placement is None else _called(placement),
        "precision": precision.asked,
        "strict": strict,
        "isolate": isolate,
        "compile_timeout": compile_timeout,
        "gate": told_gate(allowed),
        **({"emit": emit} if emit else {}),
    }
    if output is not None:
        check_destination(Path(output))
    settings = load_settings(
        files,
        strategy=strategy,
        objective=objective,
        cost_model=cost_model,
        host_cost_model=host_cost_model,
        unknown_costs=unknown_costs,
        trips=trips,
        placement=placement,
    )
    compilers: Mapping[str, Compiler] = {}
    if (
        output is not None or codegen is not None or codegen_options
    ):  # a plan can be made before there is a codegen
        names = for_each(settings.targets, codegen, "codegen", lambda target: target.rules.codegen)
        compilers = load_compilers(settings.targets, names, codegen_options or {})
    if emit is not None:
        _check_emit(emit, output, compilers)
    progress("load model")
    loaded = load_model(model, dims)
    lowering = Lowering(loaded, settings, precision, asked, progress)
    if output is None:
        plan = lowering.plan()
        return Result(plan, document(plan, "nothing was compiled, since no output was given (-o)"))
    place = Path(output).absolute()  # a codegen's code may change the working directory
    compilers = {name: replace(each, isolation=isolation) for name, each in compilers.items()}
    done = emit_working(
        lowering.plan, place, compilers, verify, progress, strict, allowed, emit is not None
    )
    verification = None if isinstance(done.outcome, str) else done.outcome
    return Result(done.plan, document(done.plan, done.outcome, Path(output)), Path(output), verification)


def save_placement(plan: Plan, path: str | Path) -> None:
    """Write where each node of a plan is to a file that `partition(placement=...)` reads."""
    graphs = []
    for graph in plan.root.walk():
        names = ("host", *(target.name for target in plan.targets))
        labels = graph.placement.labels.tolist()
        devices = {
            node: names[label]
            for unit, label in zip(graph.units, labels, strict=True)
            for node in unit.nodes
        }
        graphs.append((graph.index, graph.place, devices))
    write_text(Path(path), saved_text(_called(plan.model.source), graphs))


def _plain(choice: str | Mapping[str, str] | None) -> str | dict[str, str] | None:
    """Return a choice of files or plug-ins as the manifest names it."""
    if choice is None or isinstance(choice, str):
        return choice and _called(choice)
    return {target: _called(name) for target, name in choice.items()}


def verify_against(
    bundle: str | Path,
    against: str | Path | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = False,
) -> Verification:
    """Compare a bundle with its original, and return the errors of all outputs.

    `against` is the original as `original_of` takes it, `inputs` are seeded ones unless given. With
    `regions` every tensor at a border and each region alone are compared, too. Raises InputError when
    either cannot be read or run, and MissingRuntimeError.
    """
    opened = open_bundle(Path(bundle))
    found = original_of(opened, against)
    return verify_bundle(
        opened, found.model, inputs, found.original, found.computed, thresholds, regions
    )


def original_of(bundle: Bundle, against: str | Path | None = None) -> Against:
    """Return what a bundle is to be compared with.

    `against` is the original, a path or `zoo:NAME`. Without it a zoo model is found by the name in the
    manifest; for any other, the bundle is compared with its own partitioned model, run whole on plain
    onnxruntime, and so is one of lower precision, of which it is told what is left of the original.
    Raises InputError when the original cannot be read.
    """
    asked = bundle.manifest.asked
    name = str(against or asked.get("model", ""))
    if against is None and not name.startswith(_ZOO):
        return Against(prepare(bundle.model(), f"its own {bundle.manifest.model}", bundle.folder))
    dims = asked.get("dims") or {}
    if not isinstance(dims, dict) or not all(isinstance(size, int) for size in dims.values()):
        raise InputError(f"{bundle.place}: asked.dims in the manifest is not sizes by name")
    original = load_model(name, dims)
    precision = bundle.manifest.report.get("precision")
    if precision is None:
        return Against(original)
    whole = f"its own {bundle.manifest.model}"
    own = replace(original, proto=bundle.model(), source=whole, folder=bundle.folder)
    return Against(own, original, str(precision.get("dtype") or ""))


def _check_emit(emit: str, output: str | Path | None, compilers: Mapping[str, Compiler]) -> None:
    """Raise InputError when what else is to be written is not known, or cannot be."""
    if emit != "epcontext":
        raise InputError(f"emit is '{emit}', but must be 'epcontext'")
    if output is None:
        raise InputError("--emit epcontext writes into the bundle: say where that is to be (-o)")
    require_contexts({name: compiler.codegen for name, compiler in compilers.items()})


def _called(model: str | Path | onnx.ModelProto) -> str:
    """Return how the manifest names a model: never by a path, which means nothing elsewhere."""
    if isinstance(model, onnx.ModelProto):
        return "a model in memory"
    name = str(model)
    return name if name.startswith(_ZOO) else Path(name).name
