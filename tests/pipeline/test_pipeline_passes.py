"""Whatever the graph, passes keep what models compute, and bundles of rewritten regions are verified."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import onnx.inliner
import pytest
from helpers.cutting import cut
from helpers.installing import add_entry_points
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import GraphMaker

from byoc.model import prepare_model
from byoc.passes import load_pass
from byoc.pipeline import rewrite_model


@dataclass(frozen=True)
class Inline:
    """Put the bodies of composites in their places, and give every node another name."""

    scope: ClassVar[str] = "region"

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        flat = onnx.inliner.inline_local_functions(model)
        for number, node in enumerate(flat.graph.node):
            node.name = f"renamed{number}"
        return flat


def name_operators(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """Return the named nodes; those of an If's branch, which may take its place, have no names."""
    return {(node.name, node.op_type) for node in model.graph.node if node.name}


@given(st.integers(0, 10_000), st.integers(1, 40))
@settings(max_examples=examples(60), deadline=None)
def test_a_simplified_graph_computes_the_same_under_the_same_names(seed: int, size: int) -> None:
    model = prepare_model(GraphMaker(seed).model(size), "random")
    simplified, (effect,) = rewrite_model(model, [load_pass("simplify")])

    assert effect.compared or not effect.changed
    assert effect.largest_error < 1e-5
    assert name_operators(simplified.proto) <= name_operators(model.proto)
    again, (second,) = rewrite_model(simplified, [load_pass("simplify")])
    assert len(again.proto.graph.node) == len(simplified.proto.graph.node)
    assert second.nodes_after == effect.nodes_after


@pytest.mark.parametrize("seed", range(4))
def test_regions_without_composites_are_verified(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    add_entry_points(monkeypatch, [EntryPoint("inline", f"{__name__}:Inline", "byoc.passes")])
    model = GraphMaker(seed).model(25)
    with TemporaryDirectory() as folder:
        result = cut(model, Path(folder) / "m.byoc", passes=["inline"], gate=True)
        assert result.verification is not None
        assert result.verification.passed
        for effect in result.report.passes:
            assert not any(name.startswith("byoc.") for name in effect.nodes_after)
        assert bool(result.report.passes) == bool(result.report.regions)
