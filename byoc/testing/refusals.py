"""What a codegen does with what it cannot compile, and what its errors say."""

from typing import Any

import numpy as np

from byoc.codegen import Codegen, Executable, Region
from byoc.codegen.refusal import RefusedError
from byoc.errors import ByocError
from byoc.runtime.regions import RegionFailedError, executor


def why(error: ByocError) -> str:
    """Return what an error says, without the codegen's name, which is known."""
    if isinstance(error, RefusedError):
        return error.refusals[0].reason
    return error.reason if isinstance(error, RegionFailedError) else str(error)


def refuses(codegen: Codegen, region: Region, options: Any) -> list[str]:
    """Check that a region that nobody can run is refused with a reason: by compile, or else by load."""
    try:
        artifact = codegen.compile(region, options)
    except ByocError as error:
        if not str(error).strip():
            return ['it refuses a region without a reason: CompileError("why", nodes=[...])']
        return []
    except Exception as error:  # whatever a plug-in raises is what is looked for
        return [
            f"for an operator that there is not, compile raises {type(error).__name__} ({error}): "
            "raise CompileError with a reason for what it cannot compile"
        ]
    if not isinstance(codegen, Executable):
        return ["it compiles an operator that there is not: raise CompileError with the reason"]
    try:
        executor(codegen, codegen.name, region, artifact)({"x": np.ones((2, 3), np.float32)})
    except ByocError:
        return []
    return ["it compiles and runs an operator that there is not: raise CompileError with the reason"]
