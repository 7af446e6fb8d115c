"""What computes wrong is recovered: other options, without the operation at fault, on the host."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import number_regions, ramp, same_as_original
from helpers.failing import on_devices, rules
from helpers.skewed import skewed  # noqa: F401 - a fixture
from helpers.support import Ran, parse

import byoc
from byoc.errors import InputError
from byoc.pipeline import Result

pytestmark = pytest.mark.usefixtures("numbered_regions", "skewed")

THREE = """
g (float[1, 4] x) => (float[1, 4] y) {
  e = Exp(x)
  r = Relu(e)
  y = Neg(r)
}
"""
OPS = ("Exp", "Relu", "Neg", "Add", "Mul", "Sqrt")


def recover(model: onnx.ModelProto, folder: Path, codegen: str = "skewed", **options: Any) -> Result:
    """Partition a model for a target that takes OPS; assert that the bundle is verified and right."""
    more = {name: options.pop(name) for name in ("gate", "isolate", "variants") if name in options}
    with number_regions():
        result = byoc.partition(
            model,
            rules(folder, "npu", *OPS),
            output=folder / "b",
            strategy="all-supported",
            codegen=codegen,
            codegen_options={name: str(value) for name, value in options.items()},
            **more,
        )
    for each in result.variants:
        assert each.verification is not None
        assert each.verification.passed
    return result


def read_options(folder: Path) -> dict[str, dict[str, str]]:
    """Return the codegen's options of each region of the bundle that `recover` wrote."""
    manifest = json.loads((folder / "b/manifest.json").read_text())
    return {
        region["name"]: region["codegen_options"]
        for variant in manifest["variants"]
        for region in variant["regions"]
    }


def test_an_operation_that_is_always_wrong_runs_on_the_host(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, wrong="Relu")
    assert on_devices(result) == {"e": "npu", "r": "host", "y": "npu"}
    tried, given_up = result.report.refusals
    assert (tried.options, tried.nodes, tried.failed) == ({"integers": "false"}, (), True)
    assert (given_up.options, given_up.nodes, given_up.failed) == ({}, ("r",), True)
    assert given_up.reason.startswith("Relu 'r' computed wrong (off by 0.")
    assert given_up.reason.endswith(" of its range)")
    assert given_up.tried == "also off with integers=false"
    assert not any(region.tried for region in result.report.regions)
    said = [note.text for note in result.report.notes if note.severity == "warning"]
    assert said[0].endswith("it is compiled with integers=false, which does not hold")
    assert "(also off with integers=false); npu is planned again without r" in said[1]
    # What stays has the target's own options again.
    assert all("integers" not in options for options in read_options(tmp_path).values())
    same_as_original(parse(THREE), tmp_path / "b", {"x": ramp(1, 4)})


def test_what_is_wrong_with_some_options_alone_stays_with_others(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, wrong="Relu", safe=True)
    assert on_devices(result) == {"e": "npu", "r": "npu", "y": "npu"}
    (refusal,) = result.report.refusals
    assert refusal.options == {"integers": "false"}
    assert refusal.to_json()["options"] == {"integers": "false"}
    (options,) = read_options(tmp_path).values()
    assert options["integers"] == "false"
    (warning,) = [note.text for note in result.report.notes if note.severity == "warning"]
    assert warning.startswith("codegen skewed: npu_0: computed wrong: its output ")
    assert warning.endswith("; it is compiled with integers=false, which holds")
    (region,) = result.report.regions
    assert region.tried == ({"integers": "false"},)
    assert region.model_dump(mode="json")["tried"] == [{"integers": "false"}]
    assert byoc.verify(tmp_path / "b").passed


def test_options_are_tried_in_order_and_the_report_says_which_held(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, "graded", wrong="Relu", safe=True)
    (region,) = result.report.regions
    assert region.tried == ({"by": "1.5"}, {"integers": "false"})
    said = [note.text for note in result.report.notes if note.severity == "warning"]
    assert [text.rpartition("; ")[2] for text in said] == [
        "it is compiled with by=1.5, which does not hold",
        "it is compiled with integers=false, which holds",
    ]


