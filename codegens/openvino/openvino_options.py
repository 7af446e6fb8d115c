"""Options of the codegen `openvino`, and OpenVINO's properties for them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from byoc.codegen import Bytes


@dataclass(frozen=True)
class OpenVINOOptions:
    """Options of the codegen `openvino`.

    `threads` is the most threads of a run, 0 leaves it to OpenVINO. `precision` is that of the
    arithmetic and of the keys and values that attention keeps; OpenVINO's own default is bf16 if the
    CPU supports it, and 8 bits for keys and values. With `dynamic_quantization` activations that meet
    weights of 4 or 8 bits are quantized to int8 as they are computed, in groups of so many; OpenVINO's
    own default is 32. Without `integers` it runs QDQ models as written, in floating point with their
    roundings. Without `blob`, or where it would hold more than `blob_limit` bytes of weights, the
    compiled region is not stored, and loading compiles it.
    """

    threads: int = field(
        default=0, metadata={"help": "threads of a run; 0 leaves it to OpenVINO", "at_load": True}
    )
    precision: Literal["f32", "bf16", "f16"] = field(
        default="f32", metadata={"help": "precision of the arithmetic"}
    )
    dynamic_quantization: int = field(
        default=0,
        metadata={
            "help": "quantize activations to int8 where weights have 4 or 8 bits, in groups of so many; "
            "0 does not"
        },
    )
    integers: bool = field(
        default=True, metadata={"help": "compute quantized operators in integers, where that works"}
    )
    blob: bool = field(
        default=True,
        metadata={"help": "store the compiled region"},
    )
    blob_limit: Bytes = field(
        default=128 << 20,
        metadata={"help": "the most weights that a stored compiled region may hold itself"},
    )
    device: str = field(default="CPU", metadata={"help": "OpenVINO's name of a device"})

    def __post_init__(self) -> None:
        """Raise ValueError for a negative number."""
        for name in ("threads", "dynamic_quantization", "blob_limit"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0")

    @property
    def properties(self) -> dict[str, Any]:
        """The properties for compiling and importing a model; a blob does not keep them.

        All on which the accuracy depends are given, since OpenVINO's defaults depend on the processor.
        """
        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "KV_CACHE_PRECISION": self.precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self.dynamic_quantization,
        }
        if not self.integers:
            properties["LP_TRANSFORMS_MODE"] = "NO"
        if self.threads:
            properties["INFERENCE_NUM_THREADS"] = self.threads
        return properties
