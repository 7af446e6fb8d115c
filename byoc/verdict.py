"""The answer to "may it?": yes, or no with the reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """Falsy when there is a reason against; the reasons are sentences for the user, worst first."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether nothing speaks against it."""
        return not self.reasons

    def __str__(self) -> str:
        """Return `yes`, or all reasons in one line."""
        return "; ".join(self.reasons) or "yes"


YES = Verdict()


def refuse(*reasons: str) -> Verdict:
    """Return a refusal for the given reasons."""
    return Verdict(reasons)


@dataclass(frozen=True, slots=True)
class Mark:
    """What an annotator says of one node.

    `verdict` is yes when a rule accepts it; `rule` is that rule's place in its file (`ops[3]`, or
    `dla.yaml: ops[3]` for one that was inherited), empty when none does. With `standalone` False the
    node is taken only inside a composite; with `must` it has to run on the accelerator. `plain` and
    `quantized` say which kind of rule accepts it, one for the node as it stands or one for the node
    between DequantizeLinear and QuantizeLinear; they count only where the verdict is yes.
    """

    verdict: Verdict
    rule: str = ""
    standalone: bool = True
    must: bool = False
    plain: bool = True
    quantized: bool = False
