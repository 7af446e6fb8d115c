"""The check that a codegen refuses what cannot be compiled."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from byoc.codegen import (
    Codegen,
    CodegenFailedError,
    Executable,
    NotHereError,
    Region,
    compile_region,
    read_region,
)
from byoc.errors import ByocError
from byoc.runtime import load_executor

_NO_REASON = "it does not say why"  # what byoc says for a codegen that does not
_UNSUPPORTED_MODEL = """<ir_version: 8, opset_import: ["" : 17, "org.byoc.testing" : 1]>
g (float[2, 3] x) => (float[2, 3] y) { y = org.byoc.testing.NoSuchOperator(x) }"""


def write_unsupported_region(folder: Path, target: str) -> Region:
    """Write a region of a target with an operator that there is not."""
    path = folder / "region.onnx"
    onnx.save(onnx.parser.parse_model(_UNSUPPORTED_MODEL), path)
    return read_region(path, f"{target}_0", target)


def check_refusal(codegen: Codegen, region: Region, options: Any) -> list[str]:
    """Check that an unsupported region is refused with a reason, by `compile` or else by `load`."""
    try:
        artifact = compile_region(codegen, region, options)
    except CodegenFailedError as error:
        what = "for an operator that there is not, compile does not raise CompileError with a reason"
        return [f"{what}: {error}"]
    except ByocError as error:
        what = 'it refuses a region without a reason: CompileError("why", nodes=[...])'
        return [what] * (str(error) == _NO_REASON)
    compiled = "it compiles an operator that there is not: raise CompileError with the reason"
    if not isinstance(codegen, Executable):
        return [compiled]
    try:
        load_executor(codegen, codegen.name, region, artifact)({"x": np.ones((2, 3), np.float32)})
    except ByocError as error:
        is_not_here = isinstance(error, NotHereError) or isinstance(error.__cause__, NotHereError)
        return [compiled] * is_not_here
    return [compiled.replace("compiles", "compiles and runs")]
