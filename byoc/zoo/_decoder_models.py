"""The decoders that the zoo lists, and samples of a conversation for each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from byoc.errors import InputError, suggest_nearest
from byoc.zoo._decoder_sizes import OPEN, DecoderShape, DecoderSize, WeightKind
from byoc.zoo._decoders import count_decoder_nodes, make_decoder
from byoc.zoo._provider import ZooEntry
from byoc.zoo._sample_inputs import make_integers
from byoc.zoo._seeded_weights import UniformSpread, derive_seed, draw_uniform

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
    "decoder_int4": _Variant("int4", OPEN, True, "open extents"),
    "decoder_int4_prefill": _Variant("int4", _PREFILL, True, "64 tokens"),
    "decoder_int4_decode": _Variant("int4", _DECODE, True, "1 token, 256 cached"),
    "decoder_fp16": _Variant("float16", OPEN, False, "open extents"),
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
        """Make the decoder of a name; raises `InputError` for other names."""
        variant = _look_up(name)
        return make_decoder(variant.weights, variant.shape, _SIZE, fused=variant.fused)

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return tokens, mask, positions and cache that go together; raises `InputError` as `load` does.

        In a cache of fixed length the first half is filled, and the new token goes there last.
        """
        variant = _look_up(name)
        shape = _SAMPLE if variant.shape == OPEN else variant.shape
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


def _look_up(name: str) -> _Variant:
    if name not in _VARIANTS:
        raise InputError(
            f"zoo: no decoder named {name!r}{suggest_nearest(name, _VARIANTS)}; "
            f"available: {', '.join(_VARIANTS)}"
        )
    return _VARIANTS[name]
