"""Decoders in bundles: prefill, then 50 tokens, the cache fed back, as onnxruntime chooses them."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.decoding import PROMPT, Run, decode, empty_cache, plain
from numpy.typing import NDArray
from test_structures import RULES
from zoo_ways import COSTS

import byoc
from byoc import zoo
from byoc.errors import InputError
from byoc.runtime import Session

TOKENS = 50


def _bundle(name: str, folder: Path, strategy: str = "all-supported", rules: str = RULES) -> Run:
    """Cut a decoder of the zoo by rules, and return a function that runs the bundle."""
    session = _load_bundle(name, folder, strategy, rules)
    return _take_known(session, session.inputs)


def _take_known(run: Run, names: Collection[str]) -> Run:
    """Return a function that calls another one with those inputs that it takes."""
    return lambda inputs: run({n: a for n, a in inputs.items() if n in names})


def _load_bundle(
    name: str, folder: Path, strategy: str = "all-supported", rules: str = RULES
) -> Session:
    (folder / "any.yaml").write_text(rules)
    (folder / "near.yaml").write_text(COSTS)
    output = folder / f"{name}.byoc"
    result = byoc.partition(f"zoo:{name}", str(folder / "any.yaml"), output=output, strategy=strategy)
    assert result.verification is not None
    assert result.verification.passed
    if rules == RULES:
        assert result.report.nodes.host == 0
        assert not any(graph.graph_problem.estimated for graph in result.plan.root.walk())
    return byoc.load(output)


def _keep_cache(session: Session, max_length: int | None) -> Run:
    """Return a function that runs a session with state, and gives the cache with the other outputs."""
    stateful = byoc.open_stateful(session, max_length=max_length)

    def run(inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        found = stateful({name: inputs[name] for name in stateful.inputs})
        assert stateful.in_place == (stateful.pairs.keys() if max_length else set())
        return found | {stateful.pairs[name]: array for name, array in stateful.state.items()}

    return run


@pytest.mark.parametrize("name", ["decoder_int4", "decoder_fp16"])
def test_a_bundle_with_open_extents_chooses_the_same_tokens(name: str, tmp_path: Path) -> None:
    """Also where the session keeps the cache, which grows or lies in a buffer."""
    model = zoo.load(name)
    whole, session = plain(model), _load_bundle(name, tmp_path)
    expected, logits = decode(whole, whole, empty_cache(model), TOKENS)
    for cut in (session, _keep_cache(session, None), _keep_cache(session, len(PROMPT) + TOKENS)):
        run = _take_known(cut, session.inputs)
        found, others = decode(run, run, empty_cache(model), TOKENS)
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


def test_a_cache_is_as_long_as_the_session_allows(tmp_path: Path) -> None:
    session = _load_bundle("decoder_int4", tmp_path)
    stateful = byoc.open_stateful(session, max_length=4)
    stateful({"input_ids": np.array([[1, 2, 3]]), "attention_mask": np.ones((1, 3), np.int64)})
    stateful({"input_ids": np.array([[4]]), "attention_mask": np.ones((1, 4), np.int64)})
    with pytest.raises(InputError, match=r"onnxruntime cannot run the model"):
        stateful({"input_ids": np.array([[5]]), "attention_mask": np.ones((1, 5), np.int64)})
    apart = byoc.load(tmp_path / "decoder_int4.byoc", isolate=True)
    inputs = {"input_ids": np.array([[1]]), "attention_mask": np.ones((1, 1), np.int64)}
    found, expected = (byoc.open_stateful(each, max_length=4)(inputs) for each in (apart, session))
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-4, atol=1e-5)


def test_variants_hand_a_cache_on_and_update_it_in_place(tmp_path: Path) -> None:
    (tmp_path / "any.yaml").write_text(RULES)
    (tmp_path / "near.yaml").write_text(COSTS)
    lengths = {"read": (16, 0, 16), "short": (1, 24, 24), "long": (1, 40, 40)}
    names = ("sequence_length", "past_sequence_length", "total_sequence_length")
    byoc.partition(
        "zoo:decoder_int4",
        str(tmp_path / "any.yaml"),
        output=tmp_path / "b",
        strategy="all-supported",
        dims={"batch_size": 1},
        variants={name: dict(zip(names, sizes, strict=True)) for name, sizes in lengths.items()},
        verify=False,
    )
    model = zoo.load("decoder_int4")
    whole, prompt = plain(model), PROMPT[:7]
    expected, _ = decode(whole, whole, empty_cache(model), 30, prompt=prompt)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"))
    for _ in range(2):
        buffers, ran, ids, tokens = [], [], [*prompt], []
        for count in range(30):
            mask, trace = np.ones((1, 7 + count), np.int64), byoc.Trace()
            found = session.run({"input_ids": np.array([ids]), "attention_mask": mask}, trace)
            ran += sorted({event.variant for event in trace.events})
            assert session.in_place == (session.pairs.keys() if count else set())
            assert session.state["past_key_values.2.value"].shape == (1, 2, 7 + count, 32)
            buffers.append(session.state["past_key_values.2.value"].base)
            ids = [int(found["logits"][0, -1].argmax())]
            tokens += ids
        assert tokens == expected
        assert ran == ["read"] + ["short"] * 17 + ["long"] * 12
        assert len({id(buffer) for buffer in buffers[1:]}) == 2
        session.reset()
