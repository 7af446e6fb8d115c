"""The order of the nodes in the file does not change which node goes where."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerators import Files
from helpers.cutting import without_what_ifs
from helpers.support import VANILLA, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs_of_plans import random_model, shuffled

from byoc import zoo
from byoc.pipeline import Result, partition


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with without_what_ifs():
        yield


def placed(result: Result) -> dict[str, tuple[str, frozenset[str]]]:
    """Return for each node of the main graph its device, and the nodes of its region."""
    index = result.plan.root.index
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for region in result.plan.regions:
        names = frozenset(index.nodes[node].name or index.nodes[node].output[0] for node in region.nodes)
        found |= dict.fromkeys(names, (region.target.name, names))
    return found


def both(folder: Path, launch: str, connected: str) -> list[str]:
    """Return two rule files: costs tie wherever they can, so that only the order could decide."""
    files = Files(folder)
    costs = files.costs("tied", launch=launch)
    regions = f"regions: {connected}\nlimits: {{regions: 3}}\n"
    ops = ("Relu", "Neg", "Add", "Mul")
    return [files.rules(name, *ops, costs=costs, more=regions) for name in ("one", "two")]


@pytest.mark.parametrize("strategy", ["launch-aware", "min-cut", "exact"])
@settings(max_examples=examples(15), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 14),
    launch=st.sampled_from(["0.0", "3.0e-6"]),
    connected=st.sampled_from(["connected", "phase"]),
)
def test_random_models(  # noqa: PLR0917 - what hypothesis draws
    strategy: str,
    seed: int,
    size: int,
    launch: str,
    connected: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = random_model(seed, size)
    rules = both(tmp_path_factory.mktemp("rules"), launch, connected)
    used = rules[:1] if strategy == "min-cut" else rules
    first = partition(model, used, strategy=strategy)
    for again in range(2):
        other = partition(shuffled(model, again), used, strategy=strategy)
        assert placed(other) == placed(first)
        assert other.plan.placement.cost.total == pytest.approx(first.plan.placement.cost.total)


@pytest.mark.parametrize("strategy", ["launch-aware", "min-cut", "exact"])
@pytest.mark.parametrize("name", ["squeezenet", "inception_v1"])
def test_models_of_the_zoo(name: str, strategy: str) -> None:
    model = zoo.load(name)
    first = partition(model, VANILLA, strategy=strategy)
    assert placed(first)
    for seed in (0, 1):
        assert placed(partition(shuffled(model, seed), VANILLA, strategy=strategy)) == placed(first)
