"""The codegen that byoc finds: compile a region to a program, and run programs in a simulator."""

import io
import json
from dataclasses import dataclass, field

import numpy as np
from byoc.codegen import YES, Artifact, Executor, Region, Verdict, refuse

from byoc_acme.program import FORMAT, assemble
from byoc_acme.simulator import run


@dataclass(frozen=True)
class AcmeOptions:
    """The options that users set with `--codegen-option NAME=VALUE` or in the rule file."""

    indent: int = field(default=1, metadata={"help": "Spaces by which program.json is indented."})


class Acme:
    """Compiles for the accelerator that annotations/acme.yaml describes."""

    name = "acme"
    # What else byoc asks for where a class has it, such as `trace` and `profile`: docs/codegen.md.
    api = 4
    Options = AcmeOptions
    # What is compiled is kept until there is another version of these, or of this package.
    libraries = ("numpy",)

    def compile(self, region: Region, options: AcmeOptions) -> Artifact:
        """Compile to program.json and weights.npz. Raises CompileError for unsupported operators."""
        program, weights = assemble(region)
        packed = io.BytesIO()
        np.savez(packed, **weights)  # type: ignore[arg-type]
        text = json.dumps(program, indent=options.indent)
        files = {"program.json": text.encode(), "weights.npz": packed.getvalue()}
        return Artifact(files, {"format": FORMAT})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the program on numpy arrays."""
        program = json.loads(artifact.files["program.json"])
        packed = np.load(io.BytesIO(artifact.files["weights.npz"]))
        weights = {name: packed[name] for name in packed.files}
        outputs = [value.name for value in region.outputs]
        return lambda inputs: run(program, weights, inputs, outputs)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether this version can run an artifact, which may be an older one's."""
        found = artifact.metadata.get("format")
        return YES if found == FORMAT else refuse(f"its format is {found}, this runs {FORMAT}")
