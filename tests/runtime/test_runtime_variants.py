"""A session of several variants runs the one whose inputs have the shapes of a call's."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from byoc.codegens.reference import Reference
from helpers.cutting import number_regions
from helpers.support import VANILLA, parse

import byoc
from byoc.codegen import Artifact, Executor, Region
from byoc.errors import InputError
from byoc.model import TensorType
from byoc.runtime import Session, VariantSession

MODEL = "g (float[n, m] x, float[n] k) => (float[n, m] y) { a = Relu(x) y = Relu(a) }"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("variants") / "b"
    variants: Any = {"one": {"n": 1, "m": 4}, "two": {"n": 2, "m": 4}, "any": {"n": 2}}
    with number_regions():
        byoc.partition(
            parse(MODEL),
            VANILLA,
            codegen="reference",
            strategy="all-supported",
            output=path,
            variants=variants,
        )
    return path


@pytest.fixture
def session(bundle: Path) -> Iterator[VariantSession]:
    found = byoc.load(bundle)
    assert isinstance(found, VariantSession)
    yield found


def make(n: int, m: int) -> dict[str, Any]:
    return {"x": np.arange(n * m, dtype=np.float32).reshape(n, m) - 3, "k": np.zeros(n, np.float32)}


@pytest.mark.parametrize(("n", "m", "variant"), [(1, 4, "one"), (2, 4, "two"), (2, 5, "any")])
def test_the_first_that_fits_runs_and_the_trace_says_which(
    n: int, m: int, variant: str, session: VariantSession
) -> None:
    trace = byoc.Trace()
    given = make(n, m)
    np.testing.assert_array_equal(session.run(given, trace)["y"], np.maximum(given["x"], 0))
    assert {(event.name, event.variant) for event in trace.events} == {(f"dla_0_{variant}", variant)}
    (event,) = [each for each in trace.to_json()["traceEvents"] if each["ph"] == "X"]
    assert event["args"]["variant"] == variant
    assert session.choose(given) is session.sessions[variant]
    assert list(session.tensors(given)) == ["x", "y"]


def test_inputs_that_have_to_be_copied_choose_as_well(session: VariantSession) -> None:
    given = make(2, 4) | {"x": np.asfortranarray(make(2, 4)["x"])}
    assert session.choose(given).variant == "two"
    assert session(given)["y"].shape == (2, 4)


def test_a_pipeline_takes_inputs_of_several_variants(session: VariantSession) -> None:
    given = [make(1, 4), make(2, 4), make(2, 7), make(1, 4)]
    found = list(session.run_pipeline(given, in_flight=2))
    for inputs, outputs in zip(given, found, strict=True):
        np.testing.assert_array_equal(outputs["y"], np.maximum(inputs["x"], 0))


def test_none_that_fits_says_what_each_takes(session: VariantSession) -> None:
    with pytest.raises(InputError) as caught:
        session(make(3, 4))
    assert str(caught.value) == (
        "no variant takes these inputs: "
        "one (m=4, n=1): input 'x' is float32[3, 4], the model takes float32[1, 4], nor by padding: "
        "input 'x' is [3, 4], not [1, 4]; "
        "two (m=4, n=2): input 'x' is float32[3, 4], the model takes float32[2, 4], nor by padding: "
        "n is 3, and may be 1 to 2; "
        "any (n=2): input 'x' is float32[3, 4], the model takes float32[2, m]"
    )
    with pytest.raises(InputError, match=r"^missing input 'k'; the model's inputs: x, k$"):
        session({"x": make(1, 4)["x"]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": np.zeros((1, 3))}, "nor by padding: input 'x' is float64[1, 4], the model takes float32"),
        ({"k": np.zeros(1, np.int64)}, "nor by padding: input 'k' is int64[1], the model takes float32"),
        ({"k": np.zeros((1, 1), np.float32)}, "input 'k' is float32[1, 1], the model takes float32[1]"),
    ],
)
def test_padding_mends_extents_alone(change: Any, said: str, session: VariantSession) -> None:
    given = make(1, 3)
    assert session.choose(given).variant == "one"
    for run in (session, session.choose):
        with pytest.raises(InputError) as caught:
            run({**given, **change})
        assert said in str(caught.value)
    with pytest.raises(InputError, match=r"^no input 'z'; the model's inputs: x, k$"):
        session({**given, "z": given["x"]})


def test_one_variant_is_loaded_alone(bundle: Path) -> None:
    session = byoc.load(bundle, variant="two")
    assert isinstance(session, Session)
    assert session.variant == "two"
    with pytest.raises(InputError, match=r"^input 'x' is float32\[1, 4\], the model takes"):
        session(make(1, 4))
    with pytest.raises(
        InputError, match=r"no variant 'tow' \(did you mean two\?\); it has one, two, any"
    ):
        byoc.load(bundle, variant="tow")
    with pytest.raises(InputError, match=r"has several variants, and this takes one: .* one, two, any"):
        byoc.diff(bundle, bundle)


def test_inputs_that_fit_none_are_padded_to_the_smallest(bundle: Path) -> None:
    session = byoc.load(bundle)
    assert isinstance(session, VariantSession)
    given, trace = make(1, 3), byoc.Trace()
    outputs = session.run(given, trace)
    np.testing.assert_array_equal(outputs["y"], np.maximum(given["x"], 0))
    assert {(event.variant, event.padded) for event in trace.events} == {("one", "m 3 to 4")}
    (event,) = [each for each in trace.to_json()["traceEvents"] if each["ph"] == "X"]
    assert event["args"]["padded"] == "m 3 to 4"
    found = list(session.run_pipeline([make(2, 3), make(1, 4)]))
    assert [each["y"].shape for each in found] == [(2, 3), (1, 4)]
    exact = byoc.load(bundle, pad=False)
    with pytest.raises(InputError, match="no variant takes these inputs: one"):
        exact(make(0, 3))


def tamper(bundle: Path, place: Path, edit: Any) -> Path:
    """Copy a bundle with another entry for the padding of its first variant."""
    copytree(bundle, place)
    manifest = json.loads((place / "manifest.json").read_text())
    edit(manifest["variants"][0]["padding"])
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


HOSTILE: dict[str, tuple[Any, str]] = {
    "larger": (lambda p: p["dims"].update(m=1 << 30), r"input 'x': it is \[1, 1073741824\] there"),
    "unknown input": (lambda p: p["inputs"].update(z=p["inputs"]["x"]), "input 'z': the model has none"),
    "rank": (lambda p: p["inputs"]["x"].update(shape=["m"]), r"input 'x': it is \[4\] there"),
    "other name": (lambda p: p["outputs"].update(y=[1, "q"]), "output 'y': it speaks of a dimension"),
    "output": (lambda p: p["outputs"].update(y=[1, "m + 1"]), r"output 'y': it is \[1, 5\] there"),
    "axis": (
        lambda p: p["inputs"]["x"].update(first={"axis": 9, "value": 1}),
        "input 'x': it has no axis 9",
    ),
    "value": (lambda p: p["inputs"]["x"].update(value=1e300), "not a manifest: variants.0.padding"),
    "zero": (lambda p: p["dims"].update(m=0), "not a manifest: variants.0.padding.dims.m"),
    "division": (lambda p: p["inputs"]["x"].update(shape=[1, "m // 0"]), "input 'x': it"),
    "deep": (lambda p: p["outputs"].update(y=[1, "(" * 5000 + "m" + ")" * 5000]), "output 'y': it"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_tampered_padding_ends_in_a_sentence(case: str, bundle: Path, tmp_path: Path) -> None:
    edit, problem = HOSTILE[case]
    with pytest.raises(InputError, match=problem):
        byoc.load(tamper(bundle, tmp_path / "b", edit))


MASKED = """
g (float[1, seq] x, bool[1, seq] m) => (float[1, seq] y) { a = Relu(x) y = Where(m, a, x) }
"""


def test_inputs_are_padded_to_the_smallest_variant_that_takes_them(tmp_path: Path) -> None:
    variants: Any = {name: {"seq": size} for name, size in (("long", 16), ("short", 8), ("mid", 12))}
    byoc.partition(parse(MASKED), VANILLA, output=tmp_path / "b", variants=variants, verify=False)
    loaded = byoc.load(tmp_path / "b")
    assert isinstance(loaded, VariantSession)
    for size, name in ((1, "short"), (7, "short"), (8, "short"), (9, "mid"), (13, "long")):
        x = np.arange(size, dtype=np.float32)[None] - 3
        given = {"x": x, "m": x > 0}
        assert loaded.choose(given) is loaded.sessions[name]
        np.testing.assert_array_equal(loaded(given)["y"], x)
    assert loaded.types["x"].shape == (1, "seq")


def test_what_padding_makes_is_no_input_of_the_session(tmp_path: Path) -> None:
    path = tmp_path / "b" / "manifest.json"
    byoc.partition(parse(MASKED), VANILLA, output=path.parent, variants={"a": {"seq": 8}}, verify=False)
    document = json.loads(path.read_text())
    document["variants"][0]["padding"]["inputs"]["m"].update(value=0, made=True)
    path.write_text(json.dumps(document))
    loaded = byoc.load(path.parent, trust=True)
    assert isinstance(loaded, VariantSession)
    assert loaded.inputs == ("x",)
    assert loaded.types.keys() == {"x"}
    x = np.float32([[1, -2, 3]])
    np.testing.assert_array_equal(loaded({"x": x})["y"], np.maximum(x, 0))  # it is ones, then zeros
    with pytest.raises(InputError, match="input 'm' is made here, leave it out"):
        loaded({"x": x, "m": x > 0})


def test_a_rank_that_a_variant_does_not_know_is_known_of_none(session: VariantSession) -> None:
    """And no extent is known of shapes of several ranks."""
    for other, shape in (
        (None, None),
        ((2,), None),
        ((2, 4, 1), None),
        ((2, 4), ("1|2", 4)),
        ((1, None), (1, None)),
        ((1, 5), (1, "4|5")),
    ):
        types = {
            "one": {"x": TensorType("float32", (1, 4))},
            "two": {"x": TensorType("float32", other)},
        }
        assert replace(session, paddings={})._merge_shapes("x", types) == shape


TWINS = """g (float[n, 4] x, float[4] k) => (float[n, 4] y) {
    a = Relu(k)
    b = Sin(a)
    c = Sub(x, b)
    y = Relu(c)
}"""


def test_a_region_of_an_earlier_variant_runs_where_that_is_not_loaded(tmp_path: Path) -> None:
    """By its own names, which are those of its artifact."""
    variants: Any = {"one": {"n": 1}, "two": {"n": 2}}
    with number_regions():
        byoc.partition(
            parse(TWINS),
            VANILLA,
            codegen="reference",
            strategy="all-supported",
            output=tmp_path / "b",
            variants=variants,
            verify=False,
        )
    bundle = byoc.open_bundle(tmp_path / "b")
    twins = {name: first for name, first in bundle.identical_regions.items() if "two" in name}
    assert {first.rpartition("_")[2] for first in twins.values()} == {"one"}
    asked: list[str] = []
    load = Reference.load

    def note(codegen: Reference, region: Region, artifact: Artifact) -> Executor:
        asked.append(region.name)
        return load(codegen, region, artifact)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reference, "load", note)
        loaded = byoc.load(tmp_path / "b", variant="two")
    assert asked == ["dla_0_one", "dla_1_two"]
    x, k = np.float32([[1, -2, 3, 4], [0, 1, -1, 2]]), np.float32([1, -2, 3, 0.5])
    expected = np.maximum(x - np.sin(np.maximum(k, 0)), 0)
    np.testing.assert_allclose(loaded({"x": x, "k": k})["y"], expected, rtol=1e-5)
