"""The options of comparisons and of `profile`, and the tolerances of `diff`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from time import perf_counter, process_time

from byoc import samples
from byoc._dataclasses import KW_ONLY, dataclass, field
from byoc.errors import InputError
from byoc.model import DimensionOptions
from byoc.pipeline import PlanOptions
from byoc.support import Flag, Panel, Syntax, check_types, declare, declare_field

# What `byoc diff` tolerates.

DEFAULT_ERROR_GROWTH = 1.0
"""The growth of an error, in dB, that is tolerated unless another is said: machines differ by less."""


def _read_percent(text: str) -> float:
    number, percent, rest = text.partition("%")
    try:
        value = float(number) / 100
    except ValueError:
        value = -1.0
    if not percent or rest or not 0 <= value < inf:
        raise ValueError(f"'{text}' is not a share such as 5%")
    return value


def _read_decibels(text: str) -> float:
    number = text.removesuffix("dB")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if number == text or not 0 <= value < inf:
        raise ValueError(f"'{text}' is not a number of decibels such as 1dB")
    return value


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Tolerances of the gate: a placement may be so much worse than the one before.

    `max_slowdown` is the share by which predicted seconds may grow, 0 unless given. `max_error_growth`
    is by how many dB the error of an output may grow, 1 unless given. A number that is given requires
    that both sides have what it is of. Raises InputError for numbers below 0 and those not finite.
    """

    max_slowdown: float | None = declare_field(
        None,
        "the share by which the predicted seconds may grow, such as 0.05.",
        Flag(
            "Predicted seconds may grow by this much; implies --only-worse.",
            metavar="5%",
            read=_read_percent,
            panel=Panel.REQUIREMENTS,
        ),
    )
    max_error_growth: float | None = declare_field(
        None,
        "by how many dB the error of an output may grow.",
        Flag(
            "The errors of outputs may grow by this much; implies --only-worse.  [default: 1dB]",
            metavar="1dB",
            read=_read_decibels,
            panel=Panel.REQUIREMENTS,
        ),
    )

    def __post_init__(self) -> None:
        """Raise InputError for a number that is no tolerance."""
        check_types(Tolerances, vars(self))
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < inf:
                raise InputError(f"{name} {value:g}: not a number of at least 0")


# The options of `choose_buckets`.


def _read_sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"'{text}': sizes are whole numbers with commas between")
    return tuple(map(int, parts))


@dataclass(frozen=True, kw_only=True)
class BucketOptions(PlanOptions):
    """The choices of `choose_buckets`. Raises InputError for one that is none."""

    along: str = declare_field(
        "",
        "the open dimension that gets buckets.",
        Flag("The open dimension that gets buckets.", metavar="DIM", required=True),
    )
    lengths: str | Path | Sequence[int] | Mapping[int, float] = declare_field(
        "log-normal",
        "the lengths that inputs have: a file with one on each line, or one and how often it occurs; "
        "`log-normal:MEDIAN,SIGMA,MAX`; or lengths, or their weights by length.",
        Flag(
            "The lengths of inputs: a file, or log-normal:MEDIAN,SIGMA,MAX (128, 1 and 2048).",
            metavar="FILE|log-normal",
        ),
    )
    max_buckets: int = declare_field(
        8, "the most buckets.", Flag("The most buckets.", Syntax.INTEGER, minimum=1)
    )
    candidates: Sequence[int] | None = declare_field(
        None,
        "the sizes that buckets may have, at each of which the model is planned; by default those of "
        "the lengths, or 32 at equal steps of their distribution.",
        Flag(
            "The sizes that buckets may have; by default 32 of the lengths.",
            metavar="SIZE,...",
            read=_read_sizes,
        ),
    )
    interpolate: bool = declare_field(
        False,
        "let buckets have any of the lengths; seconds between two candidates are interpolated.",
        Flag("Let buckets have any length; seconds are interpolated.", Syntax.SWITCH),
    )
    bucket_seconds: float = declare_field(
        0.0,
        "what a bucket costs by itself, as seconds of each call: for compiling it, and its memory.",
        Flag("What each bucket costs besides, in seconds of a call.", Syntax.NUMBER, metavar="SECONDS"),
    )

    def __post_init__(self) -> None:
        """Raise InputError for candidates that are no sizes, and for seconds below 0."""
        if not self.along:
            raise InputError("along: name the open dimension that gets buckets")
        if self.max_buckets < 1 or not self.bucket_seconds >= 0:
            raise InputError("max_buckets is at least 1, bucket_seconds at least 0")
        if self.candidates is not None and (not self.candidates or min(self.candidates) < 1):
            raise InputError("candidates: a size is at least 1")


# The options of `simplify`.


@dataclass(frozen=True, kw_only=True)
class SimplifyOptions(DimensionOptions):
    """The choices of `simplify`."""

    output: str | Path | None = declare_field(
        None,
        "where to write the simplified model; without it nothing is written.",
        Flag("Write the simplified model here.", Syntax.PATH, names=("--output", "-o")),
    )
    rules: str | Path | Sequence[str | Path] = declare_field(
        (),
        "rule files of accelerators: the model is planned for them before and after.",
        Flag("Show what this accelerator takes before and after.", Syntax.LIST, metavar="FILE|NAME"),
    )
    pass_options: Mapping[str, str] | None = declare_field(
        None,
        "options of the pass, as text: `largest` is the size of the largest constant that is made.",
        Flag(
            "An option of the pass simplify, see byoc passes.",
            Syntax.PAIRS,
            names=("--pass-option",),
            metavar="NAME=VALUE",
        ),
    )
    inputs: str | Path | samples.Inputs | Sequence[samples.Inputs] | None = declare_field(
        None,
        "what to compare on instead of made samples, as `partition` takes it.",
        Flag("Compare on these samples, by the names of the inputs.", metavar="FILE|FOLDER"),
    )
    verify: bool = declare_field(
        True,
        "compare the simplified model with the original, if onnxruntime is there.",
        Flag("Run the result and the original, and compare.", Syntax.ON_OFF),
    )


FAST_STRATEGIES = (
    *("host-only", "all-supported", "faster-ops", "faster-ops-transfer", "tree-dp", "min-cut"),
    "launch-aware",
)
ONE_ACCELERATOR = "min-cut"
"""The one of them that places for a single accelerator alone."""
SEVERAL_ACCELERATORS = "provider-order"
"""The one that takes its place where there are several: with one it is as `all-supported`."""


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(PlanOptions):
    """All choices of a comparison."""

    strategies: Sequence[str] = declare_field(
        (), "the strategies' names; fast ones that suit the number of accelerators unless given."
    )
    links: Sequence[float | None] = declare_field(
        (None,), "bandwidths of the link in GB/s, None for the cost model's own."
    )
    jobs: int | None = declare_field(
        None, "processes at a time, as many as there are processors by default."
    )


# The options of `profile`.

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
