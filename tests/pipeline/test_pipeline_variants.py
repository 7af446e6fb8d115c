"""Bundles of several variants: one weight file, a plan for each, the outputs of plain onnxruntime."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import number_regions
from helpers.decoding import PROMPT, decode, empty_cache, plain
from helpers.installing import register
from helpers.support import VANILLA, parse
from onnx import numpy_helper

import byoc
from byoc import zoo
from byoc.bundle import WeightFile, open_bundle
from byoc.codegen import Artifact, CompileError, Region
from byoc.errors import InputError, RequirementError
from byoc.reporting import Requirements
from byoc.runtime import VariantSession

EVERYTHING = "target: npu\ncost_model: openvino-cpu\ncodegen: reference\ndtype: any\nops: [{op: '*'}]\n"
PREFILL = {"sequence_length": 64, "past_sequence_length": 0, "total_sequence_length": 64}
DECODE = {"sequence_length": 1, "past_sequence_length": 256, "total_sequence_length": 256}

# The region of the image is the same at any length of the text. The vanilla accelerator has no ArgMax.
TWO_INPUTS = """g (float[1, 8] image, float[1, length] text) => (float[1, 8] y, float[1, length] z) {
    a = Relu(image)
    y = Relu(a)
    r = ArgMax <axis = 1> (y)
    c = Cast <to = 1> (r)
    b = Add(text, c)
    z = Relu(b)
}"""
BRANCHES = {"short": {"length": 4}, "long": {"length": 16}}


def convolutions() -> onnx.ModelProto:
    """Return a network of two convolutions whose batch is open."""
    model = parse("""g (float[n, 3, 16, 16] x) => (float[n, 8, 6, 6] y) {
        a = Conv <strides = [2, 2]> (x, v)
        b = Relu(a)
        y = Conv <strides = [1, 1]> (b, w)
    }""")
    rng = np.random.default_rng(0)
    for name, shape in (("v", (16, 3, 3, 3)), ("w", (8, 16, 2, 2))):
        weights = rng.standard_normal(shape, np.float32) / 10
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    return model


@pytest.mark.parametrize("kind", ["int4", pytest.param("fp16", marks=pytest.mark.thorough)])
def test_a_decoder_generates_the_tokens_of_plain_onnxruntime(kind: str, tmp_path: Path) -> None:
    rules = tmp_path / "npu.yaml"
    rules.write_text(EVERYTHING)
    options: Any = {"rules": rules, "strategy": "all-supported"}
    result = byoc.partition(
        f"zoo:decoder_{kind}",
        **options,
        output=tmp_path / "m.byoc",
        dims={"batch_size": 1},
        variants={"prefill": PREFILL, "decode": DECODE},
    )
    for each in result.variants:
        assert each.report.nodes.offloaded == each.report.nodes.total > 30
        assert each.verification is not None
        assert each.verification.passed
        assert each.report.variant == each.name
    session = byoc.load(result.bundle or "")
    assert isinstance(session, VariantSession)
    trace = byoc.Trace()
    model = zoo.load(f"decoder_{kind}")

    def run(inputs: dict[str, Any]) -> Mapping[str, Any]:
        return session.run({name: inputs[name] for name in session.inputs}, trace)

    whole = plain(model)
    tokens, logits = decode(whole, whole, empty_cache(model), 50)
    chosen, others = decode(run, run, empty_cache(model), 50, buffer=256)
    assert chosen == tokens
    assert max(abs(one - other).max() for one, other in zip(logits, others, strict=True)) < 0.02
    assert [event.variant for event in trace.events] == ["prefill", *["decode"] * 49]

    # A prompt of its own length, then a cache that grows: the session pads both.
    trace.events.clear()
    prompt = PROMPT[:5]
    tokens, logits = decode(whole, whole, empty_cache(model), 6, prompt=prompt)
    chosen, others = decode(run, run, empty_cache(model), 6, prompt=prompt)
    assert chosen == tokens
    assert max(abs(one - other).max() for one, other in zip(logits, others, strict=True)) < 0.02
    assert [event.padded for event in trace.events[:2]] == [
        "sequence_length 5 to 64",
        "past_sequence_length 5 to 256, total_sequence_length 6 to 256",
    ]
    first = result.variants[0].verification
    assert first is not None
    outputs = [error.name for error in first.outputs]
    assert {"logits", "logits, padded"} <= {*outputs}
    checked = byoc.verify(result.bundle or "", regions=False)
    assert checked.passed
    assert "decode: present.0.key, padded" in {error.name for error in checked.outputs}

    alone = byoc.partition(
        f"zoo:decoder_{kind}",
        **options,
        output=tmp_path / "one.byoc",
        dims={"batch_size": 1, **DECODE},
        verify=False,
    )
    sizes = [(Path(made.bundle or "") / "weights.bin").stat().st_size for made in (result, alone)]
    assert sizes[0] == sizes[1] > 1_000_000


@pytest.mark.parametrize(("rules", "codegen"), [("dla", "dla"), ("dla", "c")])
def test_a_network_of_two_batches_computes_what_onnxruntime_does(
    rules: str, codegen: str, tmp_path: Path
) -> None:
    model = convolutions()
    result = byoc.partition(
        model,
        rules,
        codegen=codegen,
        strategy="all-supported",
        output=tmp_path / "b",
        buckets={"n": [1, 4]},
        cache_dir=tmp_path / "cache",
    )
    assert [each.name for each in result.variants] == ["n_1", "n_4"]
    session = byoc.load(tmp_path / "b")
    run = plain(model)
    for batch in (1, 4):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 16, 16), np.float32)
        np.testing.assert_allclose(session({"x": x})["y"], run({"x": x})["y"], rtol=1e-4, atol=1e-5)
    models = [onnx.load(tmp_path / f"b/n_{n}.model.onnx", load_external_data=False) for n in (1, 4)]
    places = [
        {
            (entry.key, entry.value)
            for tensor in model.graph.initializer
            for entry in tensor.external_data
        }
        for model in models
    ]
    assert places[0] == places[1]
    assert len(places[0]) > 2
    found = byoc.verify(tmp_path / "b")
    assert found.passed
    assert [output.name for output in found.outputs] == ["n_1: y", "n_4: y", "n_4: y, padded"]
    three = np.ones((3, 3, 16, 16), np.float32)
    np.testing.assert_allclose(session({"x": three})["y"], run({"x": three})["y"], rtol=1e-4, atol=1e-5)
    assert {region.name.rpartition("_n_")[2] for region in found.regions} == {"1", "4"}


class Narrow(vendors.Tables):
    """Refuses rows of 16 elements."""

    name = "narrow"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        if region.inputs[0].type.shape == (1, 16):
            raise CompileError("a row has at most 8 elements")
        return super().compile(region, options)


def test_a_region_that_variants_have_in_common_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, tables=vendors.Tables)
    model = parse(TWO_INPUTS)
    options: Any = {"codegen": "tables", "strategy": "all-supported", "output": tmp_path / "b"}
    byoc.partition(model, VANILLA, variants=BRANCHES, **options)
    bundle = open_bundle(tmp_path / "b", None)
    one, other = bundle.variants
    short, long = ({e.same_as for e in each.variant.regions} for each in (one, other))
    assert short == {""}
    (shared,) = long - {""}
    assert shared in {entry.name for entry in one.variant.regions}
    assert {region.target for _, region, _ in other.regions()} == {"dla"}
    session = byoc.load(tmp_path / "b")
    given = {"image": np.arange(-4, 4, dtype=np.float32)[None]}
    for length in (4, 16):
        made = session(given | {"text": np.full((1, length), -1, np.float32)})
        assert made["y"].tolist() == [[0, 0, 0, 0, 0, 1, 2, 3]]
        assert made["z"].tolist() == [[6] * length]
    alone = byoc.load(tmp_path / "b", variant="long")  # without the variant that has the artifact
    assert alone(given | {"text": np.zeros((1, 16), np.float32)})["z"].sum() == 16 * 7


def test_a_refusal_plans_the_variant_again_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, narrow=Narrow)
    with number_regions():
        result = byoc.partition(
            parse("g (float[1, n] x) => (float[1, n] y) { a = Relu(x) y = Relu(a) }"),
            VANILLA,
            codegen="narrow",
            strategy="all-supported",
            output=tmp_path / "b",
            variants={"small": {"n": 8}, "large": {"n": 16}},
        )
    small, large = result.variants
    assert (small.report.nodes.offloaded, large.report.nodes.offloaded) == (2, 0)
    assert small.report.refusals == ()
    (refusal,) = large.report.refusals
    assert (refusal.region, refusal.reason) == ("dla_0_large", "a row has at most 8 elements")
    session = byoc.load(tmp_path / "b")
    for n in (8, 16):
        x = np.linspace(-1, 1, n, dtype=np.float32)[None]
        np.testing.assert_array_equal(session({"x": x})["y"], np.maximum(x, 0))


class WrongAtEight(vendors.Tables):
    """Computes rows of 8 wrongly."""

    name = "wrong"

    def load(self, region: Region, artifact: Artifact) -> Any:
        run = super().load(region, artifact)
        wrong = region.inputs[0].type.shape == (1, 8)
        return lambda inputs: {name: value + wrong for name, value in run(inputs).items()}


def test_of_a_bundle_whose_one_variant_is_wrong_that_one_runs_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, wrong=WrongAtEight)
    model = parse("g (float[1, n] x) => (float[1, n] y) { y = Relu(x) }")
    options: Any = {"codegen": "wrong", "strategy": "all-supported", "output": tmp_path / "b"}
    sizes = {"small": {"n": 4}, "large": {"n": 8}}
    with pytest.raises(InputError, match="variant large: verification failed: output 'y' differs"):
        byoc.partition(model, VANILLA, variants=sizes, strict=True, **options)
    assert not (tmp_path / "b").exists()
    result = byoc.partition(model, VANILLA, variants=sizes, **options)
    assert [each.report.nodes.offloaded for each in result.variants] == [1, 0]
    assert byoc.verify(tmp_path / "b").passed
    byoc.partition(model, VANILLA, variants=sizes, verify=False, **options)
    found = byoc.verify(tmp_path / "b")
    assert not found.passed
    assert {output.name: output.within for output in found.outputs} == {
        "small: y": True,
        "small: y, padded": True,
        "large: y": False,
        "large: y, padded": True,  # wrong alike, whatever stands behind the inputs
    }


def test_what_a_variant_may_not_be(tmp_path: Path) -> None:
    model = parse("g (float[n, m] x) => (float[n, m] y) { y = Relu(x) }")
    refused: dict[str, dict[str, Any]] = {
        "variant '1st': a name is a letter, and then": {"variants": {"1st": {"n": 1}}},
        "variant 'con': a name is a letter, and then": {"variants": {"con": {"n": 1}}},
        "variants a and A cannot be told apart": {"variants": {"a": {"n": 1}, "A": {"n": 2}}},
        "variant n_1 is given twice": {"variants": {"n_1": {"m": 1}}, "buckets": {"n": [1]}},
        "buckets of n and m: one dimension can have": {"buckets": {"n": [1], "m": [2]}},
        r"variant a \(n=1\): dimension n=2 is given for all": {
            "variants": {"a": {"n": 1}},
            "dims": {"n": 2},
        },
        "variant a: g: no input has a dimension named 'k'": {"variants": {"a": {"k": 1}}},
        "variants a and b take inputs of the same types": {"variants": {"a": {"n": 1}, "b": {"n": 1}}},
        "variants: .* is not a mapping": {"variants": ["a"]},
        "variant 'a': dimension n has one size, not": {"variants": {"a": {"n": ["1"]}}},
        "variant 'a': rules names rule files, not '3'": {"variants": {"a": {"rules": 3}}},
        "variant 'a': rules names no rule file": {"variants": {"a": {"rules": ""}}},
        "variant 'b': rules names no rule file": {"variants": {"b": {"rules": []}}},
        "variant 'c': rules names no rule file": {"variants": {"c": {"rules": [VANILLA, ""]}}},
        "variants a and b take inputs of the same types, so": {
            "variants": {"a": {"rules": "dla"}, "b": {"rules": ["dla"]}}
        },
        "variants a and b take inputs of the same types by dimensions of their own that differ": {
            "variants": {"a": {"rules": "dla", "n": 1}, "b": {"m": 4}},
            "shapes": {"x": [1, 4]},
        },
        "no-such-rules": {"variants": {"a": {"rules": "no-such-rules"}}},
    }
    for message, options in refused.items():
        with pytest.raises(InputError, match=message):
            byoc.partition(model, VANILLA, output=tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


def test_variants_for_several_accelerators_share_weights_and_a_manifest(tmp_path: Path) -> None:
    """One of them has the rules of all; what is given by target is for those that have it."""
    other = tmp_path / "other.yaml"
    other.write_text(EVERYTHING)
    model, options = convolutions(), {"strategy": "all-supported", "dims": {"n": 1}}
    result = byoc.partition(
        model,
        VANILLA,
        variants={"one": {}, "two": {"rules": other}, "both": {"rules": [str(other), str(VANILLA)]}},
        codegen={"npu": "dla"},
        output=tmp_path / "b",
        **options,
    )
    assert [each.verification is not None for each in result.variants] == [True] * 3
    manifest = open_bundle(tmp_path / "b").manifest
    assert (manifest.format, manifest.targets) == (7, ("dla", "npu"))
    assert [each.rules for each in manifest.variants] == [
        (),
        ("other.yaml",),
        ("other.yaml", VANILLA.name),
    ]
    assert {(each.target, each.codegen) for each in manifest.regions} == {
        ("dla", "reference"),
        ("npu", "dla"),
    }
    assert manifest.asked["variants"]["two"] == {"rules": ["other.yaml"]}
    byoc.partition(model, VANILLA, output=tmp_path / "alone", **options)
    alone = open_bundle(tmp_path / "alone").manifest
    assert manifest.files["weights.bin"].bytes == alone.files["weights.bin"].bytes
    assert alone.format == 4
    assert "rules" not in json.loads((tmp_path / "alone/manifest.json").read_text())["variants"][0]
    old = json.loads((tmp_path / "b/manifest.json").read_text()) | {"format": 4}
    (tmp_path / "b/manifest.json").write_text(json.dumps(old))
    with pytest.raises(
        InputError, match="the variant 'two' has rules of its own, which format 4 does not"
    ):
        open_bundle(tmp_path / "b")


def test_constants_of_alternatives_are_those_that_their_models_state(tmp_path: Path) -> None:
    """Their user's names are kept, and a manifest that tells of others is refused."""
    other = tmp_path / "other.yaml"
    other.write_text(EVERYTHING)
    model, options = convolutions(), {"strategy": "all-supported", "dims": {"n": 1}}
    variants = {"one": {}, "two": {"rules": other}}
    byoc.partition(model, VANILLA, variants=variants, output=tmp_path / "b", **options)
    byoc.partition(model, VANILLA, output=tmp_path / "alone", **options)
    own, alone = (
        open_bundle(tmp_path / name, variant=each) for name, each in (("b", "one"), ("alone", None))
    )
    for (_, one, _), (_, before, _) in zip(own.regions(), alone.regions(), strict=True):
        assert one.constants == before.constants != ()
    path = tmp_path / "b/manifest.json"
    text = path.read_text()
    for change in ({"count": 99}, {"names": {"none": "w"}}, {"layout": "no layout"}):
        content = json.loads(text)
        content["variants"][0]["regions"][0]["constants"] |= change
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match="is not as the region's model has it"):
            open_bundle(tmp_path / "b", trust=True, variant="one").regions()


