"""Options of a wrong type, or out of range, get one sentence, in Python as on the command line."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from helpers.cutting import CHAIN, cut
from helpers.support import VANILLA, parse

import byoc
from byoc.support import check_type

RULES = str(VANILLA)


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (1, int, True),
        (np.int64(1), int, True),
        (1.5, int, False),
        (1, float, True),
        (np.float32(1), float, True),
        ("1", float, False),
        (np.bool_(True), bool, True),
        (np.True_, bool | None, True),
        ("no", bool, False),
        (1, bool, False),
        (None, str | None, True),
        (b"a", str | Path, False),
        (Path("a"), str | Path, True),
        ({"a": 1}, Mapping[str, int], True),
        ({"a": "1"}, Mapping[str, int], False),
        ({1: 1}, Mapping[str, int], False),
        ([("a", 1)], Mapping[str, int], False),
        (["a"], Sequence[str], True),
        (["a", 1], Sequence[str], False),
        ("ab", Sequence[str], False),
        ({"a"}, Sequence[str], True),
        (iter([1]), Iterable[str], True),
        ("epcontext", Literal["epcontext"], True),
        ("onnx", Literal["epcontext"], False),
        (print, Callable[[str], None], True),
        ("print", Callable[[str], None], False),
        (object(), Any, True),
    ],
)
def test_what_fits_a_type(value: object, hint: Any, fits: bool) -> None:
    if fits:
        check_type("field", value, hint)
        return
    with pytest.raises(byoc.InputError, match=r"^field: .* is not "):
        check_type("field", value, hint)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"objective": 0}, "objective: 0 is not text"),
        ({"verify": "no"}, "verify: 'no' is not True or False"),
        ({"compile_timeout": "5"}, "compile_timeout: '5' is not a number or None"),
        (
            {"dims": {"n": 2.5}},
            "dims: {'n': 2.5} is not a mapping of text to a whole number or text or None",
        ),
        ({"trips": [3]}, r"trips: [3] is not a mapping of text to a number or None"),
        ({"emit": "EPContext"}, "emit: 'EPContext' is not 'epcontext' or None"),
        ({"gate": "0.1"}, "gate: '0.1' is not True or False, a number or a Thresholds"),
        ({"precision": "int8"}, "precision: 'int8' is not a Precision"),
        ({"rules": 1}, "rules: 1 is not text, a path or a list, each text or a path"),
    ],
)
def test_an_option_of_a_wrong_type(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(byoc.InputError) as caught:
        byoc.partition(parse(CHAIN), **{"rules": RULES} | options)
    assert str(caught.value) == sentence


def test_choices_out_of_range(tmp_path: Path) -> None:
    model, output = parse(CHAIN), tmp_path / "o.yaml"
    with pytest.raises(byoc.InputError, match=r"^alignment: 0 is not a number of at least 1$"):
        byoc.plan_memory(model, alignment=0)
    with pytest.raises(byoc.InputError, match=r"^time_limit: nan is not a number of at least 0$"):
        byoc.plan_memory(model, time_limit=float("nan"))
    with pytest.raises(byoc.InputError, match=r"^samples: 0 is not a number of at least 1$"):
        byoc.calibrate(model, "random", samples=0)
    with pytest.raises(byoc.InputError, match=r"^repeats: 0 is not a number of at least 1$"):
        byoc.profile([model], output, repeats=0)
    with pytest.raises(byoc.InputError, match=r"^jobs: -1 is not a number of at least 1$"):
        byoc.compare([], RULES, jobs=-1)
    for link in (0.0, float("inf"), float("nan")):
        with pytest.raises(byoc.InputError, match=f"^links: {link:g} is not a number of GB/s above 0$"):
            byoc.compare([], RULES, links=[link])
    assert not output.exists()


def test_a_seed_below_zero(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b", codegen="reference")
    with pytest.raises(byoc.InputError, match=r"^seed: -1 is not a number of at least 0$"):
        byoc.verify(tmp_path / "b", seed=-1)
    with pytest.raises(byoc.InputError, match=r"^seed: -1 is not a number of at least 0$"):
        byoc.bisect(tmp_path / "b", "npu_0", seed=-1)


def test_one_model_stands_for_a_list_of_one(tmp_path: Path) -> None:
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")
    for one in (tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        (row,) = byoc.compare(one, RULES, strategies=["min-cut"], jobs=1)
        assert (row["model"], row["error"]) == (str(one), None)
    made = byoc.profile(parse(CHAIN), tmp_path / "c.yaml", seconds=0.0, repeats=1)
    assert made.operators == len(made.costs.entries) > 0  # type: ignore[union-attr]


def test_files_are_paths_or_text(tmp_path: Path) -> None:
    model, made = parse(CHAIN), tmp_path / "costs.yaml"
    byoc.profile(model, made, seconds=0.0, repeats=1, otherwise="host")
    by_path = byoc.partition(model, VANILLA, host_cost_model=made, cost_model=Path("dla"))
    by_text = byoc.partition(model, RULES, host_cost_model=str(made), cost_model="dla")
    assert by_path.report == by_text.report
    assert by_path.plan.asked == by_text.plan.asked
    assert (by_path.plan.asked["host_cost_model"], by_path.plan.asked["cost_model"]) == (
        "costs.yaml",
        "dla",
    )
    assert byoc.load_rules(VANILLA).source == byoc.load_rules(RULES).source == RULES
    with pytest.raises(byoc.InputError, match="none: no such file and no installed rule file"):
        byoc.load_rules(tmp_path / "none")
    given = byoc.Precision(calibration="folder/ranges.yaml")
    assert given.record == byoc.Precision(calibration=Path("folder/ranges.yaml")).record
    assert given.record["calibration"] == "ranges.yaml"
    with pytest.raises(byoc.InputError, match=r"ranges\.yaml: no such file"):
        byoc.partition(
            model,
            "dla",
            precision=byoc.Precision(quantize="int8", calibration=str(tmp_path / "ranges.yaml")),
        )
    with pytest.raises(byoc.InputError, match=r"^budget: '30dB' is not a Budget or None$"):
        byoc.Precision(budget="30dB")  # type: ignore[arg-type]


NAMES = ["a\0b", "\ud800", "x" * 5000]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b", codegen="reference")
    calls: list[Callable[[], object]] = [
        lambda: byoc.calibrate(parse(CHAIN), name),
        lambda: byoc.plan_memory(name),
        lambda: byoc.place(name),
        lambda: byoc.verify(tmp_path / "b", inputs=name),
        lambda: byoc.new_codegen("acme", tmp_path / name),
    ]
    for call in calls:
        with pytest.raises(byoc.InputError, match=r"cannot be (read|written)|no such file"):
            call()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: byoc.load(None), "path: None is not text or a path"),
        (lambda: byoc.verify({}), "path: {} is not text or a path"),
        (lambda: byoc.partition(None, RULES), "model: None is not text, a path or a ModelProto"),
        (lambda: byoc.partition(["m.onnx"], RULES), "model: ['m.onnx'] is not text"),
        (lambda: byoc.explain(3, RULES), "model: 3 is not text"),
        (lambda: byoc.compare(None, RULES), "models: None is not text, a path or a list"),
        (lambda: byoc.compare_rules(RULES, None), "models: None is not text"),
        (lambda: byoc.check_rules(None), "files: None is not text, a path or a list"),
        (lambda: byoc.place(None), "instance: None is not text or a path"),
        (lambda: byoc.diff(None, RULES), "a placement: None is not text or a path"),
        (lambda: byoc.verify_program(None), "folder: None is not text or a path"),
        (lambda: byoc.new_codegen(None), "name: None is not text"),
    ],
)
def test_what_is_no_path_and_no_model_is_said(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(byoc.InputError, match=re.escape(sentence)):
        call()
