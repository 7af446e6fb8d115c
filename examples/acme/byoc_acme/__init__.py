"""The codegen that byoc finds: compile a region to a program, and run programs in a simulator."""

import io
import json
from collections.abc import Mapping

import numpy as np

from byoc.codegen import Artifact, CompileError, Executor, Region
from byoc_acme.program import assemble
from byoc_acme.simulator import run


class Acme:
    """Compiles for the accelerator described in annotations/acme.yaml."""

    name = "acme"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        """Return program.json and weights.npz. Raises CompileError for what it has no code for."""
        if options:
            raise CompileError(f"acme has no option '{next(iter(options))}'")
        program, weights = assemble(region.load(fold=True))
        packed = io.BytesIO()
        np.savez(packed, **weights)
        text = json.dumps(program, indent=1)
        return Artifact({"program.json": text.encode(), "weights.npz": packed.getvalue()})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the program on numpy arrays."""
        program = json.loads(artifact.files["program.json"])
        packed = np.load(io.BytesIO(artifact.files["weights.npz"]))
        weights = {name: packed[name] for name in packed.files}
        outputs = [value.name for value in region.outputs]
        return lambda inputs: run(program, weights, inputs, outputs)
