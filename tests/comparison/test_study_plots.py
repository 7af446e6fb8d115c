"""Figures and tables of a study's results: what is in them, and names of others in them."""

import re
from base64 import b64decode
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Ran, sample_cases

import byoc
from byoc.comparison import COLUMNS, StudyRow, read_results, summarize_study, write_results
from byoc.comparison._study_plots import (
    _escape_latex,
    _escape_markdown,
    find_pareto,
    join_measured,
)

Cli = Callable[..., Ran]
NASTY = r"a|b_c$x^2$ {\bad} 100% #1 & <i> [u](v) --"


def make_row(**known: Any) -> StudyRow:
    row = dict.fromkeys(COLUMNS) | {
        **{"model": "m", "rules": "r", "strategy": "s", "options": "", "status": "ok", "reason": ""},
        **{"link": 1.0, "objective": "latency", "measure": "total", "value": 1.0, "ratio": 1.0},
        **{"gap": 0.0, "best_value": 1.0, "seconds": 1.0, "host_only_seconds": 2.0, "joules": 3.0},
        **{"constant_bytes": 4, "solver_seconds": 0.5, "notes": [], "repetition": 0},
    }
    return row | known


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        make_row(
            link=link, strategy=name, value=value / link, seconds=value / link, ratio=value, gap=gap
        )
        for link in (0.1, 1.0, 10.0)
        for name, value, gap in (("good", 1.0, 0.0), (NASTY, 1.5, 1 / 3))
    ]
    failed = make_row(strategy="good", status="timed out", reason="no", value=None, ratio=None, gap=None)
    write_results(tmp_path / "r.csv", [*rows, failed | {"seconds": None, "solver_seconds": None}])
    return tmp_path / "r.csv"


def test_a_summary_counts_solved_and_failed(results: Path) -> None:
    good, nasty = summarize_study(read_results(results))
    assert good == {
        **{"strategy": "good", "measure": "total", "cases": 4, "failed": 1, "problems": 2},
        **{"mean ratio": 1.0, "95 % of means": (1.0, 1.0), "by seed": None, "worst ratio": 1.0},
        **{"p": None, "mean gap": 0.0, "largest gap": 0.0, "seconds": 0.5},
    }
    assert nasty["mean ratio"] == pytest.approx(1.5)
    assert nasty["p"] == pytest.approx(0.5), "two differences of one sign have 1 of 2 chances"
    assert nasty["mean gap"] == pytest.approx(1 / 3)


def test_tables_escape_names(results: Path, byoc: Cli) -> None:
    *lines, _, over = byoc("study", "table", results).out.splitlines()
    assert over == "Compared over the 2 of 3 problems that every strategy solved which solved any."
    assert len(lines) == 4
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert _escape_markdown("launch-aware (rounds=4)") == "launch-aware (rounds=4)"
    latex = byoc("study", "table", results, "--format", "latex").out
    assert r"a\textbar{}b\_c\$x\textasciicircum{}2\$ \{\textbackslash{}bad\} 100\% \#1 \&" in latex
    assert byoc("study", "table", results, "--format", "html").code == 2


def test_a_strategy_that_fails_on_hard_problems_does_not_look_better(tmp_path: Path, byoc: Cli) -> None:
    """It solves the easy one as the other does, which is 1.2 times the best on the hard one."""
    rows = [
        make_row(model="easy", strategy="steady", ratio=1.05),
        make_row(model="hard", strategy="steady", ratio=1.2),
        make_row(model="easy", strategy="fragile", ratio=1.1),
        make_row(model="hard", strategy="fragile", status="failed", ratio=None, gap=None),
        make_row(model="easy", strategy="hopeless", status="failed", ratio=None, gap=None),
    ]
    steady, fragile, hopeless = summarize_study(rows)
    assert (steady["problems"], fragile["problems"], hopeless["problems"]) == (1, 1, 0)
    assert steady["mean ratio"] < fragile["mean ratio"]
    assert hopeless["mean ratio"] is None
    steady, fragile, _ = summarize_study(rows, "own")
    assert steady["mean ratio"] > fragile["mean ratio"]
    write_results(tmp_path / "r.csv", rows)
    ran = byoc("study", "table", tmp_path / "r.csv", "--over", "own")
    assert ran.out.endswith("\nCompared each strategy over those of 2 problems that it solved.\n")
    assert byoc("study", "table", tmp_path / "r.csv", "--over", "all").code == 2


