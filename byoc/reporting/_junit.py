"""JUnit XML, which CI systems show: a suite for each model, a case for each thing that is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from byoc.bundle import Report
from byoc.errors import escape_unprintable
from byoc.reporting._requirements import Requirements
from byoc.support import write_text
from byoc.verification import Generation, OutputError, Verification, describe_problem

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
