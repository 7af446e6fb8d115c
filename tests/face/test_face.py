"""`import byoc` gives every verb as a documented function, and loads nothing until it is used."""

import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers.cutting import CHAIN, cut
from helpers.support import VANILLA, Ran, parse

import byoc
from byoc.cli import GROUPS, VERBS, load_verb

ROOT = Path(byoc.__file__).parents[1]
VERBS_ONLY = {
    "completion",
    "run",
    "pack",
    "report",
    "compare-costs",
    "tasks",
    "cost-models",
    "codegens",
    "strategies",
    "passes",
    "zoo",
    "rules",
    "trust",
    "cache",
    "buckets",  # its function is choose_buckets
}
FUNCTIONS = [name for name in byoc.__all__ if inspect.isfunction(getattr(byoc, name))]


def run_python(code: str) -> str:
    """Run code in a fresh process, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that are loaded after some code."""
    return set(
        run_python(f"import sys; {code}; print(*{{n.split('.')[0] for n in sys.modules}})").split()
    )


def test_importing_byoc_loads_nothing_that_is_slow() -> None:
    slow = {"onnx", "numpy", "scipy", "pydantic", "typer", "rich", "yaml", "onnxruntime"}
    assert not slow & loaded_by("import byoc")


@pytest.mark.parametrize("arguments", ["['byoc', '--help']", "['byoc', '--version']", "['byoc']"])
def test_the_list_of_verbs_loads_none_of_them(arguments: str) -> None:
    code = (
        f"import contextlib, io; sys.argv = {arguments}\n"
        "from byoc.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()\n"
    )
    shown = run_python(f"import sys\n{code}print(*{{n.split('.')[0] for n in sys.modules}})")
    assert not {"onnx", "numpy", "scipy", "pydantic", "onnxruntime"} & set(shown.split())


def test_a_name_is_imported_when_it_is_used() -> None:
    names = ("InputError", "load", "open_bundle", "partition")
    found = run_python(
        f"import byoc\nfor name in {names}:\n    print(name in vars(byoc), getattr(byoc, name).__name__)"
    )
    assert found.splitlines() == [f"False {name}" for name in names]


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="module 'byoc' has no attribute 'partitoin'"):
        _ = byoc.partitoin  # type: ignore[attr-defined]


def test_the_names_of_the_face_are_listed() -> None:
    assert set(byoc.__all__) <= set(dir(byoc))
    assert not {"TYPE_CHECKING", "open_door"} & set(dir(byoc))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_documented(name: str) -> None:
    function = getattr(byoc, name)
    text = inspect.getdoc(function) or ""
    assert "raise" in text.lower(), "it does not say which errors it raises"
    for parameter in inspect.signature(function).parameters:
        assert f"`{parameter}`" in text or f"    {parameter}: " in text, f"{parameter} is not documented"


@pytest.mark.parametrize("name", sorted(set(byoc.__all__) - set(FUNCTIONS)))
def test_a_class_is_documented(name: str) -> None:
    text = inspect.getdoc(getattr(byoc, name)) or ""
    assert text
    assert not text.startswith(f"{name}("), "that is what a dataclass without a docstring has"


def test_every_verb_that_is_a_computation_is_a_function() -> None:
    names = {verb.replace("-", "_") for verb in VERBS if verb not in VERBS_ONLY}
    assert names <= set(FUNCTIONS)


@pytest.mark.parametrize("name", ["byoc", "tools", "docs", "tests", "examples"])
def test_other_folders_of_a_checkout_are_not_in_the_package(name: str) -> None:
    found = run_python(f"import importlib.util as u, byoc; print(u.find_spec('byoc.{name}'))")
    assert found == "None"


def test_python_m_byoc() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "byoc", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: byoc ")


@pytest.mark.parametrize("verb", VERBS)
def test_the_summary_of_a_verb_is_its_first_sentence(verb: str) -> None:
    summary = VERBS[verb][1]
    text = " ".join(load_verb(verb).help.split())
    assert text.startswith(summary)
    assert summary.endswith(".")
    assert ". " not in summary