def test_accelerators_of_one_name_may_be_of_two_generations_but_not_compute_otherwise(
    tmp_path: Path,
) -> None:
    variants: dict[str, Any] = {n: {"rules": tmp_path / f"{n}.yaml"} for n in ("small", "large")}
    for own in variants.values():
        own["rules"].write_text(EVERYTHING)
    model = parse("g (float[1, 8] x) => (float[1, 8] y) { y = Relu(x) }")
    options: dict[str, Any] = {"strategy": "all-supported", "verify": False}
    byoc.partition(model, variants=variants, output=tmp_path / "b", **options)
    names = [each.name for each in open_bundle(tmp_path / "b").manifest.regions]
    assert [name.rpartition("_")[2] for name in names] == ["small", "large"]
    with (tmp_path / "large.yaml").open("a") as file:
        file.write("arithmetic: [{op: Relu, nan: any}]\n")
    with pytest.raises(InputError, match="npu promises other arithmetic here than in another variant"):
        byoc.partition(model, variants=variants, output=tmp_path / "b", **options)


def test_results_of_variants_are_told_apart() -> None:
    model = parse("g (float[n, 8] x) => (float[n, 8] y) { y = Relu(x) }")
    result = byoc.partition(model, VANILLA, strategy="all-supported", buckets={"n": [1, 2]})
    assert [each.report.display_name for each in result.variants] == ["g, n_1", "g, n_2"]
    with pytest.raises(InputError, match=r"there are several variants \(n_1, n_2\)"):
        _ = result.report
    with pytest.raises(RequirementError, match="variant n_2: there is 1 region; at most 0"):
        result.check(Requirements(max_regions=0))
    assert result.variants[0].plan.asked["buckets"] == {"n": [1, 2]}


