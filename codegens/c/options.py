"""Options of the codegen `c`."""

import shlex
from dataclasses import dataclass, field


@dataclass(frozen=True)
class COptions:
    """Options of the codegen `c`: the command of the C compiler, and flags for optimization."""

    cc: str = field(default="cc", metadata={"help": "the C compiler's command"})
    cflags: str = field(default="-O2", metadata={"help": "flags for optimization"})

    def __post_init__(self) -> None:
        """Raise ValueError for an empty command, and for flags that cannot be split."""
        if not shlex.split(self.cc):
            raise ValueError("cc is empty, but must name a compiler")
        shlex.split(self.cflags)

    @property
    def native(self) -> bool:
        """Whether the library runs only on CPUs like this one."""
        return "native" in self.cflags
