"""Whatever the placement, the partitioned model is valid ONNX and computes what the original did."""

from functools import cache

import onnx
import pytest
from helpers.cutting import compilers
from helpers.cutting import planned as cut_up
from helpers.strategies import Random
from helpers.support import VANILLA, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import GraphMaker

from byoc.bundle import (
    build_manifest,
    describe_variant,
    open_bundle,
    stage_bundle,
    write_bundle,
    write_manifest,
)
from byoc.model import Model, prepare_model
from byoc.placement import find_violation
from byoc.planning import Plan
from byoc.reporting import make_report
from byoc.rules import OpRule, Target, load_rules
from byoc.samples import sample_inputs
from byoc.verification import (
    NotVerified,
    VerificationModels,
    compare_tensors,
    run_plain,
    verify_samples,
)

_OPS = (
    "Conv",
    "Relu",
    "Sigmoid",
    "Abs",
    "Identity",
    "Add",
    "Mul",
    "Sub",
    "Sum",
    "Split",
    "Concat",
    "If",
)


@cache
def permissive(regions: str) -> Target:
    """Return dla's composites with rules that take every operator of the random graphs."""
    dla = load_rules(str(VANILLA))
    rules = dla.rules.model_copy(
        update={
            "ops": (*(OpRule(op=(op,)) for op in _OPS), OpRule(op=("BatchNormalization",))),
            "regions": regions,
        }
    )
    return Target("permissive", rules)


def planned(seed: int, size: int, regions: str) -> tuple[Model, Plan]:
    model = prepare_model(GraphMaker(seed).model(size), "random")
    strategy = Random(seed)
    plan = cut_up(model, permissive(regions), strategy, asked={"model": "random"})
    return model, plan


def assert_every_node_is_placed_once(plan: Plan) -> None:
    for graph in plan.root.walk():
        placed = [node for region in graph.regions for node in region.nodes]
        placed += [node for unit, _ in graph.host_units for node in unit.nodes]
        placed += sorted(graph.index.constant_nodes)
        assert sorted(placed) == list(range(len(graph.index.nodes)))


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 40),
    regions=st.sampled_from(["phase", "connected"]),
)
def test_partitioned_model_is_valid_and_equal(seed: int, size: int, regions: str) -> None:
    model, plan = planned(seed, size, regions)
    before = model.proto.SerializeToString(deterministic=True)

    assert find_violation(plan.graph_problem.problem, plan.placement) == ""
    onnx.checker.check_model(plan.proto, full_check=True)
    inputs = sample_inputs(model.index, seed)
    expected = run_plain(model.proto, model, inputs)
    actual = run_plain(plan.proto, model, inputs)

    assert list(actual) == list(expected)
    assert [error.absolute for error in compare_tensors(expected, actual)] == [0.0] * len(expected)
    assert model.proto.SerializeToString(deterministic=True) == before
    assert_every_node_is_placed_once(plan)


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), regions=st.sampled_from(["phase", "connected"]))
def test_bundle_computes_what_the_model_did(
    seed: int, regions: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model, plan = planned(seed, 25, regions)
    path = tmp_path_factory.mktemp("bundle") / "random.byoc"
    with stage_bundle(path) as folder:
        entries = write_bundle(plan, folder, compilers(plan))
        report = make_report(plan, NotVerified("not yet"))
        write_manifest(folder, build_manifest(folder, [plan], [describe_variant(plan, entries, report)]))

    verification = verify_samples(open_bundle(path), VerificationModels(model), (), model)

    assert verification.passed, verification
    assert [output.name for output in verification.outputs] == list(model.index.outputs)
