"""What a codegen did not take, as facts that the placement can be solved again with."""

from collections.abc import Sequence
from dataclasses import dataclass

from byoc.codegen.api import CompileError


@dataclass(frozen=True)
class Refusal:
    """A region that its codegen did not compile, load or run, and why.

    `nodes` are those at fault, as in CompileError; empty where the region as a whole is. `too_large`
    says that fewer nodes at once may do.
    """

    target: str
    codegen: str
    region: str
    reason: str
    nodes: tuple[str, ...] = ()
    too_large: bool = False

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"codegen {self.codegen}: {self.region}: {self.reason}"


class RefusedError(CompileError):
    """Some regions were refused; the message is that of the first unless another is given."""

    def __init__(self, refusals: Sequence[Refusal], message: str = "") -> None:
        """Keep all of them."""
        super().__init__(message or str(refusals[0]), refusals[0].nodes)
        self.refusals = tuple(refusals)
