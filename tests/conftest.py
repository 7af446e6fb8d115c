"""Fixtures for all tests: golden files, the command line in process."""

import gc
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

# Before numpy is imported, which reads it then: with `-n` there is a process for each core, whose BLAS
# would start a thread for each once more, and .ci/run has a process for each core as well.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from helpers.cutting import cut_once, numbered_regions  # noqa: F401 - fixtures
from helpers.elsewhere import configure, old_python  # noqa: F401 - fixtures
from helpers.support import THOROUGH, Ran
from helpers.warm_processes import WarmProcesses, cold_processes, warm_processes  # noqa: F401 - two fixtures
from helpers.wrecking import wreck  # noqa: F401 - a fixture
from hypothesis import HealthCheck, settings

from byoc.cli import main
from byoc.numerics import SearchBudget

# Nothing that is imported and collected is garbage, see pytest_collection_finish.
gc.disable()

GOLDEN = Path(__file__).parent / "golden"
_CACHES = count()
_LONG_RUN = 300  # seconds of tests; nobody waits for less

# New examples in each run, also where hypothesis finds that it runs for a server (`CI` is set). No
# example fails since a busy machine took long for it.
_fresh = settings(
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ordinary", _fresh, max_examples=THOROUGH // 3)
settings.register_profile("thorough", _fresh, max_examples=THOROUGH)
settings.load_profile("ordinary")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate", action="store_true", help="write the golden files anew instead of comparing"
    )
    parser.addoption(
        "--first-cases", type=int, metavar="COUNT", help="so many cases of each test function alone"
    )


@pytest.hookimpl(trylast=True)  # behind what marks leave out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the cases of a test function behind the first ones out where `--first-cases` says so."""
    most = config.getoption("--first-cases")
    if most is None:
        return
    seen: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        seen[function] += 1
        (kept if seen[function] <= most else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment of all tests, and of the processes that they start.

    The key that signs bundles, the keys that are trusted, and caches are not the user's own. Bytecode is
    kept in any case: each process would else compile byoc, which takes longer than most of them run.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # as the command line does
    # A job in the background of a script ignores it, and so would all processes that tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # a worker of `-n` has the environment already
        home = TemporaryDirectory(prefix="byoc-tests-")
        config.add_cleanup(home.cleanup)
        for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            os.environ[name] = str(Path(home.name) / name.lower())


def pytest_collection_finish() -> None:
    """Search for cyclic garbage rarely, and not among what was imported and collected.

    Python looks through all of that again and again otherwise, for a fifth of the processor's time of
    collection and a twentieth of that of the tests; a sixtieth still with a fifth of this threshold.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(100_000, 10, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the files whose tests took longest, where there were many: what a faster run begins with."""
    spent: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent[report.nodeid.partition("::")[0]] += report.duration
    if spent.total() > _LONG_RUN:
        terminalreporter.section("files that took longest")
        for file, seconds in spent.most_common(40):
            terminalreporter.write_line(f"{seconds:7.0f} s  {file}")


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_imports(warm_processes: WarmProcesses) -> None:  # noqa: F811 - the fixture
    """Most tests that start processes of byoc are not about how these start."""


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power, and a disk that others use takes long to write a bundle's files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What one test compiles is no other test's: each has a cache of its own, empty at first."""
    folder = Path(os.environ["XDG_CACHE_HOME"], f"{os.getpid()}-{next(_CACHES)}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/NAME; `pytest --regenerate` writes it instead."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--regenerate"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets what all budgets of searches spend, in seconds."""
    found: list[float] = []
    spend = SearchBudget.spend

    def count(budget: SearchBudget, seconds: float) -> None:
        if budget._whole is None:
            found.append(seconds)
        spend(budget, seconds)

    monkeypatch.setattr(SearchBudget, "spend", count)
    return found


@pytest.fixture
def byoc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line in this process and return exit code, standard output and error."""

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["byoc", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
