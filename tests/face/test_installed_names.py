"""Names of packages: a second project called byoc in our folder, and what installs a missing library."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import byoc
from byoc.support import install_command

ROOT = Path(byoc.__file__).parents[1]
SENTENCE = "two projects are installed in this folder, ours (onnx-byoc) and another one called byoc"


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ("ours", ""),
        ("theirs", "from byoc.errors import Error\n"),
        ("theirs", "from byoc.model import get_meta\n"),
    ],
)
@pytest.mark.parametrize("code", ["import byoc.cli", "import byoc; print(byoc.partition)"])
def test_another_byoc_in_the_same_folder_is_named(
    last: str, text: str, code: str, tmp_path: Path
) -> None:
    """The command line says it whichever was installed last, `import byoc` where ours is asked.

    The other project's `byoc/__init__.py` imports `byoc.model`, which is a folder of ours.
    """
    shutil.copytree(ROOT / "byoc", tmp_path / "byoc", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "byoc" / "getters.py").touch()
    if last == "theirs":
        (tmp_path / "byoc" / "errors.py").write_text("class Error(Exception):\n    pass\n")
        (tmp_path / "byoc" / "__init__.py").write_text(text)
    line = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    if last == "ours" or "cli" in code or "model" in text:
        assert SENTENCE in done.stderr.splitlines()[-1]
        assert str(tmp_path / "byoc") in done.stderr.splitlines()[-1]
    if last == "theirs" and "cli" in code and "model" not in text:
        assert len(done.stderr.splitlines()) == 1


def test_a_missing_library_is_named_by_its_own_packages() -> None:
    """Each extra that a message is about is in pyproject.toml, and the command has its requirements."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    sources = [path for room in ("byoc", "codegens") for path in (ROOT / room).rglob("*.py")]
    asked = {
        name
        for path in sources
        for name in re.findall(
            r"""(?:install_command\(|describe_missing\("[\w-]+", )['"]([\w-]+)['"]""",
            path.read_text("utf-8"),
        )
    }
    assert {"iree", "openvino", "c", "simplify", "study", "plots", "images"} <= asked <= extras.keys()
    for name in asked:
        words = install_command(name).split()
        assert words[:2] == ["pip", "install"]
        assert sorted(word.strip("'") for word in words[2:]) == sorted(extras[name]), name
    assert not [path for path in sources if "onnx-byoc[" in path.read_text("utf-8")]
    assert install_command("none") == "pip install '.[none]' in a checkout of byoc"
