"""The codegen that needs no vendor: a region is run as the ONNX model that it is, by onnxruntime.

It is what a target uses until its own codegen exists, and what others are compared with. Compiling
makes nothing, since the region's model is in the bundle already.
"""

from byoc.codegen import Artifact, Executor, NoOptions, Region
from byoc.runtime.onnxrt import open_session, runner


class Reference:
    """Runs regions on onnxruntime."""

    name = "reference"
    Options = NoOptions
    concurrent = True

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        """Return an artifact without files."""
        return Artifact()

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the region's model. Raises MissingRuntimeError."""
        return runner(open_session(region.path))
