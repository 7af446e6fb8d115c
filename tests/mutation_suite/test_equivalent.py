"""The list of equivalent mutants is one of lines that still stand in their modules."""

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
        lines = {line.strip() for line in (ROOT / entry["module"]).read_text("utf-8").splitlines()}
        assert entry["before"] in lines, entry
        assert entry["after"] not in lines, entry
