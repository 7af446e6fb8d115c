"""`byoc profile` and `byoc compare-costs`, in one run each; only structure, never times."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers.support import VANILLA, Ran, parse, region_names

from byoc.costs import CostTable, Linear, load_device_costs, load_host_costs, read_cost_file

NET = """net (float[1, 4] x) => (float[1, 4] y) {
  a = Relu(x)
  b = Tanh(a)
  c = Relu(b)
  d = Add(c, x)
  y = Sin(d)
}"""
QUICK = ("--repeats", "2", "--seconds", "0")
Cli = Callable[..., Ran]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with net.onnx in it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(NET), "net.onnx")
    return tmp_path


@pytest.mark.usefixtures("here")
def test_the_host(byoc: Cli) -> None:
    ran = byoc("profile", "net.onnx", "-o", "host.yaml", *QUICK)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "host.yaml: measurements of 4 operators, each on tensors of its types\n"
    table = read_cost_file(Path("host.yaml"))
    assert isinstance(table, CostTable)
    assert [entry.op for entry in table.entries] == ["Add", "Relu", "Sin", "Tanh"]
    assert {entry.samples for entry in table.entries} == {2, 4}
    assert table.description == "measured on net"
    assert load_host_costs("host.yaml").name == "host"
    assert byoc("partition", "net.onnx", "--rules", VANILLA, "--host-cost-model", "host.yaml").code == 0


@pytest.mark.usefixtures("here")
def test_open_dimensions_are_measured_at_the_sizes_given(byoc: Cli) -> None:
    onnx.save(parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"), "open.onnx")
    ran = byoc("profile", "open.onnx", "-o", "open.yaml", "--dim", "N=3", "--threads", "1", *QUICK)
    assert (ran.code, ran.err) == (0, "")
    table = read_cost_file(Path("open.yaml"))
    assert isinstance(table, CostTable)
    assert [entry.types for entry in table.entries] == ["float32[3, 4] -> float32[3, 4]"]


@pytest.mark.usefixtures("here")
def test_threads_are_the_hosts(byoc: Cli) -> None:
    ran = byoc("profile", "net.onnx", "-o", "p.yaml", "--device", "reference", "--threads", "1", *QUICK)
    assert ran.code == 1
    assert "threads are for the host; a codegen takes them as an option of its own" in ran.err
    assert not Path("p.yaml").exists()


@pytest.mark.usefixtures("here")
def test_lines_with_a_fallback(byoc: Cli) -> None:
    ran = byoc("profile", "net.onnx", "-o", "host.yaml", "--fit", "--else", "host", *QUICK)
    assert ran.code == 0
    model = read_cost_file(Path("host.yaml"))
    assert isinstance(model, Linear)
    assert list(model.operators) == ["Add", "Relu", "Sin", "Tanh"]
    assert model.otherwise == "host"


@pytest.mark.usefixtures("here")
def test_a_file_is_not_asked_for_what_it_lacks_itself(byoc: Cli) -> None:
    assert byoc("profile", "net.onnx", "-o", "p.yaml", *QUICK).code == 0
    before = Path("p.yaml").read_bytes()
    Path("q.yaml").write_text(
        "kind: roofline\nname: q\npeak: {default: 1}\nbandwidth: 1\nelse: p.yaml\n"
    )
    Path("sub").mkdir()
    for output, otherwise, sentence in (
        ("p.yaml", "p.yaml", "p.yaml: cannot be asked for what it does not know itself: else is p.yaml"),
        ("p.yaml", "./p.yaml", "p.yaml: cannot be asked for what it does not know itself"),
        ("p.yaml", "q.yaml", "q.yaml: else: the fallbacks go in a circle: p.yaml -> q.yaml -> p.yaml"),
        ("sub/p.yaml", "p.yaml", "sub/p.yaml: cannot be asked for what it does not know itself"),
    ):
        ran = byoc("profile", "gone.onnx", "-o", output, "--else", otherwise, *QUICK)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith(f"byoc: {sentence}")
    assert Path("p.yaml").read_bytes() == before
    assert not list(Path("sub").iterdir())
    assert byoc("profile", "net.onnx", "-o", "q.yaml", "--else", "p.yaml", *QUICK).code == 0


@pytest.mark.usefixtures("here")
def test_a_codegen_with_rules_and_without(byoc: Cli) -> None:
    ran = byoc("profile", "net.onnx", "--device", "reference", "-o", "acc.yaml", *QUICK)
    assert (ran.code, ran.err) == (0, "")
    table = read_cost_file(Path("acc.yaml"))
    assert isinstance(table, CostTable)
    assert [entry.op for entry in table.entries] == ["Add", "Relu", "Sin", "Tanh"]
    assert load_device_costs("acc.yaml").name == "reference"
    assert table.launch > 0
    ran = byoc(
        "profile", "net.onnx", "--device", "reference", "--rules", VANILLA, "-o", "acc.yaml", *QUICK
    )
    assert ran.code == 0
    found = read_cost_file(Path("acc.yaml"))
    assert isinstance(found, CostTable)
    assert [entry.op for entry in found.entries] == ["Add", "Relu"]
    refused = byoc(
        "profile",
        "net.onnx",
        "--device",
        "reference",
        "--rules",
        VANILLA,
        "--pairs",
        "-o",
        "p.yaml",
        *QUICK,
    )
    assert (refused.code, Path("p.yaml").exists()) == (1, False)
    assert "no pair: reference cannot run all of it as one" in " ".join(refused.err.split())
    ran = byoc("profile", "net.onnx", "--device", "reference", "--pairs", "-o", "acc.yaml", *QUICK)
    assert ran.code == 0
    assert "times as long while the host computes" in " ".join(ran.err.split())
    found = read_cost_file(Path("acc.yaml"))
    assert list(found.interference) == ["host"]


@pytest.mark.usefixtures("here")
def test_compare_on_the_host_as_json(byoc: Cli) -> None:
    ran = byoc("compare-costs", "net.onnx", "--costs", "host", "--format", "json", *QUICK)
    assert (ran.code, ran.err) == (0, "")
    report = json.loads(ran.out)
    assert list(report) == [*("rows", "rank_correlation", "mean_factor", "regions", "optimality_loss")]
    (row,) = report["rows"]
    assert list(row) == [
        "model",
        "where",
        "predicted",
        "measured",
        "spread",
        "samples",
        "error",
        "parts",
        "additive_error",
        "node_rank_correlation",
        "unknown",
        "noise",
        "pairs",
    ]
    assert (row["model"], row["where"], row["samples"], row["unknown"]) == ("net.onnx", "host", 2, 0)
    assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    assert report["rank_correlation"] is None
    assert report["regions"] == report["optimality_loss"] == []
    assert [pair["op"] for pair in row["pairs"]] == ["Relu", "Tanh", "Relu", "Add", "Sin"]
    for pair in row["pairs"]:
        assert pair["factor"] == pytest.approx(pair["predicted"] / pair["measured"])
        assert (pair["samples"], pair["estimated"]) == (2, False)
    assert row["noise"] >= 0


@pytest.mark.usefixtures("here")
def test_compare_regions_that_their_codegen_can_time(byoc: Cli) -> None:
    cut = ("--rules", "dla", "--strategy", "all-supported")
    assert byoc("partition", "net.onnx", *cut, "-o", "out").code == 0
    (region,) = json.loads(byoc("compare-costs", "out", "--format", "json", *QUICK).out)["regions"]
    (variant,) = json.loads(byoc("inspect", "out", "--format", "json").out)["variants"]
    noted = variant["regions"][0]["artifact_metadata"]
    assert (region["model"], region["region"], region["where"]) == (
        "out",
        *region_names(Path("out")),
        "dla",
    )
    assert region["codegen"] == pytest.approx(float(noted["seconds"]))
    assert region["error"] == pytest.approx(region["predicted"] / region["codegen"] - 1)
    assert region["estimated"] is True
    assert (
        "Regions, as their codegens time or estimate them:" in byoc("compare-costs", "out", *QUICK).out
    )
    assert re.search(rf"seconds +{noted['seconds']} ", byoc("inspect", "out", "--verbose").out)


@pytest.mark.usefixtures("here")
def test_compare_placements_cut_now_and_in_a_bundle(byoc: Cli) -> None:
    cut = ("--rules", VANILLA, "--strategy", "all-supported")
    assert byoc("partition", "net.onnx", *cut, "-o", "out").code == 0
    ran = byoc("compare-costs", "net.onnx", *cut, "--costs", "dla", "--format", "json", *QUICK)
    (now,) = json.loads(ran.out)["rows"]
    (bundled,) = json.loads(byoc("compare-costs", "out", "--format", "json", *QUICK).out)["rows"]
    assert (now["where"], bundled["where"]) == ("dla", "dla")
    assert now["predicted"] == bundled["predicted"]
    alone = byoc(
        "compare-costs",
        "net.onnx",
        "--rules",
        VANILLA,
        "--strategy",
        "host-only",
        "--costs",
        "dla",
        *QUICK,
    )
    assert re.search(r"net.onnx +host ", alone.out), "no region is on the accelerator"
    assert now["parts"] > 0
    refused = byoc("compare-costs", "net.onnx", "out", "--rules", VANILLA, "--loss")
    assert (refused.code, refused.out) == (1, "")
    assert "byoc: out: a bundle's placement is decided" in refused.err
    for flags in (("--rules", VANILLA), ("--costs", "dla")):
        refused = byoc("compare-costs", "out", *flags)
        assert (refused.code, refused.out) == (1, "")
        assert "byoc: out: a bundle is compared with the costs that it was placed by" in refused.err
    refused = byoc("compare-costs", "net.onnx", *cut, "--loss")
    assert (refused.code, refused.out) == (2, "")
    text = byoc("compare-costs", "net.onnx", "out", *QUICK)
    assert text.code == 0
    assert "predictions are off by a factor of" in text.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("profile", "no.onnx", "-o", "x.yaml"), "byoc: no.onnx: no such file"),
        (
            ("profile", "net.onnx", "-o", "no/x.yaml"),
            "byoc: no/x.yaml: cannot be written: there is no folder",
        ),
        (("profile", "net.onnx", "-o", "."), "byoc: .: cannot be written: it is a folder"),
        (("profile", "net.onnx", "-o", "x.yaml", "--device", "refrence"), "did you mean reference?"),
        (("profile", "net.onnx", "-o", "x.yaml", "--else", "hots"), "did you mean host?"),
        (("profile", "net.onnx", "-o", "x.yaml", "--pairs"), "pairs are of a codegen and the host"),
        (("compare-costs", "net.onnx", "--costs", "hots"), "did you mean host?"),
        (("compare-costs", "."), "not a bundle: it holds no manifest.json"),
    ],
)
@pytest.mark.usefixtures("here")
def test_mistakes(byoc: Cli, arguments: tuple[str, ...], sentence: str) -> None:
    ran = byoc(*arguments)
    assert ran.code == 1
    assert sentence in ran.err
    assert not Path("x.yaml").exists()


@pytest.mark.usefixtures("here")
def test_nothing_measured_is_nothing_written(byoc: Cli) -> None:
    onnx.save(parse("n (float[4] x) => (int64[1, N] y) { y = NonZero (x) }"), "open.onnx")
    ran = byoc("profile", "open.onnx", "-o", "x.yaml", *QUICK)
    assert ran.code == 1
    assert ran.err == (
        "byoc: open.onnx: the cost of 1 node cannot be looked up: open shapes, bodies\n"
        "byoc: nothing was measured, so there is nothing to write\n"
    )
    assert list(Path().glob("*.yaml")) == []
