"""`byoc plan-memory`: what it prints, writes, and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from helpers.cutting import CHAIN, HOST_ONLY, cut
from helpers.support import Ran, parse, region_names

from byoc.bundle import open_bundle
from byoc.memory.arena import METHODS
from byoc.memory.reading import CONVENTIONS
from byoc.pipeline import partition
from byoc.quantization import Precision

NETS = {
    "branches": """branches (float[1, 4, 8, 8] x) => (float[1, 12, 8, 8] y) {
        a = Relu(x)
        b = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
        c = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
        d = Add(b, c)
        y = Concat <axis = 1> (b, c, d)
    }""",
    "head": """head (float[1, 8, 4, 4] x) => (float[1, 128] y) {
        a = Sigmoid(x)
        b = Mul(x, a)
        c = Flatten(b)
        y = Softmax(c)
    }""",
    "quantized": """quantized (float[1, 2, 8, 8] x) => (float[1, 2, 4, 4] y) {
        scale = Constant <value_float = 0.5> ()
        zero = Constant <value = int8 {0}> ()
        a = QuantizeLinear(x, scale, zero)
        b = DequantizeLinear(a, scale, zero)
        c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
        d = QuantizeLinear(c, scale, zero)
        y = DequantizeLinear(d, scale, zero)
    }""",
}
Cli = Callable[..., Ran]
Golden = Callable[[str, str], None]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the models in it."""
    monkeypatch.chdir(tmp_path)
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    for name, text in NETS.items():
        onnx.save(parse(text), f"{name}.onnx")
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("branches", ["--size", "3KiB", "--alignment", "64"]),
        ("head", ["--convention", "A", "--method", "by-size", "--no-striped"]),
        ("quantized", ["--fused"]),
    ],
)
def test_text(byoc: Cli, golden: Golden, name: str, options: list[str]) -> None:
    ran = byoc("plan-memory", f"{name}.onnx", *options)

    assert (ran.code, ran.err) == (0, "")
    golden(f"memory/{name}.txt", ran.out)


@pytest.mark.usefixtures("here")
def test_json(byoc: Cli) -> None:
    ran = byoc("plan-memory", "branches.onnx", "--size", "4 KiB", "--format", "json")
    document = json.loads(ran.out)

    assert (ran.code, ran.err, document["size"], document["model"]) == (0, "", 4096, "branches.onnx")
    assert list(document["conventions"]) == ["A", "B", "C", "D"]
    (plan,) = document["plans"]
    assert all(row["fits"] == (row["arena"] <= 4096) for row in plan["rows"])
    assert plan["levels"]["size"] == 4096
    assert plan["plan"]["convention"] == "C"


def test_a_picture_of_whole_tensors_and_one_of_windows(byoc: Cli, here: Path) -> None:
    for method, word in (("exact", "convention C"), ("striped", "striped")):
        ran = byoc("plan-memory", "branches.onnx", "--svg", "p.svg", "--method", method)

        assert (ran.code, ran.err) == (0, "")
        root = ElementTree.parse(here / "p.svg").getroot()
        assert root is not None
        assert word in (root.findtext("{http://www.w3.org/2000/svg}title") or "")


def test_a_bundle_has_a_plan_for_the_whole_and_each_region(byoc: Cli, here: Path) -> None:
    made = cut(parse(CHAIN), here / "b", codegen="reference")
    regions = [region.name for region in made.plan.regions]

    ran = byoc("plan-memory", "b", "--format", "json", "--svg", "p.svg")

    assert (ran.code, ran.err) == (0, "")
    names = [plan["name"] for plan in json.loads(ran.out)["plans"]]
    assert names == ["b: the whole", *(f"b: {name}" for name in regions)]
    drawn = sorted(path.name for path in here.glob("p.*"))
    assert regions
    assert drawn == sorted(["p.whole.svg", *(f"p.{name}.svg" for name in regions)])


