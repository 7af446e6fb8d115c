"""Decoders as onnxruntime-genai writes them: valid, alive, and the same in all their variants."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.decoding import PROMPT, decode, empty_cache, plain

import byoc
from byoc import zoo
from byoc.errors import InputError
from byoc.zoo import DecoderSize, make_decoder

EVERYTHING = "target: npu\ncost_model: openvino-cpu\ncodegen: reference\ndtype: any\nops: [{op: '*'}]\n"

ENTRIES = [entry for entry in zoo.list_entries() if entry.name.startswith("decoder_")]


def _greedy(model: onnx.ModelProto, tokens: int) -> list[int]:
    run = plain(model)
    return decode(run, run, empty_cache(model), tokens)[0]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_it_has_the_nodes_and_the_interface_that_are_stated(entry: zoo.ZooEntry) -> None:
    model = zoo.load(entry.name)
    assert sum(node.op_type != "Constant" for node in model.graph.node) == entry.nodes
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    inputs = [value.name for value in model.graph.input]
    assert inputs[:2] == ["input_ids", "attention_mask"]
    assert ("position_ids" in inputs) == ("fp16" in entry.name)
    assert [value.name for value in model.graph.output][:3] == [
        "logits",
        "present.0.key",
        "present.0.value",
    ]
    stated = {value.name for value in model.graph.value_info}
    made = {name for node in model.graph.node for name in node.output if name}
    assert made - stated - {value.name for value in model.graph.output} == {
        "/model/constants/INT64/[1]",
        "/model/constants/INT64/1",
    }


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_samples_run_and_matter(name: str) -> None:
    model = zoo.load(name)
    run = plain(model)
    first, again, other = (run(zoo.sample_inputs(name, seed))["logits"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert np.isfinite(first).all()
    assert 2 < first.astype(np.float64).std() < 8
    assert abs(first - other).max() > 1


@pytest.mark.parametrize("weights", ["int4", "fp16"])
def test_static_models_choose_the_50_tokens_of_the_open_one(weights: str) -> None:
    whole, prefill, step = (zoo.load(f"decoder_{weights}{part}") for part in ("", "_prefill", "_decode"))
    run = plain(whole)
    chosen, logits = decode(run, run, empty_cache(whole), 50)
    static, others = decode(plain(prefill), plain(step), empty_cache(prefill), 50, buffer=256)
    assert static == chosen
    assert len(set(chosen)) > 10
    assert max(abs(one - other).max() for one, other in zip(logits, others, strict=True)) < 0.02


def test_what_was_read_before_matters() -> None:
    model = make_decoder("float32")
    run = plain(model)
    one = decode(run, run, empty_cache(model), 2)[1][1]
    other = decode(run, run, empty_cache(model), 2, prompt=(*PROMPT[:-2], 99, PROMPT[-1]))[1][1]
    assert abs(one - other).max() > 0.1


def test_fused_and_apart_compute_the_same_in_both_types() -> None:
    tokens = _greedy(make_decoder("float32"), 50)
    assert tokens == _greedy(make_decoder("float32", fused=False), 50)
    assert tokens == _greedy(make_decoder("float16", fused=False), 50)


def read_constants(model: onnx.ModelProto, node: str) -> list[Any]:
    """Return the constants that a node reads."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    (found,) = (each for each in model.graph.node if each.name == node)
    return [onnx.numpy_helper.to_array(stored[name]) for name in found.input if name in stored]


def test_blocks_of_4_bits_are_near_the_kernel() -> None:
    kernel, *_ = read_constants(make_decoder("float32"), "/model/layers.0/attn/o_proj/MatMul")
    packed, scales, *_ = read_constants(make_decoder("int4"), "/model/layers.0/attn/o_proj/MatMul_Q4")
    assert (packed.shape, scales.shape) == ((128, 4, 16), (128, 4))
    numbers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(128, 4, 32).astype(np.float32) - 8
    restored = (numbers * scales[..., None]).reshape(128, 128).T
    assert (abs(restored - kernel) <= scales.max() / 2 + 1e-6).all()
    assert abs(restored - kernel).max() > scales.max() / 4


FAMILIES = {
    "qwen": {"Add": 6, "Reshape": 8, "SimplifiedLayerNormalization": 5, "GroupQueryAttention": 2},
    "phi": {"Add": 10, "LayerNormalization": 1, "SkipLayerNormalization": 2, "FastGelu": 2},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_have_their_operators_and_choose_the_same_tokens_in_16_bits(family: Any) -> None:
    size = DecoderSize(layers=2)
    model = make_decoder("float32", size=size, family=family)
    counts = Counter(node.op_type for node in model.graph.node)
    assert FAMILIES[family].items() <= counts.items()
    tokens = _greedy(model, 50)
    assert len(set(tokens)) > 10
    assert tokens == _greedy(make_decoder("float16", size=size, family=family), 50)
    assert tokens != _greedy(make_decoder("float32", size=size), 50)


def test_a_part_of_each_head_is_rotated_in_phi() -> None:
    stored = {t.name: tuple(t.dims) for t in make_decoder(family="phi").graph.initializer}
    assert stored["cos_cache"] == stored["sin_cache"] == (512, 8)  # of 32 widths 16, in pairs


@pytest.mark.parametrize("family", ["qwen", "phi"])
@pytest.mark.parametrize(
    ("layers", "tokens"), [(2, 30), pytest.param(16, 200, marks=pytest.mark.thorough)]
)
def test_a_bundle_of_a_family_generates_the_tokens_of_its_model(
    family: Any, layers: int, tokens: int, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(make_decoder("int4", size=DecoderSize(layers=layers), family=family), path)
    (tmp_path / "npu.yaml").write_text(EVERYTHING)
    names = ("sequence_length", "past_sequence_length", "total_sequence_length")
    lengths = {"read": (16, 0, 16), "step": (1, 256, 256)}
    variants = {name: dict(zip(names, sizes, strict=True)) for name, sizes in lengths.items()}
    given: dict[str, Any] = {"strategy": "all-supported", "what_if": False, "verify": False}
    byoc.partition(
        path,
        tmp_path / "npu.yaml",
        output=tmp_path / "b",
        dims={"batch_size": 1},
        variants=variants,
        **given,
    )
    found = byoc.verify_generation(tmp_path / "b", path, tokens=tokens, seeds=1)
    assert found.passed
    assert not found.not_reached
    assert all(run.choices == tokens and not run.differences for run in found.runs)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (DecoderSize(heads=3), "no decoder has 3 heads, 2 for keys, in 128"),
        (DecoderSize(wide=40), "int4 weights come in blocks of 32, not for 128 or 40"),
    ],
)
def test_what_cannot_be_made_is_refused(size: DecoderSize, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_decoder("int4", size=size)


def test_other_families_are_fused() -> None:
    with pytest.raises(InputError, match="zoo: a decoder of the family phi is fused"):
        make_decoder(fused=False, family="phi")


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean decoder_int4"):
        zoo.load("decoder_int")
