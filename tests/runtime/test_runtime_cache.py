"""A cache in the buffers of variants: the tokens of the whole model, wherever the cache lies."""

from pathlib import Path

import numpy as np
import pytest
from helpers.decoding import PROMPT, decode, empty_cache, plain
from helpers.support import VANILLA

import byoc
from byoc import zoo
from byoc.runtime import StatefulSession

LENGTHS = {"read": (8, 0, 8), "short": (1, 8, 8), "long": (1, 11, 11)}
NAMES = ("sequence_length", "past_sequence_length", "total_sequence_length")
PROMPTS, TOKENS = PROMPT[:5], 7
VALUE = "past_key_values.2.value"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "b"
    byoc.partition(
        "zoo:decoder_int4",
        VANILLA,
        output=path,
        dims={"batch_size": 1},
        variants={name: dict(zip(NAMES, sizes, strict=True)) for name, sizes in LENGTHS.items()},
        verify=False,
    )
    return path


@pytest.fixture(scope="module")
def expected() -> list[int]:
    model = zoo.load("decoder_int4")
    whole = plain(model)
    return decode(whole, whole, empty_cache(model), TOKENS, prompt=PROMPTS)[0]


def step(session: StatefulSession, ids: list[int], count: int) -> tuple[int, set[str]]:
    """Return the next token behind `count` tokens and some more, and the variants that ran."""
    trace, mask = byoc.Trace(), np.ones((1, count + len(ids)), np.int64)
    found = session.run({"input_ids": np.array([ids]), "attention_mask": mask}, trace)
    return int(found["logits"][0, -1].argmax()), {event.variant for event in trace.events}


def test_variants_hand_a_cache_on_and_update_it_in_place(bundle: Path, expected: list[int]) -> None:
    session = byoc.open_stateful(byoc.load(bundle))
    for _ in range(2):
        tokens, ran, buffers, ids, count = [], [], [], [*PROMPTS], 0
        for _ in range(TOKENS):
            token, variants = step(session, ids, count)
            count += len(ids)
            # The first makes a cache that is longer than the empty one that it takes.
            assert session.in_place == (session.pairs.keys() if count > len(PROMPTS) else set())
            assert session.state[VALUE].shape == (1, 2, count, 32)
            ran += sorted(variants)
            buffers.append(session.state[VALUE].base)
            ids = [token]
            tokens += ids
        assert tokens == expected
        assert ran == ["read"] + ["short"] * 3 + ["long"] * 3
        assert len({id(buffer) for buffer in buffers[1:]}) == 2
        session.reset()


def test_a_sequence_that_is_given_goes_on_where_it_was(bundle: Path, expected: list[int]) -> None:
    """Its state is copied into the buffers, over what another sequence left there."""
    session, other = (byoc.open_stateful(byoc.load(bundle)) for _ in range(2))
    token, _ = step(session, [*PROMPTS], 0)
    states = [{name: array.copy() for name, array in session.state.items()}]
    for count in range(1, 3):
        token, _ = step(session, [token], len(PROMPTS) + count - 1)
        states.append({name: array.copy() for name, array in session.state.items()})
    step(other, [9, 8, 7, 6, 5, 4], 0)
    step(other, [3], 6)
    for count in (2, 0, 1):
        other.reset(states[count])
        found, variants = step(other, [expected[count]], len(PROMPTS) + count)
        assert found == expected[count + 1]
        assert variants == {"short"}
