"""What `iree` compiles for other processors, run by QEMU and IREE's own runner, without Python.

`BYOC_IREE_RUNTIMES` names a folder with `aarch64/iree-run-module` and `riscv64/iree-run-module`, as far
as they are there; docs/testing.md says where they come from. QEMU looks for the C library where Debian's
cross compilers have it.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import join_cases, region, same
from helpers.cutting import original

import byoc
from byoc.codegen import find_codegen, parse_codegen_options

pytestmark = pytest.mark.iree
pytest.importorskip("iree.compiler")

TARGETS = ["aarch64", "riscv64"]
RUN = ["conv and relu", "gemm", "pools, concat and softmax", "constants computed", "scalars"]


@pytest.fixture(params=TARGETS)
def runner(request: pytest.FixtureRequest) -> tuple[str, list[str]]:
    """Return a target, and the command that runs its modules."""
    target: str = request.param
    runtimes = os.environ.get("BYOC_IREE_RUNTIMES", "")
    program = Path(runtimes, target, "iree-run-module")
    if not runtimes or not program.exists():
        pytest.skip(f"BYOC_IREE_RUNTIMES names no folder with {target}/iree-run-module")
    qemu = shutil.which(f"qemu-{target}")
    if qemu is None:
        pytest.skip(f"qemu-{target} is not installed")
    if not Path(f"/usr/{target}-linux-gnu/lib").is_dir():
        pytest.skip(f"/usr/{target}-linux-gnu has no C library for {target}")
    return target, [qemu, "-L", f"/usr/{target}-linux-gnu", str(program)]


def test_another_processor_computes_what_onnxruntime_does(
    runner: tuple[str, list[str]], tmp_path: Path
) -> None:
    target, command = runner
    proto, inputs = join_cases(RUN)
    found: Any = find_codegen("iree")
    artifact = found.compile(region(proto, tmp_path), parse_codegen_options(found, {"target": target}))
    (tmp_path / "region.vmfb").write_bytes(artifact.files["region.vmfb"])

    same(_run(command, tmp_path, inputs, original(proto, inputs)), original(proto, inputs))


@pytest.mark.thorough
def test_a_region_of_a_network_runs_there_out_of_its_bundle(
    runner: tuple[str, list[str]], tmp_path: Path
) -> None:
    target, command = runner
    rules = tmp_path / "rules.yaml"
    rules.write_text("target: any\ncost_model: dla\ndtype: any\nregions: phase\nops: [{op: '*'}]\n")
    byoc.partition(
        "zoo:squeezenet",
        rules,
        output=tmp_path / "b",
        strategy="all-supported",
        codegen="iree",
        codegen_options={"target": target},
    )
    (module,) = tmp_path.glob("b/**/region.vmfb")
    inputs = byoc.zoo.sample_inputs("squeezenet")
    expected = original(byoc.zoo.load("squeezenet"), inputs)

    given = _run([*command, f"--module={module}"], tmp_path, inputs, expected)

    for name, value in expected.items():
        np.testing.assert_allclose(given[name], value, rtol=1e-3, atol=1e-5 * np.ptp(value))


def _run(
    command: list[str], folder: Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Run the module in a folder, and return the outputs by name."""
    given = []
    for position, value in enumerate(inputs.values()):
        path = folder / f"{position}.npy"
        np.save(path, value)
        given.append(f"--input=@{path}")
    made = {name: folder / f"made_{position}.npy" for position, name in enumerate(outputs)}
    if not any(part.startswith("--module=") for part in command):
        given.append(f"--module={folder / 'region.vmfb'}")
    wanted = [f"--output=@{path}" for path in made.values()]
    subprocess.run(
        [*command, "--device=local-sync", "--function=region", *given, *wanted],
        check=True,
        capture_output=True,
        timeout=600,
    )
    return {name: np.load(path) for name, path in made.items()}
