"""The settings of a vendor's test class, the compiled cases of its tests, checks of its driver."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import pytest
from onnx import ModelProto

from byoc._dataclasses import dataclass
from byoc.codegen import (
    Artifact,
    Codegen,
    Codegens,
    DriverSources,
    Executable,
    Isolation,
    NotHereError,
    Region,
    ask_driver,
    has_driver,
    parse_codegen_options,
)
from byoc.codegen.drivers import DriverError, DriverLibrary, OpenedRegion, build_driver
from byoc.errors import ByocError, InputError, MissingRuntimeError
from byoc.onnxrt import INSTALL_HINT, has_runtime
from byoc.rules import load_rules
from byoc.support import describe_failure
from byoc.testing._case_compiler import (
    CaseCompiler,
    CompiledCase,
    NotTakenError,
    Precision,
    list_target_operators,
)
from byoc.testing._codegen_checks import CodegenChecks, FreshResults
from byoc.testing._executor_checks import Values, error_reason, find_differences, roll_inputs
from byoc.testing._region_forms import FORMS
from byoc.verification import (
    DEFAULT_THRESHOLDS,
    QUANTIZED_THRESHOLD,
    TOLERANCE,
    Thresholds,
    make_reference_executor,
    quantized_tensors_of,
)

# The checks of a codegen's driver in C: what it computes of every compiled region, and on threads.

_CALLS = 8  # of a region by each of two threads
_INCOMPATIBLE = "incompatible"  # the status of what is for another device than this machine has


class DriverChecks:
    """The checks of one driver, which runs in this process; `allow` has the thresholds of a region."""

    def __init__(
        self, name: str, sources: DriverSources, folder: Path, allow: Callable[[Region], Thresholds]
    ) -> None:
        """Build and load the driver of the codegen `name`.

        Raises InputError if it does not compile or is of another name, and MissingRuntimeError without a
        C compiler.
        """
        self.allow = allow
        self.reason_not_opened = ""
        self.library = DriverLibrary(build_driver(sources, folder / f"{name}.so"))
        if self.library.name != name:
            raise InputError(f"the driver says that it is for '{self.library.name}'")

    def check_results(self, case: CompiledCase) -> Iterator[str]:
        """Check that the driver computes what plain onnxruntime does.

        Regions that do not cross to a driver are left out, and those for another device than is here.
        """
        for region, artifact in case.regions:
            try:
                opened = self._open(region, artifact)
                if opened is None:
                    continue
                inputs, expected = case.expected_runs[region.name].values[0]
                found = opened(inputs)
            except ByocError as error:
                yield f"{case.name}: {error}"
                continue
            quantized = quantized_tensors_of(region)
            for problem in find_differences(expected, found, self.allow(region), quantized):
                yield f"{case.name}: by the driver {problem}"

    def check_threads(self, first: CompiledCase, second: CompiledCase) -> Iterator[str]:
        """Check that two regions that are open compute their own results on two threads.

        They are the first ones of two cases, and of other inputs even if these are the same case.
        Skips the test where the driver opens none of them.
        """
        tasks = [task for task in map(self._open_on, (first, second), range(2)) if task is not None]
        if not tasks:
            pytest.skip(f"the driver opens no region here: {self.reason_not_opened}")

        def run(task: tuple[OpenedRegion, Region, Values, Values]) -> list[str]:
            opened, region, inputs, expected = task
            allowed, quantized = self.allow(region), quantized_tensors_of(region)
            found = [opened(inputs) for _ in range(_CALLS)]
            problems = (find_differences(expected, each, allowed, quantized) for each in found)
            return [problem for each in problems for problem in each]

        with ThreadPoolExecutor(2) as threads:
            found = [dict.fromkeys(problems) for problems in threads.map(run, tasks)]
        for (_, region, _, _), problems in zip(tasks, found, strict=True):
            for problem in problems:
                yield f"{region.name}: by the driver on two threads {problem}"

    def _open_on(
        self, case: CompiledCase, number: int
    ) -> tuple[OpenedRegion, Region, Values, Values] | None:
        """Open the first region of a case; return it with inputs, shifted by `number`, and its outputs.

        None if it does not cross to a driver.
        """
        region, artifact = case.regions[0]
        opened = self._open(region, artifact)
        if opened is None:
            return None
        inputs = roll_inputs(case.expected_runs[region.name].values[0][0], number)
        return opened, region, inputs, make_reference_executor(region)(inputs)

    def _open(self, region: Region, artifact: Artifact) -> OpenedRegion | None:
        """Open a region; None for one that does not cross to a driver. Raises DriverError.

        Then `reason_not_opened` says why.
        """
        try:
            return self.library.open_region(region, artifact)
        except DriverError as error:
            if error.status != _INCOMPATIBLE:
                raise
            self.reason_not_opened = str(error)
        except InputError as error:  # extents that are not known, or elements of less than a byte
            self.reason_not_opened = str(error)
        return None


# The settings of a vendor's test class, and the compiled cases that its tests share.

VARIABLE = "BYOC_CONFORMANCE"
"""The environment variable that says which set of tests to run, `fast` or `full`."""

SAMPLE_FORM = "chain"
"""The form that tests of execution use; other forms are tested for their results only."""


@dataclass(frozen=True)
class Claims:
    """The claims of a codegen beyond correct results; only claimed abilities are tested.

    `deterministic`: the same region compiles to the same bytes, also in another process.
    `dynamic_batch`: extents, above all the first, may differ from run to run. `threads`: any thread may
    call an executor, and two at once where the codegen has `concurrent = True`.
    """

    deterministic: bool = True
    dynamic_batch: bool = False
    threads: bool = True


class ConformanceKit:
    """One codegen under test: its plug-in, its rules, and the cases compiled so far."""

    def __init__(self, settings: "type[ConformanceBase]", folder: Path) -> None:
        """Find the codegen. Raises InputError when it, an option or the rule file is wrong."""
        if not has_runtime():
            raise InputError(INSTALL_HINT)
        # On systems without worker processes the codegen is in this one.
        isolation = Isolation(call_timeout=settings.timeout, unless_trusted=True)
        codegen = Codegens(isolation if settings.isolate else None).find(settings.codegen)
        self.codegen: Codegen = codegen
        self.settings = settings
        self.folder = folder
        self.cases = CaseCompiler(settings.rules, codegen, settings.options, folder / "bundles")
        tolerance = {**TOLERANCE, QUANTIZED_THRESHOLD: DEFAULT_THRESHOLDS.units, **settings.tolerance}
        units, own = tolerance.pop(QUANTIZED_THRESHOLD), frozenset(settings.tolerance)
        thresholds = Thresholds(units=units, relative=tolerance, asked=own)
        options = parse_codegen_options(codegen, settings.options)
        contract = self.cases.target.arithmetic
        self.checks = CodegenChecks(codegen, options, thresholds, contract)
        self.reason_not_run = ""
        if not isinstance(codegen, Executable):
            self.reason_not_run = f"codegen {codegen.name} has no `load`"
        self._forms: dict[str, CompiledCase | Exception] = {}
        self._fresh: FreshResults | Exception | None = None
        self._driver: DriverChecks | ByocError | None = None

    @property
    def driver(self) -> DriverChecks | ByocError | None:
        """The codegen's driver, built once: None where it has none, the error where it is not built."""
        codegen, allow = self.codegen, self.checks.allow
        if self._driver is None and has_driver(codegen):
            try:
                sources = ask_driver(codegen)
                self._driver = DriverChecks(self.settings.codegen, sources, self.folder, allow)
            except ByocError as error:
                self._driver = error
        return self._driver

    def compile_form(self, name: str) -> CompiledCase:
        """Return a compiled form, from the cache if possible. Raises NotTakenError or CompileError."""
        if name not in self._forms:
            try:
                self._forms[name] = self.cases.compile(self.cases.plan_form(name))
            except (NotTakenError, InputError) as error:
                self._forms[name] = error
        found = self._forms[name]
        if isinstance(found, Exception):
            raise found
        return found

    def find_second(self) -> CompiledCase | None:
        """Return another form than the sample that works by itself, None where there is none."""
        for name in ("an operand twice", "a shared constant", "several outputs"):
            with suppress(NotTakenError, InputError):
                found = self.compile_form(name)
                if not self.check_results(found):
                    return found
        return None

    def compile_twin(self, name: str) -> CompiledCase:
        """Return a form compiled with other names and constants; raises as `compile_form`."""
        return self.cases.compile(self.cases.plan_form(name, seed=1))

    def compile_some(self) -> Iterator[CompiledCase]:
        """Yield the forms that work, and for each operator a model that does, but for skipped ones."""
        for name in FORMS:
            if name != SAMPLE_FORM and not self.settings.skip_reason(name):
                with suppress(NotTakenError, ByocError):
                    yield self.compile_form(name)
        for operator in self.settings.parameter_names("operator"):
            if not self.settings.skip_reason(operator):
                found = self._compile_first(operator, self.cases.precisions[0])
                if found is not None:
                    yield found

    def _compile_first(self, operator: str, precision: Precision) -> CompiledCase | None:
        """Return the first model of an operator that is taken, compiled; None without one."""
        given = self.settings.cases.get(operator, ())
        with suppress(NotTakenError, ByocError):
            for case in self.cases.plan_operator(operator, precision, given):
                if isinstance(case, NotTakenError) or self.settings.skip_reason(case.name):
                    continue
                if case.is_static:
                    return self.cases.compile(case)
        return None

    def check_results(self, case: CompiledCase) -> list[str]:
        """Return the errors in a case's results, the driver's included.

        There are none where this machine cannot run it; `reason_not_run` says why it cannot.
        """
        problems = []
        if not self.reason_not_run:
            try:
                problems = self.checks.check_results(case)
            except NotHereError as error:
                self.reason_not_run = f"codegen {self.codegen.name}: {error}"
        return problems + self.check_driver(case)

    def check_driver(self, case: CompiledCase) -> list[str]:
        """Return the errors in what the driver makes of a case, none where there is no driver."""
        driver = self.driver
        return list(driver.check_results(case)) if isinstance(driver, DriverChecks) else []

    def require_driver(self) -> DriverChecks:
        """Return the codegen's driver; skips the test where it has none, or there is no C compiler.

        Raises InputError for a driver that does not compile.
        """
        found = self.driver
        if found is None:
            pytest.skip("it has no `driver`")
        if isinstance(found, MissingRuntimeError):
            pytest.skip(str(found))
        if isinstance(found, ByocError):
            raise found
        return found

    @property
    def runs_sample(self) -> bool:
        """Whether this machine can run what the codegen compiles."""
        return bool(self.sample) and not self.reason_not_run

    @property
    def sample(self) -> CompiledCase:
        """A region of one input and one output; skips the test where that region does not work."""
        try:
            found = self.compile_form(SAMPLE_FORM)
        except NotTakenError as error:
            pytest.skip(f"the rules take no two nodes in a row that this kit knows: {error}")
        except ByocError as error:
            pytest.skip(
                f"test_form[{SAMPLE_FORM}] fails, which this check builds on: {error_reason(error)}"
            )
        problems = self.check_results(found)
        if problems:
            pytest.skip(f"test_form[{SAMPLE_FORM}] fails, which this check builds on: {problems[0]}")
        return found

    @property
    def fresh_results(self) -> FreshResults:
        """The results of all working forms in a fresh process, which is started once.

        In the fast set it is the sample's alone.
        """
        if self._fresh is None:
            cuts = [self.sample]
            for name in () if self.settings.is_fast() else FORMS:
                if name != SAMPLE_FORM and not self.settings.skip_reason(name):
                    try:
                        cuts.append(self.compile_form(name))
                    except (NotTakenError, InputError):
                        continue
            working = [case for case in cuts if not self.checks.check_results(case)]
            try:
                options = self.settings.options
                self._fresh = self.checks.run_in_fresh_process(working, options)
            except InputError as error:
                self._fresh = error
        if isinstance(self._fresh, Exception):
            raise self._fresh
        return self._fresh


