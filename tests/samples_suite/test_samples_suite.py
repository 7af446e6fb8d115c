"""A few random models with open dimensions; `python tests/samples_suite/run.py` does 200."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.support import sample_cases
from open_models import FAMILIES
from open_ways import find_bundle_problem, run_samples

import byoc
from byoc.onnxrt import open_session, run_session
from byoc.samples import model_samples

FEW = 4 * len(FAMILIES)


@pytest.mark.parametrize("seed", range(FEW))
def test_a_model_with_open_dimensions_has_samples_of_several_sizes(seed: int) -> None:
    assert run_samples(seed) > 1


@pytest.mark.parametrize("name", sample_cases(["bert", "t5"], "bert"))
def test_a_transformer_of_the_zoo_runs_on_made_samples(name: str) -> None:
    model = replace(byoc.load_model(f"zoo:{name}"), make_samples=None)
    made = model_samples(model, seed=1)
    assert all(array.max() > 1000 for key, array in made.items() if key.endswith("input_ids"))
    assert all((array == 1).all() for key, array in made.items() if key.endswith("mask"))
    outputs = run_session(open_session(model.proto, model.folder), made)
    assert all(np.isfinite(value).all() for value in outputs.values())


@pytest.mark.parametrize("seed", range(len(FAMILIES)))
def test_a_bundle_is_verified_on_several_sizes(seed: int, tmp_path: Path) -> None:
    assert not find_bundle_problem(seed, tmp_path)
