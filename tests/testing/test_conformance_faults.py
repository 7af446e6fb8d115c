"""Each fault that a codegen can have makes the test fail that is there for it, and no other."""

import inspect
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from threading import Barrier
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import onnx
import planted
import pytest
from helpers.support import sample_cases
from helpers.wrecking import Wreck

from byoc.codegen import Artifact, Executor, Region
from byoc.codegen.drivers import DriverError, DriverLibrary
from byoc.testing import Claims, CodegenConformance
from byoc.verification import make_reference_executor

RULES = """
target: planted
cost_model: dla
dtype: float32
ops: [{op: [Relu, Add]}, {op: MaxPool, tensors: {X: {rank: 4}}}]
composites: [{name: add_relu, pattern: "a = Add(x, z)\\ny = Relu(a)\\n"}]
"""
SETTINGS: list[dict[str, object]] = [{}, {"isolate": False}, {"fast": True}]
ONLY_OPERATORS = {
    name: "this is about operators"
    for name in vars(CodegenConformance)
    if name.startswith("test_") and name != "test_operator"
}
COMPUTING = {"test_operator", "test_composite", "test_form"}
OUTPUTS = {"several outputs", "an output read inside", "a shared constant"}
STARTS_A_PROCESS = ("honest", "non_deterministic", "by_hash_order", "forgets_reload", "other_keys")

# A codegen of planted.py, the tests that fail for it, and what one of them says.
FAULTS = [
    ("honest", set(), ""),
    ("shared_state", {"test_threads"}, "calls by two threads gave other numbers: keep no state"),
    ("writes_inputs", COMPUTING, "it wrote into its input 'x', which others read, too"),
    ("writes_later", {"test_inputs_untouched"}, "it writes to its input 'x'"),
    ("elsewhere", {"test_refusal"}, "it compiles an operator that there is not"),
    ("non_deterministic", {"test_deterministic"}, "compiled again, its artifact has other bytes"),
    ("by_hash_order", {"test_deterministic"}, "compiled in another process, its artifact has other"),
    ("undeclared", {"test_artifact"}, "'region.so' is a shared library: if `load` executes it"),
    ("declared", set(), ""),
    ("garbage", {*COMPUTING, "test_artifact", "test_refusal"}, "the metadata 'made' is not text"),
    ("wrong_dtype", COMPUTING, "gave output 'y' as float64"),
    ("wrong_numbers", COMPUTING, "differs from plain onnxruntime's by"),
    ("forgets_reload", {"test_fresh_process"}, "in a fresh process: loading failed with KeyError"),
    ("one_buffer", {"test_outputs_last", "test_threads"}, "the next run overwrites output 'y'"),
    ("keeps_state", set(), ""),
    ("mixes_states", {"test_state_kept"}, "read after step 1 from the device: output 'x' differs"),
    ("contiguous", {"test_strided_inputs"}, "inputs not contiguous: output 'y' differs"),
    ("litters", {"test_files_untouched"}, "it changed 'scratch.tmp', which is byoc's"),
    ("shows_inside", set(), ""),
    ("shows_others", {"test_trace"}, "in its trace output"),
    ("shows_no_output", {"test_trace"}, "which leaves the region"),
    ("times_others", {"test_profile"}, "`profile` names 'elsewhere', which is no node"),
    ("times_nothing", {"test_profile"}, "gives no operation that takes time"),
    ("any_stamp", {"test_stamp"}, "`compatible` takes any artifact"),
    ("other_keys", {"test_cache_key"}, "`cache_key` has another 'process' in another process"),
    ("one_device", {"test_two_regions"}, "with another region loaded"),
    (
        "crashes",
        {"test_refusal"},
        "compile does not raise CompileError with a reason: failed with KeyError: 'org.byoc.testing'",
    ),
    ("takes_weights", set(), ""),
    ("keeps_weights", {"test_take_weights"}, "with the weights of another region: output 'other1_y'"),
    ("loses_metadata", {"test_take_weights"}, "only one gives the metadata 'made'"),
    ("wants_to_compile", set(), ""),
    ("compiles_only", set(), ""),
    ("doubling", COMPUTING, "by the driver output 'y' differs from plain onnxruntime's by"),
    ("no_driver", {"test_driver"}, "no_driver.c"),
]


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Register the codegens as an installed package does, for other processes too; give a rule file."""
    metadata = tmp_path / "planted-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    lines = [f"{kind.name} = planted:{kind.__name__}" for kind in planted.ALL]
    (metadata / "entry_points.txt").write_text("\n".join(["[byoc.codegens]", *lines, ""]))
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "planted.yaml"
    path.write_text(RULES)
    return path


def conformance(name: str, rules: Path, **settings: object) -> type[CodegenConformance]:
    content = {
        "codegen": name,
        "rules": str(rules),
        "zoo": (),
        "most_cases": 1,
        "claims": Claims(dynamic_batch=True, deterministic=name in STARTS_A_PROCESS),
        "skips": {} if name in STARTS_A_PROCESS else {"test_fresh_process": "it takes a second"},
        **settings,
    }
    return type(f"Test_{name}", (CodegenConformance,), content)


def failures(cls: type[CodegenConformance], folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield what fails when all tests of a class are called: the test, its parameter, what it says."""
    kit = cls.make_kit(lambda: folder)
    given = {"kit": kit, "tmp_path": folder}
    for name, test in inspect.getmembers(cls(), callable):
        if not name.startswith("test_") or cls.skip_reason(name):
            continue
        wanted = list(inspect.signature(test).parameters)
        kind = next((each for each in wanted if each not in given), "")
        for value in cls.parameter_names(kind) if kind else [""]:
            try:
                test(**{each: given.get(each, value) for each in wanted})
            except pytest.skip.Exception:
                continue
            except pytest.fail.Exception as failure:
                yield name, value, str(failure)