def test_regions_in_int8_are_planned_as_limits_memory_counts_them(byoc: Cli, here: Path) -> None:
    (here / "rules.yaml").write_text("extends: dla\ncodegen: reference\nlimits: {memory: 1MiB}\n")
    net = """g (float[1, 3, 16, 16] x) => (float[1, 8, 16, 16] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, v) b = Relu(a) c = Conv(b, w) d = Relu(c) y = Add(d, b) }"""
    proto = parse(net)
    for name, dims in (("v", (8, 3, 3, 3)), ("w", (8, 8, 1, 1))):
        values = np.random.default_rng(0).normal(size=dims).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    made = partition(
        proto,
        here / "rules.yaml",
        output=here / "b",
        precision=Precision(quantize="int8", data="random"),
        strategy="all-supported",
        verify=False,
    )
    (region,) = made.report.regions
    assert region.memory is not None

    plans = json.loads(byoc("plan-memory", "b", "--format", "json").out)["plans"]
    floats = json.loads(byoc("plan-memory", "b", "--no-fused", "--format", "json").out)["plans"]

    assert plans[1]["plan"]["arena"] == region.memory.activations
    assert [*plans[1]["dtypes"]] == ["int8"]
    assert floats[1]["plan"]["arena"] > 2 * region.memory.activations
    assert [*floats[1]["dtypes"]] == ["float32", "int8"]
    assert any("--fused counts the integers" in note for note in floats[1]["notes"])


RULES = """target: {name}
codegen: reference
cost_model: dla
dtype: float32
ops:
  - op: {op}
"""


def test_pictures_of_regions_are_files_of_their_own(byoc: Cli, here: Path) -> None:
    rules = []
    for name, op in (("dla", "Relu"), ("npu", "Sin")):
        rules.append(here / f"{op}.yaml")
        rules[-1].write_text(RULES.format(name=name, op=op))
    net = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Relu(x) b = Exp(a) y = Sin(b) }")
    partition(net, rules, output=here / "b", strategy="all-supported")

    ran = byoc("plan-memory", "b", "--svg", "p.svg")

    assert (ran.code, ran.err) == (0, "")
    drawn = sorted(path.name for path in here.glob("p.*"))
    variants = {"one": {"rules": str(rules[0])}, "two": {"rules": str(rules[1])}}
    partition(net, variants=variants, output=here / "v", strategy="all-supported")
    assert "give --variant" in byoc("plan-memory", "v").err
    ran = byoc("plan-memory", "v", "--variant", "two", "--format", "json")
    (entry,) = [each for each in open_bundle(here / "v").manifest.variants if each.name == "two"]
    names = [plan["name"] for plan in json.loads(ran.out)["plans"]]
    assert names == ["v: the whole", *(f"v: {each.name}" for each in entry.regions)]
    onnx.save(net, here / "net.onnx")
    ran = byoc("plan-memory", "net.onnx", "--variant", "two")
    assert (ran.code, ran.err) == (1, "byoc: net.onnx: is no bundle, so that it has no variant 'two'\n")
    first, second = region_names(here / "b")
    assert drawn == [f"p.{first}.svg", f"p.{second}.svg", "p.whole.svg"]


def test_a_bundle_without_regions_has_a_picture_of_the_whole(byoc: Cli, here: Path) -> None:
    cut(parse(HOST_ONLY), here / "b", codegen="reference")

    assert byoc("plan-memory", "b", "--svg", "p.svg").code == 0
    assert [path.name for path in here.glob("p.*")] == ["p.whole.svg"]


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("flat", [], "nothing is computed by rows, so there is no striped execution"),
        ("quantized", ["--fused"], "steps of several nodes are not computed by rows, so there is no "),
    ],
)
def test_striped_execution_that_there_is_not_is_no_other_picture(
    byoc: Cli, here: Path, name: str, options: list[str], why: str
) -> None:
    onnx.save(parse("flat (float[4] x) => (float[4] y) { y = Exp(x) }"), "flat.onnx")
    asked = ["plan-memory", f"{name}.onnx", *options]
    ran = byoc(*asked, "--method", "striped", "--svg", "p.svg")

    assert (ran.code, ran.out) == (1, "")
    assert f"byoc: {name}.onnx: {why}" in ran.err
    assert not list(here.glob("p.*"))
    assert f"note: {why}" in byoc(*asked).out  # without being asked for it is no error


def test_of_a_bundle_what_is_striped_is_drawn(byoc: Cli, here: Path) -> None:
    net = """g (float[1, 2, 8, 8] x) => (float[1, 64] y, float[1, 2, 7, 7] z) {
        a = Relu(x)
        z = MaxPool <kernel_shape = [2, 2]> (a)
        b = Flatten(x)
        c = Sigmoid(b)
        y = Gemm(c, w)
    }"""
    proto = parse(net)
    proto.graph.initializer.append(onnx.helper.make_tensor("w", 1, [128, 64], [0.0] * 128 * 64))
    cut(proto, here / "b", codegen="reference")

    ran = byoc("plan-memory", "b", "--method", "striped", "--svg", "p.svg", "--format", "json")

    assert (ran.code, ran.err) == (0, "")
    plans = {p["name"].rpartition(": ")[2]: p for p in json.loads(ran.out)["plans"]}
    striped = {name.rpartition(" ")[2] for name, p in plans.items() if p["striped"]}
    assert 0 < len(striped) < len(plans)
    assert {path.name for path in here.glob("p.*")} == {f"p.{name}.svg" for name in striped}
    assert all("no striped execution" in p["notes"][-1] for p in plans.values() if not p["striped"])