class ConformanceBase:
    """The settings of a vendor's test class, documented at `byoc.testing.CodegenConformance`."""

    codegen: ClassVar[str]
    rules: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = {}
    tolerance: ClassVar[Mapping[str, float]] = {}
    claims: ClassVar[Claims] = Claims()
    zoo: ClassVar[Sequence[str]] = ("squeezenet",)
    skips: ClassVar[Mapping[str, str]] = {}
    operators: ClassVar[Sequence[str]] = ()
    most_cases: ClassVar[int] = 6
    cases: ClassVar[Mapping[str, Sequence[str | ModelProto]]] = {}
    isolate: ClassVar[bool] = True
    timeout: ClassVar[float] = 600.0
    fast: ClassVar[bool] = False

    _kits: ClassVar[dict[type, Any]] = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate a test for each operator, composite, form and model."""
        for name in ("operator", "composite", "form", "model"):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, self.parameter_names(name))

    @classmethod
    def parameter_names(cls, kind: str) -> list[str]:
        """Return the test parameters of a kind: `operator`, `composite`, `form` or `model`.

        A rule file that cannot be read has none; every other test then fails with the reason.
        """
        if kind == "form":
            return list(FORMS)
        if kind == "model":
            return [] if cls.is_fast() else list(cls.zoo)
        try:
            target = load_rules(cls.rules)
            if kind == "composite":
                return [pattern.name for pattern in target.patterns]
            return list(cls.operators) or list_target_operators(target)
        except InputError:
            return []

    @pytest.fixture
    def kit(
        self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> ConformanceKit:
        """The kit of the codegen under test, shared by all tests of a class."""
        cls = type(self)
        name = getattr(request.node, "originalname", "")
        self._skip_if_listed(name)
        return cls.make_kit(lambda: tmp_path_factory.mktemp("conformance"))

    @classmethod
    def make_kit(cls, folder: Callable[[], Path]) -> ConformanceKit:
        """Return the kit of this class, created once. Fails the test when that is not possible."""
        if cls not in cls._kits:
            try:
                cls._kits[cls] = ConformanceKit(cls, folder())
            except ByocError as error:
                cls._kits[cls] = error
        found = cls._kits[cls]
        if isinstance(found, ByocError):
            pytest.fail(str(found), pytrace=False)
        assert isinstance(found, ConformanceKit)
        return found

    @classmethod
    def is_fast(cls) -> bool:
        """Return whether the fast set is asked for: by the environment, or else by the class.

        Fails the test where the environment says neither `fast` nor `full`.
        """
        asked = os.environ.get(VARIABLE, "")
        if asked not in {"", "fast", "full"}:
            pytest.fail(f"{VARIABLE} is '{asked}', not fast or full", pytrace=False)
        return asked == "fast" or (cls.fast and not asked)

    @classmethod
    def skip_reason(cls, name: str) -> str:
        """Return the reason to skip a test, operator, form, model or case; "" when there is none."""
        found = (
            reason
            for pattern, reason in cls.skips.items()
            if name == pattern or fnmatchcase(name, pattern.replace("[", "[[]"))
        )
        return next(found, "")

    def _require_executable(self, kit: ConformanceKit) -> None:
        if kit.reason_not_run or not kit.runs_sample:
            pytest.skip(f"{kit.reason_not_run}: what it compiles is not run here")

    def _skip_if_listed(self, name: str) -> None:
        reason = self.skip_reason(name)
        if reason:
            pytest.skip(reason)

    def _check(self, check: Callable[..., Iterable[str]], *cases: Any) -> None:
        self._fail(collect_problems(check, *cases))

    def _fail(self, problems: Sequence[str]) -> None:
        if problems:
            lines = [f"codegen {self.codegen}: {problem}" for problem in problems]
            pytest.fail("\n".join(lines), pytrace=False)


def collect_problems(check: Callable[..., Iterable[str]], *cases: Any) -> list[str]:
    """Run a check of cases; return its problems, a raised exception included."""
    try:
        return list(check(*cases))
    except ByocError as error:
        return [error_reason(error)]
    except Exception as error:  # the codegen is third-party code
        return [f"fails with {describe_failure(error)}"]