def test_only_the_regions_that_are_wrong_get_other_options(tmp_path: Path) -> None:
    model = parse("""
    g (float[1, 4] x) => (float[1, 4] y) {
      r = Relu(x)
      s = Sigmoid(r)
      y = Exp(s)
    }
    """)
    result = recover(model, tmp_path, wrong="Relu", safe=True)
    assert on_devices(result) == {"r": "npu", "s": "host", "y": "npu"}
    first, second = read_options(tmp_path).values()
    assert ("integers" in first, "integers" in second) == (True, False)


def test_options_that_the_user_gave_stay(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, wrong="Relu", safe=True, integers=True)
    assert on_devices(result) == {"e": "npu", "r": "host", "y": "npu"}


def test_a_combination_that_is_wrong_is_divided(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, "stubborn", wrong="Relu,Neg", together=True)
    placed = on_devices(result)
    assert sorted(placed.values()) == ["host", "npu", "npu"]
    (refusal,) = result.report.refusals
    assert "computed wrong together with" in refusal.reason


def test_all_operations_of_an_operator_go_in_one_round(tmp_path: Path) -> None:
    lines = "\n".join(f"t{i} = Relu(t{i - 1}) e{i} = Exp(t{i})" for i in range(1, 5))
    model = parse(f"g (float[1, 4] t0) => (float[1, 4] e4) {{ {lines} }}".replace("(t0) e1", "(t0) e1"))
    result = recover(model, tmp_path, "stubborn", wrong="Relu")
    (refusal,) = [each for each in result.report.refusals if each.nodes]
    assert set(refusal.nodes) == {"t1", "t2", "t3", "t4"}
    assert "Relu 't1' and 3 more computed wrong" in refusal.reason


@pytest.mark.parametrize("codegen", ["skewed", "stubborn"])
def test_a_codegen_that_is_wrong_everywhere_gets_nothing(codegen: str, tmp_path: Path) -> None:
    model = parse("""
    g (float[1, 4] x) => (float[1, 4] y) {
      a = Exp(x) b = Relu(a) c = Sigmoid(b) d = Add(c, c) e = Mul(d, d) f = Sqrt(e) y = Neg(f)
    }
    """)
    result = recover(model, tmp_path, codegen, wrong="*")
    assert set(on_devices(result).values()) == {"host"}
    assert result.report.failures


def test_a_region_of_which_no_part_compiles_goes_as_a_whole(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Exp(x) y = Relu(a) }")
    result = recover(model, tmp_path, "stubborn", wrong="Exp,Relu", together=True, alone=True)
    assert "host" in on_devices(result).values()


def test_what_is_wrong_in_a_body(tmp_path: Path) -> None:
    model = parse("""
    g (float[1, 4] x, bool c) => (float[1, 4] y) {
      y = If (c) <
        then_branch = a () => (float[1, 4] p) { e = Exp(x) p = Relu(e) },
        else_branch = b () => (float[1, 4] q) { f = Relu(x) q = Exp(f) }
      >
    }
    """)
    result = recover(model, tmp_path, "stubborn", wrong="Relu")
    placed = on_devices(result)
    assert (placed["p"], placed["f"]) == ("host", "host")
    assert (placed["e"], placed["q"]) == ("npu", "npu")


def test_identical_regions_share_their_fate(tmp_path: Path) -> None:
    model = parse("""
    g (float[1, 4] x) => (float[1, 4] y) {
      a = Relu(x) b = Exp(a) s = Sigmoid(b) c = Relu(s) y = Exp(c)
    }
    """)
    result = recover(model, tmp_path, "stubborn", wrong="Relu")
    assert on_devices(result) == {"a": "host", "b": "npu", "s": "host", "c": "host", "y": "npu"}