def test_each_summary_fits_in_a_line(byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = byoc("--help").out.splitlines()
    first = lines.index(f"{next(iter(GROUPS))}:")
    shown = dict(line.split(maxsplit=1) for line in lines[first:] if line.startswith("  "))
    assert shown == {name: summary for name, (_, summary) in VERBS.items()}
    assert [line.rstrip(":") for line in lines[first:] if line and line[0] != " "] == list(GROUPS)
    assert max(map(len, lines)) <= 80


def test_a_mistyped_verb_gets_the_nearest(byoc: Callable[..., Ran]) -> None:
    ran = byoc("verfy")
    assert ran.code == 2
    assert "No such command 'verfy' (did you mean verify?)." in ran.err
    assert "did you mean" not in byoc("xyzzy").err


def test_models_are_taken_in_any_form(tmp_path: Path) -> None:
    proto = parse(CHAIN)
    onnx.save(proto, tmp_path / "m.onnx")
    loaded = byoc.load_model(proto)
    forms = (str(tmp_path / "m.onnx"), tmp_path / "m.onnx", proto, loaded)
    sizes = {next(iter(byoc.plan_memory(form, striped=False).values())).plan.size for form in forms}
    refused = {len(byoc.explain(form, str(VANILLA)).refusals) for form in forms}
    assert len(sizes) == len(refused) == 1
    assert byoc.load_model(loaded) is loaded


def test_a_bundle_from_the_outside(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b", codegen="reference")
    found = byoc.inspect(tmp_path / "b")
    assert found.pop("trust")["trusted"] is True
    assert found == byoc.open_bundle(str(tmp_path / "b")).manifest.model_dump(mode="json")
    (variant,) = found["variants"]
    assert [region["name"] for region in variant["regions"]]
    verified = byoc.verify(tmp_path / "b")
    assert verified.passed
    assert verified.regions
    assert not byoc.verify_against(tmp_path / "b").regions
    region = variant["regions"][0]["name"]
    with pytest.raises(byoc.InputError, match=f"region {region} is not off on these inputs"):
        byoc.bisect(tmp_path / "b", region)
    assert set(byoc.plan_memory(tmp_path / "b", striped=False)) >= {"whole", region}


def test_choices_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(byoc.InputError, match="no convention is named 'E': there are A, B, C, D"):
        byoc.plan_memory(parse(CHAIN), convention="E")
    with pytest.raises(byoc.InputError, match="'much': a whole number above 0 is expected"):
        byoc.plan_memory(parse(CHAIN), size="much")
    with pytest.raises(byoc.InputError, match="rules and options are for a codegen"):
        byoc.profile([parse(CHAIN)], tmp_path / "c.yaml", rules=str(VANILLA))
    with pytest.raises(byoc.InputError, match="did you mean min-cut"):
        byoc.compare([], str(VANILLA), strategies=["min-cutt"])


def test_profiles_and_comparisons(tmp_path: Path) -> None:
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")
    made = byoc.profile([tmp_path / "m.onnx"], tmp_path / "c.yaml", seconds=0.0, repeats=1)
    assert made.operators == len(made.costs.entries)  # type: ignore[union-attr]
    rows = byoc.compare([tmp_path / "m.onnx"], str(VANILLA), strategies=["host-only", "min-cut"], jobs=1)
    assert [row["strategy"] for row in rows] == ["host-only", "min-cut"]
    assert not any(row["error"] for row in rows)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_result_is_copied_and_pickled(is_written: bool, tmp_path: Path) -> None:
    result = cut(parse(CHAIN), tmp_path / "b" if is_written else None)
    pickled = pickle.loads(pickle.dumps(result))  # noqa: S301 - its own
    for again in (copy.deepcopy(result), pickled):
        assert again.report.predicted.seconds == result.report.predicted.seconds
        assert again.plan.proto == result.plan.proto
        assert [each.name for each in again.plan.regions] == ["dla_0", "dla_1"]


def test_rule_files_are_checked() -> None:
    good, bad = byoc.check_rules([VANILLA, "no-such-rules"])
    assert (good.problems, bad.operators) == ([], None)
    assert "no-such-rules" in bad.problems[0]
    assert byoc.check_rules(str(VANILLA)) == [good]
