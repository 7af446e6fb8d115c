"""Two accelerators at once: who takes what, each region in its domain, the same numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from accelerators import Files, everywhere
from helpers import vendors
from helpers.cutting import original, ramp, same_as_original, without_what_ifs
from helpers.support import examples, parse, sample_cases
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from random_graphs_of_plans import random_model

from byoc.bundle import read_only_manifest
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.runtime import load
from byoc.verification import verify_against

MIXED = """
mixed (float[1, 4] x) => (float[1, 4] y, float[1, 4] z) {
  a = Relu(x)
  b = Neg(a)
  c = Tanh(b)
  d = Relu(c)
  y = Abs(d)
  z = Add(a, d)
}
"""
OVERLAP = "overlap (float[4] x) => (float[4] d) { a = Relu(x)\n b = Neg(a)\n c = Abs(b)\n d = Exp(c) }"


@pytest.fixture
def both(files: Files) -> list[str]:
    """Rules for `one`, which takes Relu and Add, and `two`, which takes Neg and Abs."""
    return [files.rules("one", "Relu", "Add"), files.rules("two", "Neg", "Abs")]


def domains(model: onnx.ModelProto) -> dict[str, set[str]]:
    """Return the regions' functions by domain."""
    found: dict[str, set[str]] = {}
    for function in model.functions:
        found.setdefault(function.domain, set()).add(function.name)
    return found