def test_each_variant_is_recovered(tmp_path: Path) -> None:
    model = parse("g (float[1, n] x) => (float[1, n] y) { a = Exp(x) r = Relu(a) y = Neg(r) }")
    result = recover(
        model, tmp_path, "stubborn", wrong="Relu", variants={"small": {"n": 4}, "large": {"n": 8}}
    )
    for each in result.variants:
        assert each.report.failures
    assert byoc.verify(tmp_path / "b").passed


def test_a_gate_recovers_as_verification_does(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, "stubborn", wrong="Relu", gate=True)
    assert on_devices(result) == {"e": "npu", "r": "host", "y": "npu"}
    assert result.report.failures


def test_what_only_a_user_does_not_allow_is_no_fault_of_the_codegen(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, "stubborn", wrong="Relu", by=1.00001, gate=1e-7)
    assert on_devices(result) == {"e": "npu", "r": "host", "y": "npu"}
    assert not result.report.failures


def test_a_codegen_in_a_process_of_its_own(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, wrong="Relu", safe=True, isolate=True)
    assert on_devices(result) == {"e": "npu", "r": "npu", "y": "npu"}


def test_a_composite_goes_as_a_whole(tmp_path: Path) -> None:
    pattern = r'{name: exp_neg, pattern: "e = Exp(x)\n y = Neg(e)"}'
    inside = [f"{{op: {op}, standalone: false}}" for op in ("Exp", "Neg")]
    path = rules(tmp_path, "npu", "Relu", *inside, more=f"composites:\n- {pattern}\n")
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { r = Relu(x) e = Exp(r) y = Neg(e) }")
    with number_regions():
        result = byoc.partition(
            model,
            path,
            output=tmp_path / "b",
            strategy="all-supported",
            codegen="stubborn",
            codegen_options={"wrong": "Exp"},
        )
    assert on_devices(result) == {"r": "npu", "e": "host", "y": "host"}


def test_what_loses_nan_alone_is_found(tmp_path: Path) -> None:
    result = recover(parse(THREE), tmp_path, "stubborn", wrong="Relu", loses="nan")
    assert on_devices(result) == {"e": "npu", "r": "host", "y": "npu"}
    (refusal,) = result.report.refusals
    assert refusal.reason == "Relu 'r' computed wrong (loses NaN: it is 0 where NaN is passed on)"
    same_as_original(parse(THREE), tmp_path / "b", {"x": np.array([[np.nan, 1, -1, np.inf]], "f4")})


def test_what_loses_large_integers_alone_is_found(tmp_path: Path) -> None:
    model = parse("g (int64[3] a, int64[3] b) => (int64[3] y) { s = Add(a, b) y = Neg(s) }")
    result = recover(model, tmp_path, "stubborn", wrong="Add", loses="integers")
    assert on_devices(result) == {"s": "host", "y": "npu"}
    given = {"a": np.array([2**24, 2**53, -(2**62)]), "b": np.array([1, 1, 3])}
    same_as_original(model, tmp_path / "b", given)


def test_what_is_lost_in_a_body_is_found(tmp_path: Path) -> None:
    model = parse("""
    g (float[1, 4] x, bool c) => (float[1, 4] y) {
      y = If (c) <
        then_branch = a () => (float[1, 4] p) { e = Exp(x) p = Relu(e) },
        else_branch = b () => (float[1, 4] q) { f = Relu(x) q = Exp(f) }
      >
    }
    """)
    result = recover(model, tmp_path, "stubborn", wrong="Relu", loses="nan")
    placed = on_devices(result)
    assert (placed["p"], placed["f"]) == ("host", "host")


