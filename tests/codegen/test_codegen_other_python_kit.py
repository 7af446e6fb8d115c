"""The conformance tests against a codegen that runs in an older Python, with an older numpy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.elsewhere import MODULE, PLUG_IN, write_settings

from byoc.onnxrt import has_runtime
from byoc.testing import CodegenConformance


@pytest.fixture(scope="module", autouse=True)
def _settings(old_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("config")
    environment = {"PYTHONPATH": str(PLUG_IN)}
    entry = {"python": old_python, "module": f"{MODULE}:Acme", "environment": environment}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        write_settings({"codegens": {"acme-elsewhere": entry}})
        yield


@pytest.mark.skipif(not has_runtime(), reason="onnxruntime is not here")
class TestAcmeElsewhere(CodegenConformance):
    codegen = "acme-elsewhere"
    rules = str(PLUG_IN / "acme-elsewhere.yaml")
    zoo = ()
    most_cases = 3
