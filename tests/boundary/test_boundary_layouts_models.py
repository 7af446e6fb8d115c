"""Light and random models give the same bits whatever the layout."""

import sys
from collections import Counter
from dataclasses import replace

import onnx
import onnx.version_converter
import pytest
from helpers.cutting import planned
from helpers.strategies import Alternating, Random
from helpers.support import LIGHT, VANILLA, examples, sample_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from laying import arranged, border, put_in, same
from onnx import ModelProto
from pipeline.random_graphs import GraphMaker

from byoc import zoo
from byoc.boundary.convert import ConvertedModel, RegionBoundary, convert_boundary
from byoc.model import prepare_model, walk_graphs
from byoc.placement import Strategy
from byoc.placement.strategies import AllSupported
from byoc.planning import GraphPlan, Plan
from byoc.rules import Target, load_rules


def plain_dla() -> Target:
    """Return VANILLA's rules without their layout, so that what is planned has plain borders."""
    target = load_rules(str(VANILLA))
    return replace(target, rules=target.rules.model_copy(update={"layout": type(target.rules.layout)()}))


def region_borders(plan: GraphPlan, word: str) -> list[RegionBoundary]:
    found = [border(plan.index, r.name, word) for r in plan.regions]
    for inner in plan.bodies.values():
        found += [one for part in inner for one in region_borders(part, word)]
    return found


@pytest.mark.parametrize("strategy", [AllSupported(), Alternating()], ids=lambda s: s.name)
@pytest.mark.parametrize("name", sample_cases(LIGHT, "squeezenet", "shufflenet"))
def test_light_models_give_the_same_bits(name: str, strategy: Strategy) -> None:
    plan = planned(prepare_model(zoo.load(name), name), plain_dla(), strategy)

    figures(name, plan, "NHWC")


@pytest.mark.parametrize("strategy", [AllSupported(), Alternating()], ids=lambda s: s.name)
@pytest.mark.parametrize("name", ["shufflenet", "squeezenet"])
def test_light_models_give_the_same_bits_in_blocks(name: str, strategy: Strategy) -> None:
    newer = onnx.version_converter.convert_version(zoo.load(name), 13)
    plan = planned(prepare_model(newer, name), plain_dla(), strategy)

    figures(name, plan, "NCHW16c")


def figures(name: str, plan: Plan, word: str) -> None:
    """Assert that a plan's model gives the same bits with a layout, and tell what was put in."""
    original = ModelProto()
    original.CopyFrom(plan.proto)
    assert not any(put_in(function.node) for function in original.functions)
    result: ConvertedModel = convert_boundary(plan.proto, region_borders(plan.root, word))

    same(original, result.proto, zoo.sample_inputs(name, 0))
    inside = sum(len(put_in(function.node)) for function in result.proto.functions)
    outside = len(put_in(result.proto.graph.node))
    sys.stdout.write(f"{name} {word}: {len(plan.regions)} regions, {outside} + {inside} nodes\n")
    assert inside >= len(plan.regions)
    assert outside > 0


@settings(deadline=None, max_examples=examples(40))
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 25),
    st.sampled_from(["NHWC", "CHWN", "NCHW4c", "NHWC3c", "CNHW2h2w"]),
    st.booleans(),
)
def test_random_models_give_the_same_bits(seed: int, size: int, word: str, dense: bool) -> None:
    model = prepare_model(GraphMaker(seed).model(size), "random")
    strategy = AllSupported() if dense else Random(seed)
    plan = planned(model, plain_dla(), strategy)

    result, edit = arranged(plan.proto, region_borders(plan.root, word))

    same(plan.proto, result)
    # Every form of a tensor is made once, by whoever makes it.
    made = Counter(name for graph in walk_graphs(result.graph) for n in graph.node for name in n.output)
    assert max(made[name] for name in edit.types if name in made) == 1 if edit.types else True
