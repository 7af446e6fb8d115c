"""A few models of the zoo, each in three ways; `python tests/zoo_suite/run.py` does all of them."""

import pytest
from helpers.support import sample_cases
from zoo_ways import rows

# A residual network, attention, a detector with If and NonMaxSuppression inside, many small regions,
# operators that only onnxruntime has.
SAMPLE = [
    *("squeezenet", "shufflenet", "vit_tiny", "bert", "ssdlite320", "transformer_1k"),
    "decoder_int4",
]


@pytest.mark.parametrize("name", sample_cases(SAMPLE, "squeezenet", "decoder_int4"))
def test_every_way_computes_what_the_model_does(name: str) -> None:
    found = list(rows(name))

    assert [row.way for row in found] == ["all-supported", "random", "alternating"]
    assert all(row.error <= 1e-4 for row in found)
    assert found[0].regions >= 1
    assert found[2].regions > 10
