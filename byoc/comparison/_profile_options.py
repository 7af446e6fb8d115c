"""The options of `profile`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, process_time

from byoc._dataclasses import KW_ONLY, dataclass, field
from byoc.model import DimensionOptions
from byoc.support import Flag, Syntax, declare, declare_field

# Timing a function until its median settles, within limits.

Clock = Callable[[], float]
"""A function that returns seconds, of which only differences count."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The number of measurements: `warmup` runs that do not count, then `least` to `most` runs.

    Measuring ends sooner if the interquartile range, divided by the root of the number of runs, is at
    most the share `settled` of the median, or if `seconds` have passed since the first run that counts.
    Before each run there is a `pause` of so many seconds, which do not count: threads fall asleep, those
    of a library that ran before too, and have to be woken as in an application that does other things.
    """

    warmup: int = 2
    least: int = 5
    most: int = 100
    seconds: float = 5.0
    settled: float = 0.01
    pause: float = 0.0


HOST = "host"
_WALL, _PROCESSOR = "wall", "processor"


@dataclass(frozen=True)
class ProfileOptions(DimensionOptions):
    """All choices of a measurement."""

    output: str | Path = field(
        metadata=declare(
            "path of the cost model to write.",
            Flag("Write the cost model here.", Syntax.PATH, ("--output", "-o")),
        )
    )
    _: KW_ONLY
    device: str = declare_field(
        HOST, "`host`, or the name of a codegen.", Flag("What to measure.", metavar="host|CODEGEN")
    )
    rules: str | Path | None = declare_field(
        None,
        "a rule file whose units a codegen is measured on; every operator without it.",
        Flag("Measure the units of this rule file, composites too; unless given, every operator."),
    )
    fit: bool = declare_field(
        False,
        "write lines fitted to the measurements instead of a table of them.",
        Flag("Write lines fitted to the measurements, instead of a table of them.", Syntax.SWITCH),
    )
    pairs: bool = declare_field(
        False,
        "measure how many times as long a codegen takes while the host computes, too, and write that as "
        "`interference`.",
        Flag("Measure how much the host at work slows the codegen, too.", Syntax.SWITCH),
    )
    otherwise: str | None = declare_field(
        None,
        "the cost model that is asked for what was not measured.",
        Flag("The cost model to ask for what was not measured.", names=("--else",)),
    )
    codegen_options: Mapping[str, str] | None = declare_field(
        None,
        "options of the codegen by name.",
        Flag(
            "An option of the codegen, see byoc codegens CODEGEN.",
            Syntax.PAIRS,
            ("--codegen-option",),
            "NAME=VALUE",
        ),
    )
    seconds: float = declare_field(
        5.0,
        "the most seconds to measure each model, or each unit of a codegen.",
        Flag(
            "Measure each model, or each unit, for at most so many seconds.", Syntax.NUMBER, minimum=0.0
        ),
    )
    repeats: int = declare_field(
        100,
        "the most runs of each.",
        Flag("Run each at most so often.", Syntax.INTEGER, minimum=1),
    )
    isolate: bool | None = declare_field(
        None,
        "run the codegen in a process of its own, and measure it there: the default where possible.",
        Flag("Run the codegen in a process of its own; the default.", Syntax.ON_OFF),
    )
    threads: int | None = declare_field(
        None,
        "the number of threads that the host runs with; all cores unless given. A codegen may have an "
        "option of its own for that.",
        Flag("Run the host with so many threads; all cores unless given.", Syntax.INTEGER, minimum=1),
    )
    clock: str = declare_field(
        _WALL,
        "`wall`, or `processor` for the time of all processors together, on a machine that others use.",
        Flag(
            "What seconds are: on the wall, or of all processors together.", choices=(_WALL, _PROCESSOR)
        ),
    )

    @property
    def measured_threads(self) -> int:
        """The number of threads that are measured, on the host or by the codegen; 0 for all cores."""
        text = (self.codegen_options or {}).get("threads", "")
        return self.threads or (int(text) if text.isdecimal() else 0)

    @property
    def seconds_of(self) -> Clock:
        """The function that gives the seconds."""
        return process_time if self.clock == _PROCESSOR else perf_counter

    @property
    def patience(self) -> Patience:
        """The time and runs that each measurement may take."""
        return Patience(seconds=self.seconds, most=self.repeats, least=min(self.repeats, 5))
