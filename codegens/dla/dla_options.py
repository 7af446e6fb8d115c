"""The answers of the codegen before it compiles or runs: its name, options, and versions of programs.

It imports neither the compiler nor the simulator, so that a bundle is asked quickly whether it fits.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from byoc.codegen import Bytes

NAME = "dla"
"""Name of the codegen, its rule file and its cost model."""

ISA = "isa"
"""The key in an artifact's metadata of the version of the instruction set."""

VERSION = 7
VERSIONS = (4, 5, 6, VERSION)
"""The versions of the program file that are read; `VERSION` is the newest."""

_LEAST = 1024  # bytes of scratchpad
_MOST = 2**30  # the simulator keeps a tag of eight bytes for each byte


MemoryMethod = Literal["no-reuse", "best-fit", "by-size", "reordered", "exact"]


@dataclass(frozen=True)
class DLAOptions:
    """Options of the codegen `dla`: the size of the machine, and how its memory is planned."""

    scratchpad: Bytes = field(default=512 * 1024, metadata={"help": "bytes of the scratchpad"})
    memory: MemoryMethod = field(default="exact", metadata={"help": "how the arena is planned"})
    resident: bool = field(
        default=True, metadata={"help": "keep tensors in the scratchpad between layers where they fit"}
    )
    stripes: bool = field(
        default=False,
        metadata={"help": "compute layers in stripes of rows, in a smaller arena"},
    )

    def __post_init__(self) -> None:
        """Raise ValueError for a scratchpad too small or large, and for an unknown method."""
        if self.scratchpad < _LEAST:
            raise ValueError(f"scratchpad is {self.scratchpad}, but must be at least {_LEAST} bytes")
        if self.scratchpad > _MOST:
            raise ValueError(f"scratchpad is {self.scratchpad}, but must be at most {_MOST} bytes")
        if self.memory not in get_args(MemoryMethod):
            raise ValueError(
                f"memory is '{self.memory}', but must be one of {', '.join(get_args(MemoryMethod))}"
            )
