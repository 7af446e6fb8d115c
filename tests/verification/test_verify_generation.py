"""Generated sequences: tokens, logits and state of a bundle against those of its model, in a loop."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.support import Ran, parse
from interpreting import interpreter, only, right

import byoc
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.reporting import make_generation_report
from byoc.samples import find_decoder_inputs
from byoc.verification import (
    GenerationRun,
    OutputError,
    TokenDifference,
    compare_tensors,
    find_worst_by_count,
    require_generated,
)

TOKENS = 12
# A decoder of one layer: what each token gets is the mean of all before it, which a cache keeps.
DECODER = """
decoder (int64[1, seq] ids, float[1, past, 4] past_values)
  => (float[1, seq, 16] logits, float[1, total, 4] present_values)
  <float[16, 4] table, float[4, 16] head> {
  new = Gather (table, ids)
  present_values = Concat <axis = 1> (past_values, new)
  mixed = ReduceMean <axes = [1], keepdims = 1> (present_values)
  sum = Add (new, mixed)
  bent = Tanh (sum)
  logits = MatMul (bent, head)
}
"""
Byoc = Callable[..., Ran]


def make_decoder() -> onnx.ModelProto:
    model = parse(DECODER)
    random = np.random.default_rng(3)
    for name, shape in (("table", (16, 4)), ("head", (4, 16))):
        values = 2 * random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


RULES = """
target: npu
cost_model: dla
dtype: any
ops: [{op: [Gather, Concat, ReduceMean, Add, Tanh, MatMul]}]
"""


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that writes a bundle of the decoder whose codegen computes as it is told."""

    def write(spoil: Any, **options: Any) -> Path:
        vendors.install(monkeypatch, wrong=interpreter(spoil))
        (tmp_path / "npu.yaml").write_text(RULES, encoding="utf-8")
        onnx.save(make_decoder(), tmp_path / "m.onnx")
        byoc.partition(
            tmp_path / "m.onnx",
            tmp_path / "npu.yaml",
            output=tmp_path / "b",
            strategy="all-supported",
            codegen="wrong",
            verify=False,
            **options,
        )
        return tmp_path / "b"

    return write


def verify(bundle: Path, **options: Any) -> byoc.Generation:
    return byoc.verify_generation(bundle, bundle.parent / "m.onnx", tokens=TOKENS, **options)


def test_right_sequences_pass_and_are_those_of_the_model(cut: Callable[..., Path]) -> None:
    found = verify(cut(right), prompts=(1, 5))
    assert found.passed
    require_generated(found)
    assert [(run.prompt, run.seed) for run in found.runs] == [(1, 0), (1, 1), (5, 0), (5, 1)]
    decoder = find_decoder_inputs(prepare_model(make_decoder(), "m"))
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in make_decoder().graph.initializer}
    for run in found.runs:
        tokens = list(decoder.draw_prompt(run.seed, run.prompt)[0])
        for token in run.tokens:
            kept = weights["table"][tokens]
            logits = np.tanh(kept[-1] + kept.mean(0)) @ weights["head"]
            assert token == logits.argmax()
            tokens.append(token)
        assert list(run.logits) == [*range(run.prompt - 1, run.prompt - 1 + TOKENS)]
        assert [position - run.prompt + 2 for position in run.state] == [1, 2, 5, 10, TOKENS]
        assert run.worst_logits.relative < 1e-6
    assert list(find_worst_by_count(found.runs)) == [1, 2, 5, 10, TOKENS]


def test_a_fault_of_the_cache_alone_is_found_where_it_shows(cut: Callable[..., Path]) -> None:
    """The first value of what is kept is off: one step computes from it in the next."""
    bundle = cut(only("present_values", lambda kept: kept + np.float32(0.01)))
    found = verify(bundle, prompts=(4,))
    assert not found.passed
    first, last = (list(found.runs[0].state.values())[i].relative for i in (0, -1))
    assert 1e-4 < first < last, "it adds up"
    with pytest.raises(InputError, match=r"^verification failed: seed 0, prompt of 4: at position 3 "):
        require_generated(found)


def test_wrong_tokens_are_counted_and_named(cut: Callable[..., Path], byoc: Byoc) -> None:
    """The largest logit is swapped with another one in a tenth of the steps."""

    def swap(logits: Any) -> Any:
        changed = np.array(logits)
        best = changed[0, -1].argmax()
        if best % 3 == 0:
            changed[0, -1, best] -= 20
        return changed

    bundle = cut(only("logits", swap))
    ran = byoc("verify", bundle, "--against", bundle.parent / "m.onnx", "--generate", TOKENS)
    assert ran.code == 1
    assert "verification failed: seed 0, prompt of 1: at position " in ran.err
    assert "whose logit is" in ran.err
    assert "wrong: seed 0" in ran.out
    ran = byoc(
        *("verify", bundle, "--against", bundle.parent / "m.onnx", "--generate", TOKENS),
        *("--prompts", "7", "--seeds", "3", "--format", "json"),
    )
    told = json.loads(ran.out)
    assert not told["passed"]
    for run in told["runs"]:
        wrong = [token for token in run["tokens"] if token % 3 == 0]
        assert [each["expected"] for each in run["differences"]] == wrong
        assert not any(each["is_tie"] for each in run["differences"])
        assert all(each["margin"] > 0 for each in run["differences"])
    assert any(run["differences"] for run in told["runs"])