def test_seeds_are_a_spread_and_not_more_problems() -> None:
    """A model with many seeds counts as much as one with one."""
    rows = [make_row(model="a", seed=seed, ratio=1 + seed / 10) for seed in range(3)]
    rows += [make_row(model="b", seed=0, ratio=2.0)]
    (found,) = summarize_study(rows)
    assert (found["cases"], found["problems"]) == (4, 2)
    of_a = (1.0 * 1.1 * 1.2) ** (1 / 3)
    assert found["mean ratio"] == pytest.approx((of_a * 2) ** 0.5)
    assert found["by seed"] == pytest.approx((1.1, 2**0.5))
    low, high = found["95 % of means"]
    assert of_a == pytest.approx(low)
    assert high == pytest.approx(2)


def test_a_difference_that_always_has_one_sign_is_told(results: Path) -> None:
    rows = [
        make_row(model=str(model), strategy=name, ratio=ratio)
        for model in range(10)
        for name, ratio in (("one", 1.0), ("other", 1.01 + model / 1000), ("same", 1.0))
    ]
    found = {row["strategy"]: row["p"] for row in summarize_study(rows)}
    assert found == {"one": None, "other": pytest.approx(2 / 2**10), "same": 1.0}


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_nothing_in_common_is_nothing_to_plot(suffix: str, tmp_path: Path, byoc: Cli) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        make_row(model="a", strategy="one"),
        make_row(model="b", strategy="other"),
    ]
    write_results(tmp_path / "r.csv", rows)
    ran = byoc("study", "plot", tmp_path / "r.csv", "-o", tmp_path / f"r.{suffix}")
    assert (ran.code, (tmp_path / f"r.{suffix}").exists()) == (1, False)
    assert "no problem was solved by every strategy; --over own plots all" in " ".join(ran.err.split())
    ran = byoc("study", "plot", tmp_path / "r.csv", "-o", tmp_path / f"r.{suffix}", "--over", "own")
    assert ran.code == 0, ran.err


@given(st.text(min_size=1))
def test_nothing_special_is_left_in_names(text: str) -> None:
    latex = re.sub(r"\\text[a-z]+\{\}|\\[&%$#_{}]|-\{\}", "", _escape_latex(text))
    assert not set(latex) & set('\\~^<>|"&%$#_{}')
    assert "--" not in latex or "-{}-" in _escape_latex(text)
    assert not re.findall(r"(?<!\\)(?:\\\\)*[|*_<>\[\]`$]", _escape_markdown(text))


def test_options_tell_variants_of_a_strategy_apart() -> None:
    rows = [
        make_row(options="rounds=1"),
        make_row(options="rounds=2"),
        make_row(strategy="t", options="x=1"),
    ]
    assert [row["strategy"] for row in summarize_study(rows)] == ["s (rounds=1)", "s (rounds=2)", "t"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_a_front_is_what_nothing_is_better_than(points: list[tuple[float, float]]) -> None:
    front = find_pareto(points)
    for point in points:
        beaten = [o for o in points if o != point and o[0] <= point[0] and o[1] <= point[1]]
        assert (point in front) == (not beaten)


def test_a_folder_has_a_file_for_each_figure(results: Path, tmp_path: Path, byoc: Cli) -> None:
    pytest.importorskip("matplotlib")
    measured = tmp_path / "measured.csv"
    measured.write_text("link,strategy,measured_seconds\n1,good,1.25\n10,good,0.2\n")
    ran = byoc("study", "plot", results, "-o", tmp_path / "figures", "--measured", measured)
    assert ran.code == 0, ran.err
    names = ["bandwidth", "gaps", "pareto", "measured"]
    assert ran.out.splitlines() == [str(tmp_path / "figures" / f"{name}.svg") for name in names]
    for name in names:
        ElementTree.parse(tmp_path / "figures" / f"{name}.svg")
    before = (tmp_path / "figures" / "gaps.svg").read_bytes()
    assert byoc("study", "plot", results, "-o", tmp_path / "figures").code == 0
    assert (tmp_path / "figures" / "gaps.svg").read_bytes() == before


@pytest.mark.parametrize("suffix", sample_cases([".svg", ".png", ".pdf"], ".png"))
def test_one_file_has_all_figures(suffix: str, results: Path, tmp_path: Path, byoc: Cli) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"all{suffix}"
    assert byoc("study", "plot", results, "-o", path).code == 0
    start = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)
    assert "figures are .svg" in byoc("study", "plot", results, "-o", tmp_path / "all.gif").err


