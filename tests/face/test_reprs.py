"""What a shell of Python shows of results: a line, never the whole model."""

from pathlib import Path

import numpy as np
import pytest
from helpers.cutting import CHAIN
from helpers.support import VANILLA, parse

import byoc

GROWING = """
main (float[n] x, float[past] cache) => (float[m] present, float[n] y)
{
    y = Relu(x)
    present = Concat<axis = 0>(cache, x)
}
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a chain."""
    folder = tmp_path_factory.mktemp("reprs")
    byoc.partition(parse(CHAIN), rules=VANILLA, output=folder / "m.byoc")
    return folder / "m.byoc"


def test_a_result_is_shown_as_its_summary() -> None:
    result = byoc.partition(parse(CHAIN), rules=VANILLA)
    shown = repr(result)
    assert f"{result.report.nodes.offloaded} of {result.report.nodes.total} nodes" in shown
    assert shown.startswith("<Result ") and len(shown) < 300
    assert repr(result.plan) == f"Plan({result.plan.model.source!r}, targets=('dla',))"
    assert repr(result.only) == shown.replace("<Result ", "<VariantResult ")


def test_a_bundle_and_its_session_are_shown_by_names(bundle: Path) -> None:
    session = byoc.load(bundle)
    assert repr(byoc.open_bundle(bundle)) == f"Bundle({str(bundle)!r})"
    stages = [stage.name for stage in session.stages]
    assert repr(session) == (
        f"Session(inputs={list(session.inputs)}, outputs={list(session.outputs)}, stages={stages})"
    )


def test_a_stateful_session_is_shown_with_its_state(tmp_path: Path) -> None:
    byoc.partition(parse(GROWING), rules=VANILLA, output=tmp_path / "m.byoc")
    session = byoc.open_stateful(byoc.load(tmp_path / "m.byoc"))
    assert repr(session) == "StatefulSession(inputs=['x'], outputs=['y'], state=['cache'])"
    assert session({"x": np.ones(2, np.float32)})["y"].shape == (2,)


def test_explanations_and_memory_plans_are_shown_in_a_line() -> None:
    model = parse(CHAIN)
    explanation = byoc.explain(model, VANILLA)
    assert repr(explanation) == (
        f"Explanation({explanation.model!r}, 'dla', refusals={len(explanation.refusals)})"
    )
    (report,) = byoc.plan_memory(model).values()
    assert repr(report) == (
        f"MemoryReport({report.name!r}, size={report.plan.size}, bound={report.plan.bound})"
    )
