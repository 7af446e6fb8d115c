"""The class that a vendor subclasses: each test says what it checks, and failing, what is to be done."""

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from byoc.bundle.regions import read_region
from byoc.codegen import (
    Executable,
    Measured,
    Oracle,
    Stamped,
    Together,
    chosen_options,
)
from byoc.codegen.asking import compiled_together
from byoc.errors import ByocError, InputError
from byoc.testing.asking import Asking, said
from byoc.testing.composites import composite_case
from byoc.testing.cut import NotTakenError, Planned
from byoc.testing.kit import SAMPLE, Kit
from byoc.testing.refusals import refuses, why
from byoc.testing.structures import FORMS
from byoc.verdict import Verdict

_UNKNOWN = "g (float[2, 3] x) => (float[2, 3] y) { y = org.byoc.testing.NoSuchOperator(x) }"


class CodegenConformance(Asking):
    """What a codegen has to do, as tests. A vendor's whole test file:

        class TestAcme(CodegenConformance):
            codegen = "acme"
            rules = "acme.yaml"

    `codegen` is the name of the entry point, `rules` a rule file's path or installed name. `options`
    are those that users give, as text. `tolerance` has by dtype the largest error as a share of the
    range of what is expected (1e-4 for float32 unless given), and under `quantized` by how many units
    quantized integers may be off (1). `claims` says what the codegen does beyond the rest. `zoo` names
    models whose regions are compiled, too. `skips` gives a reason for each test, operator, form, model
    or case (a name, or a pattern such as `test_maxpool*`) that is to be left out. All operators of the
    rules are tested, or those in `operators`; `most_cases` of each are tried.
    """

    # What it computes.

    def test_operator(self, kit: Kit, operator: str) -> None:
        """An operator that the rules take is compiled, and computes what plain onnxruntime does."""
        self._skip(operator)
        try:
            cases = list(kit.workshop.operator_cases(operator, self.most_cases))
        except NotTakenError as error:
            pytest.skip(f"the rules take no model of {operator} that this kit knows, the last: {error}")
        self._compute(kit, cases)

    def test_composite(self, kit: Kit, composite: str) -> None:
        """A composite of the rules is compiled, and computes what the operators in it do."""
        self._skip(composite)
        try:
            case = composite_case(kit.workshop, composite)
        except NotTakenError as error:
            pytest.skip(f"no model is known in which {composite} is found: {error}")
        self._compute(kit, [case])

    def test_form(self, kit: Kit, form: str) -> None:
        """A region of this form computes what plain onnxruntime does: outputs, constants, extents."""
        self._skip(form)
        told = FORMS[form]
        if told.claim and not getattr(self.claims, told.claim):
            pytest.skip(f"not claimed (Claims({told.claim}=True)): {told.says}")
        try:
            cut = kit.form(form)
        except NotTakenError as error:
            pytest.skip(f"cannot be drawn, {told.says}: {error}")
        except ByocError as error:
            self._fail([f"{form} ({told.says}): {why(error)}"])
        if not isinstance(kit.codegen, Executable):
            return
        problems = kit.checks.computes(cut)
        if told.claim == "dynamic_batch" and not problems:
            problems = said(lambda: kit.checks.other_batch(cut))
        self._fail([f"{problem} (it has {told.says})" for problem in problems])

    def test_zoo(self, kit: Kit, model: str) -> None:
        """The regions of a real model are compiled, and compute what plain onnxruntime does."""
        self._skip(model)
        try:
            planned = kit.workshop.zoo(model)
        except NotTakenError as error:
            pytest.skip(f"the rules take nothing of it: {error}")
        except InputError as error:
            pytest.skip(f"zoo:{model}: {error}")
        self._compute(kit, [planned])

    def test_two_regions(self, kit: Kit) -> None:
        """Two regions that are loaded at once each compute what is theirs."""
        self._executable(kit)
        first = kit.sample
        for name in ("an operand twice", "a shared constant", "several outputs"):
            try:
                second = kit.form(name)
            except (NotTakenError, InputError):
                continue
            if not kit.checks.computes(second):
                self._fail(said(lambda cut=second: kit.checks.in_turn(first, cut)))  # type: ignore[misc]
                return
        pytest.skip("there is no second region that works by itself")

    # What it makes.

    def test_artifact(self, kit: Kit) -> None:
        """An artifact has plain file names, bytes and texts, and is the same in form at each compile."""
        try:
            cut = kit.form(SAMPLE)
        except NotTakenError as error:
            pytest.skip(str(error))
        except ByocError as error:
            self._fail([f"{SAMPLE}: {why(error)}"])
        self._fail(said(lambda: kit.checks.stored(cut)))

    def test_files_untouched(self, kit: Kit) -> None:
        """Neither compile, load nor run changes the region's files or adds any beside them."""
        cut = kit.workshop.uncompiled(kit.sample.planned)
        self._fail(said(lambda: kit.checks.keeps_files(cut)))

    def test_deterministic(self, kit: Kit) -> None:
        """The same region gives the same bytes again; where that is not claimed, the same numbers."""
        if self.claims.deterministic and isinstance(kit.codegen, Executable):
            self._fail(said(lambda: kit.checks.repeats(kit.fresh)))
        elif self.claims.deterministic:
            self._fail(said(lambda: kit.checks.repeats_here(kit.sample)))
        else:
            self._executable(kit)
            cut = kit.sample
            self._fail(said(lambda: kit.checks.repeats_numbers(cut)))

    def test_stamp(self, kit: Kit) -> None:
        """`compatible` takes what was compiled here, and refuses an artifact with another stamp."""
        if not isinstance(kit.codegen, Stamped):
            pytest.skip("it has no `compatible`: its artifacts fit everywhere")
        cut = kit.sample
        self._fail(said(lambda: kit.checks.stamp(cut)))

    # How it runs.

    def test_runs_here(self, kit: Kit) -> None:
        """It can run what it compiles; without `load`, all other tests only compile."""
        self._executable(kit)

    def test_fresh_process(self, kit: Kit) -> None:
        """What was compiled here computes the same when a fresh process loads it."""
        self._executable(kit)
        self._fail(said(lambda: kit.checks.reloads(kit.fresh)))

    def test_threads(self, kit: Kit) -> None:
        """Two threads that call one executor each get what is theirs."""
        self._executable(kit)
        if not self.claims.threads:
            pytest.skip("not claimed (Claims(threads=True))")
        cut = kit.sample
        self._fail(said(lambda: kit.checks.threads(cut)))

    def test_inputs_untouched(self, kit: Kit) -> None:
        """A run does not write to its inputs, and takes some that cannot be written to."""
        self._executable(kit)
        cut = kit.sample
        self._fail(said(lambda: kit.checks.keeps_inputs(cut)))

    def test_strided_inputs(self, kit: Kit) -> None:
        """Inputs may lie in memory in any way, as slices of other arrays do."""
        self._executable(kit)
        cut = kit.sample
        self._fail(said(lambda: kit.checks.any_order(cut)))

    def test_outputs_last(self, kit: Kit) -> None:
        """What one run gave is not overwritten by the next."""
        self._executable(kit)
        cut = kit.sample
        self._fail(said(lambda: kit.checks.outputs_last(cut)))

    # What it says.

    def test_refusal(self, kit: Kit, tmp_path: Path) -> None:
        """A region that cannot be compiled is a CompileError with a reason, nothing else."""
        path = tmp_path / "region.onnx"
        opsets = '["" : 17, "org.byoc.testing" : 1]'
        onnx.save(onnx.parser.parse_model(f"<ir_version: 8, opset_import: {opsets}>\n{_UNKNOWN}"), path)
        region = read_region(path, f"{kit.workshop.target.name}_0", kit.workshop.target.name)
        self._fail(refuses(kit.codegen, region, kit.checks.options))

    def test_options(self, kit: Kit) -> None:
        """An option that there is not is refused; without `Options` users' mistakes go unnoticed."""
        if getattr(kit.codegen, "Options", None) is None:
            pytest.skip("it has no `Options`: it is handed whatever users write (see docs/codegen.md)")
        with pytest.raises(InputError):
            chosen_options(kit.codegen, {"no such option": ""})

    def test_oracle(self, kit: Kit) -> None:
        """`check` says of each node of a model whether it is taken, in order."""
        if not isinstance(kit.codegen, Oracle):
            pytest.skip("it has no `check`")
        model = kit.sample.regions[0][0].load(inline=True)
        verdicts = kit.codegen.check(model)
        wrong = len(verdicts) != len(model.graph.node) or not all(
            isinstance(verdict, Verdict) for verdict in verdicts
        )
        self._fail(["`check` must give a Verdict for each node of the main graph, in order"] * wrong)

    def test_measured(self, kit: Kit) -> None:
        """`cost` gives the seconds that a region takes."""
        if not isinstance(kit.codegen, Measured):
            pytest.skip("it has no `cost`")
        seconds = kit.codegen.cost(kit.sample.regions[0][0])
        self._fail([f"`cost` gave {seconds!r}, not seconds above 0"] * (not 0 < seconds < float("inf")))

    def test_together(self, kit: Kit) -> None:
        """`compile_all` gives an artifact for each region, by name."""
        codegen = kit.codegen
        if not isinstance(codegen, Together):
            pytest.skip("it has no `compile_all`")
        regions = [kit.sample.regions[0][0]]
        try:
            compiled_together(codegen, regions, kit.checks.options)
        except ByocError as error:
            self._fail([why(error)])

    # How it is told.

    def _compute(self, kit: Kit, cases: Sequence[Planned]) -> None:
        """Compile cases, run them where that can be, and fail with all that is wrong."""
        problems = []
        left = []
        for case in cases:
            reason = self.skipped(case.name)
            if not case.is_static and not self.claims.dynamic_batch:
                reason = reason or "not claimed (Claims(dynamic_batch=True)): extents that are not known"
            if reason:
                left.append(reason)
                continue
            try:
                cut = kit.workshop.compile(case)
            except NotTakenError as error:  # onnxruntime does not run it either
                left.append(str(error))
                continue
            except ByocError as error:
                problems.append(f"{case.name}: the rules take it and the codegen does not: {why(error)}")
                continue
            if isinstance(kit.codegen, Executable):
                problems += kit.checks.computes(cut)
        self._fail(problems)
        if len(left) == len(cases):
            pytest.skip("; ".join(dict.fromkeys(left)))
