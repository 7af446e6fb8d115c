"""The test class that vendors subclass; a failing test explains the remedy."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from byoc.codegen import (
    Codegen,
    CodegenFailedError,
    Executable,
    Keyed,
    Measured,
    NotHereError,
    Oracle,
    Region,
    Stamped,
    TakesWeights,
    Together,
    can_estimate,
    can_profile,
    can_trace,
    compile_region,
    compile_together,
    has_options,
    parse_codegen_options,
    read_region,
)
from byoc.errors import ByocError, InputError
from byoc.runtime import load_executor
from byoc.testing._case_compiler import CompiledCase, NotTakenError, PlannedCase, plan_composite
from byoc.testing._codegen_checks import WEIGHT_FORMS, exchange_case_weights, find_undeclared_code
from byoc.testing._conformance_kit import SAMPLE_FORM, ConformanceBase, ConformanceKit, collect_problems
from byoc.testing._executor_checks import (
    InputsUntouched,
    OutputsLast,
    StateKept,
    StridedInputs,
    TwoThreads,
    check_cache_key,
    error_reason,
)
from byoc.testing._region_forms import FORMS


class CodegenConformance(ConformanceBase):
    """The requirements on a codegen, as tests. A vendor's complete test file:

        class TestAcme(CodegenConformance):
            codegen = "acme"
            rules = "acme.yaml"

    `codegen` is the name of the entry point, `rules` a rule file's path or installed name. `options` are
    user options, as text. `tolerance` maps dtypes to the largest error relative to the expected range
    (default for float32: 1e-4), and `quantized` to the largest error of quantized integers in units (1).
    `claims` states further abilities to test. `zoo` names models whose regions are compiled, too.
    `skips` maps tests, operators, forms, models or cases (a name, or a pattern such as `test_maxpool*`)
    to the reason to skip them. `operators` restricts the tested operators, by default all of the rules;
    `cases` has further models by operator, `most_cases` limits the cases of each. The codegen runs in a
    process of its own, which may crash or take longer than `timeout` seconds for a call, unless
    `isolate` is False. With `fast` there is one case of each operator, and no model of the zoo; the
    environment variable BYOC_CONFORMANCE, `fast` or `full`, decides before it.
    """

    # Results.

    def test_operator(self, kit: ConformanceKit, operator: str) -> None:
        """An operator that the rules accept compiles and computes what plain onnxruntime does."""
        self._skip_if_listed(operator)
        most = 1 if self.is_fast() else self.most_cases
        problems: list[str] = []
        reasons = ["none is known to this kit"]
        tested = 0
        try:
            for precision in kit.cases.precisions:
                enough = tested + most
                for case in kit.cases.plan_operator(operator, precision, self.cases.get(operator, ())):
                    try:
                        problems += self._check_case(kit, case)
                    except NotTakenError as error:
                        reasons.append(str(error))
                        continue
                    tested += 1
                    if tested == enough:
                        break
        except InputError as error:
            problems.append(str(error))
        self._fail(problems)
        if not tested:
            self._report_no_case(kit, operator, reasons[-1])

    def test_composite(self, kit: ConformanceKit, composite: str) -> None:
        """A composite of the rules compiles and computes what its operators do."""
        self._skip_if_listed(composite)
        try:
            case = plan_composite(kit.cases, composite)
        except NotTakenError as error:
            pytest.skip(f"no model is known in which {composite} is found: {error}")
        self._check_only_case(kit, case)

    def test_form(self, kit: ConformanceKit, form: str) -> None:
        """A region of this form computes what plain onnxruntime does: outputs, constants, extents."""
        self._skip_if_listed(form)
        details = FORMS[form]
        if details.claim and not getattr(self.claims, details.claim):
            pytest.skip(f"not claimed (Claims({details.claim}=True)): {details.description}")
        try:
            cut = kit.compile_form(form)
        except NotTakenError as error:
            pytest.skip(f"cannot be drawn, {details.description}: {error}")
        except ByocError as error:
            self._fail([f"{form} ({details.description}): {error_reason(error)}"])
        problems = kit.check_results(cut)
        if kit.reason_not_run:
            return
        if details.claim == "dynamic_batch" and not problems:
            problems = collect_problems(kit.checks.check_batch_sizes, cut)
        self._fail([f"{problem} (it has {details.description})" for problem in problems])

    def test_zoo(self, kit: ConformanceKit, model: str) -> None:
        """The regions of a real model compile and compute what plain onnxruntime does."""
        self._skip_if_listed(model)
        try:
            planned = kit.cases.plan_zoo_model(model)
        except NotTakenError as error:
            pytest.skip(f"the rules take nothing of it: {error}")
        except InputError as error:
            pytest.skip(f"zoo:{model}: {error}")
        self._check_only_case(kit, planned)

    def test_two_regions(self, kit: ConformanceKit) -> None:
        """Two loaded regions each compute their own results."""
        self._require_executable(kit)
        second = kit.find_second()
        if second is None:
            pytest.skip("there is no second region that works by itself")
        self._check(kit.checks.check_two_regions, kit.sample, second)

    # Artifacts.

    def test_artifact(self, kit: ConformanceKit) -> None:
        """An artifact has plain file names, bytes and strings, and the same keys at each compile.

        One that holds native code is of a codegen that says so.
        """
        try:
            cut = kit.compile_form(SAMPLE_FORM)
        except NotTakenError as error:
            pytest.skip(str(error))
        except ByocError as error:
            self._fail([f"{SAMPLE_FORM}: {error_reason(error)}"])
        self._check(kit.checks.check_artifact_keys, cut)
        self._fail(list(find_undeclared_code(kit.codegen, cut)))

    def test_files_untouched(self, kit: ConformanceKit) -> None:
        """Compile, load and run neither change the region's files nor add any beside them."""
        runs = kit.runs_sample
        self._check(kit.checks.check_files, kit.cases.write_uncompiled(kit.sample.case), runs)

    def test_deterministic(self, kit: ConformanceKit) -> None:
        """The same region compiles to the same bytes or, where not claimed, to the same results."""
        if self.claims.deterministic and kit.runs_sample:
            self._check(lambda: kit.checks.check_determinism(kit.fresh_results))
        elif self.claims.deterministic:
            self._check(kit.checks.check_determinism_here, kit.sample)
        else:
            self._require_executable(kit)
            self._check(kit.checks.check_recompiled_results, kit.sample)

    def test_stamp(self, kit: ConformanceKit) -> None:
        """`compatible` accepts an artifact compiled here, and refuses one with changed metadata."""
        if not isinstance(kit.codegen, Stamped):
            pytest.skip("it has no `compatible`: its artifacts fit everywhere")
        self._check(kit.checks.check_compatible, kit.sample)

    def test_cache_key(self, kit: ConformanceKit) -> None:
        """`cache_key` gives the same texts each time, also in another process."""
        codegen = kit.codegen
        if not isinstance(codegen, Keyed):
            pytest.skip("it has no `cache_key`: what it depends on is what byoc sees")
        self._check(lambda: check_cache_key(codegen, self.codegen, self.options))

    # Execution.

    def test_runs_here(self, kit: ConformanceKit) -> None:
        """The codegen can run its artifacts; without `load`, all other tests only compile."""
        self._require_executable(kit)

    def test_fresh_process(self, kit: ConformanceKit) -> None:
        """An artifact computes the same when a fresh process loads it."""
        self._require_executable(kit)
        self._check(lambda: kit.checks.check_fresh_results(kit.fresh_results))

    def test_threads(self, kit: ConformanceKit) -> None:
        """Two threads that call one executor get the right results."""
        self._require_executable(kit)
        if not self.claims.threads:
            pytest.skip("not claimed (Claims(threads=True))")
        self._check(kit.checks.check_executor, kit.sample, TwoThreads)

    def test_inputs_untouched(self, kit: ConformanceKit) -> None:
        """A run does not write to its inputs, and accepts read-only ones."""
        self._require_executable(kit)
        self._check(kit.checks.check_executor, kit.sample, InputsUntouched)

    def test_strided_inputs(self, kit: ConformanceKit) -> None:
        """Inputs may have any strides, as slices of other arrays have."""
        self._require_executable(kit)
        self._check(kit.checks.check_executor, kit.sample, StridedInputs)

    def test_outputs_last(self, kit: ConformanceKit) -> None:
        """A run does not overwrite the outputs of the run before."""
        self._require_executable(kit)
        self._check(kit.checks.check_executor, kit.sample, OutputsLast)

    def test_state_kept(self, kit: ConformanceKit) -> None:
        """States that `allocate` keeps on the device are those that runs would hand over."""
        self._require_executable(kit)
        self._check(kit.checks.check_executor, kit.sample, StateKept)

    def test_driver(self, kit: ConformanceKit) -> None:
        """The driver compiles, and two regions that are open compute their own on two threads.

        Whatever the other tests compile runs in it, too.
        """
        try:
            driver = kit.require_driver()
        except ByocError as error:
            self._fail([error_reason(error)])
        self._check(driver.check_threads, kit.sample, kit.find_second() or kit.sample)

    # Refusals and optional abilities.

    def test_refusal(self, kit: ConformanceKit, tmp_path: Path) -> None:
        """A region that cannot be compiled raises CompileError with a reason, nothing else."""
        region = write_unsupported_region(tmp_path, kit.cases.target.name)
        self._fail(check_refusal(kit.codegen, region, kit.checks.options))

    def test_options(self, kit: ConformanceKit) -> None:
        """An unknown option is refused; without `Options` users' mistakes go unnoticed."""
        if not has_options(kit.codegen):
            pytest.skip("it has no `Options`: it is handed whatever users write (see docs/codegen.md)")
        with pytest.raises(InputError):
            parse_codegen_options(kit.codegen, {"no such option": ""})

    def test_oracle(self, kit: ConformanceKit) -> None:
        """`check` gives a verdict on each node of a model, in order."""
        if not isinstance(kit.codegen, Oracle):
            pytest.skip("it has no `check`")
        self._check(kit.checks.check_oracle, kit.sample)

    def test_measured(self, kit: ConformanceKit) -> None:
        """`cost` gives the seconds that a region takes."""
        if not isinstance(kit.codegen, Measured):
            pytest.skip("it has no `cost`")
        self._check(kit.checks.check_measured, kit.sample)

    def test_estimate(self, kit: ConformanceKit) -> None:
        """`estimate` gives the seconds or cycles of a compiled region."""
        if not can_estimate(kit.codegen):
            pytest.skip("it has no `estimate`")
        self._check(kit.checks.check_estimate, kit.sample)

    def test_trace(self, kit: ConformanceKit) -> None:
        """`trace` shows tensors inside of regions as ONNX defines them, each output's among them."""
        if not can_trace(kit.codegen):
            pytest.skip("it has no `trace`: layers are compared by compiling them as outputs")
        self._check_inside(kit, kit.checks.check_trace)

    def test_profile(self, kit: ConformanceKit) -> None:
        """`profile` gives the times of operations, by nodes of the region."""
        if not can_profile(kit.codegen):
            pytest.skip("it has no `profile`: a traced run shows regions as a whole")
        self._check_inside(kit, kit.checks.check_profile)
        self._check(kit.checks.check_profiled, kit.sample)

    def _check_inside(self, kit: ConformanceKit, check: Callable[[CompiledCase], Iterable[str]]) -> None:
        """Check the sample, and unless in the fast set all forms, and a model of each operator."""
        self._require_executable(kit)
        problems = collect_problems(check, kit.sample)
        for cut in () if self.is_fast() else kit.compile_some():
            problems += collect_problems(check, cut)
        self._fail(problems)

    def test_together(self, kit: ConformanceKit) -> None:
        """`compile_all` gives an artifact for each region, by name."""
        codegen = kit.codegen
        if not isinstance(codegen, Together):
            pytest.skip("it has no `compile_all`")
        regions = [kit.sample.regions[0][0]]
        try:
            compile_together(codegen, regions, kit.checks.options)
        except ByocError as error:
            self._fail([error_reason(error)])

    def test_take_weights(self, kit: ConformanceKit) -> None:
        """`take_weights` makes an artifact that computes with the other region's names and weights."""
        codegen = kit.codegen
        if not isinstance(codegen, TakesWeights):
            pytest.skip("it has no `take_weights`: each region with weights of its own is compiled")
        problems, exchanged = [], 0
        for name in WEIGHT_FORMS[:1] if self.is_fast() else WEIGHT_FORMS:
            try:
                cases = kit.compile_form(name), kit.compile_twin(name)
            except (NotTakenError, ByocError):  # test_form says why
                continue
            try:
                made = exchange_case_weights(codegen, kit.checks, *cases)
            except ByocError as error:
                problems.append(f"{name}, with the weights of another region: {error_reason(error)}")
                continue
            if made is not None:
                exchanged += 1
                problems += collect_problems(made.check, kit.checks)
                problems += kit.check_driver(made.as_case())
        self._fail(problems)
        if not exchanged:
            pytest.skip("it takes the weights of none of the forms: it compiles them")

    # Helpers.

    def _check_only_case(self, kit: ConformanceKit, case: PlannedCase) -> None:
        """Compile a case, run it where possible, and fail with all problems."""
        try:
            problems = self._check_case(kit, case)
        except NotTakenError as error:
            pytest.skip(str(error))
        self._fail(problems)

    def _check_case(self, kit: ConformanceKit, case: PlannedCase | NotTakenError) -> list[str]:
        """Compile a case and run it where possible; return the problems.

        Raises NotTakenError where it is not tested.
        """
        if isinstance(case, NotTakenError):
            raise case
        reason = self.skip_reason(case.name)
        if not case.is_static and not self.claims.dynamic_batch:
            reason = reason or "not claimed (Claims(dynamic_batch=True)): extents that are not known"
        if reason:
            raise NotTakenError(reason)
        try:
            cut = kit.cases.compile(case)
        except ByocError as error:
            why = error_reason(error)
            return [f"{case.display_name}: the rules take it and the codegen does not: {why}"]
        return kit.check_results(cut)

    def _report_no_case(self, kit: ConformanceKit, operator: str, reason: str) -> None:
        """Fail since an operator that the rule file names was not tested.

        Skip where the file takes any operator, or takes this one inside composites alone.
        """
        said = (
            f"no case: of {operator} the rules take no model that onnxruntime runs, the last: {reason}"
        )
        if kit.cases.takes_any or kit.cases.is_only_inside(operator):
            pytest.skip(said)
        self._fail([f"{said}; give one in `cases`, or say in `skips` why it has none"])


