"""Options of reports: requirements of a result, and the choices of an explanation and a memory plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import byoc.rules
from byoc._dataclasses import KW_ONLY, dataclass, field
from byoc.console import format_count, format_share
from byoc.errors import InputError, RequirementError, suggest_nearest
from byoc.model import DimensionOptions
from byoc.support import (
    SIZE_UNITS,
    Flag,
    Panel,
    Syntax,
    check_types,
    declare,
    declare_field,
    parse_size,
)

if TYPE_CHECKING:
    from byoc.bundle import Report
    from byoc.memory.report import MemoryOptions


@dataclass(frozen=True)
class RequirementCheck:
    """A requirement: the name of its flag, whether a report meets it, a sentence with the value."""

    name: str
    is_met: bool
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Requirements of a result; None and False require nothing.

    `min_offload` is the least share of the operations on accelerators, from 0 to 1. `max_regions` is
    the most regions. `max_slowdown` is the most predicted seconds, as a multiple of those of the host
    alone. With `require_verified` the result must have been compared with the original, and passed.

    Raises InputError for values of other types or out of range.
    """

    min_offload: float | None = declare_field(
        None,
        "the least share of the operations that accelerators do.",
        Flag(
            "Exit with 6 if accelerators do less than this share of the compute, such as 0.9.",
            Syntax.NUMBER,
            metavar="SHARE",
            panel=Panel.REQUIREMENTS,
        ),
    )
    max_regions: int | None = declare_field(
        None,
        "the most regions.",
        Flag(
            "Exit with 6 if there are more regions than this.",
            Syntax.INTEGER,
            metavar="NUMBER",
            minimum=0,
            panel=Panel.REQUIREMENTS,
        ),
    )
    max_slowdown: float | None = declare_field(
        None,
        "the most predicted seconds, as a multiple of those of the host alone.",
        Flag(
            "Exit with 6 if predicted seconds are more than this many times those of the host alone.",
            Syntax.NUMBER,
            metavar="RATIO",
            panel=Panel.REQUIREMENTS,
        ),
    )
    require_verified: bool = declare_field(
        False,
        "whether the result must have been compared with the original.",
        Flag(
            "Exit with 6 unless the result was compared with the original, and passed.",
            Syntax.SWITCH,
            panel=Panel.REQUIREMENTS,
        ),
    )

    def __post_init__(self) -> None:
        """Raise InputError for a value of another type, and a number that is out of range."""
        check_types(Requirements, vars(self))
        if self.min_offload is not None and not 0 <= self.min_offload <= 1:
            raise InputError(f"min_offload {self.min_offload:g}: not a share from 0 to 1; 90 % is 0.9")
        if self.max_regions is not None and not self.max_regions >= 0:
            raise InputError(f"max_regions {self.max_regions}: not a number of at least 0")
        slowdown = self.max_slowdown
        if slowdown is not None and not (slowdown > 0 and isfinite(slowdown)):
            raise InputError(f"max_slowdown {slowdown:g}: not a ratio above 0")

    def check_report(self, report: Report) -> tuple[RequirementCheck, ...]:
        """Return a check for each requirement that is set."""
        return tuple(self._list_checks(report))

    def _list_checks(self, report: Report) -> Iterator[RequirementCheck]:
        if self.min_offload is not None:
            value, least = report.compute.offloaded, self.min_offload
            is_met = value >= least
            found = f"{_format_percent(value)} of the compute is offloaded"
            yield _make_check("min-offload", is_met, found, f"at least {_format_percent(least)}")
        if self.max_regions is not None:
            number = len(report.regions)
            is_met = number <= self.max_regions
            found = f"there {'is' if number == 1 else 'are'} {format_count(number, 'region')}"
            yield _make_check("max-regions", is_met, found, f"at most {self.max_regions}")
        if self.max_slowdown is not None:
            ratio = _compute_slowdown(report)
            is_met = ratio <= self.max_slowdown
            found = f"it is predicted to take {ratio:.6g} times as long as the host alone"
            yield _make_check("max-slowdown", is_met, found, f"at most {self.max_slowdown:g} times")
        if self.require_verified:
            verification = report.verification
            is_met = verification is not None and verification.passed and report.not_verified is None
            found = "it is verified" if is_met else f"it is not verified: {report.not_verified}"
            yield _make_check("require-verified", is_met, found, "verification")


