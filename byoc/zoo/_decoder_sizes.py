"""The widths of generated decoders, and the extents of their inputs."""

from dataclasses import dataclass
from typing import Literal

from byoc.errors import InputError

WEIGHT_BLOCK = 32
"""Weights of 4 bits that share a scale."""

WeightKind = Literal["int4", "float16", "float32"]


@dataclass(frozen=True)
class DecoderSize:
    """The widths of a decoder; `context` is how many positions it can rotate."""

    layers: int = 3
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    wide: int = 352
    vocabulary: int = 1024
    context: int = 512

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class DecoderShape:
    """The extents of a decoder's inputs: numbers, or the names that onnxruntime-genai gives them.

    `past` and `present` are the lengths of the cache before and after a run, `total` that of the mask.
    """

    batch: int | str = "batch_size"
    sequence: int | str = "sequence_length"
    past: int | str = "past_sequence_length"
    total: int | str = "total_sequence_length"
    present: int | str = "total_sequence_length"


OPEN = DecoderShape()


def check_decoder_size(size: DecoderSize, weights: WeightKind) -> None:
    """Raise InputError for widths and heads that no decoder has."""
    if size.hidden % size.heads or size.heads % size.kv_heads or size.head % 2:
        raise InputError(
            f"zoo: no decoder has {size.heads} heads, {size.kv_heads} for keys, in {size.hidden}"
        )
    if weights == "int4" and (size.hidden % WEIGHT_BLOCK or size.wide % WEIGHT_BLOCK):
        raise InputError(
            f"zoo: int4 weights come in blocks of {WEIGHT_BLOCK}, not for {size.hidden} or {size.wide}"
        )
