"""`byoc.codegen` is all that a codegen imports, and loads little until it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import byoc.codegen

ROOT = Path(__file__).parents[2]


def test_every_name_resolves() -> None:
    assert "Region" in byoc.codegen.__all__
    for name in byoc.codegen.__all__:
        assert getattr(byoc.codegen, name) is not None


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Regoin' \\(did you mean Region\\?\\)"):
        byoc.codegen.Regoin  # noqa: B018


def test_the_interface_loads_no_solver_and_no_runtime() -> None:
    script = "import sys; from byoc.codegen import Region; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert not {"scipy", "onnxruntime", "onnx_graphsurgeon", "byoc.costs"} & set(loaded.stdout.split())


@pytest.mark.parametrize("folder", ["examples/acme", "byoc/codegen/scaffold/template"])
def test_codegens_and_templates_import_one_door(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py*"):
        if path.suffix not in (".py", ".tmpl"):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        imports = ("from byoc.", "from byoc ", "import byoc")
        found = {
            name
            for line in lines
            if line.lstrip().startswith(imports) and not (name := line.split()[1]).startswith("byoc_")
        }
        tested = {"byoc", "byoc.codegen", "byoc.testing"}
        assert found <= (tested if "tests" in path.parts else {"byoc.codegen"}), path