def test_equal_weights_are_stored_once_in_any_bundle(tmp_path: Path) -> None:
    equal = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "a")
    other = numpy_helper.from_array(np.arange(1, 1001, dtype=np.float32), "b")
    weights = WeightFile(tmp_path)
    with weights:
        first = [weights.add(tensor, None) for tensor in (equal, other, equal)]
    with weights:  # opened again, as for the next variant
        again = [weights.add(tensor, tmp_path) for tensor in (first[1], other, equal)]
    places = [
        {entry.key: int(entry.value) for entry in each.external_data if entry.key != "location"}
        for each in (*first, *again)
    ]
    one, two = {"offset": 0, "length": 4000}, {"offset": 4032, "length": 4000}
    assert places == [one, two, one, two, two, one]
    content = (tmp_path / "weights.bin").read_bytes()
    assert content == equal.raw_data + bytes(32) + other.raw_data


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    model = convolutions()
    for name in "ab":
        byoc.partition(model, "dla", output=tmp_path / name, buckets={"n": [1, 4]}, sign=False)
    files = [
        {file.relative_to(tmp_path / name): file.read_bytes() for file in (tmp_path / name).rglob("*.*")}
        for name in "ab"
    ]
    assert files[0] == files[1]
    manifest = json.loads((tmp_path / "a/manifest.json").read_text())
    assert [(each["name"], each["dims"]) for each in manifest["variants"]] == [
        ("n_1", {"n": 1}),
        ("n_4", {"n": 4}),
    ]


