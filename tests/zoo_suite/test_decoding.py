"""Decoders in bundles: prefill, then 50 tokens, the cache fed back, as onnxruntime chooses them."""

from pathlib import Path

import numpy as np
import pytest
from decoding import PROMPT, Run, decode, empty_cache, plain
from test_structures import RULES
from zoo_ways import COSTS

import byoc
from byoc import zoo

TOKENS = 50


def _bundle(name: str, folder: Path, strategy: str = "all-supported", rules: str = RULES) -> Run:
    """Cut a decoder of the zoo by rules, and return a function that runs the bundle."""
    (folder / "any.yaml").write_text(rules)
    (folder / "near.yaml").write_text(COSTS)
    output = folder / f"{name}.byoc"
    result = byoc.partition(f"zoo:{name}", str(folder / "any.yaml"), output=output, strategy=strategy)
    assert result.verification is not None
    assert result.verification.passed
    if rules == RULES:
        assert result.report.nodes.host == 0
        assert not any(graph.graph_problem.estimated for graph in result.plan.root.walk())
    session = byoc.load(output)
    return lambda inputs: session({n: a for n, a in inputs.items() if n in session.inputs})


@pytest.mark.parametrize("name", ["decoder_int4", "decoder_fp16"])
def test_a_bundle_with_open_extents_chooses_the_same_tokens(name: str, tmp_path: Path) -> None:
    model = zoo.load(name)
    whole, cut = plain(model), _bundle(name, tmp_path)
    expected, logits = decode(whole, whole, empty_cache(model), TOKENS)
    found, others = decode(cut, cut, empty_cache(model), TOKENS)
    assert found == expected
    assert len(set(found)) > 10
    for one, other in zip(logits, others, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("name", ["decoder_int4", "decoder_fp16"])
def test_two_static_bundles_choose_the_tokens_of_the_open_model(name: str, tmp_path: Path) -> None:
    whole = plain(zoo.load(name))
    prefill, step = (_bundle(f"{name}_{part}", tmp_path) for part in ("prefill", "decode"))
    cache = empty_cache(zoo.load(name))
    expected = decode(whole, whole, cache, TOKENS)[0]
    assert decode(prefill, step, cache, TOKENS, buffer=256)[0] == expected


def test_norms_and_attention_may_stay_on_the_host(tmp_path: Path) -> None:
    """Products and what is elementwise alone go to the accelerator: a region for each run of them."""
    rules = RULES.replace(
        "ops: [{op: '*'}]", "ops: [{op: com.microsoft.MatMulNBits}, {op: [Sigmoid, Mul]}]"
    )
    model = zoo.load("decoder_int4")
    whole, cut = plain(model), _bundle("decoder_int4", tmp_path, rules=rules)
    cache = empty_cache(model)
    assert (
        decode(cut, cut, cache, TOKENS, prompt=PROMPT[:7])[0]
        == (decode(whole, whole, cache, TOKENS, prompt=PROMPT[:7])[0])
    )
