"""The settings of a vendor's test class, and the compiled cases that its tests share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import pytest

from byoc.codegen import Codegen, Executable, chosen_options, find_codegen
from byoc.errors import ByocError, InputError, described
from byoc.rules.load import load_rules
from byoc.runtime.onnxrt import HOW_TO_GET_IT, has_runtime
from byoc.testing.checks import Checks, Fresh
from byoc.testing.cut import Cut, NotTakenError, Workshop, target_operators
from byoc.testing.fresh import why
from byoc.testing.structures import FORMS
from byoc.verify.thresholds import DEFAULT, QUANTIZED, TOLERANCE, Thresholds

SAMPLE = "chain"
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


class Kit:
    """One codegen under test: its plug-in, its rules, and the cases compiled so far."""

    def __init__(self, asked: "type[ConformanceBase]", folder: Path) -> None:
        """Find the codegen. Raises InputError when it, an option or the rule file is wrong."""
        if not has_runtime():
            raise InputError(HOW_TO_GET_IT)
        codegen = find_codegen(asked.codegen)
        self.codegen: Codegen = codegen
        self.asked = asked
        self.folder = folder
        self.workshop = Workshop(asked.rules, codegen, asked.options, folder / "bundles")
        tolerance = {**TOLERANCE, QUANTIZED: DEFAULT.units, **asked.tolerance}
        thresholds = Thresholds(units=tolerance.pop(QUANTIZED), relative=tolerance)
        self.checks = Checks(codegen, chosen_options(codegen, asked.options), thresholds)
        _ = self.workshop.target
        self._forms: dict[str, Cut | Exception] = {}
        self._fresh: Fresh | Exception | None = None

    def form(self, name: str) -> Cut:
        """Return a compiled form, from the cache if possible. Raises NotTakenError or CompileError."""
        if name not in self._forms:
            try:
                self._forms[name] = self.workshop.compile(self.workshop.form(name))
            except (NotTakenError, InputError) as error:
                self._forms[name] = error
        found = self._forms[name]
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def sample(self) -> Cut:
        """A region of one input and one output; skips the test where that region does not work."""
        try:
            found = self.form(SAMPLE)
        except NotTakenError as error:
            pytest.skip(f"the rules take no two nodes in a row that this kit knows: {error}")
        except ByocError as error:
            pytest.skip(f"test_form[{SAMPLE}] fails, which this check builds on: {why(error)}")
        if isinstance(self.codegen, Executable):
            problems = self.checks.computes(found)
            if problems:
                pytest.skip(f"test_form[{SAMPLE}] fails, which this check builds on: {problems[0]}")
        return found

    @property
    def fresh(self) -> Fresh:
        """The results of all working forms in a fresh process, which is started once."""
        if self._fresh is None:
            cuts = [self.sample]
            for name in FORMS:
                if name != SAMPLE and not self.asked.skipped(name):
                    try:
                        cuts.append(self.form(name))
                    except (NotTakenError, InputError):
                        continue
            working = [cut for cut in cuts if not self.checks.computes(cut)]
            try:
                options = self.asked.options
                self._fresh = self.checks.fresh(working, options, self.folder / "fresh")
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

    _kits: ClassVar[dict[type, Any]] = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate a test for each operator, composite, form and model."""
        for name in ("operator", "composite", "form", "model"):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, self.names(name))

    @classmethod
    def names(cls, kind: str) -> list[str]:
        """Return the test parameters of a kind: `operator`, `composite`, `form` or `model`.

        A rule file that cannot be read has none; every other test then fails with the reason.
        """
        if kind == "form":
            return list(FORMS)
        if kind == "model":
            return list(cls.zoo)
        try:
            target = load_rules(cls.rules)
            if kind == "composite":
                return [pattern.name for pattern in target.patterns]
            return list(cls.operators) or target_operators(target)
        except InputError:
            return []

    @pytest.fixture
    def kit(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kit:
        """The kit of the codegen under test, shared by all tests of a class."""
        cls = type(self)
        name = getattr(request.node, "originalname", "")
        self._skip(name)
        return cls.make_kit(lambda: tmp_path_factory.mktemp("conformance"))

    @classmethod
    def make_kit(cls, folder: Callable[[], Path]) -> Kit:
        """Return the kit of this class, created once. Fails the test when that is not possible."""
        if cls not in cls._kits:
            try:
                cls._kits[cls] = Kit(cls, folder())
            except ByocError as error:
                cls._kits[cls] = error
        found = cls._kits[cls]
        if isinstance(found, ByocError):
            pytest.fail(str(found), pytrace=False)
        assert isinstance(found, Kit)
        return found

    @classmethod
    def skipped(cls, name: str) -> str:
        """Return the reason to skip a test, operator, form, model or case; "" when there is none."""
        found = (
            reason
            for pattern, reason in cls.skips.items()
            if name == pattern or fnmatchcase(name, pattern.replace("[", "[[]"))
        )
        return next(found, "")

    def _executable(self, kit: Kit) -> None:
        if not isinstance(kit.codegen, Executable):
            pytest.skip(f"codegen {self.codegen} has no `load`: what it compiles is not run here")

    def _skip(self, name: str) -> None:
        reason = self.skipped(name)
        if reason:
            pytest.skip(reason)

    def _check(self, check: Callable[[], list[str]]) -> None:
        self._fail(collect_problems(check))

    def _fail(self, problems: Sequence[str]) -> None:
        if problems:
            lines = [f"codegen {self.codegen}: {problem}" for problem in problems]
            pytest.fail("\n".join(lines), pytrace=False)


def collect_problems(check: Callable[[], list[str]]) -> list[str]:
    """Run a check; return its problems, a raised exception included."""
    try:
        return check()
    except ByocError as error:
        return [why(error)]
    except Exception as error:  # the codegen is third-party code
        return [f"fails with {described(error)}"]