def test_what_rounds_otherwise_is_a_tie_or_within_the_noise(cut: Callable[..., Path]) -> None:
    """A unit in the last place of each sum moves no token beyond the noise."""
    bundle = cut(only("sum", lambda value: np.nextafter(value, np.float32(9))))
    found = verify(bundle)
    assert found.passed
    assert 0 < found.runs[0].worst_logits.relative < 1e-5


def test_ties_are_told_from_wrong_tokens() -> None:
    one, other = TokenDifference(4, 0, 1, 2, 1e-3, 2e-3), TokenDifference(5, 0, 1, 2, 3e-3, 2e-3)
    (error,) = compare_tensors({"logits": np.ones(3)}, {"logits": np.ones(3)})
    run = GenerationRun(0, 2, (1, 1), 2, (one,), {1: error}, {1: error}, {})
    assert (run.ties, run.wrong, run.within) == (1, (), True)
    run = replace(run, differences=(one, other))
    assert (run.ties, run.wrong, run.within) == (1, (other,), False)


def test_the_variants_that_run_and_those_that_none_reaches(cut: Callable[..., Path]) -> None:
    """Of a cache that a Concat makes longer, a variant takes one length alone."""
    lengths = {"prompt": (3, 0), "step": (1, 3), "far": (1, 9)}
    variants = {name: {"seq": seq, "past": past} for name, (seq, past) in lengths.items()}
    bundle = cut(right, variants=variants)
    model = bundle.parent / "m.onnx"
    found = byoc.verify_generation(bundle, model, tokens=2)
    assert found.passed
    assert [run.prompt for run in found.runs] == [3, 3]
    assert [dict(run.variants) for run in found.runs] == [{"prompt": 1, "step": 1}] * 2
    assert found.not_reached == ("far",)
    with pytest.raises(InputError, match=r"^at most 2 tokens fit behind a prompt of 3, not 3$"):
        byoc.verify_generation(bundle, model, tokens=3)
    with pytest.raises(InputError, match=r"^no variant takes a prompt of 5 without a past, nor in piec"):
        byoc.verify_generation(bundle, model, tokens=1, prompts=(5,))
    with pytest.raises(InputError, match=r"depends on those behind it$"):  # a mean over all tokens
        byoc.verify_generation(bundle, model, tokens=1, prompts=(4,))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m.graph.output.pop(), "no input takes what an output gave, so it keeps no state"),
        (lambda m: m.graph.output.pop(0), "which output weighs the next token cannot be seen"),
        (
            lambda m: (
                m.graph.input[0]
                .type.tensor_type.shape.dim[1]
                .CopyFrom(onnx.TensorShapeProto.Dimension(dim_value=1))
            ),
            "input 'ids' takes 1 tokens at a time",
        ),
    ],
)
def test_what_is_no_decoder(change: Callable[[Any], Any], problem: str) -> None:
    model = make_decoder()
    change(model)
    with pytest.raises(InputError, match=problem):
        find_decoder_inputs(prepare_model(model, "m"))


def test_a_decoder_may_take_a_sequence_beside_its_tokens() -> None:
    model = make_decoder()
    kind = onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(1, [2]))
    model.graph.input.append(onnx.helper.make_value_info("extra", kind))
    model.graph.node.append(onnx.helper.make_node("SequenceLength", ["extra"], ["count"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("count", onnx.TensorProto.INT64, []))
    decoder = find_decoder_inputs(prepare_model(model, "m"))
    kept = decoder.make_kept(0, 3)
    assert "extra" not in kept
    step = decoder.make_step(decoder.draw_prompt(0, 3), 0, kept)
    assert {np.shape(each) for each in step["extra"]} == {(2,)}


def test_the_original_has_to_be_named(cut: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"compared with those of the original model: name it"):
        byoc.verify_generation(cut(right), tokens=1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--prompts", "5"], "it is about --generate"),
        (["--seeds", "5"], "it is about --generate"),
        (["--generate", "5", "--bisect"], "--generate takes no such option"),
        (["--generate", "5", "--prompts", "1,0"], "is no list of lengths"),
    ],
)
def test_options_that_go_together(options: list[str], problem: str, tmp_path: Path, byoc: Byoc) -> None:
    ran = byoc("verify", tmp_path, *options)
    assert ran.code == 2
    assert problem in " ".join(ran.err.split())


def test_an_error_that_is_not_explained_stays() -> None:
    error = OutputError("logits", "float32", 1.0, 0.5, 1e-4)
    assert not GenerationRun(0, 1, (1,), 1, (), {0: error}, {}, {}).within


def test_in_lower_precision_the_bundle_is_compared_with_its_own_model(
    cut: Callable[..., Path],
) -> None:
    """And the tokens that the model as it was chooses likewise are counted."""
    found = verify(cut(right, precision=byoc.Precision(quantize="float16")), prompts=(3,), seeds=1)
    assert found.against == "its own model on plain onnxruntime"
    assert found.original.endswith("m.onnx")
    (run,) = found.runs
    assert found.passed
    assert run.same_as_original is not None
    assert TOKENS // 2 < run.same_as_original <= TOKENS
    document = make_generation_report(found).to_json()
    assert document["runs"][0]["same_as_original"] == run.same_as_original
