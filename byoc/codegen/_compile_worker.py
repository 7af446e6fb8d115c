"""The process that compiles in isolation: `python -m byoc.codegen._compile_worker FOLDER`."""

import faulthandler
import json
import os
import pickle
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byoc.codegen._calling import compile_region, compile_together, find_codegen, parse_codegen_options
from byoc.codegen._interface import Artifact, CompileError, ResourceError, Together
from byoc.codegen._isolation import PATH_VARIABLE, REQUEST_FILE, RESULT_FILE, CompileRequest
from byoc.errors import ByocError, MissingRuntimeError


def main(folder: Path) -> None:
    """Execute the request in a folder, and write the result beside it."""
    request: CompileRequest = pickle.loads((folder / REQUEST_FILE).read_bytes())  # noqa: S301 - written by byoc
    os.environ.pop(PATH_VARIABLE, None)
    if request.path is not None:
        os.environ[PATH_VARIABLE] = request.path
    result = _compile(request, folder)
    part = folder / f"{RESULT_FILE}.part"
    part.write_text(json.dumps(result), encoding="utf-8")
    part.rename(folder / RESULT_FILE)


def _compile(request: CompileRequest, folder: Path) -> dict[str, Any]:
    try:
        codegen = find_codegen(request.codegen)
        options = parse_codegen_options(codegen, request.options)
    except ByocError as error:
        return _describe_failure("unusable", error)
    try:
        if request.together and isinstance(codegen, Together):
            made: Mapping[str, Artifact] = compile_together(codegen, request.regions, options)
        else:
            made = {region.name: compile_region(codegen, region, options) for region in request.regions}
    except ResourceError as error:
        return _describe_failure("too large", error)
    except CompileError as error:
        return _describe_failure("refused", error)
    except MissingRuntimeError as error:
        return _describe_failure("missing", error)
    return {"artifacts": _write_artifacts(made, folder)}


def _describe_failure(kind: str, error: ByocError) -> dict[str, Any]:
    if os.environ.get("BYOC_DEBUG"):
        traceback.print_exception(error)
    failure = {"kind": kind, "reason": str(error), "nodes": list(getattr(error, "nodes", ()))}
    return {"error": {**failure, "region": getattr(error, "region", "")}}


def _write_artifacts(made: Mapping[str, Artifact], folder: Path) -> dict[str, Any]:
    """Write the files of artifacts under numbers, since their names are not yet checked."""
    result = {}
    count = 0
    for region, artifact in made.items():
        files = []
        for name, content in artifact.files.items():
            (folder / str(count)).write_bytes(content)
            files.append((str(name), count))
            count += 1
        result[region] = {"files": files, "metadata": list(artifact.metadata.items())}
    return result


if __name__ == "__main__":
    if os.environ.get("BYOC_DEBUG"):
        faulthandler.enable()
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the result is written: crashes while libraries unload do not matter
