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

    `verdict` is yes when a rule accepts it; `rule` is that rule's place in its file (`ops[3]`), empty
    when none does. With `standalone` False the node is taken only inside a composite.
    """

    verdict: Verdict
    rule: str = ""
    standalone: bool = True