@pytest.mark.usefixtures("here")
def test_rows_that_save_nothing_are_not_in_the_first_line(byoc: Cli) -> None:
    onnx.save(parse("g (float[1, 2, 8, 8] x) => (float[1, 2, 8, 8] y) { y = Relu(x) }"), "r.onnx")
    ran = byoc("plan-memory", "r.onnx")

    assert ran.out.splitlines()[0] == "r.onnx: 512 B of activations, proven minimal"
    assert " striped " in ran.out


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ([], "branches.onnx: 6 KiB of activations, proven minimal; 3.38 KiB in bands of rows"),
        (["--no-striped"], "branches.onnx: 6 KiB of activations, proven minimal"),
        (
            ["--convention", "A", "--method", "no-reuse", "--no-striped"],
            "branches.onnx: 7 KiB of activations, no plan needs less than 6 KiB",
        ),
    ],
)
@pytest.mark.usefixtures("here")
def test_the_first_line_says_what_it_comes_to(byoc: Cli, options: list[str], first: str) -> None:
    assert byoc("plan-memory", "branches.onnx", *options).out.splitlines()[0] == first


@pytest.mark.usefixtures("here")
def test_an_open_dimension_has_the_size_that_is_planned_or_given(byoc: Cli) -> None:
    onnx.save(parse("g (float[N, 4] x) => (float[N, 4] y) { y = Exp(x) }"), "n.onnx")

    planned = byoc("plan-memory", "n.onnx", "--format", "json")
    given = byoc("plan-memory", "n.onnx", "--dim", "N=2", "--format", "json")

    (plan,) = json.loads(planned.out)["plans"]
    assert (plan["rows"][0]["arena"], plan["notes"][0]) == (
        16,
        "planned for N = 1 (--dim chooses others)",
    )
    assert json.loads(given.out)["plans"][0]["rows"][0]["arena"] == 32


@pytest.mark.usefixtures("here")
def test_the_length_of_a_cache_that_grows_is_asked_for(byoc: Cli) -> None:
    text = """g (float[1, 4] x, float[P, 4] past_key) => (float[1, 4] y, float[T, 4] present_key) {
        y = Exp(x)
        present_key = Concat <axis = 0> (past_key, x)
    }"""
    onnx.save(parse(text), "n.onnx")
    asked = byoc("plan-memory", "n.onnx")
    assert asked.code == 1
    assert "an extent is not known, which --dim P=SIZE may settle" in asked.err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--convention", "E"], 2, "--convention: no convention is named 'E': there are A, B, C, D\n"),
        (["--method", "exakt"], 2, "--method: no method is named 'exakt' (did you mean exact?): there "),
        (["--method", "foo"], 2, "'foo': there are no-reuse, best-fit, by-size, reordered, exact, str"),
        (["--method", "striped", "--no-striped"], 2, "--no-striped: --method striped asks for it"),
        (["--svg", "none/p.svg"], 1, "none"),
        (["--dim", "N=2"], 1, "no input has a dimension named 'N'"),
        (["--size", "much"], 2, "'much': a whole number above 0 is expected, with B, "),
        (["--size", "0"], 2, "'0': a whole number above 0 is expected"),
        (["--size", "0KiB"], 2, "'0KiB': a whole number above 0 is expected"),
        (["--size", "0.5MiB"], 2, "TB or no unit behind it, such as 512KiB"),
        (["--size", "512kb"], 2, "'512kb': a whole number above 0 is expected, with B, KiB, MiB, GiB"),
        (["--alignment", "0"], 2, "alignment"),
    ],
)
def test_what_is_refused(byoc: Cli, options: list[str], code: int, said: str) -> None:
    ran = byoc("plan-memory", "head.onnx", *options)

    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


def test_its_help_names_all_methods_and_conventions(byoc: Cli) -> None:
    text = "".join(byoc("plan-memory", "--help").out.split())  # lines break at hyphens
    assert f":{','.join(CONVENTIONS)}." in text
    assert f":{','.join(METHODS)},orstriped" in text
