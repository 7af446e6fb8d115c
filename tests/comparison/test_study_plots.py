"""Figures and tables of a study's results: what is in them, and names of others in them."""

import csv
import json
import re
from base64 import b64decode
from collections.abc import Callable
from html import escape
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.support import Ran, sample_cases
from hypothesis import given
from hypothesis import strategies as st

import byoc
from byoc import InputError
from byoc.comparison import COLUMNS, StudyRow, read_results, summarize_study
from byoc.comparison._study_plots import (
    _FIGURES,
    WIDTHS,
    _Drawing,
    _make_steps,
    find_pareto,
    join_measured,
)
from byoc.comparison._study_results import write_results
from byoc.comparison._study_tables import (
    SUMMARY_KEYS,
    _correct_by_holm,
    _escape_latex,
    _escape_markdown,
    find_profile,
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
        **{"mean_ratio": 1.0, "mean_low": 1.0, "mean_high": 1.0, "worst_ratio": 1.0},
        **{"seed_median": None, "seed_low": None, "seed_high": None, "p": None, "p_holm": None},
        **{"mean_gap": 0.0, "largest_gap": 0.0, "seconds": 0.5},
    }
    assert tuple(good) == SUMMARY_KEYS
    assert nasty["mean_ratio"] == pytest.approx(1.5)
    assert nasty["p"] == pytest.approx(0.5), "two differences of one sign have 1 of 2 chances"
    assert nasty["mean_gap"] == pytest.approx(1 / 3)


def test_tables_escape_names(results: Path, byoc: Cli) -> None:
    *lines, _, over = byoc("study", "table", results).out.splitlines()
    assert over == "Compared over the 2 of 3 problems that every strategy solved which solved any."
    assert len(lines) == 4
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert _escape_markdown("launch-aware (rounds=4)") == "launch-aware (rounds=4)"
    latex = byoc("study", "table", results, "--format", "latex").out
    assert r"a\textbar{}b\_c\$x\textasciicircum{}2\$ \{\textbackslash{}bad\} 100\% \#1 \&" in latex
    assert byoc("study", "table", results, "--format", "html").code == 2


def test_programs_get_the_numbers_in_full(results: Path, byoc: Cli) -> None:
    lines = summarize_study(read_results(results), by=["link"])
    document = json.loads(byoc("study", "table", results, "--format", "json", "--by", "link").out)
    assert document["lines"] == lines
    table = list(csv.DictReader(byoc("study", "table", results, "--format", "csv").out.splitlines()))
    assert [float(line["mean_ratio"]) for line in table] == [
        line["mean_ratio"] for line in summarize_study(read_results(results))
    ]
    text = byoc("study", "table", results, "--format", "text").out
    assert "Compared over the 2 of 3 problems" in text
    assert "1.5000" in text


def test_a_table_has_groups_of_lines(tmp_path: Path, byoc: Cli) -> None:
    """`narrow` refuses the second rule file: there it has failures alone, others their ratios."""
    rows = [
        make_row(rules=rules, model=str(model), strategy=name, ratio=ratio + model / 10)
        for rules in ("one", "two")
        for model in range(2)
        for name, ratio in (("wide", 1.0), ("narrow", 1.2))
    ]
    for row in rows:
        if row["rules"] == "two" and row["strategy"] == "narrow":
            row |= {"status": "refused", "value": None, "ratio": None, "gap": None, "measure": None}
    found = summarize_study(rows, by=["rules"])
    kept = [(line["rules"], line["strategy"], line["failed"], line["problems"]) for line in found]
    assert kept == [
        *(("one", "wide", 0, 2), ("one", "narrow", 0, 2)),
        *(("two", "wide", 0, 2), ("two", "narrow", 2, 0)),
    ]
    assert found[1]["mean_ratio"] == pytest.approx((1.2 * 1.3) ** 0.5)
    assert found[2]["mean_ratio"] == pytest.approx(1.1**0.5), "of problems that `narrow` never solves"
    write_results(tmp_path / "r.csv", rows)
    latex = byoc("study", "table", tmp_path / "r.csv", "--format", "latex", "--by", "rules").out
    assert [line.partition(" & ")[0] for line in latex.splitlines() if line.endswith(r"\\")] == [
        *("rules", "one", "", "two", "")
    ]
    assert latex.count(r"\addlinespace") == 1
    with pytest.raises(InputError, match="by seed: no such group; known: model, link, rules"):
        summarize_study(rows, by=["seed"])


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
    assert steady["mean_ratio"] < fragile["mean_ratio"]
    assert hopeless["mean_ratio"] is None
    steady, fragile, _ = summarize_study(rows, "own")
    assert steady["mean_ratio"] > fragile["mean_ratio"]
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
    assert found["mean_ratio"] == pytest.approx((1.1 * 2) ** 0.5)
    # The means of single seeds: of seed 0 over both problems, of the others over one.
    spread = (found["seed_low"], found["seed_median"], found["seed_high"])
    assert spread == pytest.approx((1.1, 1.2, 2**0.5))
    assert (found["mean_low"], found["mean_high"]) == pytest.approx((1.1, 2))


