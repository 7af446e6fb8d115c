"""A process that has all of byoc and a room's tests in memory, and a child of it for each mutant.

To start pytest and import byoc takes seconds, to fork a moment. A child gives the functions that a
mutant changes their new code and runs the tests that reach the changed lines, the fastest first. Where a
mutant changes what runs on import, the child forgets byoc and imports it anew. POSIX only.
"""

import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from mutation_suite.mutants import Mutant, find_changed_functions, find_statement
from mutation_suite.reached_lines import note_lines

MEMORY = 16 << 30
"""Bytes of address space that a child may have."""

SURVIVED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass
class TestRecord:
    """The seconds that a test took without a mutant, and the lines that it reached, by module."""

    __test__ = False

    seconds: float
    lines: Mapping[str, Sequence[int]]


@dataclass
class _Recorder:
    """A plug-in of pytest that records each test that passes, and the lines that it reached."""

    reached: Mapping[str, set[int]]
    records: dict[str, TestRecord] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        for lines in self.reached.values():
            lines.clear()
        self._passed = True
        start = time.process_time()
        try:
            return (yield)
        finally:
            seconds = time.process_time() - start
            if self._passed:
                lines_of = {path: sorted(lines) for path, lines in self.reached.items() if lines}
                self.records[item.nodeid] = TestRecord(seconds, lines_of)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._passed = False
        if report.failed:
            self.failed.append(report.nodeid)


@dataclass
class _Selection:
    """A plug-in of pytest that runs the chosen tests alone, in their order."""

    tests: Sequence[str]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = {test: place for place, test in enumerate(self.tests)}
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])


