"""What is printed unless all is wanted fits a screen, for every model of the zoo."""

from collections.abc import Callable
from io import StringIO

import pytest
from helpers.support import sample_cases
from rich.console import Console

import byoc
from byoc import zoo
from byoc.reporting import BRIEF, SCREEN, make_explanation_document, print_explanation, print_report

LINES = 50
WIDTH = 100
RULES = ("dla", "ethos-u55", "nnpa")
HERE = {entry.name for entry in zoo.list_entries() if entry.weights == "random, seeded"}
"""The models that need no download."""
HUGE = "transformer_100k"
"""A minute of planning; equal blocks make it the report of transformer_10k."""
NAMES = [entry.name for entry in zoo.list_entries() if entry.name != HUGE]
CASES = [(name, rules) for name in NAMES for rules in RULES]
ORDINARY = [
    *(("shufflenet", "dla"), ("shufflenet", "ethos-u55"), ("densenet121", "nnpa")),
    *(("transformer_1k", "dla"), ("decoder_int4", "nnpa"), ("decoder_fp16_prefill", "ethos-u55")),
]


def count_lines(show: Callable[[Console], None]) -> int:
    """Return how many lines of a terminal a report takes, long ones folded."""
    stream = StringIO()
    show(Console(file=stream, width=WIDTH, emoji=False))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    return sum(max(1, -(-len(line) // WIDTH)) for line in lines)


@pytest.mark.parametrize(("name", "rules"), sample_cases(CASES, *ORDINARY))
def test_reports_and_explanations_fit_a_screen(name: str, rules: str) -> None:
    try:
        result = byoc.partition(f"zoo:{name}", rules)
    except byoc.InputError as error:
        assert name not in HERE
        pytest.skip(f"{name} is not here: {error}")
    assert count_lines(lambda console: print_report(result.report, console, SCREEN)) <= LINES
    assert count_lines(lambda console: print_report(result.report, console, BRIEF)) <= LINES - 18
    explanation = make_explanation_document(byoc.explain(f"zoo:{name}", rules))
    assert count_lines(lambda console: print_explanation(explanation, console)) <= LINES


@pytest.mark.parametrize("node", [None, "n4"])
def test_an_explanation_of_one_node_has_no_headline(node: str | None) -> None:
    rules = "dla" if node is None else "nnpa"
    name = "zoo:decoder_fp16_decode" if node is None else "zoo:shufflenet"
    document = make_explanation_document(byoc.explain(name, rules, node=node), details=node is not None)
    stream = StringIO()
    print_explanation(document, Console(file=stream, width=WIDTH, emoji=False))
    assert document.nodes.taken == 0
    assert stream.getvalue().startswith("Nothing is taken") == (node is None)


def test_a_report_begins_with_its_summary_and_ends_with_what_is_left_out() -> None:
    report = byoc.partition("zoo:shufflenet", "nnpa").report
    stream = StringIO()
    print_report(report, Console(file=stream, width=WIDTH, emoji=False), SCREEN)
    assert stream.getvalue().startswith("zoo:shufflenet: ")
