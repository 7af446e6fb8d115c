"""The list of equivalent mutants is one of lines that still stand in their functions."""

import ast
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_each_equivalent_mutant_is_of_a_line_that_is_there() -> None:
    entries = yaml.safe_load((Path(__file__).parent / "equivalent.yaml").read_text(encoding="utf-8"))
    assert entries
    keys = [(e["module"], e["function"], e["before"], e["after"]) for e in entries]
    assert len(keys) == len(set(keys))
    for entry in entries:
        assert set(entry) == {"module", "function", "before", "after", "reason"}
        lines = _read_lines(ROOT / entry["module"], entry["function"].rpartition(".")[2])
        assert entry["before"] in lines, entry
        assert entry["after"] not in lines, entry


def _read_lines(module: Path, function: str) -> set[str]:
    """Return the lines of the functions of that name, all lines of the module for one of none."""
    text = module.read_text("utf-8")
    lines = text.splitlines()
    found = [
        (node.lineno - 1, node.end_lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name == function
    ]
    return {line.strip() for start, end in found or [(0, None)] for line in lines[start:end]}
