"""The modes in which sessions of onnxruntime compute."""

from typing import Literal

SessionMode = Literal["definition", "exact", "fast"]
"""How sessions compute: operator by operator on one thread, to compare with (`definition`); as users run
models (`exact`): the same where activations are quantized, and optimized elsewhere; or optimized
everywhere (`fast`), where steps of quantization may come out one unit off."""

HostMode = Literal["exact", "fast"]
HOST_MODES: tuple[HostMode, ...] = ("exact", "fast")
"""The modes that a user chooses from, the default first."""
