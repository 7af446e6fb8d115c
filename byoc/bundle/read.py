"""Reading a bundle back: checked manifest, partitioned model, regions and artifacts."""

from dataclasses import dataclass
from pathlib import Path

import onnx

from byoc.bundle.manifest import Manifest, inside, read_manifest
from byoc.bundle.regions import read_region
from byoc.codegen import Artifact, Region
from byoc.errors import InputError


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle on disk whose files are all as they were written."""

    folder: Path
    manifest: Manifest

    def model(self) -> onnx.ModelProto:
        """Return the partitioned model, its weights left in the bundle's weight file."""
        path = inside(self.folder, self.manifest.model)
        return onnx.load(path, load_external_data=False)

    def regions(self) -> list[tuple[str, Region, Artifact]]:
        """Return each region's codegen, region and artifact, in order of execution."""
        found = []
        for entry in self.manifest.regions:
            region = read_region(inside(self.folder, entry.model), entry.name, self.manifest.target)
            files = {
                name: inside(self.folder, path).read_bytes()
                for name, path in entry.artifact_files.items()
            }
            found.append((entry.codegen, region, Artifact(files, entry.artifact_metadata)))
        return found


def open_bundle(folder: Path) -> Bundle:
    """Return the bundle in a folder. Raises InputError unless it is one and complete."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such bundle")
    return Bundle(folder, read_manifest(folder))
