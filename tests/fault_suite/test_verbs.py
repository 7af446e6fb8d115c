"""A few faults of each kind, while verbs of the command line run."""

import json
import sys
from pathlib import Path

import pytest
from helpers.warm_processes import WarmProcesses

PROGRAM = Path(__file__).with_name("verbs.py")


@pytest.mark.parametrize(
    ("verb", "faults"), [("study", ["file", "twice"]), ("pack", ["memory", "kill", "interrupt"])]
)
def test_what_a_fault_leaves_is_whole(
    verb: str, faults: list[str], warm_processes: WarmProcesses
) -> None:
    options = ["--verbs", verb, "--points", "2", "--signals", "2", "--faults", *faults]
    ran = warm_processes.run([sys.executable, PROGRAM, *options], timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert list(found) == [f"{verb}, {fault}" for fault in faults]
    assert all(counts["wrong"] == [] and counts["runs"] >= 2 for counts in found.values())
