"""Options of the codegen `qnn`, and the provider's settings for them."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class QNNOptions:
    """Options of the codegen `qnn`.

    `htp_arch` is the version of the Hexagon tensor processor, `soc_model` Qualcomm's number of the chip
    (0: any). `optimization` is the provider's `htp_graph_finalization_optimization_mode`. `timeout` is
    the limit for compiling a region, in seconds.
    """

    htp_arch: Literal["68", "69", "73", "75", "79", "81"] = field(
        default="73", metadata={"help": "version of the Hexagon tensor processor to compile for"}
    )
    soc_model: int = field(default=0, metadata={"help": "Qualcomm's number of the chip; 0 is any"})
    optimization: Literal["0", "1", "2", "3"] = field(
        default="0", metadata={"help": "how hard the compiler tries: 3 longest; 0 leaves it to it"}
    )
    timeout: float = field(default=600.0, metadata={"help": "seconds that compiling a region may take"})

    def __post_init__(self) -> None:
        """Raise ValueError for a negative chip number, and for a timeout that is not positive."""
        if self.soc_model < 0:
            raise ValueError(f"soc_model is {self.soc_model}, but must be at least 0")
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g} s, but must be more than 0")

    @property
    def settings(self) -> dict[str, str]:
        """The provider's settings for compiling."""
        return {
            "htp_arch": self.htp_arch,
            "soc_model": str(self.soc_model),
            "htp_graph_finalization_optimization_mode": self.optimization,
            "offload_graph_io_quantization": "0",  # the region's own are the NPU's, too
        }
