"""What a codegen claims to do; what it does not claim is not tested."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Claims:
    """What a codegen claims besides computing what ONNX says.

    `deterministic`: the same region gives the same bytes, compiled again and in another process.
    `dynamic_batch`: extents may differ from run to run, the first above all. `threads`: an executor may
    be called by any thread, and by two at once where the codegen says `concurrent = True`; otherwise
    they take turns.
    """

    deterministic: bool = True
    dynamic_batch: bool = False
    threads: bool = True
