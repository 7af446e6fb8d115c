"""What a user may choose of the vanilla accelerator."""

from dataclasses import dataclass, field

from byoc.memory.plan import METHODS

_LEAST = 1024


@dataclass(frozen=True)
class DLAOptions:
    """Options of the codegen `dla`: the size of the machine, and how its memory is planned."""

    scratchpad: int = field(default=512 * 1024, metadata={"help": "bytes of the scratchpad"})
    memory: str = field(
        default="exact", metadata={"help": f"how the arena is planned: {', '.join(METHODS)}"}
    )
    resident: bool = field(
        default=True, metadata={"help": "keep tensors in the scratchpad between layers where they fit"}
    )
    stripes: bool = field(
        default=False,
        metadata={"help": "compute layers in turns, some rows at a time, in a smaller arena"},
    )

    def __post_init__(self) -> None:
        """Raise ValueError for a scratchpad that is none, and for a method that there is not."""
        if self.scratchpad < _LEAST:
            raise ValueError(f"scratchpad is {self.scratchpad}, but must be at least {_LEAST} bytes")
        if self.memory not in METHODS:
            raise ValueError(f"memory is '{self.memory}', but must be one of {', '.join(METHODS)}")