@pytest.mark.parametrize(
    ("settings", "fault"),
    sample_cases([(settings, fault) for fault in FAULTS for settings in SETTINGS], every=11),
    ids=lambda given: given[0] if isinstance(given, tuple) else "-".join(given),
)
def test_a_fault_is_found_where_it_is(
    settings: dict[str, object], fault: tuple[str, set[str], str], rules: Path, tmp_path: Path
) -> None:
    name, expected, sentence = fault

    found = list(failures(conformance(name, rules, **settings), tmp_path))

    assert {test for test, _, _ in found} == expected
    assert all(f"codegen {name}: " in told for _, _, told in found)
    assert not sentence or any(sentence in told for _, _, told in found), found


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("wrong_order", OUTPUTS),
        ("no_scalars", {"scalars"}),
        ("fixed_batch", {"a dynamic batch"}),
    ],
)
def test_a_form_that_is_not_compiled_right_is_found(
    name: str, forms: set[str], rules: Path, tmp_path: Path
) -> None:
    found = list(failures(conformance(name, rules), tmp_path))

    assert {value if test == "test_form" else test for test, value, _ in found} == forms


class _LastInputs:
    """Regions of a driver that keeps the inputs of a call where all regions have them."""

    def __init__(self) -> None:
        self.last: Mapping[str, Any] = {}
        self.both = Barrier(2)

    def open_region(self, region: Region, artifact: Artifact) -> Executor:
        compute = make_reference_executor(region)

        def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            self.last = inputs
            self.both.wait()
            return compute(self.last)

        return run


def test_a_driver_that_takes_the_inputs_of_another_open_region_is_found(
    rules: Path, tmp_path: Path
) -> None:
    kit = conformance("dla", rules).make_kit(lambda: tmp_path)
    checks, case = kit.require_driver(), kit.compile_form("chain")
    assert not [*checks.check_threads(case, case)]
    checks.library = cast(DriverLibrary, _LastInputs())
    found = list(checks.check_threads(case, case))
    assert found
    assert all("by the driver on two threads output 'y' differs" in each for each in found)


