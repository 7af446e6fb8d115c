"""What a user may choose, and what of it OpenVINO is told."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class OpenVINOOptions:
    """Options of the codegen `openvino`.

    `threads` is how many a run may use, 0 leaves that to OpenVINO. `precision` is what the arithmetic is
    done in; OpenVINO by itself takes bf16 where the CPU has it. Without `integers` it leaves QDQ models
    as they are written: it rounds where they do, in floating point. Without `blob` the compiled region,
    which holds the weights once more, is not stored, and loading compiles it.
    """

    threads: int = field(default=0, metadata={"help": "threads of a run; 0 leaves it to OpenVINO"})
    precision: Literal["f32", "bf16", "f16"] = field(
        default="f32", metadata={"help": "what the arithmetic is done in"}
    )
    integers: bool = field(
        default=True, metadata={"help": "compute quantized operators in integers, where that works"}
    )
    blob: bool = field(
        default=True, metadata={"help": "store what was compiled; it holds the weights once more"}
    )
    device: str = field(default="CPU", metadata={"help": "OpenVINO's name of a device"})

    def __post_init__(self) -> None:
        """Raise ValueError for a number of threads that there is not."""
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}, but must be at least 0")

    @property
    def properties(self) -> dict[str, Any]:
        """The properties with which a model is compiled, and imported: a blob does not keep them."""
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": self.precision}
        if not self.integers:
            properties["LP_TRANSFORMS_MODE"] = "NO"
        if self.threads:
            properties["INFERENCE_NUM_THREADS"] = self.threads
        return properties
