"""What the tests of one class share: the codegen, its rules, and the cases that were compiled so far."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

from byoc.codegen import Codegen, Executable, chosen_options, find_codegen
from byoc.errors import ByocError, InputError
from byoc.runtime.onnxrt import HOW_TO_GET_IT, has_runtime
from byoc.testing.checks import Checks, Fresh
from byoc.testing.cut import Cut, NotTakenError, Workshop
from byoc.testing.refusals import why
from byoc.testing.structures import FORMS
from byoc.verify.thresholds import DEFAULT, QUANTIZED, TOLERANCE, Thresholds

SAMPLE = "chain"
"""The form that is checked for how it runs, not only for what it computes."""


class Asked(Protocol):
    """What a vendor's class says."""

    codegen: str
    rules: str
    options: Mapping[str, str]
    tolerance: Mapping[str, float]

    @classmethod
    def skipped(cls, name: str) -> str:
        """Return the reason for which something is left out; empty when it is not."""
        ...


class Kit:
    """One codegen under test: its plug-in, its rules, and the cases that were compiled so far."""

    def __init__(self, asked: "Asked", folder: Path) -> None:
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
        """Return a form compiled. Raises NotTakenError, and CompileError."""
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
        """A region of one input and one output; skips what is checked on it where that does not work."""
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
        """What the forms that work here give in a fresh process, which is started once."""
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
