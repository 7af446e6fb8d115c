"""The results of a verified generation as a report and as rows of tables."""

from collections.abc import Iterable

from byoc.bundle import Finite, ReportModel, TensorErrorReport
from byoc.verification import Generation, GenerationRun, OutputError, find_worst_by_count


class TokenDifferenceReport(ReportModel):
    """Another token than the original's; the fields are those of `TokenDifference`."""

    position: int
    row: int
    expected: int
    found: int
    margin: Finite
    noise: Finite
    is_tie: bool


class PositionErrorReport(ReportModel):
    """The largest errors of logits and state behind the token at a position."""

    position: int
    logits: TensorErrorReport
    state: TensorErrorReport


class GenerationRunReport(ReportModel):
    """A generated sequence, as `GenerationRun`; it has the errors at which states are compared."""

    seed: int
    prompt: int
    tokens: tuple[int, ...]
    choices: int
    differences: tuple[TokenDifferenceReport, ...]
    ties: int
    within: bool
    variants: dict[str, int]
    same_as_original: int | None
    errors: tuple[PositionErrorReport, ...]
    worst_logits: TensorErrorReport


class GenerationReport(ReportModel):
    """The comparison of sequences; the fields are those of `Generation`."""

    against: str
    original: str
    judge: str
    passed: bool
    runs: tuple[GenerationRunReport, ...]
    not_reached: tuple[str, ...]
    not_here: dict[str, str]


def make_generation_report(generation: Generation) -> GenerationReport:
    """Make the report of generated sequences."""
    return GenerationReport(
        against=generation.against,
        original=generation.original,
        judge=generation.judge,
        passed=generation.passed,
        runs=tuple(map(_report_run, generation.runs)),
        not_reached=generation.not_reached,
        not_here=dict(generation.not_here),
    )


def _report_run(run: GenerationRun) -> GenerationRunReport:
    return GenerationRunReport(
        seed=run.seed,
        prompt=run.prompt,
        tokens=run.tokens,
        choices=run.choices,
        differences=tuple(map(TokenDifferenceReport.model_validate, run.differences)),
        ties=run.ties,
        within=run.within,
        variants=dict(run.variants),
        same_as_original=run.same_as_original,
        errors=tuple(
            PositionErrorReport(
                position=position,
                logits=TensorErrorReport.model_validate(run.logits[position]),
                state=TensorErrorReport.model_validate(state),
            )
            for position, state in run.state.items()
        ),
        worst_logits=TensorErrorReport.model_validate(run.worst_logits),
    )


def make_sequence_rows(runs: Iterable[GenerationRun]) -> list[dict[str, str]]:
    """Return a row for each sequence: how many tokens are equal, and the largest errors."""
    return [
        {
            "prompt": str(run.prompt),
            "seed": str(run.seed),
            "tokens": str(run.choices),
            "equal": str(run.choices - len(run.differences)),
            "ties": str(run.ties),
            **({} if run.same_as_original is None else {"original's": str(run.same_as_original)}),
            "logits": _format_error(run.worst_logits),
            "state": _format_error(run.worst_state),
            "variants": ", ".join(f"{name} {count}" for name, count in run.variants.items() if name),
            "within": "yes" if run.within else "NO",
        }
        for run in runs
    ]


def make_position_rows(generation: Generation) -> list[dict[str, str]]:
    """Return a row for each number of tokens at which states are compared, the worst of all runs."""
    return [
        {"token": str(count), "logits": _format_error(logits), "state": _format_error(state)}
        for count, (logits, state) in find_worst_by_count(generation.runs).items()
    ]


def _format_error(error: OutputError | None) -> str:
    if error is None:
        return ""
    allowed = f" ({error.relative_noise:.1e} by noise)" if error.is_noise_needed else ""
    return f"{error.relative:.1e}{allowed}"
