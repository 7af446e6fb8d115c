"""What fuzzing once found stays mended, and a short run of it finds nothing; see docs/testing.md."""

import random
import sys
from pathlib import Path

import pytest
import rule_inputs
from fuzz import make
from helpers.support import sample_cases
from helpers.warm_processes import WarmProcesses
from kinds import CORPUS, KINDS
from reached_lines import REACHING, read_reaching

KEPT = sorted(path for kind in KINDS for path in (CORPUS / kind).glob("*"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_was_found(path: Path, tmp_path: Path) -> None:
    target = KINDS[path.parent.name].target(tmp_path)
    target.prepare()
    assert target(path.read_bytes())


@pytest.mark.parametrize("kind", sorted(path.stem for path in REACHING.glob("*.zip")))
def test_inputs_that_reached_new_lines(kind: str, tmp_path: Path) -> None:
    target = KINDS[kind].target(tmp_path)
    target.prepare()
    outcomes = {target(data) for data in read_reaching(kind)}
    assert len(outcomes) > 1


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(sizes) < 1_000_000


@pytest.mark.parametrize("seed", range(len(rule_inputs.inputs().seeds)))
def test_every_seed_is_a_rule_file(seed: int, tmp_path: Path) -> None:
    target = KINDS["rules"].target(tmp_path)
    assert target(rule_inputs.inputs().seeds[seed]) == "applied"


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("artifacts", "run"),
        ("bundles", "run"),
        ("calibrations", "read"),
        ("costs", "priced"),
        ("packed", "run"),
    ],
)
def test_every_seed_is_accepted(kind: str, outcome: str, tmp_path: Path) -> None:
    target = KINDS[kind].target(tmp_path)
    target.prepare()
    assert {target(data) for data in KINDS[kind].seeds()} == {outcome}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_input_of_a_seed_is_a_finding(kind: str, tmp_path: Path) -> None:
    target = KINDS[kind].target(tmp_path)
    target.prepare()
    assert all(target(make(kind, 0, number)) for number in range(12))


@pytest.mark.parametrize(
    ("kind", "inputs"),
    sample_cases([("costs", 12), *((kind, 2000) for kind in sorted(KINDS))], ("costs", 12)),
)
def test_a_short_run(kind: str, inputs: int, warm_processes: WarmProcesses) -> None:
    command = [sys.executable, CORPUS.parent / "fuzz.py", kind, "--inputs", str(inputs)]
    done = warm_processes.run(command, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 kinds of findings" in done.stdout


def test_what_doubles_is_changed_as_text() -> None:
    text = (CORPUS / "rules" / "merges_that_double.yaml").read_bytes()
    chance = random.Random(0)
    changed = {rule_inputs.inputs().mutate(text, chance) for _ in range(50)}
    assert len(changed) > 40
    assert max(map(len, changed)) < 20_000
