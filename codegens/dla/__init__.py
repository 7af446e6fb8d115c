"""The codegen of the vanilla accelerator: a compiler, and the machine in numpy that runs programs.

It is there to be copied. The compiler goes one way: `lower` makes layers of a region's operations,
`schedule` orders them and places their tensors in the arena, `tiles` cuts them so that they fit into the
scratchpad, `emit` writes commands and `pack` the weights. `isa` is the manual of the machine.
"""

from collections.abc import Sequence

import onnx

from byoc.codegen import Artifact, Executor, Region
from byoc.verdict import YES, Verdict, refuse

from . import oracle
from .artifact import ISA, executor, packed
from .binary import VERSION
from .build import build
from .cycles import read_figures
from .options import DLAOptions


class DLA:
    """Compiles regions for the vanilla accelerator, and runs them on its simulator."""

    name = "dla"
    api = 1
    Options = DLAOptions
    concurrent = True

    def compile(self, region: Region, options: DLAOptions) -> Artifact:
        """Return the program, its weights, and where its inputs and outputs lie.

        Raises CompileError for what the machine does not do, with the nodes at fault, and ResourceError
        for a layer of which no tile fits into the scratchpad.
        """
        return packed(build(region, options, read_figures()), options)

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the program on the simulator; the region is not asked.

        Raises InputError where the artifact holds no program.
        """
        return executor(artifact, read_figures())

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the program is for the version of the machine that is here."""
        made = artifact.metadata.get(ISA, "none")
        if made == str(VERSION):
            return YES
        return refuse(f"the program is for version {made} of the instruction set, and here is {VERSION}")

    def check(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """Return for each node whether it can be lowered, or why it cannot."""
        return oracle.check(model)

    def cost(self, region: Region) -> float:
        """Return the seconds that a region takes by the machine's clock, the launch included."""
        return build(region, DLAOptions(), read_figures()).statistics.seconds
