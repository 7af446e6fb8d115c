"""Completion in bash, zsh and fish: verbs, options, choices, and names of what is installed."""

import os
import subprocess
import sys

import pytest


def complete(line: str, shell: str = "bash") -> list[str]:
    """Return what a shell is told to complete the last word of a line with."""
    words = line.split(" ")
    asked = {
        "_BYOC_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "byoc"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("byoc par", ["partition"]),
        ("byoc partition m.onnx --rules dl", ["dla"]),
        ("byoc partition m.onnx --strategy launch", ["launch-aware"]),
        ("byoc rules check openv", ["openvino-cpu"]),
        ("byoc run m.byoc --fallback h", ["host"]),
        ("byoc partition ./no-such-fi", []),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert complete(line) == expected


def test_other_shells_are_told_the_same() -> None:
    assert "partition" in " ".join(complete("byoc parti", "zsh"))


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "byoc"],
        env={**os.environ, "_BYOC_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_BYOC_COMPLETE=complete_" in ran.stdout
