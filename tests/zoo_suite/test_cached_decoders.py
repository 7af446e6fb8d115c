"""Decoders as torch exports them, their cache a Concat: prompts at once, and sequences in bundles."""

from pathlib import Path

import numpy as np
import pytest
from helpers.decoding import plain
from test_structures import RULES
from zoo_ways import COSTS

import byoc
from byoc import zoo
from byoc.samples import find_decoder_inputs
from byoc.zoo import load_model

CACHED = ("gpt2_cached", "t5_cached", "whisper_cached")


@pytest.mark.parametrize("name", CACHED)
def test_a_prompt_at_once_gives_the_logits_of_its_tokens_one_by_one(name: str) -> None:
    decoder = find_decoder_inputs(load_model(f"zoo:{name}"))
    run, tokens = plain(zoo.load(name)), decoder.draw_prompt(0, 6)
    kept, state = decoder.make_kept(0, 6), decoder.make_empty_state(6)
    whole = run(decoder.make_step(tokens, 0, kept) | state)[decoder.logits]
    for position in range(6):
        found = run(decoder.make_step(tokens[:, position : position + 1], position, kept) | state)
        state = {pair.past: found[pair.present] for pair in decoder.pairs}
        error = np.abs(found[decoder.logits][0, 0] - whole[0, position])
        assert error.max() < 1e-4 * np.ptp(whole)
    assert len(decoder.pairs) == 8


@pytest.mark.parametrize("name", CACHED[:1])
def test_a_bundle_generates_the_tokens_of_its_model(name: str, tmp_path: Path) -> None:
    (tmp_path / "any.yaml").write_text(RULES)
    (tmp_path / "near.yaml").write_text(COSTS)
    options = {"output": tmp_path / "b", "strategy": "all-supported", "verify": False}
    byoc.partition(f"zoo:{name}", str(tmp_path / "any.yaml"), **options)
    found = byoc.verify_generation(tmp_path / "b", tokens=10, prompts=[3], seeds=1)
    assert found.passed
    assert len(set(found.runs[0].tokens)) > 5, "it does not repeat itself"
