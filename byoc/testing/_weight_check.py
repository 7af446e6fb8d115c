"""The check of a codegen that makes of an artifact that of a region with other weights."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from byoc.codegen import Artifact, Executable, Region, TakesWeights, exchange_weights, find_alike
from byoc.testing._case_compiler import CompiledCase
from byoc.testing._codegen_checks import CodegenChecks

WEIGHT_FORMS = ("a large constant", "a shared constant", "a computed constant")
"""The forms of regions that are drawn a second time, with other names and weights."""


@dataclass(frozen=True, eq=False)
class WeightExchange:
    """An artifact of the region of `other`, made of that of the region of `first`.

    The two cases are one form with different names and weights.
    """

    first: CompiledCase
    other: CompiledCase
    artifact: Artifact

    @property
    def region(self) -> Region:
        """The region that the artifact is for."""
        return self.other.regions[0][0]

    def as_case(self) -> CompiledCase:
        """Return the other case with the artifact in the place of the one that was compiled for it."""
        name = f"{self.first.name}, with the weights of another region"
        case = replace(self.other.case, name=name)
        return replace(self.other, case=case, regions=((self.region, self.artifact),))

    def check(self, checks: CodegenChecks) -> Iterator[str]:
        """Check that the artifact has the keys of a compiled one, and computes with its own weights."""
        compiled = self.other.regions[0][1]
        found = [f"file '{name}'" for name in compiled.files.keys() ^ self.artifact.files.keys()]
        found += [
            f"metadata '{name}'" for name in compiled.metadata.keys() ^ self.artifact.metadata.keys()
        ]
        for what in found:
            yield f"{self.first.name}: of `compile` and `take_weights` only one gives the {what}"
        if not isinstance(checks.codegen, Executable):
            return
        run = checks.load(self.region, self.artifact)
        for inputs, expected in self.other.expected_runs[self.region.name].values:
            for problem in checks.find_differences(self.region, expected, run(inputs)):
                yield f"{self.first.name}, with the weights of another region: {problem}"


def exchange_case_weights(
    codegen: TakesWeights, checks: CodegenChecks, first: CompiledCase, other: CompiledCase
) -> WeightExchange | None:
    """Return the artifact of `take_weights` for another case, None where the region has to be compiled.

    Raises CompileError as the codegen does.
    """
    (region, artifact), (twin, _) = first.regions[0], other.regions[0]
    if not find_alike([region, twin]):
        return None
    made = exchange_weights(codegen, twin, region, artifact, checks.options)
    return None if made is None else WeightExchange(first, other, made)
