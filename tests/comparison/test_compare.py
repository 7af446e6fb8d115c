"""Strategies side by side: rows, failures that stay rows, means, formats."""

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import astuple, dataclass
from math import sqrt
from pathlib import Path

import onnx
import pytest
from helpers.support import VANILLA, Ran, parse

from byoc.comparison import ROW_KEYS, StrategyRow, compare, summarize_strategies
from byoc.costs import Price, Task, Unknown, Work, load_device_costs, with_link
from byoc.errors import InputError
from byoc.pipeline import PlanOptions, load_settings, partition

NET = (
    """net (float[1, 64, 56, 56] x, float[64, 64, 3, 3] w) => (float[1, 64, 56, 56] y) {
    kernel = Constant <value_ints = [64, 64, 3, 3]> ()
    k = Expand(one, kernel)
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Relu(a)
    c = Conv <pads = [1, 1, 1, 1]> (b, k)
    y = Softmax(c)
}""".replace("one, kernel", "v, kernel")
    .replace("    kernel =", "    v = Constant <value_float = 0.01> ()\n    kernel =", 1)
    .replace(", float[64, 64, 3, 3] w", "")
)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(parse(NET), path)
    return path


STRATEGIES, LINKS = ("host-only", "min-cut", "exact"), (0.01, 100.0)


def compare_all(*models: str | Path, jobs: int = 1) -> list[StrategyRow]:
    """Compare three strategies at two links."""
    return compare(models, VANILLA, strategies=STRATEGIES, links=LINKS, jobs=jobs)


def test_a_row_for_each_strategy_at_each_link(net: Path) -> None:
    rows = compare_all(net)
    assert [tuple(row) for row in rows] == [ROW_KEYS] * 6
    assert [(row["link"], row["strategy"]) for row in rows] == [
        (link, strategy) for link in LINKS for strategy in STRATEGIES
    ]
    assert all(row["error"] is None for row in rows)


def test_a_row_says_what_partition_says(net: Path) -> None:
    rows = compare(net, VANILLA, strategies=STRATEGIES, jobs=1)
    for row in rows:
        report = partition(net, VANILLA, strategy=row["strategy"]).report
        assert row["objective"] == report.predicted.seconds
        assert row["bound"] == report.predicted.bound
        assert row["regions"] == len(report.regions)
        assert row["offloaded"] == report.compute.offloaded


def test_a_slow_link_keeps_everything_on_the_host(net: Path) -> None:
    slow, fast = (
        next(row for row in compare_all(net) if row["link"] == link and row["strategy"] == "exact")
        for link in LINKS
    )
    assert (slow["regions"], slow["bytes_moved"], slow["offloaded"]) == (0, 0, 0.0)
    assert fast["regions"] == 1
    # In go x, out comes what Softmax reads: 64 x 56 x 56 floats each.
    assert fast["bytes_moved"] == 2 * 4 * 64 * 56 * 56
    assert fast["objective"] < slow["objective"]
    assert 0 <= fast["gap"] < 1e-6


def test_another_link_changes_transfers_alone() -> None:
    before = load_device_costs("dla")
    after = with_link(before, 4e9)
    assert after.transfer(8_000_000).seconds == pytest.approx(5e-6 + 2e-3)
    task = Task("Conv", work=Work(1e9, 1e6))
    for find_price in (lambda model: model.launching(), lambda model: model.execution(task)):
        found = astuple(find_price(after))
        assert found == pytest.approx(astuple(find_price(before)), abs=0, rel=0, nan_ok=True)


@dataclass(frozen=True)
class Theirs:
    """A cost model from outside."""

    name: str = "theirs"

    def execution(self, task: Task) -> Price | Unknown:
        return Price(1.0, 2.0)

    def transfer(self, size: int, converted: int = 0) -> Price:
        return Price(3.0 + size, 4.0)

    def launching(self) -> Price:
        return Price(5.0, 6.0)


def test_another_link_for_a_cost_model_from_outside() -> None:
    model = with_link(Theirs(), 2.0)
    assert model.name == "theirs"
    assert model.transfer(10) == Price(3.0 + 5.0, 4.0)
    assert model.launching() == Price(5.0, 6.0)
    assert not hasattr(model, "estimate")


def test_what_fails_is_a_row_and_the_rest_goes_on(net: Path, tmp_path: Path) -> None:
    chain = "\n".join(f"    t{i} = Relu(t{i - 1})" for i in range(1, 30))
    long = parse(f"g (float[4] t0) => (float[4] y) {{\n{chain}\n    y = Relu(t29)\n}}")
    onnx.save(long, tmp_path / "long.onnx")
    gone = tmp_path / "gone.onnx"
    models = (gone, tmp_path / "long.onnx", net)
    rows = compare(models, VANILLA, strategies=("host-only", "exhaustive"), jobs=1)
    errors = [row["error"] for row in rows]
    assert errors[0] == errors[1] == f"{gone}: no such file"
    assert errors[2] is None
    assert "exhaustive tries at most" in errors[3]
    assert errors[4:] == [None, None]
    assert rows[0]["objective"] is None


