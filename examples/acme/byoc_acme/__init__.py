"""The codegen that byoc finds: compile a region to a program, and run programs in a simulator."""

import io
import json
from dataclasses import dataclass, field

import numpy as np

from byoc.codegen import Artifact, Executor, Region
from byoc_acme.program import assemble
from byoc_acme.simulator import run


@dataclass(frozen=True)
class Options:
    """What a user may say with `--codegen-option NAME=VALUE`, or in the rule file."""

    indent: int = field(default=1, metadata={"help": "Spaces by which program.json is indented."})


class Acme:
    """Compiles for the accelerator described in annotations/acme.yaml."""

    name = "acme"
    api = 1
    Options = Options

    def compile(self, region: Region, options: Options) -> Artifact:
        """Return program.json and weights.npz. Raises CompileError for what it has no code for."""
        program, weights = assemble(region)
        packed = io.BytesIO()
        np.savez(packed, **weights)
        text = json.dumps(program, indent=options.indent)
        return Artifact({"program.json": text.encode(), "weights.npz": packed.getvalue()})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the program on numpy arrays."""
        program = json.loads(artifact.files["program.json"])
        packed = np.load(io.BytesIO(artifact.files["weights.npz"]))
        weights = {name: packed[name] for name in packed.files}
        outputs = [value.name for value in region.outputs]
        return lambda inputs: run(program, weights, inputs, outputs)
