"""The options of `export_c`."""

from collections.abc import Sequence
from pathlib import Path

from byoc._dataclasses import dataclass
from byoc.model import DimensionOptions
from byoc.support import Flag, Syntax, declare_field

MOST_THREADS = 64
"""The most threads that a program may have."""
MOST_COMBINATIONS = 64
"""The most combinations of sizes of a program with open dimensions, which has steps for each."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(DimensionOptions):
    """The choices of `export_c`."""

    output: str | Path = declare_field(
        "",
        "the folder to write; one that `export_c` wrote is replaced.",
        Flag("The folder to write.", Syntax.PATH, names=("--output", "-o"), required=True),
    )
    variant: str | Sequence[str] | None = declare_field(
        None,
        "the variant of a bundle that has several, or those among which the program chooses, by "
        "default all; `host` is the model on the host alone.",
        Flag(
            "A variant to export, of a bundle with several. Of several the program chooses one where "
            "it runs; host is the model on the host alone.",
            Syntax.LIST,
            metavar="NAME",
        ),
    )
    byte_order: str = declare_field(
        "little",
        "the byte order of the machine that runs the program: `little` or `big`.",
        Flag("The byte order of the machine that runs it.", choices=("little", "big")),
    )
    prefix: str = declare_field(
        "model",
        "what the names of functions, types, files and CMake targets begin with, so that one program "
        "can have several models.",
        Flag("What names of functions, files and targets begin with.", metavar="NAME"),
    )
    embed: bool = declare_field(
        False,
        "weights are a part of the program, by the assembler's `.incbin`, and not a file beside it.",
        Flag("Make the weights a part of the program, by .incbin.", Syntax.SWITCH),
    )
    threads: int = declare_field(
        1,
        "how many threads compute convolutions and products; more than one need POSIX threads, and make "
        "the same bits as one.",
        Flag("Threads that compute convolutions and products.", Syntax.INTEGER, minimum=1),
    )
