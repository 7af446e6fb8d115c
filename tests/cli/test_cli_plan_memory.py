"""`byoc plan-memory`: what it prints, writes, and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from cutting import CHAIN, cut
from support import Ran, parse

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


@pytest.mark.usefixtures("here")
def test_a_symbolic_dimension_is_asked_for(byoc: Cli) -> None:
    onnx.save(parse("g (float[N, 4] x) => (float[N, 4] y) { y = Exp(x) }"), "n.onnx")

    asked = byoc("plan-memory", "n.onnx")
    given = byoc("plan-memory", "n.onnx", "--dim", "N=2", "--format", "json")

    assert asked.code == 1
    assert asked.err == (
        "byoc: n.onnx: 'x' is float32[N, 4]: an extent is not known, which --dim N=N may settle\n"
    )
    assert json.loads(given.out)["plans"][0]["rows"][0]["arena"] == 32


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--convention", "E"], 1, "byoc: no convention is named 'E': there are A, B, C, D\n"),
        (["--method", "exakt"], 1, "did you mean exact?"),
        (["--svg", "none/p.svg"], 1, "none"),
        (["--dim", "N=2"], 1, "no input has a dimension named 'N'"),
        (["--size", "much"], 2, "'much': bytes are expected, such as 512KiB or 2MiB"),
        (["--size", "0"], 2, "bytes are expected"),
        (["--alignment", "0"], 2, "alignment"),
    ],
)
def test_what_is_refused(byoc: Cli, options: list[str], code: int, said: str) -> None:
    ran = byoc("plan-memory", "head.onnx", *options)

    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
