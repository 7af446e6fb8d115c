"""`byoc partition --print-after`: what a stage made, in a few lines on standard error."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers.cutting import CHAIN, cut, number_regions
from helpers.support import VANILLA, Ran, parse

from byoc.pipeline import list_stages, summarize_stage

# Two layers in int8 with a Softmax between that stays on the host, and a body with a node of its own.
NET = """
net (float[1, 4, 8, 8] x, bool c) => (float[1, 4, 8, 8] y)
    <float[4, 4, 1, 1] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> {
    a = Conv(x, w)
    b = Relu(a)
    s = Softmax(b)
    y = If(c) <
        then_branch = t () => (float[1, 4, 8, 8] t1) { t1 = Relu(s) },
        else_branch = e () => (float[1, 4, 8, 8] e1) { e1 = Sigmoid(s) }
    >
}
"""
Cli = Callable[..., Ran]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with net.onnx and the rules in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(NET), "net.onnx")
    Path("dla.yaml").write_text(VANILLA.read_text("utf-8"), "utf-8")
    return tmp_path


def print_after(byoc: Cli, *stages: str, code: int = 0, **options: str) -> str:
    flags = [word for stage in stages for word in ("--print-after", stage)]
    more = [word for name, value in options.items() for word in (f"--{name}", value)]
    strategy = ("--strategy", "all-supported")
    with number_regions():
        ran = byoc("partition", "net.onnx", "--rules", "dla.yaml", *strategy, *flags, *more)
    assert ran.code == code, ran.err
    return ran.err


@pytest.mark.usefixtures("here")
def test_what_each_stage_made(byoc: Cli, golden: Callable[[str, str], None]) -> None:
    stages = [each for each in list_stages() if each not in {"Estimate", "Pack"}]
    golden("cli_print_after.txt", print_after(byoc, *stages, output="b"))


@pytest.mark.usefixtures("here")
def test_a_plan_alone_leaves_the_partitioned_model_for_later(byoc: Cli) -> None:
    later = "  nothing yet: the partitioned model is made when it is asked for\n"
    found = print_after(byoc, "outl", "CONVERT")
    assert found == f"after Outline:\n{later}after Convert:\n{later}"


@pytest.mark.usefixtures("here")
def test_the_report_stays_on_standard_output(byoc: Cli) -> None:
    words = ("partition", "net.onnx", "--rules", "dla.yaml", "--format", "json")
    with number_regions():
        plain, told = byoc(*words), byoc(*words, "--print-after", "Group")
    assert told.out == plain.out
    assert plain.err == ""
    assert told.err.startswith("after Group:\n  3 units\n    dla supports 1 of them\n")


@pytest.mark.usefixtures("here")
def test_quantized_units_are_counted(byoc: Cli) -> None:
    found = print_after(byoc, "quantize", quantize="int8", data="random")
    assert found.startswith(
        "after Quantize:\n  1 unit in int8\n  warning: the scales are concluded from "
    )
    assert "3 DequantizeLinear" in found


@pytest.mark.usefixtures("here")
def test_every_stage_says_what_it_made(byoc: Cli) -> None:
    """Among it answers of codegens, and files of the bundle."""
    found = print_after(byoc, *list_stages(), ask="legality", output="b").splitlines()
    heads = [place for place, line in enumerate(found) if line.startswith("after ")]
    assert [found[place] for place in heads] == [f"after {name}:" for name in list_stages()]
    assert all(found[place + 1].startswith("  ") for place in heads)
    answer = "  codegen reference cannot be asked which nodes it takes: it has no `check`"
    assert found[found.index("after Ask:") + 1] == answer
    files = [line.split(":")[0].strip() for line in found[found.index("after Pack:") + 1 :]]
    written = sorted(path.relative_to("b").as_posix() for path in Path("b").rglob("*") if path.is_file())
    assert set(files) >= set(written) - {"manifest.sig"}


@pytest.mark.usefixtures("here")
def test_each_variant_has_its_lines(byoc: Cli) -> None:
    onnx.save(parse("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"), "net.onnx")
    found = print_after(byoc, "load", "findp", bucket="n=1,2", output="b").splitlines()
    heads = [line for line in found if line.startswith("after ")]
    assert heads == [
        *("after Load, variant n_1:", "after Load, variant n_2:"),
        *("after FindPadding, variant n_1:", "after FindPadding, variant n_2:"),
    ]
    assert "  input x: float32[2, 4]" in found


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Plce", "no stage is called Plce (did you mean Place?); there are Resolve, Load, "),
        ("est", "several stages begin with est; there are Estimate, EstimateGains"),
        ("Compile", "Compile runs where a bundle is written: give -o, too"),
    ],
)
def test_a_stage_that_cannot_be_printed(byoc: Cli, name: str, told: str) -> None:
    assert f"Invalid value for --print-after: {told}" in print_after(byoc, name, code=2)


def test_names_of_others_are_printable(here: Path, byoc: Cli) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "x\x1b[31m"
    onnx.save(model, here / "net.onnx")
    assert "  input x\\x1b[31m: float32[1, 4]" in print_after(byoc, "load").splitlines()


def test_a_stage_of_others_says_nothing() -> None:
    class Other:
        def run(self, state: object) -> object:
            return state

    assert summarize_stage(Other(), cut(parse(CHAIN))) == []
