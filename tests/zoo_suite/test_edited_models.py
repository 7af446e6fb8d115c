"""A few edits of zoo models; `python tests/zoo_suite/edited_models.py` makes 300."""

from pathlib import Path

import pytest
from edited_models import MODELS, try_edits
from helpers.cutting import number_regions
from helpers.support import sample_cases

CASES = [(name, seed) for seed, name in enumerate(MODELS)]


@pytest.mark.parametrize(
    ("name", "seed"),
    sample_cases(CASES, *(case for case in CASES if case[0] in ("bert", "khmercut_int8", "squeezenet"))),
)
def test_untouched_regions_keep_their_names_and_nodes_their_places(
    name: str, seed: int, tmp_path: Path
) -> None:
    outcome = try_edits(name, seed, tmp_path)

    assert outcome.edits
    assert outcome.nodes > 10
    assert (outcome.renamed, outcome.moved) == ([], []), outcome.edits


def test_names_by_position_are_found_out(tmp_path: Path) -> None:
    with number_regions():
        outcomes = [try_edits("squeezenet", seed, tmp_path) for seed in (8, 12, 13)]

    assert all(outcome.renamed for outcome in outcomes)
    assert not any(outcome.moved for outcome in outcomes)
