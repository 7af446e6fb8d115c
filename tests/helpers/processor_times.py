"""A plug-in for pytest that prints the processor's seconds of tests: `-p helpers.processor_times`.

They count the processes that a test started and waited for, and what its fixtures took; those of a
session or a module count for the first test that asks for them.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

_NAME = "processor seconds"
_LISTED = 40
_START = pytest.StashKey[float]()
_seconds: Counter[str] = Counter()


def _count_seconds() -> float:
    """Return the seconds of this process so far, and of those it started that ended."""
    from helpers.warm_processes import count_forked_seconds  # noqa: PLC0415 - not before pytest is set up

    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + count_forked_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_START] = _count_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.when == "teardown":
        item.user_properties.append((_NAME, _count_seconds() - item.stash[_START]))
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a test took, also where `-n` has it in another process."""
    if report.when == "teardown":
        _seconds[report.nodeid] += float(dict(report.user_properties).get(_NAME, 0.0))  # type: ignore[arg-type]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rooms: Counter[str] = Counter()
    for test, seconds in _seconds.items():
        rooms["/".join(test.split("/")[:2])] += seconds
    terminalreporter.section("processor seconds")
    for name, seconds in [*rooms.most_common(), *_seconds.most_common(_LISTED)]:
        terminalreporter.write_line(f"{seconds:8.2f}  {name}")
    terminalreporter.write_line(f"{rooms.total():8.2f}  all tests")
