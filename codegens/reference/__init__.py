"""The reference codegen: onnxruntime runs the ONNX model of a region.

A target uses it until its own codegen exists, and others are compared with it. Compiling does nothing,
since the bundle has the model of the region already.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from byoc.codegen import (
    INSTALL_HINT,
    AnyArray,
    Artifact,
    Executor,
    Fit,
    NoOptions,
    OperatorTime,
    Region,
    compute_tensors,
    describe_runtime,
    open_region_session,
    profile_operators,
    refuse,
)

__all__ = ["Reference"]


class Reference:
    """Codegen that runs regions on onnxruntime."""

    name = "reference"
    Options = NoOptions
    concurrent = True
    open_shapes = True
    api = 4
    cached = False  # there is nothing to compile
    model_driver = True

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        """Return an artifact without files."""
        return Artifact()

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the region's model. Raises MissingRuntimeError."""
        return open_region_session(region)

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether onnxruntime is installed."""
        runtime = describe_runtime()
        return Fit(runtime) if runtime else Fit.without(INSTALL_HINT)

    def trace(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Mapping[str, AnyArray]:
        """Return the tensors that the region's model computes. Raises MissingRuntimeError."""
        found = compute_tensors(region, inputs)
        return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}

    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Sequence[OperatorTime]:
        """Return onnxruntime's time of each node. Raises MissingRuntimeError."""
        return profile_operators(region, inputs)