def test_a_driver_for_another_device_is_not_said_to_be_right(rules: Path, tmp_path: Path) -> None:
    cls = conformance("dla", rules)
    kit = cls.make_kit(lambda: tmp_path)
    library = Mock()
    library.open_region.side_effect = DriverError("the artifact is for a DLA-2", "incompatible")
    kit.require_driver().library = library
    with pytest.raises(pytest.skip.Exception, match="opens no region here: the artifact is for a DLA-2"):
        cls().test_driver(kit)


@pytest.mark.parametrize("operator", ["Add", "Conv", "MatMul"])
def test_a_large_constant_is_large_whatever_a_target_takes(
    operator: str, rules: Path, tmp_path: Path
) -> None:
    rules.write_text(f"target: planted\ncost_model: dla\ndtype: float32\nops: [{{op: {operator}}}]\n")
    ((region, _),) = (
        conformance("honest", rules).make_kit(lambda: tmp_path).compile_form("a large constant").regions
    )
    assert max(region.constant(each.name).nbytes for each in region.constants) >= 2048


def test_a_large_constant_is_not_drawn_of_nodes_that_take_small_ones_alone(
    rules: Path, tmp_path: Path
) -> None:
    one = "op: Conv, attributes: {group: {min: 4}}"
    rules.write_text(f"target: planted\ncost_model: dla\ndtype: float32\nops: [{{{one}}}]\n")
    with pytest.raises(Exception, match="take no operator that it could be drawn with"):
        conformance("honest", rules).make_kit(lambda: tmp_path).compile_form("a large constant")


@pytest.mark.parametrize("isolate", [True, False])
def test_each_form_has_the_same_bytes_in_another_process(
    rules: Path, tmp_path: Path, isolate: bool
) -> None:
    """Also those that are not compiled again here where their bytes are the same there."""
    skips = dict.fromkeys(("test_operator", "test_composite"), "this is about forms")
    claims = Claims(dynamic_batch=True)
    cls = conformance("counts_constants", rules, skips=skips, claims=claims, isolate=isolate)

    ((test, _, said),) = failures(cls, tmp_path)
    assert test == "test_deterministic"
    for form in ("a shared constant", "a large constant", "a computed constant"):
        assert f"{form}: compiled again, its artifact has other bytes" in said
    assert "chain: compiled" not in said


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "name",
    ["by_time", "by_process", "by_folder", "counts_compiles", "by_order", "first_of_process"],
)
def test_bytes_that_vary_are_found(name: str, fast: bool, rules: Path, tmp_path: Path) -> None:
    """An operator comes first, as in a run of pytest, so that what a process remembers is not empty."""
    skips = dict.fromkeys({*vars(CodegenConformance)} - {"test_deterministic"}, "it is not asked")
    cls = conformance(name, rules, skips=skips, claims=Claims(), fast=fast)
    cls().test_operator(cls.make_kit(lambda: tmp_path), "Relu")

    ((test, _, said),) = failures(cls, tmp_path)
    assert test == "test_deterministic"
    assert "its artifact has other bytes" in said


def test_what_is_not_claimed_is_not_tested(rules: Path, tmp_path: Path) -> None:
    cls = conformance("fixed_batch", rules)
    cls.claims = Claims(deterministic=False)

    assert not list(failures(cls, tmp_path))


def test_what_is_skipped_is_not_tested(rules: Path, tmp_path: Path) -> None:
    cls = conformance("wrong_numbers", rules)
    cls.skips = {"test_*": "it is known to be off"}
    assert not list(failures(cls, tmp_path))

    cls.skips = {"Relu": "it is known to be off", "Add*": "as well", "test_[fac]*": ""}
    found = [value for test, value, _ in failures(cls, tmp_path) if test == "test_operator"]
    assert found == ["MaxPool"]


