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


def test_codegens_leave_standard_output_to_the_program_that_imports_them() -> None:
    names = sorted(path.parent.name for path in ROOT.glob("codegens/*/__init__.py"))
    script = f"""
import importlib, os
for name in {names}:
    try:
        importlib.import_module(f"byoc.codegens.{{name}}")
    except ImportError:
        pass  # its package is not installed
    os.write(1, f"{{name}} ".encode())
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout.split() == names


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