def select_required(reports: Sequence[Report]) -> Sequence[Report]:
    """Return the reports that requirements are of: all but an open variant that nobody asked for."""
    return reports[:1] if reports and reports[0].chosen_sizes else reports


def list_missed(reports: Sequence[Report], requirements: Requirements) -> list[str]:
    """Return a sentence for each requirement that a report misses; with its variant, if it is of one."""
    return [
        f"variant {report.variant}: {each.sentence}" if report.variant else each.sentence
        for report in select_required(reports)
        for each in requirements.check_report(report)
        if not each.is_met
    ]


def check_requirements(reports: Sequence[Report], requirements: Requirements) -> None:
    """Raise RequirementError, with a line for each requirement that one of the reports misses."""
    missed = list_missed(reports, requirements)
    if missed:
        raise RequirementError(*missed)


def _make_check(name: str, is_met: bool, found: str, required: str) -> RequirementCheck:
    return RequirementCheck(name, is_met, f"{found}; {required} is required (--{name})")


def _format_percent(share: float) -> str:
    """Format a share with as many digits as tell it from a limit that it just misses."""
    return format_share(1.0) if share == 1 else f"{100 * share:.6g} %"


def _compute_slowdown(report: Report) -> float:
    """Return the predicted seconds as a multiple of the host's alone, as the strategy measures them."""
    predicted = report.predicted
    taken = predicted.seconds if predicted.measure == "total" else predicted.optimized
    if predicted.host_only:
        return taken / predicted.host_only
    return inf if taken else 1.0


@dataclass(frozen=True)
class ExplainOptions(DimensionOptions):
    """All choices of an explanation."""

    rules: str | Path | byoc.rules.Target = field(
        metadata=declare(
            "a rule file's path or name, or what `byoc.load_rules` returned.",
            Flag("A rule file, or the name of an installed one (see byoc rules)."),
        )
    )
    _: KW_ONLY
    no_passes: str | Sequence[str] = declare_field(
        (),
        "names of clean-up passes that are not to run, or `all`, as `partition` takes them.",
        Flag(
            "Leave out this pass that runs without being asked for, or all: see byoc passes.",
            Syntax.LIST,
            names=("--no-pass",),
            metavar="NAME",
        ),
    )
    values: Literal["shown", "assumed"] = declare_field(
        "shown",
        "whether nodes are refused whose whole numbers are not shown to stay where the accelerator is "
        "exact, as in `partition`.",
        Flag(
            "Refuse whole numbers that are not shown to be exact there, or assume that they are.",
            choices=("shown", "assumed"),
        ),
    )
    keep_open: bool = declare_field(
        False,
        "leave open dimensions open. Otherwise, where no size is given and nodes are refused for that, "
        "the sizes are those that `partition` chooses.",
        Flag("Leave open what is open; else sizes that rules need are chosen.", Syntax.SWITCH),
    )
    node: str | None = declare_field(
        None,
        "examine only the node of this name or output.",
        Flag("Only this node, by its name or output, with all that was tried."),
    )
    op: str | None = declare_field(
        None,
        "examine only nodes of this operator.",
        Flag("Only nodes of this operator, with all that was tried."),
    )


def read_size(text: int | str) -> int:
    """Return a size in bytes from a number or a text such as `512KiB`. Raises ValueError."""
    try:
        found = parse_size(str(text))
    except ValueError:
        found = 0
    if not found:
        units = f"with {', '.join(SIZE_UNITS)} or no unit behind it"
        raise ValueError(f"'{text}': a whole number above 0 is expected, {units}, such as 512KiB")
    return found