def test_each_takes_its_own_and_the_numbers_stay(both: list[str], tmp_path: Path) -> None:
    model = parse(MIXED)
    result = partition(model, both, strategy="all-supported", output=tmp_path / "b")
    assert everywhere(result) == {
        **dict.fromkeys("adz", "one"),
        **dict.fromkeys("by", "two"),
        "c": "host",
    }
    assert result.verification is not None
    assert result.verification.passed
    assert [output.relative for output in result.verification.outputs] == [0.0, 0.0]
    inputs = {"x": ramp(1, 4)}
    same_as_original(model, tmp_path / "b", inputs)
    plain = onnxruntime.InferenceSession(
        tmp_path / "b/model.onnx", providers=["CPUExecutionProvider"]
    ).run(None, inputs)
    for value, expected in zip(plain, original(model, inputs).values(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert verify_against(tmp_path / "b").passed


def test_regions_are_named_by_target(both: list[str], tmp_path: Path) -> None:
    result = partition(parse(MIXED), both, strategy="all-supported", output=tmp_path / "b")
    onnx.checker.check_model(result.model, full_check=True)
    names = {region.name: region.target.name for region in result.plan.regions}
    assert all(name.startswith(f"{target}_") for name, target in names.items())
    assert domains(result.model) == {
        f"byoc.{target}": {name for name in names if names[name] == target} for target in ("one", "two")
    }
    assert {*names.values()} == {"one", "two"}
    report = result.report
    assert report.targets == ("one", "two")
    assert {row.name: row.device for row in report.regions} == names
    manifest = read_only_manifest(tmp_path / "b")[0]
    assert manifest.targets == ("one", "two")
    assert {region.name: region.target for region in manifest.regions} == names
    (tanh,) = (node for node in result.model.graph.node if node.op_type == "Tanh")
    told = {entry.key: entry.value for entry in tanh.metadata_props}
    assert told["byoc.reason"] == (
        "one: Tanh is not among the operators of one; two: Tanh is not among the operators of two"
    )


def test_data_that_goes_from_one_to_the_other_is_sent_back_and_on(files: Files) -> None:
    """Between two accelerators it goes over the host: both links count."""
    link = "link: {{bandwidth: .inf, latency: {}}}\n"
    one = files.costs("one-costs", more=link.format("0.25"))
    two = files.costs("two-costs", more=link.format("4.0"))
    both = [files.rules("one", "Relu", costs=one), files.rules("two", "Neg", costs=two)]
    model = parse("g (float[4] x) => (float[4] y) { a = Relu(x)\n y = Neg(a) }")
    result = partition(model, both, strategy="all-supported")
    assert result.plan.cost.transfer == pytest.approx(0.25 + 0.25 + 4 + 4)
    assert set(everywhere(partition(model, both)).values()) == {"host"}


@pytest.mark.parametrize("strategy", ["launch-aware", "exact", "all-supported"])
def test_each_forms_its_own_of_composites_that_overlap(
    strategy: str, files: Files, tmp_path: Path
) -> None:
    """`one` has a Relu with the Neg behind it, `two` the Neg with the Abs: nodes are placed singly."""
    first = "composites:\n- {name: relu_neg, pattern: 'a = Relu(x)\n\n    y = Neg(a)'}\n"
    second = "composites:\n- {name: neg_abs, pattern: 'a = Neg(x)\n\n    y = Abs(a)'}\n"
    fast = files.costs("fast", peak="1.0e+14")
    rules = [
        files.rules("one", "Relu", "Neg", "Abs", more=first),
        files.rules("two", "Relu", "Neg", "Abs", more=second, costs=fast),
    ]
    model = parse(OVERLAP)
    result = partition(model, rules, strategy=strategy, output=tmp_path / "b")
    assert [unit.nodes for unit in result.plan.units] == [(0,), (1,), (2,), (3,)]
    (region,) = result.plan.regions
    composite = {"one": "relu_neg", "two": "neg_abs"}[region.target.name]
    assert [unit.composite for unit in region.units].count(composite) == 1
    assert (region.target.domain, composite) in {(f.domain, f.name) for f in result.model.functions}
    assert result.report.regions[0].composites == {composite: 1}
    same_as_original(model, tmp_path / "b", {"x": ramp(4)})


@pytest.mark.parametrize(
    "name", sample_cases(["shufflenet", "mobilenet_v3_large", "inception_v2"], "shufflenet")
)
def test_an_accelerator_more_is_never_a_loss(name: str) -> None:
    """`dla` has Conv, BatchNormalization and Relu as one; `nnpa` takes the last two of them."""

    def predict(*rules: str) -> float:
        return partition(f"zoo:{name}", rules, what_if=False).plan.cost.total

    one, other, both = predict("dla"), predict("nnpa"), predict("dla", "nnpa")
    assert both <= min(one, other) * (1 + 1e-9)


def test_the_order_of_the_files_is_no_preference(files: Files) -> None:
    fast, slow = files.costs("fast", peak="1.0e+13"), files.costs("slow", peak="1.0e+11")
    one, two = files.rules("one", "Relu", costs=slow), files.rules("two", "Relu", costs=fast)
    model = parse("g (float[1000] x) => (float[1000] y) { y = Relu(x) }")
    for rules in ([one, two], [two, one]):
        assert everywhere(partition(model, rules)) == {"y": "two"}


def test_each_target_has_its_codegen(
    both: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, tables=vendors.Tables, compileonly=vendors.CompileOnly)
    options: dict[str, Any] = {"strategy": "all-supported", "output": tmp_path / "b"}
    result = partition(parse(MIXED), both, codegen={"one": "tables"}, **options)
    manifest = read_only_manifest(tmp_path / "b")[0]
    assert {(region.target, region.codegen) for region in manifest.regions} == {
        ("one", "tables"),
        ("two", "reference"),
    }
    assert result.verification is not None
    assert list(load(tmp_path / "b")({"x": ramp(1, 4)})) == ["y", "z"]
    result = partition(parse(MIXED), both, codegen={"two": "compileonly"}, **options)
    assert result.report.not_verified == "codegen compileonly cannot run here what it compiles"
    with pytest.raises(InputError, match="codegen compileonly cannot run what it compiles here"):
        load(tmp_path / "b")


def test_each_target_has_its_costs(both: list[str], files: Files) -> None:
    slow = files.costs("slow", peak="1.0", launch="10")
    result = partition(parse(MIXED), both, cost_model={"two": slow})
    assert set(everywhere(result).values()) == {"one", "host"}
    assert set(everywhere(partition(parse(MIXED), both, cost_model=slow)).values()) == {"host"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"codegen": {"tow": "reference"}},
            "codegen for tow: no such target (did you mean two?)",
        ),
        (
            {"cost_model": {"ones": "dla"}},
            "cost model for ones: no such target (did you mean one?)",
        ),
        ({"strategy": "min-cut"}, "strategy min-cut places on one accelerator and the target has 2: "),
    ],
)
def test_what_does_not_fit_two(both: list[str], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        partition(parse(MIXED), both, **options)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_two_files_of_one_target(files: Files, tmp_path: Path) -> None:
    one = files.rules("one", "Relu")
    (tmp_path / "more").mkdir()
    other = Files(tmp_path / "more").rules("one", "Neg")
    with pytest.raises(InputError) as caught:
        partition(parse(MIXED), [one, other])
    assert str(caught.value) == f"{other}: its target is called one, as that of {one} is"
    with pytest.raises(InputError, match="no rule file was given"):
        partition(parse(MIXED), [])


def test_a_model_that_was_cut_for_either(both: list[str], tmp_path: Path) -> None:
    partition(parse(MIXED), both[1], strategy="all-supported", output=tmp_path / "b")
    with pytest.raises(InputError, match=r"is partitioned already: 'two_\w+' is a region of two"):
        partition(tmp_path / "b/model.onnx", both, strategy="all-supported")


def test_bodies_are_cut_for_both(both: list[str], tmp_path: Path) -> None:
    model = parse("""
        g (float[4] x, bool c) => (float[4] y) {
          a = Relu (x)
          y = If <then_branch = t () => (float[4] u) { s = Neg (a) u = Relu (s) },
                  else_branch = e () => (float[4] v) { v = Abs (x) }> (c)
        }""")
    result = partition(model, both, strategy="all-supported", output=tmp_path / "b")
    assert everywhere(result) == {"a": "one", "s": "two", "u": "one", "v": "two", "y": "host"}
    for chosen in (True, False):
        same_as_original(model, tmp_path / "b", {"x": ramp(4), "c": np.array(chosen)})


@hypothesis_settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 25))
def test_random_models_compute_the_same(
    seed: int, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two targets that share operators and have composites of their own, whatever is taken."""
    folder = tmp_path_factory.mktemp("two")
    made = Files(folder)
    pair = "composites:\n- {{name: pair, pattern: '{}'}}\n"
    rules = [
        made.rules("one", "Relu", "Add", more=pair.format("a = Add(x, z)\n\n    y = Relu(a)")),
        made.rules("two", "Relu", "Mul", "Neg", more=pair.format("a = Relu(x)\n\n    y = Neg(a)")),
    ]
    model = random_model(seed, size)
    with without_what_ifs():
        result = partition(model, rules, strategy="all-supported", output=folder / "b")
    onnx.checker.check_model(result.model, full_check=True)
    assert result.verification is not None
    assert {output.relative for output in result.verification.outputs} == {0.0}
    rng = np.random.default_rng(seed)
    inputs = {name: rng.standard_normal(4, np.float32) for name in ("x0", "x1")}
    whole = original(result.model, inputs)
    for name, value in original(model, inputs).items():
        np.testing.assert_array_equal(whole[name], value)
