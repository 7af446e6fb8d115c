"""The results of a verification as reports and as rows of tables."""

from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from byoc._dataclasses import dataclass
from byoc.bundle import (
    AccuracyReport,
    Finite,
    OutputAccuracy,
    ReachReport,
    Report,
    ReportModel,
    TensorErrorReport,
    TieBreakReport,
    VerificationReport,
)
from byoc.console import format_share
from byoc.errors import escape_unprintable
from byoc.reporting._requirements import Requirements
from byoc.support import write_text
from byoc.verification import (
    Fault,
    Generation,
    GenerationRun,
    OutputError,
    Verification,
    describe_problem,
    find_worst_by_count,
)

# JUnit XML, which CI systems show: a suite for each model, a case for each thing that is checked.

Outcome = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True)
class JUnitCase:
    """A thing that was checked: it passed, failed, could not be checked (error), or was left out."""

    name: str
    outcome: Outcome = "passed"
    message: str = ""


@dataclass(frozen=True)
class JUnitSuite:
    """The cases of one model or bundle."""

    name: str
    cases: tuple[JUnitCase, ...]

    def count(self, outcome: Outcome) -> int:
        """Count the cases that have an outcome."""
        return sum(case.outcome == outcome for case in self.cases)


def write_junit(path: Path, suites: Sequence[JUnitSuite]) -> None:
    """Write suites as JUnit XML, without times: the file of the same results has the same bytes.

    Names that are not printable are escaped. Raises InputError when the file cannot be written.
    """
    root = ElementTree.Element("testsuites", {"name": "byoc", **_count_cases(*suites)})
    for suite in suites:
        name = escape_unprintable(suite.name)
        counted = {**_count_cases(suite), "skipped": str(suite.count("skipped"))}
        element = ElementTree.SubElement(root, "testsuite", {"name": name, **counted})
        for case in suite.cases:
            stated = {"name": escape_unprintable(case.name), "classname": name}
            inner = ElementTree.SubElement(element, "testcase", stated)
            if case.outcome != "passed":
                message = escape_unprintable(case.message)
                kind = {} if case.outcome == "skipped" else {"type": case.name.split(" ")[0]}
                attributes = {"message": message, **{k: escape_unprintable(v) for k, v in kind.items()}}
                ElementTree.SubElement(inner, case.outcome, attributes)
            elif case.message:
                ElementTree.SubElement(inner, "system-out").text = escape_unprintable(case.message)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    write_text(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def _count_cases(*suites: JUnitSuite) -> dict[str, str]:
    """Return the attributes with the number of cases, of failures, and of errors."""
    return {
        "tests": str(sum(len(suite.cases) for suite in suites)),
        "failures": str(sum(suite.count("failure") for suite in suites)),
        "errors": str(sum(suite.count("error") for suite in suites)),
    }


def make_report_suite(
    report: Report, requirements: Requirements, *, verb: str = "partition", compiled: bool
) -> JUnitSuite:
    """Return the cases of a report: its codegens, the verification, and requirements.

    The first case passes and is named after the verb, as the case of an error of that verb is.
    `compiled` says that there is a bundle, so that codegens can have failed.
    """
    failed = "; ".join(f"codegen {e.codegen}: {e.region}: {e.reason}" for e in report.failures)
    checks = requirements.check_report(report)
    codegens = [JUnitCase("codegens", "failure" if failed else "passed", failed)] if compiled else []
    return JUnitSuite(
        report.display_name,
        (
            JUnitCase(verb),
            *codegens,
            _make_verification_case(report, requirements),
            *(
                JUnitCase(each.name, "passed" if each.is_met else "failure", each.sentence)
                for each in checks
                if each.name != "require-verified"
            ),
        ),
    )


def _make_verification_case(report: Report, requirements: Requirements) -> JUnitCase:
    if report.verification is not None and report.not_verified is None:
        return JUnitCase("verification", "passed" if report.verification.passed else "failure")
    why = report.not_verified or ""
    if requirements.require_verified:
        return JUnitCase("verification", "failure", f"not verified: {why}")
    return JUnitCase("verification", "error" if report.verification_missing else "skipped", why)


def make_verification_suite(name: str, verification: Verification) -> JUnitSuite:
    """Return a case for each output of a bundle, and for each of its regions that was compared."""
    cases = [_make_output_case(f"output {each.name}", [each]) for each in verification.outputs]
    for region in verification.regions:
        if region.problem:
            cases.append(JUnitCase(f"region {region.name}", "failure", region.problem))
        elif region.outputs:
            cases.append(_make_output_case(f"region {region.name}", region.outputs))
        else:
            why = "no inputs that were tried reach it"
            cases.append(JUnitCase(f"region {region.name}", "skipped", why))
    for region_name, reason in verification.not_here.items():
        cases.append(JUnitCase(f"region {region_name}", "error", f"it cannot run here: {reason}"))
    return JUnitSuite(name, tuple(cases))


def make_generation_suite(name: str, generation: Generation) -> JUnitSuite:
    """Return a case for each generated sequence of a bundle."""
    cases = []
    for run in generation.runs:
        problem = describe_problem(run)
        title = f"sequence of seed {run.seed}, prompt {run.prompt}"
        cases.append(JUnitCase(title, "failure" if problem else "passed", problem))
    for region, reason in generation.not_here.items():
        cases.append(JUnitCase(f"region {region}", "error", f"it cannot run here: {reason}"))
    return JUnitSuite(name, tuple(cases))


def _make_output_case(name: str, outputs: Sequence[OutputError]) -> JUnitCase:
    wrong = [each for each in outputs if not each.within]
    message = "; ".join(f"output '{each.name}' is not within its tolerance" for each in wrong)
    return JUnitCase(name, "failure" if wrong else "passed", message)


# The results of a verified generation as a report and as rows of tables.


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


class LayerErrorReport(ReportModel):
    """The error of a quantized layer alone, in units; the fields are those of `LayerError`."""

    name: str
    op: str
    tensor: str
    largest: Finite
    differing: float
    mean: float
    allowed: float
    where: str
    units: float
    within: bool


class LayerCheckReport(ReportModel):
    """The quantized layers of a region, each alone; the fields are those of `LayerCheck`."""

    errors: tuple[LayerErrorReport, ...]
    same: bool
    traced: bool
    left_out: tuple[str, ...]
    not_compared: str
    problem: str


class RegionErrorReport(ReportModel):
    """The error of a region alone; the fields are those of `RegionError`."""

    name: str
    runs: int
    within: bool
    problem: str
    sample: str
    judge: str
    outputs: tuple[TensorErrorReport, ...]
    layers: LayerCheckReport | None = None


class FullVerificationReport(VerificationReport):
    """The comparison of outputs and, unless `not_compared` says why not, of boundary and regions.

    `not_here` has the reasons of the regions that this machine cannot run, by name.
    """

    boundary: tuple[TensorErrorReport, ...]
    regions: tuple[RegionErrorReport, ...]
    not_compared: str | None
    not_here: dict[str, str]


class FaultReport(ReportModel):
    """The first wrong operation of a region, and the smallest model that shows it, in `folder`."""

    region: str
    operation: str
    op: str
    operations: tuple[str, ...]
    told: str
    tried: int
    outputs: tuple[TensorErrorReport, ...]
    folder: str


def make_verification_report(verification: Verification) -> VerificationReport:
    """Make the report of the outputs' errors."""
    accuracy = AccuracyReport(
        original=verification.original,
        outputs=tuple(map(OutputAccuracy.model_validate, verification.accuracy)),
    )
    return VerificationReport(
        against=verification.against,
        passed=verification.passed,
        largest_relative_error=verification.largest_relative_error,
        outputs=_report_errors(verification.outputs),
        accuracy=accuracy if verification.original else None,
        samples=verification.samples,
        judge=verification.judge or None,
        layers_not_compared=verification.layers_not_compared,
        reach=ReachReport.model_validate(verification.reach) if verification.regions else None,
        notes=verification.notes,
        tie_breaks=tuple(map(TieBreakReport.model_validate, verification.tie_breaks)),
    )


def _report_errors(errors: Iterable[OutputError]) -> tuple[TensorErrorReport, ...]:
    return tuple(map(TensorErrorReport.model_validate, errors))


def make_full_verification_report(verification: Verification) -> FullVerificationReport:
    """Make the report of the errors of outputs, boundary tensors and regions."""
    return FullVerificationReport(
        **dict(make_verification_report(verification)),
        boundary=_report_errors(verification.boundary),
        regions=tuple(map(RegionErrorReport.model_validate, verification.regions)),
        not_compared=verification.not_compared or None,
        not_here=dict(verification.not_here),
    )


def make_fault_report(fault: Fault, folder: str) -> FaultReport:
    """Make the report of a fault that was written to a folder."""
    return FaultReport(
        region=fault.region,
        operation=fault.operation,
        op=fault.op,
        operations=fault.operations,
        told=str(fault),
        tried=fault.trial_count,
        outputs=_report_errors(fault.trial.errors),
        folder=folder,
    )


def make_error_rows(
    heading: str, errors: Iterable[OutputError], region: str = "", beyond: str = "NO"
) -> list[dict[str, str]]:
    """Return the rows of a table of errors; `heading` is the column of the tensors' names.

    `beyond` stands in the last column where an error is beyond what is allowed.
    """
    first = {"region": region} if region else {}
    return [
        first
        | {
            heading: error.name,
            "dtype": error.dtype,
            "largest_error": f"{error.absolute:.1e}",
            "of_its_range": f"{error.relative:.1e}",
            "snr": _format_decibels(error.signal_to_noise),
            "cosine": "" if error.cosine is None else f"{error.cosine:.6f}",
            "differ": "" if error.differing is None else format_share(error.differing),
            "allowed": _format_allowed(error),
            "within": "yes" if error.within else f"{beyond}{error.problem and f': it {error.problem}'}",
        }
        for error in errors
    ]


def _format_decibels(value: float | None) -> str:
    if value is None:
        return ""
    return "inf" if value == inf else f"{value:.1f} dB"


def _format_tolerance(error: OutputError) -> str:
    match error.measure:
        case "units":
            return f"{error.tolerance:g} unit" + "s" * (error.tolerance != 1)
        case "dB":
            return f"{error.tolerance:g} dB"
        case _:
            return f"{error.tolerance:g}" if error.tolerance else "equal"


def _format_allowed(error: OutputError) -> str:
    """Format the tolerance of an error, the noise where that allows more, and rows that are tied."""
    allowed = [_format_tolerance(error)]
    if error.is_noise_needed:
        share = f"{error.noise:g}" if error.measure == "units" else f"{error.relative_noise:.2g}"
        allowed.append(f"{share} by {error.noise_source}")
    if error.fidelity is not None:
        allowed.append(str(error.fidelity))
    if error.tie_break is not None:
        allowed.append(str(error.tie_break))
    return "; ".join(allowed)
