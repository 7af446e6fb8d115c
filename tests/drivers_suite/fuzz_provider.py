"""Give the provider of ONNX Runtime many damaged descriptions, under two sanitizers of gcc or clang.

    python tests/drivers_suite/fuzz_provider.py [--inputs 100000] [--seed 0]
    python tests/drivers_suite/fuzz_provider.py --threads 2000    # two sessions in threads, for races

The descriptions are those of small regions of `dla`, in float32 and int8, with their files beside them.
Exits 1 if the provider's code crashed, leaked, or never ran a region.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzz import OF_THREADS, SANITIZED, compile_regions

from byoc.bundle import RegionEntry
from byoc.bundle._epcontext import describe_region
from byoc.bundle._manifest import contract_to_entry
from byoc.codegen import Artifact, Region, find_codegen
from byoc.codegen.drivers import get_include_folder
from byoc.onnxrt import get_provider_folder

_ENVIRONMENT = os.environ | {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1"}


def write_cases(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Write bundles' files of small regions; yield each folder and the file of its description."""
    for number, (region, artifact) in enumerate(compile_regions("dla", folder)):
        place = folder / f"case_{number}"
        (place / "artifacts").mkdir(parents=True)
        for name, content in artifact.files.items():
            (place / "artifacts" / name).write_bytes(content)
        description = describe_region(place, make_entry(region, artifact))
        (place / "description").write_text(description.hex())
        yield place, place / "description"


def make_entry(region: Region, artifact: Artifact) -> RegionEntry:
    """Return what a manifest has of a region whose files are in `artifacts`."""
    return RegionEntry(
        name=region.name,
        target=region.target,
        model=region.path.name,
        codegen="dla",
        composites=(),
        inputs=tuple(map(contract_to_entry, region.inputs)),
        outputs=tuple(map(contract_to_entry, region.outputs)),
        constants=(),
        artifact_files={name: f"artifacts/{name}" for name in artifact.files},
        artifact_metadata=dict(artifact.metadata),
    )


def build(folder: Path, name: str, sanitizers: Sequence[str]) -> Path:
    """Build a program with the provider's sources and the driver of the dla, under sanitizers."""
    program, provider = folder / name, get_provider_folder()
    tested = ("region_description", "compiled_region", "region_handle", "bundle_files")
    tested += ("device_tensors", "sha256")
    files = [Path(__file__).with_name(f"{name}.c"), *(provider / f"{name}.c" for name in tested)]
    files += find_codegen("dla").driver().files
    flags = ["-std=c11", *sanitizers, "-DBYOC_LINKED", f"-I{provider}", f"-I{get_include_folder()}"]
    command = ["cc", *flags, *map(str, files), "-o", str(program), "-lm", "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return program


def main() -> None:
    """Build the program, and run it on each description."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--inputs", type=int, default=100_000)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--threads", type=int, default=0, help="runs in each thread, in place of inputs")
    chosen = asked.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kind = ("threads_provider", OF_THREADS) if chosen.threads else ("fuzz_provider", SANITIZED)
        program = build(folder, *kind)
        cases = list(write_cases(folder))
        for number, (place, description) in enumerate(cases):
            each = chosen.threads or chosen.inputs // len(cases)
            counts = [str(each), str(0 if chosen.threads else chosen.seed + number)]
            command = [str(program), *counts, str(place), str(description)]
            ran = subprocess.run(command, env=_ENVIRONMENT, check=False)
            if ran.returncode:
                sys.exit(f"case {number}: the provider's code ended with exit code {ran.returncode}")


if __name__ == "__main__":
    main()
