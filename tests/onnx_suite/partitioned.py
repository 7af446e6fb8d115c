"""One case of ONNX's suite, first on plain onnxruntime and then cut in several ways as a bundle."""

import atexit
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, TypeVar
from zlib import crc32

import onnx
from differing import differs
from helpers.cutting import compilers
from helpers.cutting import planned as cut_up
from helpers.strategies import Alternating, Random
from suite import Case, Values

import byoc
from byoc.bundle import build_manifest, describe_variant, stage_bundle, write_bundle, write_manifest
from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.placement import Strategy
from byoc.placement.strategies import AllSupported
from byoc.planning import Plan
from byoc.reporting import make_report
from byoc.rules import Target, load_rules
from byoc.verification import NotVerified, Verification, compare_tensors, require_passed

COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlink: {bandwidth: .inf}\n"
)
RULES = "target: any\ncost_model: near\ndtype: any\nregions: {regions}\nops: [{{op: '*'}}]\n"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Way:
    """A way to cut a model: the strategy for it, and what the rule file says of regions."""

    strategy: Callable[[Case], Strategy]
    regions: str


WAYS: Mapping[str, Way] = {
    "all-supported": Way(lambda case: AllSupported(), "phase"),
    "random": Way(lambda case: Random(crc32(case.name.encode())), "phase"),
    "alternating": Way(lambda case: Alternating(), "connected"),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    `unfit` says why it does not count: plain onnxruntime does not give what the suite expects. By way,
    `regions` holds how many were formed, `failures` what was wrong with the bundle, and `whole` what was
    wrong with the partitioned model on plain onnxruntime.
    """

    case: str
    kind: str
    lowered: bool = False
    unfit: str = ""
    regions: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, str] = field(default_factory=dict)


def check(case: Case, ways: Mapping[str, Way] = WAYS) -> Outcome:
    """Return what became of a case; failures are sentences, never exceptions."""
    originals, unfit = attempt(plain, case, case.model)
    if originals is None:
        return Outcome(case.name, case.kind, case.lowered, unfit)
    regions, failures, whole = {}, {}, {}
    for name, way in ways.items():
        plan, why = attempt(planned, case, way)
        if plan is None:
            failures[name] = whole[name] = why
            continue
        regions[name] = len(plan.regions)
        for found, step in ((failures, check_bundle), (whole, check_whole)):
            _, why = attempt(step, case, plan, originals)
            found.update({name: why} if why else {})
    return Outcome(case.name, case.kind, case.lowered, "", regions, failures, whole)


def attempt(step: Callable[..., Result], *arguments: Any) -> tuple[Result | None, str]:
    """Return what a step gave, or what its exception said."""
    try:
        return step(*arguments), ""
    except Exception as error:  # whatever happens is a line in the table
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def plain(case: Case, proto: onnx.ModelProto) -> list[Values]:
    """Return what plain onnxruntime gives for a model of a case, held to what the suite expects."""
    with without_optimizations():
        session = open_session(proto)
    results = [run_session(session, inputs) for inputs, _ in case.data_sets]
    for (_, expected), actual in zip(case.data_sets, results, strict=True):
        _require(case, expected, actual)
    return results


def planned(case: Case, way: Way) -> Plan:
    """Return the plan for a case with rules that take every operator in every type."""
    costs, target = _permissive(way.regions)
    model = prepare_model(case.model, case.name)
    asked = {"model": case.name}
    plan = cut_up(model, target, way.strategy(case), costs=costs, asked=asked)
    silent = [unit for unit, verdict in plan.host_units if not str(verdict)]
    assert not silent, f"no reason why {silent[0]} is on the host"
    return plan


@cache
def _permissive(regions: str) -> tuple[str, Target]:
    """Return a cost model and a target that takes everything, both from files as a user's would be."""
    folder = Path(mkdtemp(prefix="onnx-suite-"))
    atexit.register(shutil.rmtree, folder)
    (folder / "near.yaml").write_text(COSTS, encoding="utf-8")
    (folder / "any.yaml").write_text(RULES.format(regions=regions), encoding="utf-8")
    return str(folder / "near.yaml"), load_rules(str(folder / "any.yaml"))


def run_bundle(plan: Plan, inputs: Sequence[Values]) -> list[Values]:
    """Write a plan as a bundle with `reference`, load that, and return its outputs for inputs."""
    with TemporaryDirectory(prefix="onnx-suite-") as folder:
        path = Path(folder, "case.byoc")
        with stage_bundle(path) as fresh:
            entries = write_bundle(plan, fresh, compilers(plan))
            report = make_report(plan, NotVerified("not yet"))
            write_manifest(
                fresh, build_manifest(fresh, [plan], [describe_variant(plan, entries, report)])
            )
        with without_optimizations():
            session = byoc.load(path, isolate=False)
        return [session(given) for given in inputs]


def check_bundle(case: Case, plan: Plan, originals: Sequence[Values]) -> None:
    """Hold the bundle of a plan to the suite and to the original's outputs."""
    results = run_bundle(plan, [inputs for inputs, _ in case.data_sets])
    for (_, expected), original, actual in zip(case.data_sets, originals, results, strict=True):
        _require(case, expected, actual)
        require_passed(Verification("the original", tuple(compare_tensors(original, actual))))


def check_whole(case: Case, plan: Plan, originals: Sequence[Values]) -> None:
    """Hold the partitioned model, which is plain ONNX, to the checker and to plain onnxruntime."""
    onnx.checker.check_model(plan.proto)
    for original, actual in zip(originals, plain(case, plan.proto), strict=True):
        require_passed(Verification("the original", tuple(compare_tensors(original, actual))))


def _require(case: Case, expected: Values, actual: Values) -> None:
    assert list(actual) == list(expected), f"outputs {list(actual)} instead of {list(expected)}"
    for name, value in expected.items():
        wrong = differs(value, actual[name], case.rtol, case.atol)
        assert not wrong, f"output '{name}' {wrong}"
