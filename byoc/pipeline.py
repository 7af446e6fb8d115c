"""The pipeline: load, plan (annotate, group, place, outline), emit (compile, verify, pack).

One direction, each stage taking a value and giving a new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from byoc import zoo
from byoc.bundle.read import open_bundle
from byoc.bundle.staging import check_destination
from byoc.codegen import find_codegen
from byoc.emit import emit
from byoc.errors import InputError
from byoc.graph.load import Model, prepare, read_file
from byoc.placement import Strategy
from byoc.plan import Plan, make_plan
from byoc.plugins import STRATEGIES
from byoc.plugins import load as load_plugin
from byoc.report.document import document
from byoc.rules.load import load_rules
from byoc.verify.compare import Verification
from byoc.verify.run import verify as verify_bundle

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
    return prepare(read_file(Path(name)), name, Path(name).parent, dims)


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
    rules: str | Path,
    *,
    output: str | Path | None = None,
    strategy: str = "min-cut",
    cost_model: str | None = None,
    host_cost_model: str = "host",
    codegen: str | None = None,
    codegen_options: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    trips: Mapping[str, float] | None = None,
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
        trips: how often Loops and Scans run, by node name, where the model does not say.
        verify: run the bundle and the original on seeded inputs and compare, if onnxruntime is there.
        progress: called with the name of each step as it begins.

    Raises:
        InputError: the model, the rules, an option, a codegen or the outcome of the verification is at
            fault; nothing has been written.
    """
    asked = {
        "model": _called(model),
        "rules": str(rules),
        "strategy": strategy,
        "cost_model": cost_model,
        "host_cost_model": host_cost_model,
        "codegen": codegen,
        "codegen_options": dict(codegen_options or {}),
        "dims": dict(dims or {}),
        "trips": dict(trips or {}),
    }
    if output is not None:
        check_destination(Path(output))
    target = load_rules(str(rules))
    if output is not None or codegen is not None:  # a plan can be made before there is a codegen
        compiler = find_codegen(codegen or target.rules.codegen)
    solver: Strategy = load_plugin(STRATEGIES, strategy)
    progress("load model")
    loaded = load_model(model, dims)
    costs = (host_cost_model, cost_model or target.rules.cost_model)
    plan = make_plan(loaded, target, solver, costs, asked, progress, trips)
    if output is None:
        return Result(plan, document(plan, "nothing was compiled, since no output was given (-o)"))
    outcome = emit(plan, Path(output), compiler, codegen_options or {}, verify, progress)
    verification = None if isinstance(outcome, str) else outcome
    return Result(plan, document(plan, outcome, Path(output)), Path(output), verification)


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
    dims = asked.get("dims") or {}
    if not isinstance(dims, dict) or not all(isinstance(size, int) for size in dims.values()):
        raise InputError(f"{bundle}: asked.dims in the manifest is not sizes by name")
    return verify_bundle(opened, load_model(name, dims))


def _called(model: str | Path | onnx.ModelProto) -> str:
    """Return how the manifest names a model: never by a path, which means nothing elsewhere."""
    if isinstance(model, onnx.ModelProto):
        return "a model in memory"
    name = str(model)
    return name if name.startswith(_ZOO) else Path(name).name
