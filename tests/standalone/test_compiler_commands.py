"""Commands of C compilers that are wrong, or do nothing: one sentence each."""

from pathlib import Path

import pytest

from byoc.errors import InputError
from byoc.support import build_shared_library


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("gcc 'x", r"^the command \"gcc 'x\" cannot be read: No closing quotation$"),
        ("", r"^the command of the compiler is empty$"),
        ("true", r"^kernels: true ended well and wrote no library: is it a compiler\?$"),
        ("false", r"^kernels: false failed: it says nothing \(1\)$"),
    ],
)
def test_a_command_that_makes_no_library_is_told(command: str, sentence: str, tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int answer(void) { return 42; }")
    with pytest.raises(InputError, match=sentence):
        build_shared_library("kernels", [source], tmp_path / "a.so", compiler=command)
    assert not (tmp_path / "a.so").exists()
