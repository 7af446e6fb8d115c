"""Bundles as an attacker edits them: other manifests, other files, and hashes that are right."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from byoc.bundle import describe_file

SOURCE = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) {{ fclose(fopen("{mark}", "w")); }}
void region(const float *x, float *y) {{ for (int i = 0; i < 4; i++) y[i] = x[i] > 0 ? 2 * x[i] : 0; }}
"""


def edit_manifest(bundle: Path, change: Callable[[Any], None]) -> None:
    """Change the manifest of a bundle in a folder."""
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def add_file(bundle: Path, name: str, content: bytes) -> None:
    """Write a file into a bundle, and its size and hash into the manifest."""
    path = bundle / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    entry = describe_file(path).model_dump()
    edit_manifest(bundle, lambda manifest: manifest["files"].update({name: entry}))


def turn_into_native(bundle: Path, mark: Path, **metadata: str) -> None:
    """Make the only region of a bundle one of codegen `c`, whose library writes a file when loaded."""
    add_file(bundle, "artifacts/dla_0/region.c", SOURCE.format(mark=mark).encode())
    add_file(bundle, "artifacts/dla_0/region.so", b"\x7fELF")

    def change(manifest: Any) -> None:
        (region,) = manifest["variants"][0]["regions"]
        names = [value["name"] for side in ("inputs", "outputs") for value in region[side]]
        files = {name: f"artifacts/dla_0/{name}" for name in ("region.c", "region.so")}
        region |= {"codegen": "c", "artifact_files": files}
        region["artifact_metadata"] = {
            **{"cc": "cc", "cflags": "-O2", "machine": "another", "system": "Plan9"},
            **{"arguments": json.dumps(names), **metadata},
        }

    edit_manifest(bundle, change)