def _check_choice(what: str, known: Collection[str], name: str) -> str:
    if name not in known:
        there = f"there are {', '.join(known)}"
        raise ValueError(f"no {what} is named '{name}'{suggest_nearest(name, known)}: {there}")
    return name


# The help of every verb with requirements reads this file, and does without planners of memory.
def _check_convention(name: str) -> str:
    from byoc.memory.reading import CONVENTIONS  # noqa: PLC0415 - as above

    return _check_choice("convention", CONVENTIONS, name)


def _check_method(name: str) -> str:
    from byoc.memory.arena import METHODS  # noqa: PLC0415 - as above
    from byoc.memory.report import STRIPED  # noqa: PLC0415 - as above

    return _check_choice("method", (*METHODS, STRIPED), name)


@dataclass(frozen=True)
class MemoryPlanOptions(DimensionOptions):
    """All choices of a memory plan."""

    _: KW_ONLY
    size: int | str | None = declare_field(
        None,
        "the bytes of memory there are, or a text such as `512KiB`.",
        Flag("The memory there is, such as 512KiB.", metavar="BYTES", read=read_size),
    )
    alignment: int = declare_field(
        1,
        "sizes are rounded up to this many bytes.",
        Flag("Sizes are rounded up to this many bytes.", Syntax.INTEGER, minimum=1),
    )
    convention: str = declare_field(
        "C",
        "what counts in the plan reported in full: `A`, `B`, `C` or `D`, see docs/memory.md.",
        Flag(
            "What counts as memory in the plan that is shown step by step: A, B, C, D.",
            read=_check_convention,
        ),
    )
    method: str = declare_field(
        "exact",
        "how that plan is made; `striped` asks for a picture of striped execution.",
        Flag(
            "How that plan is made: no-reuse, best-fit, by-size, reordered, exact, or striped for the "
            "picture.",
            read=_check_method,
        ),
    )
    time_limit: float = declare_field(
        10.0,
        "the most seconds for each plan, counted by steps; then the best that was found is taken.",
        Flag("Counted seconds for each plan; then the best that was found.", Syntax.NUMBER, minimum=0.0),
    )
    fused: bool | None = declare_field(
        None,
        "an operator between DequantizeLinear and QuantizeLinear is one step with them, in integers; "
        "unless given it is in regions of a bundle, but for `striped` pictures, and nowhere else.",
        Flag(
            "An operator between DequantizeLinear and QuantizeLinear is a step in integers; "
            "the default in regions of a bundle.",
            Syntax.ON_OFF,
        ),
    )
    striped: bool = declare_field(
        True, "plan striped execution, too.", Flag("Plan striped execution, too.", Syntax.ON_OFF)
    )
    variant: str | None = declare_field(
        None,
        "the name of the variant to plan, of a bundle with several.",
        Flag("The variant to plan, of a bundle with several.", metavar="NAME"),
    )
    picture: str | Path | None = declare_field(
        None,
        "path of an SVG file for a picture of that plan; of a bundle one file for each part, named "
        "after it.",
        Flag("Write a picture of that plan; of a bundle, several.", Syntax.PATH, ("--svg",), "FILE"),
    )

    def make_settings(self) -> MemoryOptions:
        """Return the settings of a report. Raises InputError for a size or name that is none."""
        from byoc.memory.reading import CONVENTIONS  # noqa: PLC0415 - as above
        from byoc.memory.report import STRIPED, MemoryOptions  # noqa: PLC0415 - as above

        try:
            return MemoryOptions(
                convention=CONVENTIONS[_check_convention(self.convention)],
                method="exact" if _check_method(self.method) == STRIPED else self.method,
                alignment=self.alignment,
                time_limit=self.time_limit,
                size=None if self.size is None else read_size(self.size),
                striped=self.striped or self.method == STRIPED,
            )
        except ValueError as error:
            raise InputError(str(error)) from None
