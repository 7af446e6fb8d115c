"""Attention with a cache of a fixed length on the dla, and decoders as onnxruntime-genai writes them."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from dla_regions import agrees, floats, model, network, region, runtime_model
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import byoc
from byoc.codegen import CompileError, InputError, find_codegen, parse_codegen_options
from byoc.zoo import DecoderShape, DecoderSize, make_decoder


@dataclass(frozen=True)
class Attention:
    """A GroupQueryAttention: extents, how many positions are filled behind it, and its form."""

    batch: int = 1
    count: int = 1
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    past: int = 12
    total: int = 12
    filled: tuple[int, ...] = (8,)
    packed: bool = True
    rotated: int = 16
    stored_lengths: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    def make(self, seed: int = 0) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """Return the model and its inputs."""
        length = max(self.past, self.total)
        rows, keys = (self.batch, self.count), self.kv_heads * self.head
        width = self.heads * self.head
        lengths = np.array(self.filled, np.int32) - 1
        constants: dict[str, Any] = {"total": np.array(self.total, np.int32)}
        inputs = {"q": floats(*rows, width + 2 * keys * self.packed, seed=seed)}
        if not self.packed:
            inputs |= {name: floats(*rows, keys, seed=seed + 1) for name in "kv"}
        for name in ("pk", "pv"):
            inputs[name] = floats(self.batch, self.kv_heads, self.past, self.head, seed=seed + 2)
        (constants if self.stored_lengths else inputs)["lengths"] = lengths
        if self.rotated:
            constants |= {name: floats(length + 2, self.rotated // 2, seed=3) for name in ("cos", "sin")}
        attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, **self.attributes}
        attributes["do_rotary"] = int(bool(self.rotated))
        stated = ", ".join(f"{name}={value}" for name, value in attributes.items())
        names = ["q", *(("k", "v") if not self.packed else ('""', '""')), "pk", "pv", "lengths", "total"]
        names += ["cos", "sin"] if self.rotated else []
        given_ = ", ".join(
            f"{'int32' if array.dtype == np.int32 else 'float'}{list(array.shape)} {name}"
            for name, array in inputs.items()
        )
        cache = f"float[{self.batch},{self.kv_heads},{length},{self.head}]"
        made = f"float[{self.batch},{self.count},{width}] y, {cache} nk, {cache} nv"
        call = f"com.microsoft.GroupQueryAttention<{stated}>({', '.join(names)})"
        text = f"g ({given_.replace(', ', ',').replace(',', ', ')}) => ({made}) {{ y, nk, nv = {call} }}"
        return runtime_model(text, constants), inputs


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Draw attentions that onnxruntime has: prompts, single tokens, several behind a cache."""
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    batch = draw(st.integers(1, 2))
    kind = draw(st.sampled_from(["prompt", "buffered prompt", "token", "tokens", "growing"]))
    count = 1 if kind == "token" else draw(st.integers(2, 5))
    past = 0 if kind == "prompt" else draw(st.integers(count, 20))
    total = {"growing": past + count, "token": past, "tokens": past}.get(kind, count)
    if kind == "tokens" and past == count:
        total = past = past + 1
    if kind in ("tokens", "growing"):
        batch = 1  # as onnxruntime has it
    least = total if kind in ("prompt", "buffered prompt", "growing") else count
    filled = tuple(draw(st.integers(least, total)) for _ in range(batch))
    head = draw(st.sampled_from([16, 32]))
    return Attention(
        batch,
        count,
        heads,
        kv_heads,
        head,
        past,
        total,
        filled,
        packed=draw(st.booleans()),
        rotated=draw(st.sampled_from([0, 16, head])),
        stored_lengths=draw(st.booleans()),
        attributes={
            "rotary_interleaved": draw(st.integers(0, 1)),
            "scale": draw(st.sampled_from([0.0, 0.5])),
        },
    )


