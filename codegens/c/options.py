"""What a user may choose of the C compiler."""

import shlex
from dataclasses import dataclass, field


@dataclass(frozen=True)
class COptions:
    """Options of the codegen `c`: the compiler's command, and the flags it optimizes by."""

    cc: str = field(default="cc", metadata={"help": "the C compiler's command"})
    cflags: str = field(default="-O2", metadata={"help": "flags to optimize by"})

    def __post_init__(self) -> None:
        """Raise ValueError for a command that is none."""
        if not shlex.split(self.cc):
            raise ValueError("cc is empty, but must name a compiler")
        shlex.split(self.cflags)

    @property
    def native(self) -> bool:
        """Whether what is compiled runs on CPUs like this one alone."""
        return "native" in self.cflags