def test_a_difference_that_always_has_one_sign_is_told(results: Path) -> None:
    rows = [
        make_row(model=str(model), strategy=name, ratio=ratio)
        for model in range(10)
        for name, ratio in (("one", 1.0), ("other", 1.01 + model / 1000), ("same", 1.0))
    ]
    rows += [make_row(model=row["model"], strategy="rounded", ratio=1 + 1e-12) for row in rows[::3]]
    lines = summarize_study(rows)
    least = 2 / 2**10
    found = {row["strategy"]: row["p"] for row in lines}
    assert found == {"one": None, "other": pytest.approx(least), "same": 1.0, "rounded": 1.0}
    corrected = {row["strategy"]: row["p_holm"] for row in lines}
    assert corrected == {"one": None, "other": pytest.approx(3 * least), "same": 1.0, "rounded": 1.0}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_what_its_procedure_does(ps: list[float]) -> None:
    """It goes from the least p on, and stops at the first that is above level / tests that are left."""
    lines = [{"p": p, "p_holm": None} for p in ps]
    _correct_by_holm(lines)
    for level in (0.01, 0.05, 0.3):
        left = sorted(ps)
        while left and left[0] * len(left) <= level:
            left.pop(0)
        assert sum(line["p_holm"] <= level for line in lines) == len(ps) - len(left)


def test_measures_are_not_compared_with_one_another() -> None:
    rows = [
        make_row(model=str(model), strategy=name, measure=measure, ratio=ratio)
        for model in range(8)
        for name, measure, ratio in (
            ("a", "total", 1.0),
            ("b", "total", 1.1),
            ("c", "makespan", 1.0),
        )
    ]
    assert [line["p"] for line in summarize_study(rows)] == [None, pytest.approx(2 / 2**8), None]


def test_a_profile_counts_what_failed() -> None:
    rows = [make_row(model="a", seed=seed, ratio=1 + seed) for seed in range(3)]
    rows += [make_row(model="b", seed=0, ratio=1.5)]
    rows += [make_row(model="c", seed=0, status="failed", ratio=None)]
    assert find_profile(rows, median) == [1.5, 2, inf]
    assert find_profile(rows, min) == [1, 1.5, inf]
    assert find_profile(rows, max) == [1.5, 3, inf]
    assert _make_steps([1.5, 2, inf], 4.0) == ([1.0, 1.5, 2, 4.0], [0.0, 1 / 3, 2 / 3, 2 / 3])


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
    names = ["bandwidth", "profile", "gaps", "pareto", "measured"]
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
    assert len(figures) == 4
    folder = tmp_path / "figures"
    assert byoc("study", "plot", results, "-o", folder).code == 0
    names = ("bandwidth", "profile", "gaps", "pareto")
    assert [b64decode(each) for each in figures] == [(folder / f"{n}.svg").read_bytes() for n in names]
    assert "<p>7 cases of 1 model; 1 not solved (1 timed out)</p>" in text
    assert f"<td>{escape(NASTY)}</td><td>total</td>" in text
    assert "<td>m</td><td>good</td><td></td><td>timed out</td><td>no</td>" in text
    assert not re.search(r"https?:|<script|<link|url\(", text)
    assert "default-src 'none'" in text
    again = byoc("study", "plot", results, "-o", tmp_path / "again.html")
    assert again.code == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == text


