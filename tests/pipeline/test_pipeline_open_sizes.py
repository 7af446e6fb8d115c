"""Sizes that byoc chooses: a fixed variant for accelerators that need one, an open one for the rest."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import number_regions, original
from helpers.support import VANILLA, Ran, parse
from onnx import numpy_helper

import byoc
from byoc.codegen import Artifact, CompileError, Region
from byoc.errors import InputError, RequirementError
from byoc.reporting import Requirements
from byoc.runtime import VariantSession

BATCH = (
    "g (float[batch, 64] x) => (float[batch, 64] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"
)
IMAGE = """g (float[1, 3, height, width] x) => (float[1, 4, p, q] y) {
    a = Conv <kernel_shape = [3, 3], strides = [2, 2]> (x, v)
    y = Relu(a)
}"""
TEXT = """g (float[batch, length, 64] x) => (float[batch, length, 64] y) {
    a = MatMul(x, w)
    y = Softmax <axis = 1> (a)
}"""
GROWING = """g (float[n, 64] x, float[p, 64] past_key) => (float[n, 64] y, float[t, 64] present_key) {
    y = MatMul(x, w)
    present_key = Concat <axis = 0> (past_key, x)
}"""
CELL = """g (float[n, 64] x, float[n, 64] past_key) => (float[n, 64] y, float[n, 64] present_key) {
    a = MatMul(x, w)
    present_key = Add(a, past_key)
    y = Relu(present_key)
}"""
FOURTH = "g (float[batch, 64] x) => (float[1, 64] y) { a = MatMul(x, w) y = Gather <axis = 0> (a, i) }"


def make(text: str) -> onnx.ModelProto:
    """Return a model with its weights."""
    model = parse(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (64, 64)), ("v", (4, 3, 3, 3)), ("k", (32, 32, 3, 3))):
        if f"{name})" in text:
            weights = rng.standard_normal(shape, np.float32) / 8
            model.graph.initializer.append(numpy_helper.from_array(weights, name))
    return model


def ask(text: str, output: Path | None = None, **options: Any) -> byoc.Result:
    """Partition a model for `dla`, all that it takes on it."""
    given = {"strategy": "all-supported", "rules": "dla", "output": output, **options}
    with number_regions():
        return byoc.partition(make(text), **given)


def noise(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def same(text: str, session: Any, inputs: dict[str, Any]) -> str:
    """Compare a bundle with plain onnxruntime on inputs, and return the variant that ran."""
    found = session(inputs)
    for name, value in original(make(text), inputs).items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)
    return str(session.choose(inputs).variant)


@pytest.mark.parametrize("codegen", [None, "reference", "c"], ids=["dla", "reference", "c"])
def test_any_batch_runs_and_one_is_offloaded(codegen: str | None, tmp_path: Path) -> None:
    result = ask(BATCH, tmp_path / "b", codegen=codegen)

    assert [(each.name, each.report.nodes.offloaded) for each in result.variants] == [
        ("fixed", 3),
        ("open", 0),
    ]
    assert all(each.verification is not None for each in result.variants)
    session = byoc.load(tmp_path / "b")
    assert isinstance(session, VariantSession)
    assert session.types["x"].shape == ("batch", 64)
    ran = [same(BATCH, session, {"x": noise(size, 64)}) for size in (1, 2, 3, 7)]
    assert ran == ["fixed", "open", "open", "open"]


def test_what_takes_one_variant_takes_the_fixed_one(tmp_path: Path) -> None:
    result = ask(BATCH, tmp_path / "b")

    assert result.plan is result.variants[0].plan
    assert result.report.chosen_sizes == {"batch": 1}
    assert result.variants[1].report.chosen_sizes == {}
    result.check(Requirements(min_offload=1.0, require_verified=True))
    with pytest.raises(RequirementError, match="variant fixed: there is 1 region; at most 0"):
        result.check(Requirements(max_regions=0))
    bundle = byoc.open_bundle(tmp_path / "b")
    assert bundle.variant.name == "fixed"
    assert [each.automatic for each in bundle.manifest.variants] == [True, True]
    assert byoc.open_bundle(tmp_path / "b", variant="open").variant.dims == {}
    assert byoc.verify(tmp_path / "b").passed


def test_the_open_one_is_as_one_open_plan(tmp_path: Path) -> None:
    """Where targets take some open nodes, other sizes run with these."""
    rules = tmp_path / "npu.yaml"
    rules.write_text(
        "target: npu\ncost_model: dla\ncodegen: reference\ndtype: float32\n"
        "ops: [{op: Relu}, {op: MatMul, tensors: {A: {dims: {0: {max: 4}}}}}]\n"
    )
    result = ask(BATCH, tmp_path / "b", rules=rules)
    kept = ask(BATCH, rules=rules, keep_open=True)

    fixed, opened = (each.report for each in result.variants)
    assert (fixed.nodes.offloaded, opened.nodes.offloaded) == (3, 1)
    assert opened.nodes == kept.report.nodes
    assert opened.predicted == kept.report.predicted
    assert [each.name for each in opened.regions] == ["npu_0_open"]
    assert fixed.notes[0].text.startswith(
        "planned for batch = 1; other sizes run with 1 of 3 nodes on npu ("
    )
    assert opened.notes[0].text == "for all sizes but batch = 1, which are those of variant fixed"
    session = byoc.load(tmp_path / "b")
    assert [same(BATCH, session, {"x": noise(size, 64)}) for size in (1, 3)] == ["fixed", "open"]


@pytest.mark.parametrize(
    ("text", "sizes", "shapes"),
    [
        (IMAGE, {"height": 224, "width": 224}, [(1, 3, 224, 224), (1, 3, 32, 48)]),
        (TEXT, {"batch": 1, "length": 128}, [(1, 128, 64), (2, 128, 64), (1, 5, 64)]),
    ],
    ids=["image", "two"],
)
def test_other_dimensions_get_sizes_too(
    text: str, sizes: dict[str, int], shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    result = ask(text, tmp_path / "b")

    assert result.report.chosen_sizes == sizes
    session = byoc.load(tmp_path / "b")
    first, *others = (same(text, session, {"x": noise(*shape)}) for shape in shapes)
    assert first == "fixed"
    assert {*others} == {"open"}


@pytest.mark.parametrize(
    "options",
    [
        {"keep_open": True},
        {"dims": {"batch": "1..4"}},
        {"shapes": {"x": [None, 64]}},
        {"rules": VANILLA},
        {"strategy": "host-only"},
    ],
    ids=["asked", "range", "shape", "taken open", "not offloaded"],
)
def test_there_is_one_open_plan(options: Any) -> None:
    result = ask(BATCH, **options)

    assert [each.name for each in result.variants] == [""]
    assert result.report.chosen_sizes == {}


@pytest.mark.parametrize(
    ("text", "names"), [(GROWING, [""]), (CELL, ["fixed", "open"])], ids=["grows", "stays"]
)
def test_a_cache_that_grows_stays_open(text: str, names: list[str]) -> None:
    assert [each.name for each in ask(text).variants] == names


def test_sizes_that_the_model_cannot_have_leave_it_open(tmp_path: Path) -> None:
    model = make(FOURTH)
    model.graph.initializer.append(numpy_helper.from_array(np.array([3], np.int64), "i"))
    result = byoc.partition(model, "dla", strategy="all-supported", output=tmp_path / "b")

    assert [each.name for each in result.variants] == [""]
    assert result.report.verification is not None
    assert any("cannot be planned for batch = 1" in note.text for note in result.report.notes)


def test_samples_of_any_size_verify_what_takes_them(tmp_path: Path) -> None:
    three, one = ({"x": noise(size, 64)} for size in (3, 1))

    for given, counts in (([three, one], (1, 2)), ([three], (None, 1))):
        result = ask(BATCH, tmp_path / "b", inputs=given)
        for each, count in zip(result.variants, counts, strict=True):
            assert each.report.verification is not None
            assert count in {None, each.report.verification.samples}
    with pytest.raises(InputError, match="x"):
        ask(BATCH, tmp_path / "b", inputs=[{"x": noise(1, 63)}])

    onnx.save(make(BATCH), tmp_path / "m.onnx")
    for given, names in ((one, {"fixed: y"}), (three, {"open: y"})):
        found = byoc.verify(tmp_path / "b", tmp_path / "m.onnx", inputs=given)
        assert {each.name for each in found.outputs} == names


class Refusing(vendors.Tables):
    """Refuses every region."""

    name = "refusing"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        raise CompileError("it does not fit")


def test_a_refusal_leaves_it_to_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, refusing=Refusing)
    result = ask(BATCH, tmp_path / "b", codegen="refusing")

    assert [each.report.nodes.offloaded for each in result.variants] == [0, 0]
    assert result.report.refusals[0].reason == "it does not fit"
    session = byoc.load(tmp_path / "b")
    assert [same(BATCH, session, {"x": noise(size, 64)}) for size in (1, 2)] == ["fixed", "open"]


def test_the_text(tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    onnx.save(make(BATCH), tmp_path / "m.onnx")
    asked = ("partition", tmp_path / "m.onnx", "--rules", "dla", "--strategy", "all-supported")
    with number_regions():
        ran = byoc(*asked)
    lines = [line.split("; predicted")[0] for line in ran.out.splitlines()]
    assert ran.code == 0, ran.err
    path = tmp_path / "m.onnx"
    assert lines[:3] == [
        "The placement is predicted to be slower than the host alone",
        f"{path}, fixed: 3 of 3 nodes (100 % of the compute) on dla in 1 region, 0 on the host",
        "Planned for batch = 1; other sizes run on the host (--dim, --bucket or --variant choose "
        "others, --keep-open makes one open plan)",
    ]
    assert lines[-1] == (
        f"{path}, open: 0 of 3 nodes (0.0 % of the compute) on dla in 0 regions, 3 on the host"
    )
    document = json.loads(byoc(*asked, "--format", "json").out)
    assert [each["variant"] for each in document["variants"]] == ["fixed", "open"]
    assert document["variants"][0]["chosen_sizes"] == {"batch": 1}
    (tmp_path / "report.json").write_text(json.dumps(document))
    compared = byoc("diff", tmp_path / "report.json", "dla", "--model", path, *asked[4:])
    assert compared.code == 0, compared.err
    kept = byoc(*asked, "--keep-open").out.splitlines()
    assert kept[0].startswith("Nothing was offloaded: ")
    assert kept[2] == "Open dimensions, counted as batch = 1; to fix them: --dim batch=1"


ROWS = """g (float[batch, 32, 32, 32] x) => (float[rows, 32, p, q] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k)
    b = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a, k)
    y = Relu(b)
}"""
PLANTED = {
    "softmax": ("y = Relu(b)", "y = Softmax <axis = 0> (b)"),
    "mean": ("y = Relu(b)", "m = ReduceMean <axes = [0]> (b) y = Sub(b, m)"),
    "cumulative": ("y = Relu(b)", "y = CumSum(b, i)"),
    "first": ("y = Relu(b)", "m = Gather <axis = 0> (b, i) y = Sub(b, m)"),
}


@pytest.mark.parametrize("codegen", [None, "reference", "c"], ids=["dla", "reference", "c"])
def test_a_batch_is_run_row_by_row_where_that_is_faster(codegen: str | None, tmp_path: Path) -> None:
    result = ask(ROWS, tmp_path / "b", codegen=codegen, strategy="launch-aware")

    assert result.verification is not None
    assert [each.name for each in result.verification.outputs] == ["y", "y, split"]
    assert result.report.notes[0].text.startswith(
        "planned for batch = 1; a session runs batch 2 to 256 row by row; other sizes run on the host ("
    )
    session = byoc.load(tmp_path / "b")
    assert isinstance(session, VariantSession)
    for size, variant in ((1, "fixed"), (2, "fixed"), (3, "fixed"), (7, "fixed"), (300, "open")):
        trace, inputs = byoc.Trace(), {"x": noise(size, 32, 32, 32)}
        (expected,) = original(make(ROWS), inputs).values()
        np.testing.assert_allclose(session.run(inputs, trace)["y"], expected, rtol=1e-3, atol=1e-3)
        assert {event.variant for event in trace.events} == {variant}
    batches = [{"x": noise(size, 32, 32, 32)} for size in (3, 1, 300, 2, 3)]
    trace = byoc.Trace()
    for inputs, outputs in zip(batches, session.run_pipeline(batches, 3, trace), strict=True):
        (expected,) = original(make(ROWS), inputs).values()
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-3, atol=1e-3)
    segments = [
        event for event in trace.events if event.name == session.sessions["fixed"].stages[0].name
    ]
    assert len([event for event in segments if event.variant == "fixed"]) == 3 + 1 + 2 + 3
    whole = byoc.load(tmp_path / "b", pad=False)
    assert isinstance(whole, VariantSession)
    assert whole.split is None

    onnx.save(make(ROWS), tmp_path / "m.onnx")
    found = byoc.verify(tmp_path / "b", tmp_path / "m.onnx")
    assert [each.name for each in found.outputs] == ["fixed: y", "fixed: y, split", "open: y"]
    assert found.passed


def test_byoc_run_runs_a_batch_row_by_row(byoc: Callable[..., Ran], tmp_path: Path) -> None:
    ask(ROWS, tmp_path / "b", codegen="reference", strategy="launch-aware")
    inputs = {"x": noise(3, 32, 32, 32)}
    np.savez(tmp_path / "x.npz", **inputs)
    run = ("run", tmp_path / "b", "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    for more in ((), ("--repeat", "4", "--pipeline", "2")):
        ran = byoc(*run, *more)
        assert ran.code == 0, ran.err
        assert ran.out.splitlines()[0] == "variant fixed, in 3 calls"
        (expected,) = original(make(ROWS), inputs).values()
        np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], expected, rtol=1e-3, atol=1e-3)
    found = json.loads(byoc(*run, "--format", "json").out)
    assert (found["variant"], found["calls"]) == ("fixed", 3)
    alone = json.loads(byoc(*run, "--format", "json", "--no-pad").out)
    assert (alone["variant"], "calls" in alone) == ("open", False)


STATE = """g (float[batch, 32, 32, 32] x, float[batch, 32, 32, 32] past) => (
    float[batch, 32, 32, 32] y, float[batch, 32, 32, 32] present
) {
    s = Add(x, past)
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (s, k)
    b = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a, k)
    present = Tanh(b)
    y = Relu(present)
}"""


def test_a_stateful_session_has_a_state_for_each_row(tmp_path: Path) -> None:
    ask(STATE, tmp_path / "b", codegen="reference", strategy="launch-aware")
    loaded = byoc.load(tmp_path / "b")
    assert isinstance(loaded, VariantSession)
    assert loaded.split is not None
    session = byoc.open_stateful(loaded, {"past": "present"})
    for rows in (3, 1, 2):
        past = np.zeros((rows, 32, 32, 32), np.float32)
        session.reset({"past": past})
        for _ in range(3):
            given, trace = {"x": noise(rows, 32, 32, 32)}, byoc.Trace()
            y, past = original(make(STATE), {**given, "past": past}).values()
            np.testing.assert_allclose(session.run(given, trace)["y"], y, rtol=1e-3, atol=1e-3)
            assert {event.variant for event in trace.events} == {"fixed"}
        np.testing.assert_allclose(session.state["past"], past, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", PLANTED)
def test_rows_that_depend_on_each_other_are_not_split(case: str, tmp_path: Path) -> None:
    text = ROWS.replace(*PLANTED[case])
    model = make(text)
    index = np.array(0) if case == "cumulative" else np.array([0])
    model.graph.initializer.append(numpy_helper.from_array(index, "i"))
    result = byoc.partition(model, "dla", output=tmp_path / "b", codegen="reference")

    assert [each.name for each in result.variants] == ["fixed", "open"]
    assert any("a larger batch is not run row by row: " in note.text for note in result.report.notes)
    session = byoc.load(tmp_path / "b")
    for size in (1, 2, 3):
        inputs = {"x": noise(size, 32, 32, 32)}
        (expected,) = original(model, inputs).values()
        np.testing.assert_allclose(session(inputs)["y"], expected, rtol=1e-3, atol=1e-3)


WORDS = """g (float[batch, length, 64] x) => (float[batch, length, 64] y) {
    a = MatMul(x, m)
    b = Relu(a)
    c = MatMul(b, m)
    d = Relu(c)
    y = MatMul(d, m)
}"""
MIXED = {
    "none": ("y = MatMul(d, m)", "y = MatMul(d, m)"),
    "softmax": ("y = MatMul(d, m)", "e = MatMul(d, m) y = Softmax <axis = 1> (e)"),
}


def make_words(case: str) -> onnx.ModelProto:
    """Return a model of words that a MatMul of 256 columns makes worth an accelerator."""
    text = WORDS.replace("64]", "256]").replace(*MIXED[case])
    model = make(text)
    weights = np.random.default_rng(0).standard_normal((256, 256), np.float32) / 16
    model.graph.initializer.append(numpy_helper.from_array(weights, "m"))
    return model


@pytest.mark.parametrize("codegen", [None, "reference"], ids=["dla", "reference"])
def test_lengths_are_padded_from_the_one_on_at_which_that_is_faster(
    codegen: str | None, tmp_path: Path
) -> None:
    model = make_words("none")
    result = byoc.partition(model, "dla", output=tmp_path / "b", codegen=codegen)

    assert result.report.chosen_sizes == {"batch": 1, "length": 128}
    rule = byoc.open_bundle(tmp_path / "b").manifest.variants[0].padding
    assert rule is not None
    assert 1 < rule.least < 128
    note = result.report.notes[0].text
    assert note.startswith(
        f"planned for batch = 1, length = 128 (a usual length); length {rule.least} to 127 is padded; "
    )
    assert result.verification is not None
    assert "y, padded" in {each.name for each in result.verification.outputs}
    at = {size: byoc.partition(model, "dla", dims={"batch": 1, "length": size}) for size in (128,)}
    for size, is_padded in ((rule.least - 1, False), (rule.least, True)):
        host = byoc.partition(model, "dla", dims={"batch": 1, "length": size}, strategy="host-only")
        assert (host.report.predicted.seconds > at[128].report.predicted.seconds) == is_padded

    session, whole = byoc.load(tmp_path / "b"), byoc.load(tmp_path / "b", pad=False)
    assert isinstance(session, VariantSession)
    for size, variant in ((1, "open"), (rule.least - 1, "open"), (rule.least, "fixed"), (127, "fixed")):
        trace, inputs = byoc.Trace(), {"x": noise(1, size, 256)}
        (expected,) = original(model, inputs).values()
        np.testing.assert_allclose(session.run(inputs, trace)["y"], expected, rtol=1e-3, atol=1e-3)
        assert {event.variant for event in trace.events} == {variant}
        assert session.tensors(inputs, ["y"])["y"].shape == expected.shape
        np.testing.assert_allclose(whole.run(inputs)["y"], expected, rtol=1e-3, atol=1e-3)
    for shape in ((1, 129), (2, 128), (2, 100)):
        inputs = {"x": noise(*shape, 256)}
        (expected,) = original(model, inputs).values()
        np.testing.assert_allclose(session.run(inputs)["y"], expected, rtol=1e-3, atol=1e-3)
    onnx.save(model, tmp_path / "m.onnx")
    found = byoc.verify(tmp_path / "b", tmp_path / "m.onnx")
    assert "fixed: y, padded" in {each.name for each in found.outputs}
    assert found.passed


def test_a_quantized_model_says_its_sizes_too() -> None:
    precision = byoc.Precision(quantize="int8", data="random")
    result = byoc.partition(make_words("none"), "dla", precision=precision)

    assert result.report.chosen_sizes == {"batch": 1, "length": 128}
    assert result.report.notes[0].text.startswith(
        "planned for batch = 1, length = 128 (a usual length); "
    )


def test_lengths_that_depend_on_each_other_are_not_padded(tmp_path: Path) -> None:
    model = make_words("softmax")
    result = byoc.partition(model, "dla", output=tmp_path / "b", codegen="reference")

    assert [each.name for each in result.variants] == ["fixed", "open"]
    assert byoc.open_bundle(tmp_path / "b").manifest.variants[0].padding is None
    assert any("a smaller length than 128 is not padded: Softmax" in n.text for n in result.report.notes)
    session = byoc.load(tmp_path / "b")
    for size in (64, 127, 128):
        inputs = {"x": noise(1, size, 256)}
        (expected,) = original(model, inputs).values()
        np.testing.assert_allclose(session(inputs)["y"], expected, rtol=1e-3, atol=1e-3)


def test_a_batch_is_left_whole_where_that_is_faster(tmp_path: Path) -> None:
    ask(BATCH, tmp_path / "b")
    assert byoc.open_bundle(tmp_path / "b").variant.split is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"inputs": {"x": 1}}, "split: input 'x': the model has no axis 1 there that is 1 long"),
        ({"inputs": {"z": 0}}, "split: input 'z': the model has no axis 0"),
        ({"outputs": {"y": 9}}, "split: output 'y': the model has no axis 9"),
        ({"outputs": {}}, "not a manifest"),
        ({"most": 0}, "not a manifest"),
    ],
)
def test_a_tampered_split_is_refused(change: Any, told: str, tmp_path: Path) -> None:
    ask(ROWS, tmp_path / "b", codegen="reference", strategy="launch-aware", verify=False)
    place = tmp_path / "b" / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["variants"][0]["split"].update(change)
    place.write_text(json.dumps(manifest))

    with pytest.raises(InputError, match=told):
        byoc.load(tmp_path / "b", trust=True)


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ([(1, {"automatic": False})], "automatic variants are two"),
        ([(1, {"dims": {"batch": 2}})], "automatic variants are two"),
        ([(0, {"dims": {}})], "automatic variants are two"),
        ([(0, {"automatic": "maybe"})], "not a manifest"),
    ],
)
def test_a_tampered_manifest_is_refused(edits: Any, told: str, tmp_path: Path) -> None:
    ask(BATCH, tmp_path / "b")
    place = tmp_path / "b" / "manifest.json"
    manifest = json.loads(place.read_text())
    for number, change in edits:
        manifest["variants"][number].update(change)
    place.write_text(json.dumps(manifest))

    with pytest.raises(InputError, match=told):
        byoc.load(tmp_path / "b")
