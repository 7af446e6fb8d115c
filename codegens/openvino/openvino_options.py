"""Options of the codegen `openvino`, and OpenVINO's properties for them."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class OpenVINOOptions:
    """Options of the codegen `openvino`.

    `threads` is the most threads of a run, 0 leaves it to OpenVINO. `precision` is that of the
    arithmetic; OpenVINO's own default is bf16 if the CPU supports it. Without `integers` it runs QDQ
    models as written, in floating point with their roundings. Without `blob` the compiled region, which
    has a second copy of the weights, is not stored, and loading compiles it.
    """

    threads: int = field(default=0, metadata={"help": "threads of a run; 0 leaves it to OpenVINO"})
    precision: Literal["f32", "bf16", "f16"] = field(
        default="f32", metadata={"help": "precision of the arithmetic"}
    )
    integers: bool = field(
        default=True, metadata={"help": "compute quantized operators in integers, where that works"}
    )
    blob: bool = field(
        default=True,
        metadata={"help": "store the compiled region, with a second copy of the weights"},
    )
    device: str = field(default="CPU", metadata={"help": "OpenVINO's name of a device"})

    def __post_init__(self) -> None:
        """Raise ValueError for a negative number of threads."""
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}, but must be at least 0")

    @property
    def properties(self) -> dict[str, Any]:
        """The properties for compiling and importing a model; a blob does not keep them."""
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": self.precision}
        if not self.integers:
            properties["LP_TRANSFORMS_MODE"] = "NO"
        if self.threads:
            properties["INFERENCE_NUM_THREADS"] = self.threads
        return properties
