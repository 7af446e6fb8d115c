"""The lines that a test is said to reach are those that ran."""

from pathlib import Path
from runpy import run_path
from types import FunctionType
from typing import Any

import pytest
from mutation_suite.reached_lines import note_lines

SOURCE = '''
class Thing:
    @staticmethod
    def choose(number: int) -> str:
        """Three ways."""
        if number < 0:
            return "below"
        elif number:
            return "above"
        else:
            return "none"

def total(numbers, start=0):
    found = start
    for number in numbers:
        try:
            found += 1 // number
        except ZeroDivisionError:
            pass
        finally:
            found += (
                1
            )
    def double():
        return 2 * found
    with open("/dev/null"):
        return double() if found > 100 else found
'''


@pytest.mark.parametrize(
    ("call", "expected", "lines"),
    [
        (lambda m: m["Thing"].choose(-1), "below", {4, 5, 6, 7}),
        (lambda m: m["Thing"].choose(1), "above", {4, 5, 6, 8, 9}),
        (lambda m: m["Thing"].choose(0), "none", {4, 5, 6, 8, 11}),
        (lambda m: m["total"]([]), 0, {13, 14, 15, 24, 26, 27}),
        (lambda m: m["total"]([1]), 2, {13, 14, 15, 16, 17, 21, 24, 26, 27}),
        (lambda m: m["total"]([0], 7), 8, {13, 14, 15, 16, 17, 19, 21, 24, 26, 27}),
        (lambda m: m["total"]([], 101), 202, {13, 14, 15, 24, 25, 26, 27}),
    ],
)
def test_lines_that_run_are_noted(call: Any, expected: Any, lines: set[int], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE, encoding="utf-8")
    module = run_path(str(path))
    live = [module["Thing"].choose, module["total"]]
    functions: dict[tuple[str, int], FunctionType] = {
        (each.__qualname__, each.__code__.co_firstlineno): each for each in live
    }
    reached = note_lines(path, functions)
    assert call(module) == expected
    assert reached == lines
