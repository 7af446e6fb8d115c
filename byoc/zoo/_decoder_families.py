"""Generated decoders like Qwen's and Phi's, those that the zoo lists, and samples for each.

They differ from Llama's (`DecoderWriter`) where the builder's classes do: Qwen's (Qwen Team, "Qwen2
Technical Report", 2024, and "Qwen3 Technical Report", 2025) add biases to queries, keys and values and
normalize each head of queries and keys; in Phi's (Li et al., "Textbooks Are All You Need II: phi-1.5",
2023) attention and feed-forward layer read the same normalization, which has biases, as all products
have, a part of each head is rotated, and the activation is a Gelu.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.zoo._decoders import (
    DecoderShape,
    DecoderSize,
    DecoderWriter,
    WeightKind,
    check_decoder_size,
    count_decoder_nodes,
    name_weight,
)
from byoc.zoo._sample_inputs import UniformSpread, derive_seed, draw_uniform, make_integers
from byoc.zoo._trained_models import ZooEntry

# The decoders that the zoo lists, and samples of a conversation for each.

_OPEN = DecoderShape()
# A prompt of 64 tokens, and a cache of 256 positions of which the mask says how many are filled.
_PREFILL = DecoderShape(1, 64, 0, 64, 64)
_DECODE = DecoderShape(1, 1, 256, 256, 256)
# Of a model that leaves them open, a sample continues a conversation of 24 tokens by 8.
_SAMPLE = DecoderShape(1, 8, 24, 32, 32)
_SIZE = DecoderSize()


@dataclass(frozen=True)
class _Variant:
    """The weights and extents of a decoder, whether it is fused, and what it is for."""

    weights: WeightKind
    shape: DecoderShape
    fused: bool
    use: str


_VARIANTS: Mapping[str, _Variant] = {
    "decoder_int4": _Variant("int4", _OPEN, True, "open extents"),
    "decoder_int4_prefill": _Variant("int4", _PREFILL, True, "64 tokens"),
    "decoder_int4_decode": _Variant("int4", _DECODE, True, "1 token, 256 cached"),
    "decoder_fp16": _Variant("float16", _OPEN, False, "open extents"),
    "decoder_fp16_prefill": _Variant("float16", _PREFILL, False, "64 tokens"),
    "decoder_fp16_decode": _Variant("float16", _DECODE, False, "1 token, 256 cached"),
}


class GeneratedDecoders:
    """Small decoders as onnxruntime-genai's model builder writes them, in int4 and float16."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return them by name."""
        return tuple(
            ZooEntry(
                name=name,
                family=f"language decoder, {variant.use}",
                source=f"generated as onnxruntime-genai 0.18 does, {_SIZE.layers} layers",
                licence="Apache-2.0",
                weights="random, seeded",
                nodes=count_decoder_nodes(_SIZE, fused=variant.fused),
            )
            for name, variant in _VARIANTS.items()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Make the decoder of a name."""
        variant = _VARIANTS[name]
        return make_decoder(variant.weights, variant.shape, _SIZE, fused=variant.fused)

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return tokens, mask, positions and cache that go together.

        In a cache of fixed length the first half is filled, and the new token goes there last.
        """
        variant = _VARIANTS[name]
        shape = _SAMPLE if variant.shape == _OPEN else variant.shape
        batch, sequence, past, total = map(int, (shape.batch, shape.sequence, shape.past, shape.total))
        filled = total if total == past + sequence else total // 2
        mask = (np.arange(total) < filled).astype(np.int64)
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": make_integers(seed, (batch, sequence), 0, _SIZE.vocabulary - 1),
            "attention_mask": np.tile(mask, (batch, 1)),
        }
        if not variant.fused:
            inputs["position_ids"] = np.tile(np.arange(filled - sequence, filled), (batch, 1))
        dtype = np.float16 if variant.weights == "float16" else np.float32
        for layer in range(_SIZE.layers):
            for part in ("key", "value"):
                name = f"past_key_values.{layer}.{part}"
                extents = (batch, _SIZE.kv_heads, past, _SIZE.head)
                spread = UniformSpread(0.0, 3.0**0.5)
                values = draw_uniform(derive_seed(name, str(seed)), extents, spread)
                inputs[name] = values.astype(dtype)
        return inputs


Family = Literal["llama", "qwen", "phi"]
_EPSILON = 1e-5  # of normalizations
_BIAS = 0.1  # deviation


def make_decoder(
    weights: WeightKind = "int4",
    shape: DecoderShape | None = None,
    size: DecoderSize | None = None,
    *,
    fused: bool = True,
    family: Family = "llama",
) -> onnx.ModelProto:
    """Make a decoder: token ids, mask and cache in, logits and the longer cache out.

    Activations are float16 where weights are, else float32. `fused` is what the builder writes for the
    CPU: one projection for queries, keys and values, and positions rotated in GroupQueryAttention.
    Otherwise, for `llama` alone, projections and RotaryEmbedding are nodes, and `position_ids` is an
    input. Raises `InputError` for another family so, for widths that are no multiples of the blocks of
    int4, or heads that do not divide.
    """
    size = size or DecoderSize()
    check_decoder_size(size, weights)
    if not fused and family != "llama":
        raise InputError(f"zoo: a decoder of the family {family} is fused")
    return _WRITERS[family](weights, shape or DecoderShape(), size, fused).write()


class _BiasWriter(DecoderWriter):
    """Writer of products with biases."""

    def _add_bias(self, name: str, x: str, width: int) -> str:
        """Add a bias to a product."""
        weight = name_weight(name, "bias")
        self._store_float(weight, self.draw(weight, (width,), _BIAS))
        return self._add_one("Add", name, (x, weight), width)


