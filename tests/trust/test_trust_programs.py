"""The programs that `byoc verify` builds and runs: made here, or by a maker who is trusted."""

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import Ran, parse

from byoc.errors import InputError
from byoc.standalone import export_c, verify_program
from byoc.support.trust import make_signature, open_or_create_key

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
SMALL = "net (float[2, 3] x) => (float[2, 3] y) { a = Relu(x) y = Sigmoid(a) }"
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
MARK = 'int main(void) { FILE *f = fopen("ran", "w"); fclose(f); return 0; }'
CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "not signed": (lambda out: (out / "signature.json").unlink(), "it is not signed"),
    "other code": (
        lambda out: (out / "main.c").write_text(f"#include <stdio.h>\n{MARK}"),
        "main.c is not as it was written",
    ),
    "more code": (
        lambda out: (out / "program.json").write_text(
            (out / "program.json").read_text().replace('"main.c"', '"main.c", "evil.c"', 1)
        ),
        "is not what export-c writes|was changed after it was signed",
    ),
    "a bundle's signature": (
        lambda out: (out / "signature.json").write_bytes(
            make_signature(
                hashlib.sha256((out / "program.json").read_bytes()).digest(), open_or_create_key()
            )
        ),
        "its signature is of another program",
    ),
    "another's signature": (
        lambda out: (out / "signature.json").write_text(
            (out / "signature.json").read_text().replace('"key": "', '"key": "0', 1)
        ),
        "is not a signature",
    ),
}


@needs_compiler
@pytest.mark.parametrize("change", CHANGES)
def test_a_strangers_program_is_not_built(
    change: str, byoc: Callable[..., Ran], tmp_path: Path, become: Callable[[str], Path]
) -> None:
    out = tmp_path / "out"
    become("maker")
    export_c(parse(SMALL), output=out)
    become("maker")  # in another process
    act, sentence = CHANGES[change]
    act(out)

    ran = byoc("verify", out, "--cc", "cc -O0")

    assert ran.code == 1
    assert re.search(sentence, ran.err)
    assert not (out / "ran").exists()


@needs_compiler
def test_a_header_that_is_not_signed_is_not_compiled(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_c(parse(SMALL), output=out)
    (out / "stdio.h").write_text("#error evil")

    assert verify_program(out, "cc -O0").passed
    with pytest.raises(InputError, match="evil"):
        verify_program(out, "cc -O0", trust=True)


@needs_compiler
def test_a_strangers_program_is_built_where_it_is_trusted(
    byoc: Callable[..., Ran], tmp_path: Path, become: Callable[[str], Path]
) -> None:
    out = tmp_path / "out"
    become("maker")
    export_c(parse(SMALL), output=out)
    become("maker")
    (out / "signature.json").unlink()

    assert "the outputs are right" in byoc("verify", out, "--cc", "cc -O0", "--trust").out


@pytest.mark.parametrize("kinds", ["manifest.json program.json", "manifest.json fault.json"])
def test_a_folder_of_two_kinds_is_refused(kinds: str, byoc: Callable[..., Ran], tmp_path: Path) -> None:
    for name in kinds.split():
        (tmp_path / name).write_text("{}")

    for verb in (["verify"], ["inspect"], ["run", "--inputs", "random"], ["report", "-o", "r.html"]):
        ran = byoc(verb[0], tmp_path, *verb[1:])
        assert ran.code == 1, verb
        assert "which are of two kinds of folders" in ran.err, verb


@pytest.mark.parametrize("option", ["--codegens=dla", "--isolate", "--bisect", "--threshold=float32=1"])
def test_options_that_a_program_ignores_are_refused(
    option: str, byoc: Callable[..., Ran], tmp_path: Path
) -> None:
    export_c(parse(SMALL), output=tmp_path / "out")

    ran = byoc("verify", tmp_path / "out", option)

    assert ran.code == 2
    assert "a program of export-c takes no such option" in ran.err