# The check that a codegen refuses what cannot be compiled.

_NO_REASON = "it does not say why"  # what byoc says for a codegen that does not
_UNSUPPORTED_MODEL = """<ir_version: 8, opset_import: ["" : 17, "org.byoc.testing" : 1]>
g (float[2, 3] x) => (float[2, 3] y) { y = org.byoc.testing.NoSuchOperator(x) }"""


def write_unsupported_region(folder: Path, target: str) -> Region:
    """Write a region of a target with an operator that there is not."""
    path = folder / "region.onnx"
    onnx.save(onnx.parser.parse_model(_UNSUPPORTED_MODEL), path)
    return read_region(path, f"{target}_0", target)


def check_refusal(codegen: Codegen, region: Region, options: Any) -> list[str]:
    """Check that an unsupported region is refused with a reason, by `compile` or else by `load`."""
    try:
        artifact = compile_region(codegen, region, options)
    except CodegenFailedError as error:
        what = "for an operator that there is not, compile does not raise CompileError with a reason"
        return [f"{what}: {error}"]
    except ByocError as error:
        what = 'it refuses a region without a reason: CompileError("why", nodes=[...])'
        return [what] * (str(error) == _NO_REASON)
    compiled = "it compiles an operator that there is not: raise CompileError with the reason"
    if not isinstance(codegen, Executable):
        return [compiled]
    try:
        load_executor(codegen, codegen.name, region, artifact)({"x": np.ones((2, 3), np.float32)})
    except ByocError as error:
        is_not_here = isinstance(error, NotHereError) or isinstance(error.__cause__, NotHereError)
        return [compiled] * is_not_here
    return [compiled.replace("compiles", "compiles and runs")]
