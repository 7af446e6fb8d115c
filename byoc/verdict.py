"""Verdicts: yes, or no with reasons."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """Falsy if there are reasons against; these are sentences for the user, the most severe first."""

    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is no reason against."""
        return not self.reasons

    def __str__(self) -> str:
        """Return `yes`, or all reasons in one line."""
        return "; ".join(self.reasons) or "yes"


YES = Verdict()


def refuse(*reasons: str) -> Verdict:
    """Make a refusal with the given reasons."""
    return Verdict(reasons)


@dataclass(frozen=True, slots=True)
class Mark:
    """The annotation of a node.

    `verdict` is yes if a rule accepts it; `rule` is the location of that rule (`ops[3]`, or `dla.yaml:
    ops[3]` if inherited), else empty. If `standalone` is False the node is supported only inside a
    composite; if `must` is True it has to run on the accelerator. `plain` and `quantized` tell whether a
    rule accepts the node as it is, or between DequantizeLinear and QuantizeLinear; they are valid only
    if the verdict is yes.
    """

    verdict: Verdict
    rule: str = ""
    standalone: bool = True
    is_required: bool = False
    accepts_plain: bool = True
    accepts_quantized: bool = False