class Counted:
    """A provider of one model, which counts how often it is loaded."""

    loads = 0

    def entries(self) -> tuple[zoo.ZooEntry, ...]:
        return (zoo.ZooEntry("counted", "test", "here", "MIT", "none", 1),)

    def load(self, name: str) -> onnx.ModelProto:
        Counted.loads += 1
        return parse("g (float[n, 8, m] x) => (float[n, 8, m] y) { y = Relu(x) }")


def test_variants_that_are_equal_but_for_open_sizes_are_opened_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One more of them takes one load more: its own."""
    register(tmp_path, "counted", "1.0", {"byoc.zoo": {"counted": f"{__name__}:Counted"}})
    monkeypatch.syspath_prepend(tmp_path)
    every = {f"v{i}": {"n": 1, "m": 4 * i} for i in (1, 2, 3)} | {"many": {"n": 2, "m": 4}}
    loads = []
    for left_out in ("v2", ""):
        variants = {name: dims for name, dims in every.items() if name != left_out}
        Counted.loads = 0
        byoc.partition(
            "zoo:counted", VANILLA, output=tmp_path / "m.byoc", variants=variants, verify=False
        )
        loads.append(Counted.loads)
    assert loads[1] == loads[0] + 1
    entries = open_bundle(tmp_path / "m.byoc").manifest.variants
    assert [each.padding and dict(each.padding.dims) for each in entries] == [
        {"m": 4},
        {"m": 8},
        {"m": 12},
        {"n": 2, "m": 4},
    ]