@pytest.mark.usefixtures("cold_processes")
def test_several_processes_give_the_same_rows(net: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(parse(NET.replace("Softmax", "Sigmoid")), other)
    one, two = (compare_all(net, other, jobs=count) for count in (1, 2))
    for row in (*one, *two):
        del row["seconds"]
    assert one == two


def test_a_process_that_dies_is_an_error_of_its_model(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed while it reads a model, as by a lack of memory."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, pathlib\n"
        "real = pathlib.Path.read_bytes\n"
        "def read(self):\n"
        "    if self.name == 'deadly.onnx':\n"
        "        os._exit(9)\n"
        "    return real(self)\n"
        "pathlib.Path.read_bytes = read\n"
        "import builtins\n"
        "opened = builtins.open\n"
        "def open(file, *a, **k):\n"
        "    if str(file).endswith('deadly.onnx'):\n"
        "        os._exit(9)\n"
        "    return opened(file, *a, **k)\n"
        "builtins.open = open\n"
        "import io\n"
        "io.open = open\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    deadly = tmp_path / "deadly.onnx"
    onnx.save(parse(NET), deadly)
    rows = compare([deadly, net], VANILLA, strategies=("host-only",), jobs=2)
    assert [row["error"] for row in rows] == ["its process ended with exit code 9", None]


def test_means_are_geometric_and_to_the_best_of_each_case() -> None:
    def row(
        model: str, strategy: str, objective: float | None, gap: float | None = None
    ) -> dict[str, object]:
        return {
            **dict.fromkeys(ROW_KEYS),
            **{"model": model, "strategy": strategy, "objective": objective, "gap": gap},
            **{"measure": objective and "total", "error": None if objective else "no", "seconds": 1.0},
        }

    rows = [
        row("m", "a", 2.0),
        row("m", "b", 1.0, 0.1),
        row("n", "a", 3.0),
        row("n", "b", 6.0, 0.3),
        row("o", "a", 5.0),
        row("o", "b", None),
    ]
    first, second = summarize_strategies(rows)
    assert first["mean_ratio"] == pytest.approx(sqrt(2)), "over the two that both solved"
    assert (first["common"], second["common"]) == (2, 2)
    assert (first["worst_ratio"], first["cases"], first["errors"]) == (2.0, 3, 0)
    assert second["mean_ratio"] == pytest.approx(sqrt(2))
    assert (second["largest_gap"], second["cases"], second["errors"]) == (0.3, 2, 1)
    assert second["seconds"] == 2.0


def test_the_command_line_prints_text_csv_and_json(net: Path, byoc: Callable[..., Ran]) -> None:
    asked = ("compare", net, "--rules", VANILLA, "--jobs", "1")
    asked += ("--strategies", "host-only", "--strategies", "exact")
    ran = byoc(*asked, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    rows = json.loads(ran.out)
    assert [tuple(row) for row in rows] == [ROW_KEYS, ROW_KEYS]
    table = list(csv.DictReader(io.StringIO(byoc(*asked, "--format", "csv").out)))
    assert [float(row["objective"]) for row in table] == [row["objective"] for row in rows]
    text = byoc(*asked).out
    assert "host-only" in text
    assert "Over 1 case, each a model at a link, as ratios to the best" in text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--strategies", "exakt"), "exakt: no such strategy (did you mean exact?)"),
        (("--objective", "speed"), "objective speed: no such objective"),
    ],
)
def test_what_holds_for_no_model_is_said(
    options: tuple[str, str], sentence: str, net: Path, byoc: Callable[..., Ran]
) -> None:
    ran = byoc("compare", net, "--rules", VANILLA, "--jobs", "1", *options)
    assert ran.code == 1
    assert ran.out == ""
    assert sentence in ran.err
    assert len(ran.err.splitlines()) == 1


def test_one_failure_makes_the_exit_code_1(net: Path, byoc: Callable[..., Ran]) -> None:
    ran = byoc(
        "compare", net, "gone.onnx", "--rules", VANILLA, "--strategies", "host-only", "--jobs", "1"
    )
    assert ran.code == 1
    assert "\nerror: gone.onnx: no such file\n" in ran.out
    assert ran.out.count("gone.onnx") == 1
    assert "9." in ran.out or "ms" in ran.out  # the other one was placed


@pytest.mark.parametrize("link", ["fast", "0", "-1", "nan", "1,,2"])
def test_a_link_is_a_number(link: str, net: Path, byoc: Callable[..., Ran]) -> None:
    ran = byoc("compare", net, "--rules", VANILLA, "--link", link)
    assert ran.code == 2
    assert "GB/s" in ran.err


def test_a_study_without_rules_is_no_study() -> None:
    with pytest.raises(InputError, match="no rule file was given"):
        load_settings(PlanOptions([]))