class _QwenWriter(_BiasWriter):
    """Writer of a decoder like Qwen's."""

    def _add_projections(self, prefix: str, normal: str, widths: dict[str, int]) -> tuple[str, ...]:
        """Add the projections with biases, and normalize each head of queries and keys."""
        made = {}
        for part, width in widths.items():
            kernel = self.draw(f"{prefix}/{part}", (self.size.hidden, width), self.size.hidden**-0.5)
            product = self._add_matmul(f"{prefix}/{part}_proj/MatMul", normal, kernel)
            made[part] = self._add_bias(f"{prefix}/{part}_proj/Add", product, width)
        for part in ("q", "k"):
            made[part] = self._normalize_heads(f"{prefix}/{part}_norm", made[part], widths[part])
        return made["q"], made["k"], made["v"]

    def _normalize_heads(self, prefix: str, x: str, width: int) -> str:
        """Normalize each head of a projection [batch, sequence, width]; return the result, as wide."""
        head = self.size.head
        apart = self._add_reshape(f"{prefix}/Reshape_1", x, head)
        weight = name_weight(prefix, "layernorm.weight")
        self._store_float(weight, self.draw(weight, (head,), 0.1, 1.0))
        norm = f"{prefix}/SimplifiedLayerNormalization"
        normal = f"{norm}/output_0"
        attributes = {"epsilon": _EPSILON, "axis": -1, "stash_type": 1}
        self.add_node("SimplifiedLayerNormalization", norm, (apart, weight), (normal,), **attributes)
        self.state_type(normal, self.dtype, (self.shape.batch, None, head))
        return self._add_reshape(f"{prefix}/Reshape_2", normal, width)

    def _add_reshape(self, name: str, x: str, width: int) -> str:
        """Add a Reshape to rows of a width; the shape is stored once for all that have it."""
        shape = f"/model/constants/INT64/[0, -1, {width}]"
        if all(tensor.name != shape for tensor in self.graph.initializer):
            self.store(shape, np.array([0, -1, width], np.int64))
        output = f"{name}/output_0"
        self.add_node("Reshape", name, (x, shape), (output,))
        self.state_type(output, self.dtype, (self.shape.batch, None, width))
        return output


class _PhiWriter(_BiasWriter):
    """Writer of a decoder like Phi's."""

    def __init__(self, weights: WeightKind, shape: DecoderShape, size: DecoderSize, fused: bool) -> None:
        super().__init__(weights, shape, size, fused)
        self.rotated = size.head // 2

    def _add_layer(
        self, layer: int, stream: str, branch: str, lengths: tuple[str, str]
    ) -> tuple[str, str]:
        """Add attention and feed-forward layer side by side."""
        prefix = f"/model/layers.{layer}"
        normal, stream = self._add_norm(f"{prefix}/input_layernorm", stream, branch)
        attended = self._add_attention(layer, normal, lengths)
        attended = self._add_bias(f"{prefix}/attn/o_proj/Add", attended, self.size.hidden)
        made = self._add_feed_forward(f"{prefix}/mlp", normal)
        name = f"{prefix}/residual_add/Add"
        return stream, self._add_one("Add", name, (attended, made), self.size.hidden)

    def _add_projections(self, prefix: str, normal: str, widths: dict[str, int]) -> tuple[str, ...]:
        packed, *others = super()._add_projections(prefix, normal, widths)
        return self._add_bias(f"{prefix}/qkv_proj/Add", packed, sum(widths.values())), *others

    def _add_norm(self, name: str, stream: str, branch: str, is_last: bool = False) -> tuple[str, str]:
        """Add a branch to the stream, if there is one, and normalize it; return both results."""
        hidden = self.size.hidden
        weights: tuple[str, ...] = (name_weight(name), name_weight(name, "bias"))
        for weight, deviation, centre in zip(weights, (0.1, _BIAS), (1.0, 0.0), strict=True):
            self._store_float(weight, self.draw(weight, (hidden,), deviation, centre))
        output, following = f"{name}/output_0", f"{name}/output_3"
        self.state_type(output, self.dtype, self._hidden(hidden))
        if not branch:
            attributes = {"epsilon": _EPSILON, "axis": -1, "stash_type": 1}
            inputs = (stream, *weights)
            self.add_node("LayerNormalization", f"{name}/LayerNorm", inputs, (output,), **attributes)
            return output, stream
        outputs = (output,) if is_last else (output, "", "", following)
        operator, inputs = "com.microsoft.SkipLayerNormalization", (stream, branch, *weights)
        self.add_node(operator, f"{name}/SkipLayerNorm", inputs, outputs, epsilon=_EPSILON)
        if not is_last:
            self.state_type(following, self.dtype, self._hidden(hidden))
        return output, following

    def _add_feed_forward(self, prefix: str, normal: str) -> str:
        """Add two products with a Gelu between them, by its approximation with tanh."""
        hidden, wide = self.size.hidden, self.size.wide
        first = self.draw(f"{prefix}/fc1", (hidden, wide), hidden**-0.5)
        made = self._add_matmul(f"{prefix}/fc1/MatMul", normal, first)
        made = self._add_bias(f"{prefix}/fc1/Add", made, wide)
        made = self._add_one("com.microsoft.FastGelu", f"{prefix}/act_fn/FastGelu", (made,), wide)
        second = self.draw(f"{prefix}/fc2", (wide, hidden), 0.5 * wide**-0.5)
        made = self._add_matmul(f"{prefix}/fc2/MatMul", made, second)
        return self._add_bias(f"{prefix}/fc2/Add", made, hidden)


_WRITERS: Mapping[Family, type[DecoderWriter]] = {
    "llama": DecoderWriter,
    "qwen": _QwenWriter,
    "phi": _PhiWriter,
}
