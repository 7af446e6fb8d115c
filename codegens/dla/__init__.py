"""The codegen of the vanilla accelerator: a compiler, and a simulator that runs programs.

It is meant to be copied; README.md in this folder gives the order to read the files in.
Methods import what they use: whoever asks whether a bundle fits loads neither compiler nor simulator.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from byoc.codegen import (
    YES,
    AnyArray,
    Artifact,
    Cycles,
    DriverSources,
    Executor,
    Fit,
    OperatorTime,
    Region,
    Verdict,
    refuse,
)

from .dla_options import ISA, NAME, VERSIONS, DLAOptions

if TYPE_CHECKING:
    import onnx

    from .region_artifact import ProgramExecutor

__all__ = ["DLA"]


class DLA:
    """Codegen for the vanilla accelerator, which runs programs on a simulator."""

    name = NAME
    api = 4
    Options = DLAOptions
    concurrent = True
    libraries = ()  # it needs none but those of byoc itself

    def compile(self, region: Region, options: DLAOptions) -> Artifact:
        """Return the program, its weights, and the addresses of its inputs and outputs.

        Raises CompileError for what the machine cannot do, with the nodes at fault, and ResourceError
        for a layer without a tile that fits into the scratchpad.
        """
        from .compiler import compile_region
        from .machine import read_figures
        from .region_artifact import make_artifact

        return make_artifact(compile_region(region, options, read_figures()), options)

    def take_weights(
        self, region: Region, first: Region, artifact: Artifact, options: DLAOptions
    ) -> Artifact | None:
        """Return the program of `first` with the weights of `region`; None for regions in integers.

        There the commands depend on scales, and on how far sums can go.
        """
        from .region_artifact import exchange_weights

        return exchange_weights(region, first, artifact)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return an executor that runs the program on the simulator; the region's model is not used.

        Raises InputError unless the artifact is a program with the inputs and outputs of the region.
        """
        return _load(region, artifact)

    def trace(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Mapping[str, AnyArray]:
        """Return the results of the layers, as the simulator computes them; raises as `load` does.

        Left out are those of which rows were overwritten before the last was computed (`stripes`).
        """
        return _load(region, artifact).trace(region, inputs)

    def profile(
        self, region: Region, artifact: Artifact, inputs: Mapping[str, AnyArray]
    ) -> Sequence[OperatorTime]:
        """Return the cycles of the layers, which depend on no values; raises as `load` does."""
        del inputs
        from .machine import read_figures

        return _load(region, artifact).profile(read_figures().frequency)

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return yes: the simulator is here, and compiles again what is of another version."""
        verdict, known = _judge_version(metadata), " and ".join(map(str, VERSIONS))
        again = "" if verdict else str(verdict)
        return Fit("simulator of dla", accepts=f"instruction set {known}", again=again)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the program is for a version of the instruction set that is installed."""
        return _judge_version(artifact.metadata)

    def driver(self) -> DriverSources:
        """Return the sources of the driver, which executes programs on this processor."""
        folder = Path(__file__).parent / "driver"
        return DriverSources(self.name, tuple(sorted(folder.glob("*.c"))), ("m",), abi=2)

    def check(self, model: onnx.ModelProto, options: DLAOptions) -> Sequence[Verdict]:
        """Return for each node whether it can be lowered, or why it cannot."""
        from .compiler import check_nodes

        del options  # none of them decides what is taken
        return check_nodes(model)

    def estimate(self, region: Region, options: DLAOptions, artifact: Artifact) -> Cycles:
        """Return the cycles that the simulator counts for the program, with those of the launch."""
        from .machine import read_figures
        from .region_artifact import read_cycles

        return read_cycles(artifact, read_figures())


def _load(region: Region, artifact: Artifact) -> ProgramExecutor:
    from .machine import read_figures
    from .region_artifact import make_executor

    return make_executor(region, artifact, read_figures())


def _judge_version(metadata: Mapping[str, str]) -> Verdict:
    made, known = metadata.get(ISA, "none"), tuple(map(str, VERSIONS))
    if made in known:
        return YES
    return refuse(
        f"the program is for version {made} of the instruction set, but this is for "
        f"{' and '.join(known)}"
    )
