"""How many tokens a bundle of `decoder_int4` generates, and what is said where they are too few."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers.support import VANILLA, Ran

import byoc

SEQ, PAST, TOTAL = "sequence_length", "past_sequence_length", "total_sequence_length"
VARIANTS: dict[str, Mapping[str, Mapping[str, int]]] = {
    "open": {"prefill": {SEQ: 8, PAST: 0}, "decode": {SEQ: 1, PAST: 16}},
    "closed": {
        "prefill": {SEQ: 8, PAST: 0, TOTAL: 8},
        "decode": {SEQ: 1, PAST: 16, TOTAL: 16},
    },
    "empty": {"short": {SEQ: 4, PAST: 0}, "long": {SEQ: 8, PAST: 0}},
}
Make = Callable[[str], Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that writes a bundle of some of the variants, once."""

    @cache
    def write(name: str) -> Path:
        path = tmp_path_factory.mktemp("limit") / name
        byoc.partition(
            "zoo:decoder_int4",
            VANILLA,
            output=path,
            dims={"batch_size": 1},
            variants=VARIANTS[name],
            verify=False,
        )
        return path

    return write


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "open",
            ["--generate", "3", "--prompts", "8"],
            "no variant takes a past of 8 and one token, so nothing can be generated behind the first "
            "token; prefill is not padded along sequence_length: total_sequence_length is open, and has "
            "to be given; decode is not padded along past_sequence_length: total_sequence_length is "
            "open, and has to be given",
        ),
        (
            "closed",
            ["--generate", "20"],
            "at most 9 tokens fit behind a prompt of 8, not 20",
        ),
        (
            "closed",
            ["--generate", "2", "--prompts", "99"],
            "no variant takes a prompt of 99 without a past, nor in pieces",
        ),
        (
            "closed",
            ["--generate", "5", "--variant", "decode"],
            "variant 'decode' alone does not take a prompt of 1 without a past; without --variant each "
            "step runs the variant that takes it",
        ),
        (
            "empty",
            ["--generate", "3"],
            "no variant takes a past, so nothing can be generated behind the first token",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_number_that_fits(
    name: str, options: list[str], sentence: str, make: Make, byoc: Callable[..., Ran]
) -> None:
    ran = byoc("verify", make(name), *options)
    assert ran.code == 1
    assert " ".join(ran.err.split()).endswith(f"byoc: {sentence}")


def test_as_many_tokens_as_fit_are_generated(make: Make) -> None:
    found = byoc.verify_generation(make("closed"), tokens=9, prompts=(8,), seeds=1)
    assert found.passed
    assert dict(found.runs[0].variants) == {"prefill": 1, "decode": 8}


def test_an_empty_cache_is_not_updated_in_place(make: Make) -> None:
    """A prefill whose total is open makes a cache that is longer than the one that it takes."""
    session = byoc.open_stateful(byoc.load(make("open")))
    tokens = np.arange(8)[None]
    given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "position_ids": tokens}
    found = session({name: given[name] for name in session.inputs})
    assert found["logits"].shape[:2] == (1, 8)
    assert not session.in_place
    assert {array.shape for array in session.state.values()} == {(1, 2, 8, 32)}
