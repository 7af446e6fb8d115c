"""Each cell of the table of SECURITY.md is tried: a file of the kind asks for the opposite.

The attacks are in `input_attack_table` and `input_own_attacks`. Whatever they say, nothing outside is
opened or quoted, nothing is written but what the user named, and no payload runs.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import Ran
from input_attack_table import ATTACKS
from input_attacks import Attack
from input_box import CANARY, Box, add_decoys, describe_tree, make_box, skip_without, watch_openings
from input_files import KINDS
from input_own_attacks import OWN_ATTACKS

from byoc.errors import ByocError

pytest.importorskip("onnxruntime")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """The folders of an attack; byoc is called in `cwd`, which is a stranger's as well."""
    made = make_box(tmp_path.resolve())
    monkeypatch.chdir(made.cwd)
    for name in ("config", "data", "cache"):
        (made.home / name).mkdir(parents=True)
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(made.home / name))
    return made


def _call(read: Callable[[], object]) -> Ran:
    """Read a file in Python; what a user is told is the text of the error."""
    try:
        return Ran(0, str(read()), "")
    except ByocError as error:
        return Ran(1, "", str(error))


@pytest.mark.parametrize("attack", [*ATTACKS, *OWN_ATTACKS], ids=str)
def test_a_file_that_asks_for_the_opposite(
    attack: Attack, box: Box, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without(filter(None, [attack.needs]))
    read = attack.make(box)
    add_decoys(box.cwd, box.mark)
    monkeypatch.setenv("PATH", f"{box.root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    before = describe_tree(box.root)

    with watch_openings(box.secret) as secrets, watch_openings(box.cwd) as here:
        ran = _call(read) if callable(read) else byoc(*read)

    assert (ran.code, re.search(attack.says, ran.out + ran.err) is not None) == (attack.code, True), ran
    assert (secrets, here) == ([], [])
    assert CANARY not in ran.out + ran.err
    assert not box.mark.exists()
    after = describe_tree(box.root)
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    own = (f"{box.mine}{os.sep}", f"{box.home}{os.sep}")
    assert [path for path in sorted(changed) if not path.startswith(own)] == []


def test_every_cell_of_the_page_is_tried() -> None:
    """A new row of SECURITY.md needs files that ask for the opposite of each of its cells."""
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    header, _, *rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line[:1] == "|"]
    cells = [name.partition(",")[0] for name in header[1:]]
    kinds = [re.findall(r"\*\*(.+?)\*\*", row[0])[0] for row in rows]

    assert cells == ["reads", "writes", "executes"]
    assert {len(row) for row in rows} == {4}
    assert len(kinds) == len({*kinds})
    tried = {(attack.kind, attack.cell) for attack in (*ATTACKS, *OWN_ATTACKS)}
    assert tried == {(kind, cell) for kind in kinds for cell in cells}
    in_python = {"EPContext model", "provider option", "cache", "signing key", "settings"}
    assert KINDS.keys() == {*kinds} - in_python
