"""A codegen whose artifacts execute when they are loaded."""

from typing import ClassVar

from helpers import vendors

from byoc.codegen import Artifact, Executor, Region


class Native(vendors.Tables):
    """Says that loading executes what a bundle holds, and counts how often it was loaded."""

    name = "native"
    native = True
    loaded: ClassVar[list[bytes]]

    def load(self, region: Region, artifact: Artifact) -> Executor:
        self.loaded.append(artifact.files["code.json"])
        return super().load(region, artifact)