class _MutatedSource(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """An import hook that loads one module from a mutant's source."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def get_filename(self, name: str) -> str:
        return str(self._path)

    def get_data(self, path: Any) -> bytes:
        return self._source.encode()

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        raise OSError("a mutant has no cache")


class ForkServer:
    """Runs the tests of a room against mutants of its modules, in children of this process."""

    def __init__(self, root: Path, paths: Sequence[str], tests: Sequence[str], scratch: Path) -> None:
        self._root, self._paths, self._tests, self._scratch = root, paths, tests, scratch
        self._import_all()
        if self._run_pytest(["--collect-only", *tests], []):
            raise RuntimeError(f"{', '.join(tests)}: pytest cannot collect the tests")
        self._functions = self._find_functions()
        self.records: dict[str, TestRecord] = {}
        gc.freeze()

    def record(self, kept: Path) -> list[str]:
        """Find out the seconds and lines of each test without a mutant; return the tests that fail.

        `kept` is a file with what an earlier call found: only test files that changed since then are
        run, and all where the modules changed.
        """
        earlier = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
        sources = b"".join((self._root / path).read_bytes() for path in self._paths)
        found: dict[str, Any] = {}
        files = [path for test in self._tests for path in self._find_files(self._root / test)]
        for path in files:
            digest = sha256(sources + path.read_bytes()).hexdigest()
            name = str(path.relative_to(self._root))
            if earlier.get(name, [""])[0] != digest:
                found[name] = [digest, *self._record_file(name)]
                kept.write_text(json.dumps(earlier | found), encoding="utf-8")
            else:
                found[name] = earlier[name]
        for _, records, _ in found.values():
            self.records |= {test: TestRecord(*entry) for test, entry in records.items()}
        return [test for _, _, failed in found.values() for test in failed]

    @staticmethod
    def _find_files(path: Path) -> list[Path]:
        return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]

    def _record_file(self, name: str) -> tuple[dict[str, Any], list[str]]:
        """Run the tests of a file in a child; return seconds and lines of each, and those that fail."""
        out = self._scratch / "records.json"
        child = os.fork()
        if not child:
            reached = {
                path: note_lines(self._root / path, live) for path, live in self._functions.items()
            }
            recorder = _Recorder(reached)
            self._run_pytest([name], [recorder])
            records = {test: [r.seconds, r.lines] for test, r in recorder.records.items()}
            out.write_text(json.dumps([records, recorder.failed]), encoding="utf-8")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"{name}: the tests ended with status {status}")
        records, failed = json.loads(out.read_text(encoding="utf-8"))
        return records, failed

    def choose_tests(self, mutant: Mutant, seconds: float) -> list[str]:
        """Return the tests that reach a mutant's statement, the fastest first, up to `seconds` of them.

        Where the statement runs on import these are all tests of files of which one reaches its module.
        """
        source = (self._root / mutant.path).read_text(encoding="utf-8")
        wanted = set(find_statement(source, mutant.line))
        near = [
            (record.seconds, name)
            for name, record in self.records.items()
            if wanted.intersection(record.lines.get(mutant.path, ()))
        ]
        if not mutant.function or (not near and not self._is_in_function(mutant)):
            files = {
                name.partition("::")[0] for name, r in self.records.items() if mutant.path in r.lines
            }
            near = [
                (record.seconds, name)
                for name, record in self.records.items()
                if name.partition("::")[0] in files
            ]
        chosen, total = [], 0.0
        for took, name in sorted(near):
            total += took
            if chosen and total > seconds:
                break
            chosen.append(name)
        return chosen

    def start(self, mutant: Mutant, tests: Sequence[str]) -> int:
        """Start a child that runs tests against a mutant; return its process id.

        It exits with 0 when all pass.
        """
        child = os.fork()
        if child:
            return child
        os.setsid()
        code = 70
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            with _silence():
                self._apply(mutant)
                files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
                code = self._run_pytest(["-x", *files], [_Selection(tests)])
        except BaseException:  # a mutant that cannot be imported
            code = 71
        finally:
            os._exit(code)

    def _apply(self, mutant: Mutant) -> None:
        """Put a mutant in the place of its module."""
        original = (self._root / mutant.path).read_text(encoding="utf-8")
        changed = find_changed_functions(mutant, original, self._functions[mutant.path])
        if changed is not None:
            for function, code in changed:
                function.__code__ = code
            return
        ours = {path.stem for path in (self._root / "tests").rglob("*.py")}
        ours |= {"byoc", "codegens", "annotations", "cost_models", "checkers"}
        for name in list(sys.modules):
            if name.partition(".")[0] in ours - {"mutation_suite", "__main__"}:
                del sys.modules[name]
        name = (
            mutant.path.removeprefix("tests/")
            .removesuffix(".py")
            .removesuffix("/__init__")
            .replace("/", ".")
        )
        sys.meta_path.insert(0, _MutatedSource(name, self._root / mutant.path, mutant.source))

    def _is_in_function(self, mutant: Mutant) -> bool:
        return any(name == mutant.function for name, _ in self._functions[mutant.path])

    def _find_functions(self) -> dict[str, dict[tuple[str, int], FunctionType]]:
        """Return the live functions of the modules by path, qualified name and first line.

        The tests' conftest freezes what was imported, and what is frozen is not listed.
        """
        gc.unfreeze()
        files = {str(self._root / path): path for path in self._paths}
        found: dict[str, dict[tuple[str, int], FunctionType]] = {path: {} for path in self._paths}
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                code = thing.__code__
                if code.co_filename in files:
                    found[files[code.co_filename]][code.co_qualname, code.co_firstlineno] = thing
        if not any(found.values()):
            raise RuntimeError(f"{', '.join(self._paths)}: no function of theirs is in memory")
        return found

    def _run_pytest(self, arguments: list[str], extra: list[Any]) -> int:
        folder = self._scratch / f"tests-{os.getpid()}"
        options = ["-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["--hypothesis-seed=0", f"--basetemp={folder}", f"--rootdir={self._root}"]
        try:
            with _silence():
                return int(pytest.main([*options, *arguments], plugins=extra))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _import_all() -> None:
        """Import all of byoc, so that no child has to."""
        package = importlib.import_module("byoc")
        for module in pkgutil.walk_packages(package.__path__, "byoc."):
            if "__main__" not in module.name and not module.name.startswith("byoc.codegens"):
                importlib.import_module(module.name)


def await_children(deadlines: dict[int, float]) -> tuple[int, int]:
    """Wait for one of the children, each with a deadline (seconds of `time.monotonic`), which ends it.

    Returns its process id and exit code, negative where a signal ended it.
    """
    while True:
        for child, deadline in deadlines.items():
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                return child, os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return child, -signal.SIGKILL
        time.sleep(0.02)


@contextmanager
def _silence() -> Iterator[None]:
    """Send standard output and error to nowhere."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)
