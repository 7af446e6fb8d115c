"""The number of threads of a run: where it is said, and the costs that are taken for it."""

from pathlib import Path
from typing import Any

import pytest

from byoc.pipeline import Options, PlanOptions, find_threads, load_settings, load_targets

RULES = "openvino-cpu"


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        (None, None),
        ({"threads": "0"}, None),
        ({"threads": "1"}, 1),
        ({"openvino-cpu:threads": "3"}, 3),
        ({"threads": "1", "openvino-cpu:threads": "3"}, 3),
        ({"precision": "f32", "threads": "many"}, None),  # the codegen says what is wrong with it
    ],
)
def test_threads_are_what_the_option_of_codegens_says(
    given: dict[str, str] | None, threads: int | None
) -> None:
    options = Options(RULES, codegen_options=given)
    assert find_threads(options, load_targets([RULES])) == threads


def test_rule_files_say_threads_unless_the_user_does(tmp_path: Path) -> None:
    path = tmp_path / "four.yaml"
    path.write_text(f"extends: {RULES}\ntarget: four\ncodegen_options: {{threads: 4}}\n")
    targets = load_targets([path])
    assert find_threads(PlanOptions(path), targets) == 4
    assert find_threads(Options(path, codegen_options={"threads": "1"}), targets) == 1


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({}, "-2-threads"),
        ({"codegen_options": {"threads": "1"}}, ""),
        ({"codegen_options": {"threads": "64"}}, "-2-threads"),
    ],
)
def test_costs_are_those_of_the_threads(given: dict[str, Any], end: str) -> None:
    settings = load_settings(Options(RULES, **given))
    assert settings.costs[0].name == f"openvino-cpu{end}"
    assert settings.host.name == f"onnxruntime-cpu{end}"