def test_what_is_skipped_is_not_looked_into_either(rules: Path, tmp_path: Path) -> None:
    cls = conformance("shows_others", rules)
    kit = cls.make_kit(lambda: tmp_path)
    every = [case.name for case in kit.compile_some()]
    relus = [name for name in every if name.startswith("Relu")]
    pools = [name for name in every if name.startswith("MaxPool")]
    assert relus
    assert pools

    cls.skips = {"Relu": "it is known to be off", pools[0]: "as well"}
    left = [case.name for case in kit.compile_some()]
    assert not {*relus, pools[0]} & {*left}
    assert {*every} - {*relus, *pools} <= {*left}


def test_a_looser_tolerance_is_taken(rules: Path, tmp_path: Path) -> None:
    cls = conformance("wrong_numbers", rules)
    cls.tolerance = {"float32": 0.5}

    assert {value for _, value, _ in failures(cls, tmp_path)} <= {"scalars"}


def test_a_rule_file_that_is_wrong_is_what_every_test_says(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("target: wrong\n")
    cls = conformance("reference", wrong)

    assert cls.parameter_names("operator") == []
    for _ in range(2):
        with pytest.raises(pytest.fail.Exception, match=r"wrong\.yaml: cost_model: must be given"):
            cls.make_kit(lambda: tmp_path)


def test_a_codegen_that_is_not_there_is_said(rules: Path, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"no such codegen \(did you mean honest\?\)"):
        conformance("honset", rules).make_kit(lambda: tmp_path)


def test_without_pytest_it_says_what_to_install() -> None:
    script = (
        "import sys\nsys.modules['pytest'] = None\n"
        "try:\n import byoc.testing\nexcept ModuleNotFoundError as error:\n print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == ("byoc.testing needs pytest, which is not installed (pip install pytest)\n")


def test_in_a_process_of_its_own_a_crash_is_one_failed_test(rules: Path, wreck: Wreck) -> None:
    rules.write_text("target: wreck\ncost_model: dla\ndtype: float32\nops: [{op: [Relu, Add]}]\n")
    content = {"codegen": "wrecker-together", "rules": str(rules), "isolate": True, "zoo": ()}
    cls = type("TestWrecker", (CodegenConformance,), content)
    kit = cls.make_kit(lambda: rules.parent)
    tests = cls()
    for method, check in {
        "compile": lambda: tests.test_operator(kit, "Relu"),
        "load": lambda: tests.test_form(kit, "chain"),
        "run": lambda: tests.test_form(kit, "chain"),
        "compatible": lambda: tests.test_stamp(kit),
        "check": lambda: tests.test_oracle(kit),
        "cost": lambda: tests.test_measured(kit),
        "compile_all": lambda: tests.test_together(kit),
    }.items():
        wreck(f"{method} segv")
        with pytest.raises(pytest.fail.Exception) as caught:
            check()
        wreck("")
        lines = str(caught.value).splitlines()
        assert lines
        assert all(f"its process was killed by SIGSEGV in {method}" in line for line in lines)


def test_a_codegen_that_dies_or_hangs_fails_that_case_alone(rules: Path, tmp_path: Path) -> None:
    for name, sentence, limit in (
        ("dies", "killed by SIGABRT in compile", 600.0),
        ("hangs", "longer than 10 s", 10.0),
    ):
        cls = conformance(name, rules, fast=True, timeout=limit)
        cls.skips = ONLY_OPERATORS
        found = list(failures(cls, tmp_path / name))

        assert [value for _, value, _ in found] == ["MaxPool"]
        assert sentence in found[0][2]


def test_an_operator_without_a_case_is_said(rules: Path, tmp_path: Path) -> None:
    text = rules.read_text().replace("Relu, Add]", "Relu, Add, com.acme.Blur, Unique]")
    rules.write_text(text.replace("ops: [", "ops: [{op: QuantizeLinear, dtype: any}, "))
    cls = conformance("honest", rules, isolate=False, fast=True)
    cls.skips = {**ONLY_OPERATORS, "Unique": "it is tested on the board"}

    found = {value: told for _, value, told in failures(cls, tmp_path)}

    assert list(found) == ["com.acme.Blur"]
    assert "no case: of com.acme.Blur the rules take no model" in found["com.acme.Blur"]
    assert "give one in `cases`, or say in `skips` why it has none" in found["com.acme.Blur"]


def test_a_vendors_own_cases_are_tested(rules: Path, tmp_path: Path) -> None:
    cls = conformance("wrong_numbers", rules, isolate=False, fast=True)
    cls.operators, cls.cases = ("Relu",), {"Relu": ["x:7x5 | Relu(x)"]}
    cls.skips = ONLY_OPERATORS
    ((_, _, told),) = failures(cls, tmp_path)
    assert "Relu(x) in float32 on x:7x5: output 'y' differs" in told

    cls.cases = {"Relu": ["x:7x5 | Rellu(x)"]}
    with pytest.raises(
        pytest.fail.Exception, match=r"cases: 'x:7x5 \| Rellu\(x\)' is no model in float32"
    ):
        cls().test_operator(cls.make_kit(lambda: tmp_path), "Relu")


def test_the_environment_chooses_the_set(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = conformance("honest", rules, zoo=("squeezenet",))
    for asked, models in (("", ["squeezenet"]), ("fast", []), ("full", ["squeezenet"])):
        monkeypatch.setenv("BYOC_CONFORMANCE", asked)
        assert cls.parameter_names("model") == models
    monkeypatch.setenv("BYOC_CONFORMANCE", "quick")
    with pytest.raises(pytest.fail.Exception, match="BYOC_CONFORMANCE is 'quick', not fast or full"):
        cls.parameter_names("model")


def test_no_reduction_of_the_kit_vanishes_in_float16(rules: Path, tmp_path: Path) -> None:
    """What is 0 in float16 and not in float32 is no question in the one, and wrong in the other."""
    operators = sorted({each.name for each in onnx.defs.get_all_schemas() if "Reduce" in each.name})
    rules.write_text(f"target: planted\ncost_model: dla\ndtype: float32\nops: [{{op: {operators}}}]\n")
    cases = conformance("honest", rules).make_kit(lambda: tmp_path).cases
    compared = 0
    for operator in operators:
        for case in islice(cases.plan_operator(operator, cases.precisions[0]), 5):
            if isinstance(case, Exception):
                continue
            for runs in cases.write_uncompiled(case).expected_runs.values():
                for made in runs.values[0][1].values():
                    compared += 1
                    assert not np.any(made) or np.any(made.astype(np.float16)), case.name
    assert compared > 2 * len(operators)


@pytest.mark.parametrize(
    "text",
    [
        "x:4x4 | Conv(x, w=4x4x1x1)",
        "x:1x4x4 | Conv(x, w=4x4x1x1)",
        "x:1x4x4 | MaxPool<kernel_shape=[3,3]>(x)",
        "x:1x4x4x4 | AveragePool<kernel_shape=[3,3], pads=[1,1]>(x)",
        "x: | GlobalAveragePool(x)",
    ],
)
def test_onnx_is_not_asked_about_windows_of_another_rank(
    text: str, rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = text.partition(" | ")[2].partition("(")[0].partition("<")[0]
    rules.write_text(f"target: planted\ncost_model: dla\ndtype: float32\nops: [{{op: {operator}}}]\n")
    cls = conformance("honest", rules, isolate=False, fast=True)
    cls.cases = {operator: [text]}
    kit = cls.make_kit(lambda: tmp_path)
    infer = onnx.shape_inference.infer_shapes

    def abort(model: onnx.ModelProto, **settings: bool) -> onnx.ModelProto:
        assert not model.graph.node, "onnx 1.21 ends the process here"
        return infer(model, **settings)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", abort)
    with pytest.raises(pytest.fail.Exception, match="is no model in float32"):
        cls().test_operator(kit, operator)