def test_a_page_has_figures_and_tables_and_loads_nothing(
    results: Path, tmp_path: Path, byoc: Cli
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "study.html"
    assert byoc("study", "plot", results, "-o", path).out == f"{path}\n"
    text = path.read_text(encoding="utf-8")
    figures = re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,([^"]+)">', text)
    assert len(figures) == 3
    folder = tmp_path / "figures"
    assert byoc("study", "plot", results, "-o", folder).code == 0
    names = ("bandwidth", "gaps", "pareto")
    assert [b64decode(each) for each in figures] == [(folder / f"{n}.svg").read_bytes() for n in names]
    assert "<p>7 cases of 1 model; 1 not solved (1 timed out)</p>" in text
    assert f"<td>{escape(NASTY)}</td><td>total</td>" in text
    assert "<td>m</td><td>good</td><td></td><td>timed out</td><td>no</td>" in text
    assert not re.search(r"https?:|<script|<link|url\(", text)
    assert "default-src 'none'" in text
    again = byoc("study", "plot", results, "-o", tmp_path / "again.html")
    assert again.code == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_lines_are_at_what_the_results_say(results: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure  # noqa: PLC0415

    from byoc.comparison._study_plots import _FIGURES  # noqa: PLC0415

    rows = [row for row in read_results(results) if row["status"] == "ok"]
    figure = Figure()
    _FIGURES["bandwidth"](figure, rows)
    good, nasty = figure.axes[0].lines
    assert good.get_xdata() == pytest.approx([0.1, 1.0, 10.0])
    assert good.get_ydata() == pytest.approx([5.0, 0.5, 0.05])  # of the host's 2 s
    assert nasty.get_ydata() == pytest.approx([7.5, 0.75, 0.075])
    figure = Figure()
    _FIGURES["gaps"](figure, rows)
    assert figure.axes[0].lines[1].get_xdata() == pytest.approx([1e-9, 1 / 3, 1 / 3, 1 / 3])
    assert figure.axes[0].lines[1].get_ydata() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_measured_seconds_are_joined_by_columns(results: Path, tmp_path: Path) -> None:
    rows = read_results(results)
    path = tmp_path / "m.csv"
    path.write_text("link,measured_seconds\n0.10,7\n")
    joined = join_measured(rows, path)
    assert [row["measured_seconds"] for row in joined[:4]] == [7.0, 7.0, None, None]
    for text, told in (
        ("link\n1\n", "there is no column measured_seconds"),
        ("lnk,measured_seconds\n1,1\n", "there is no column lnk in the results"),
        ("link,measured_seconds\n1,x\n", ":2: measured_seconds is no number"),
        ("link,measured_seconds\n1,0\n", ":2: measured_seconds is not above 0"),
    ):
        path.write_text(text)
        with pytest.raises(byoc.InputError, match=told):
            join_measured(rows, path)


def test_what_is_no_results_is_refused(tmp_path: Path, byoc: Cli) -> None:
    path = tmp_path / "x.csv"
    for text, told in (
        ("a,b\n1,2\n", "there is no column model"),
        ("model,strategy,value,status\n", "it has no rows"),
        ("model,strategy,value,status\nm,s,much,ok\n", "x.csv:2: value: 'much' is not a number"),
        ("model,strategy,value,status\nm,s\n", "x.csv:2: not as many cells"),
    ):
        path.write_text(text)
        ran = byoc("study", "table", path)
        assert ran.code == 1
        assert told in ran.err
    assert "no such file" in byoc("study", "table", tmp_path / "gone.csv").err