@settings(max_examples=examples(25), deadline=None)
@given(case=attentions(), options=st.sampled_from([{}, {"scratchpad": "8192"}, {"stripes": "yes"}]))
def test_attention_with_a_cache(
    case: Attention, options: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What attention gives, and the cache behind it, equal onnxruntime."""
    agrees(*case.make(), tmp_path_factory.mktemp("case"), **options)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Attention(attributes={"softcap": 1.0}), "softcap of a GroupQueryAttention must be 0.0"),
        (Attention(attributes={"local_window_size": 4}), "local_window_size of a"),
        (Attention(past=0, total=12), "1 positions in a cache of 12"),
        (
            Attention(filled=(13,), stored_lengths=True, total=20, past=20, rotated=64),
            "wider than a head",
        ),
    ],
)
def test_what_is_refused(case: Attention, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=reason):
        network(case.make()[0], tmp_path)


def test_a_length_that_is_computed_is_refused_for_several_positions(tmp_path: Path) -> None:
    proto, _ = Attention(count=3).make()
    total = proto.graph.initializer.pop(0)
    assert total.name == "total"
    proto.graph.input.append(onnx.helper.make_tensor_value_info("total", onnx.TensorProto.INT32, ()))

    with pytest.raises(CompileError, match="'total' must be constant"):
        network(proto, tmp_path)


def test_positions_are_worked_out_once(tmp_path: Path) -> None:
    """A second attention of the same lengths adds no layers for masks and cosines."""
    case = Attention(packed=False)
    proto, _ = case.make()
    first = len(network(proto, tmp_path).layers)
    again = onnx.NodeProto.FromString(proto.graph.node[0].SerializeToString())
    again.input[0] = "y"
    again.name = "second"
    again.output[:] = ["y2", "nk2", "nv2"]
    proto.graph.node.append(again)
    proto.graph.output.extend(
        onnx.helper.make_tensor_value_info(new, onnx.TensorProto.FLOAT, [1, 2, 12, 16])
        for new in ("nk2", "nv2")
    )
    proto.graph.output.append(
        onnx.helper.make_tensor_value_info("y2", onnx.TensorProto.FLOAT, [1, 1, 64])
    )

    second = len(network(proto, tmp_path).layers) - first
    assert second < first - 10


def test_integers_enter_for_positions_alone(tmp_path: Path) -> None:
    cast = model("g (int32[3] x) => (float[3] y) { y = Cast<to=1>(x) }")
    agrees(cast, {"x": np.array([1, -7, 2**24 + 1], np.int32)}, tmp_path)

    other = model("g (int32[3] x) => (int32[3] y) { y = Add(x, x) }")
    with pytest.raises(CompileError, match="int32, but must be float32"):
        network(other, tmp_path)
    mixed = model("g (int32[2,3] x) => (float[6] y) { r = Reshape(x, s) y = Cast<to=1>(r) }", {"s": [6]})
    with pytest.raises(CompileError, match="int32, but must be float32"):
        network(mixed, tmp_path)


def test_a_cache_that_is_bound_is_updated_where_it_lies(tmp_path: Path) -> None:
    proto, inputs = Attention().make()
    made = region(proto, tmp_path)
    codegen: Any = find_codegen("dla")
    run = codegen.load(made, codegen.compile(made, parse_codegen_options(codegen, {})))
    expected = run(inputs)
    keys, values = inputs["pk"].copy(), inputs["pv"].copy()

    bound = run.bind({"pk": keys, "pv": values}, {"nk": keys, "nv": values})
    found = bound({**inputs, "pk": keys, "pv": values})

    assert found["nk"] is keys and found["nv"] is values
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert not np.array_equal(keys, inputs["pk"])
    with pytest.raises(InputError, match=r"output 'nk' is .*, its array"):  # it would be broadcast
        run.bind({}, {"nk": np.stack([keys, keys])})


SIZE = DecoderSize(layers=2, hidden=64, heads=4, kv_heads=2, wide=96, vocabulary=128, context=64)


@pytest.mark.parametrize("weights", ["int4", "float32"])
def test_a_decoder_is_one_region_that_generates_the_same_tokens(weights: Any, tmp_path: Path) -> None:
    """Of two layers, with a cache of 40 positions: prefill and decode, 24 tokens each."""
    path = tmp_path / "decoder.onnx"
    onnx.save(make_decoder(weights, replace(DecoderShape(), batch=1), SIZE), path)
    prefill, decode = (
        {"sequence_length": count, "past_sequence_length": past, "total_sequence_length": total}
        for count, past, total in ((8, 0, 8), (1, 40, 40))
    )

    result = byoc.partition(
        path,
        "dla",
        strategy="all-supported",
        variants={"prefill": prefill, "decode": decode},
        output=tmp_path / "b.byoc",
        what_if=False,
        verify=False,
    )

    bundle = byoc.open_bundle(tmp_path / "b.byoc")
    assert [len(each.regions()) for each in bundle.variants] == [1, 1]
    counts = [each.report.nodes for each in result.variants]
    assert [each.total - each.offloaded for each in counts] == [4, 4]  # what makes the lengths
    found = byoc.verify_generation(tmp_path / "b.byoc", path, tokens=24, seeds=1)
    assert found.passed and not found.not_reached
    assert not any(run.differences for run in found.runs) or weights == "int4"
