"""What a vendor's class says, and how its tests are made of that, skipped, and failed."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import pytest

from byoc.codegen import Executable
from byoc.errors import ByocError, InputError, described
from byoc.rules.load import load_rules
from byoc.testing.claims import Claims
from byoc.testing.cut import target_operators
from byoc.testing.kit import Kit
from byoc.testing.refusals import why
from byoc.testing.structures import FORMS


class Asking:
    """What a vendor's class says: see `byoc.testing.CodegenConformance`."""

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
        """Make a test of each operator, composite, form and model."""
        for name in ("operator", "composite", "form", "model"):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, self.names(name))

    @classmethod
    def names(cls, kind: str) -> list[str]:
        """Return what there is a test for each of: `operator`, `composite`, `form`, `model`.

        Of a rule file that cannot be read there are none; every test then says why.
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
        """The codegen under test; one for all tests of a class."""
        cls = type(self)
        name = getattr(request.node, "originalname", "")
        self._skip(name)
        return cls.make_kit(lambda: tmp_path_factory.mktemp("conformance"))

    @classmethod
    def make_kit(cls, folder: Callable[[], Path]) -> Kit:
        """Return the kit of this class, which is made once; fails the test when it cannot be."""
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
        """Return the reason for which something is left out; empty when it is not."""
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

    def _fail(self, problems: Sequence[str]) -> None:
        if problems:
            told = "\n".join(f"codegen {self.codegen}: {problem}" for problem in problems)
            pytest.fail(told, pytrace=False)


def said(check: Callable[[], list[str]]) -> list[str]:
    """Return what is wrong, what is raised included."""
    try:
        return check()
    except ByocError as error:
        return [why(error)]
    except Exception as error:  # what is checked is somebody else's code
        return [f"fails with {described(error)}"]