def draw(name: str, rows: list[StudyRow], over: str = "common", log: bool = False) -> Any:
    """Return a figure of rows of which all are compared."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure()
    kept = [row for row in rows if row["status"] == "ok"]
    (chosen,) = (each for each in _FIGURES if each.name == name)
    chosen.draw(figure, _Drawing(rows, kept, over, 3.5, log))
    return figure


def test_lines_are_at_what_the_results_say(results: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row for row in read_results(results) if row["status"] == "ok"]
    figure = draw("bandwidth", rows)
    good, nasty, host = figure.axes[0].lines
    assert good.get_xdata() == pytest.approx([0.1, 1.0, 10.0])
    assert good.get_ydata() == pytest.approx([5.0, 0.5, 0.05])  # of the host's 2 s
    assert nasty.get_ydata() == pytest.approx([7.5, 0.75, 0.075])
    assert (host.get_label(), [*host.get_ydata()]) == ("host alone", [1, 1])
    assert figure.axes[0].get_yscale() == "log", "from 0.05 to 7.5"
    assert figure.axes[0].get_ylabel() == "objective over the host alone"
    energy = [row | {"objective": "energy", "best_value": 1.0} for row in rows]
    for drawn, told in (
        (energy, "the best found"),
        ([*rows, *energy], "the host alone, or the best found"),
    ):
        other = draw("bandwidth", drawn)
        assert other.axes[0].get_ylabel() == f"objective over {told}"
        assert other.axes[0].lines[-1].get_label() == told.removeprefix("the ")
    assert figure.legends[0].get_title().get_text() == "over 3 common problems of 3"
    figure = draw("gaps", rows, over="own")
    assert figure.axes[0].lines[1].get_xdata() == pytest.approx([1e-9, 1 / 3, 1 / 3, 1 / 3])
    assert figure.axes[0].lines[1].get_ydata() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    own = "each over the problems that it solved itself, of 3"
    assert figure.legends[0].get_title().get_text() == own


def test_a_line_is_of_the_same_problems_at_every_link() -> None:
    pytest.importorskip("matplotlib")
    rows = [make_row(model="a", link=link, value=1.0) for link in (1.0, 2.0)]
    rows += [make_row(model="b", link=1.0, value=1.8)]
    (line, _) = draw("bandwidth", rows).axes[0].lines
    assert line.get_ydata() == pytest.approx([0.5, 0.5])


def test_seeds_are_bands_and_failures_are_in_the_legend() -> None:
    pytest.importorskip("matplotlib")
    rows = [
        make_row(link=link, seed=seed, value=1 + seed / 10, ratio=1 + seed / 10)
        for link in (1.0, 2.0)
        for seed in range(3)
    ]
    rows += [make_row(link=1.0, strategy="t"), make_row(link=2.0, strategy="t", status="failed")]
    axes = draw("bandwidth", rows).axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx([0.55, 0.55])
    (band,) = axes.collections
    assert {round(y, 6) for _, y in band.get_paths()[0].vertices} == {0.5, 0.6}
    figure = draw("profile", rows)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["s", "t (1 of 2 not solved)"]
    assert figure.axes[0].lines[1].get_ydata()[-1] == pytest.approx(0.5)


def test_strategies_are_told_apart_in_grey() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    drawing = _Drawing([make_row(strategy=str(number)) for number in range(8)], [], "own", 3.5, False)
    styles = [drawing.style(str(number)) for number in range(8)]
    grey = [
        sum(
            part * share
            for part, share in zip(matplotlib.colors.to_rgb(style["color"]), LUMA, strict=True)
        )
        for style in styles
    ]
    assert min(after - before for before, after in pairwise(grey)) > 0.05
    assert len({style["marker"] for style in styles}) == 8


LUMA = (0.2126, 0.7152, 0.0722)  # of linear light, Rec. ITU-R BT.709


def test_models_have_panels_with_a_line_for_the_host() -> None:
    pytest.importorskip("matplotlib")
    rows = [
        make_row(model=model, strategy=name, seconds=seconds, joules=joules, constant_bytes=0)
        for model in ("zoo:a", "b/c.onnx", "d")
        for name, seconds, joules in (("fast", 1.0, 3.0), ("thrifty", 1.5, 1.0), ("poor", 1.6, 2.0))
    ]
    axes = [each for each in draw("pareto", rows).axes if each.has_data()]
    assert [each.get_title() for each in axes] == ["a", "c", "d"]
    front, *points, host = axes[0].lines
    assert [*front.get_xdata()] == [1.0, 1.5]
    assert [each.get_label() for each in points] == ["fast", "thrifty", "poor"]
    assert [*host.get_xdata()] == [2.0, 2.0]


def test_widths_that_are_none_are_refused(results: Path, tmp_path: Path, byoc: Cli) -> None:
    for width in ("wide", "0", "nan", "1000"):
        ran = byoc("study", "plot", results, "-o", tmp_path / "f", "--width", width)
        assert ran.code == 1
        assert f"width {width}: column, page or inches from 1.5 to 40 are possible" in ran.err
    assert not (tmp_path / "f").exists()


def test_fonts_of_a_pdf_are_truetype(results: Path, tmp_path: Path, byoc: Cli) -> None:
    """Type 3 fonts, matplotlib's default, are refused by publishers."""
    pytest.importorskip("matplotlib")
    rows = [row for row in read_results(results) if row["strategy"] == "good" and row["value"]]
    write_results(results, [row | {"joules": None, "constant_bytes": 0, "link": 1.0} for row in rows])
    ran = byoc("study", "plot", results, "-o", tmp_path / "f", "--format", "pdf", "--width", "column")
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'f' / 'gaps.pdf'}\n"), "what there are numbers for"
    content = (tmp_path / "f" / "gaps.pdf").read_bytes()
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", content)
    assert box is not None
    assert float(box[1]) == pytest.approx(72 * WIDTHS["column"])


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
        ("link,measured_seconds\n77,1\n", "m.csv: none of its rows is of a row of the results by link$"),
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