def test_what_the_rule_file_allows_is_a_note(tmp_path: Path) -> None:
    more = "arithmetic:\n- {op: Relu, nan: any}\n"
    path = rules(tmp_path, "npu", *OPS, more=more)
    with number_regions():
        result = byoc.partition(
            parse(THREE),
            path,
            output=tmp_path / "b",
            strategy="all-supported",
            codegen="stubborn",
            codegen_options={"wrong": "Relu", "loses": "nan"},
        )
    assert on_devices(result) == {"e": "npu", "r": "npu", "y": "npu"}
    assert result.verification is not None
    assert result.verification.notes == (
        "npu_0, on NaN: 'y' loses NaN: it is -0 where NaN is passed on (nan: any)",
    )
    assert byoc.verify(tmp_path / "b").notes == result.verification.notes


def test_a_bundle_that_is_wrong_on_special_values_alone_is_found_and_bisected(tmp_path: Path) -> None:
    with number_regions():
        byoc.partition(
            parse(THREE),
            rules(tmp_path, "npu", *OPS),
            output=tmp_path / "b",
            strategy="all-supported",
            codegen="stubborn",
            codegen_options={"wrong": "Relu", "loses": "nan"},
            verify=False,
        )
    found = byoc.verify(tmp_path / "b")
    assert not found.passed
    (region,) = found.regions
    assert region.special == "nan"
    fault = byoc.bisect(tmp_path / "b", region.name)
    assert fault.operation == "r"


def test_strict_makes_it_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^verification failed: output 'y' differs") as caught:
        byoc.partition(
            parse(THREE),
            rules(tmp_path, "npu", *OPS),
            output=tmp_path / "b",
            strategy="all-supported",
            codegen="skewed",
            codegen_options={"wrong": "Relu"},
            strict=True,
        )
    assert "nothing was written" in str(caught.value)
    assert not (tmp_path / "b").exists()


def test_several_targets(tmp_path: Path) -> None:
    paths = [rules(tmp_path, "one", "Exp", "Relu"), rules(tmp_path, "two", "Neg", "Relu")]
    with number_regions():
        result = byoc.partition(
            parse(THREE),
            paths,
            output=tmp_path / "b",
            strategy="all-supported",
            codegen={"one": "stubborn", "two": "reference"},
            codegen_options={"one:wrong": "Relu"},
        )
    assert on_devices(result) == {"e": "one", "r": "two", "y": "two"}


class Adding(vendors.Tables):
    """Is off by less than is allowed in each result."""

    name = "adding"

    def load(self, region: Any, artifact: Any) -> Any:
        run = super().load(region, artifact)
        return lambda inputs: {name: value * np.float32(1 + 6e-5) for name, value in run(inputs).items()}


def test_errors_that_add_up_cost_as_few_regions_as_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, adding=Adding)
    steps = "\n".join(f"r{i} = Relu(s{i - 1}) s{i} = Abs(r{i})" for i in range(1, 5))
    model = parse(f"g (float[1, 64] s0) => (float[1, 64] s4) {{ {steps} }}")
    result = recover(model, tmp_path, "adding")
    placed = on_devices(result)
    relus = [placed[f"r{i}"] for i in range(1, 5)]
    assert 0 < relus.count("host") < 4
    (*_, refusal) = result.report.refusals
    assert refusal.reason.startswith("it is right alone, and with it the network's output 's4' is ")


def test_on_the_command_line(
    tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(THREE), "net.onnx")
    command = ["partition", "net.onnx", "--rules", rules(tmp_path, "npu", *OPS), "-o", "b"]
    command += ["--strategy", "all-supported", "--codegen", "stubborn"]
    command += ["--codegen-option", "wrong=Relu"]
    ran = byoc(*command)
    assert (ran.code, ran.err) == (5, "")
    first, _ = ran.out.split("\n", 1)
    assert first.startswith("Codegen stubborn failed: npu_0: Relu 'r' computed wrong (off by 0.")
    assert first.endswith(" of its range), it runs on the host")
    assert byoc("verify", "b").code == 0
    ran = byoc(*command, "--strict", "-o", "c")
    assert ran.code == 1
    assert ran.err.startswith("byoc: verification failed: output 'y' differs")
    assert not Path("c").exists()
