"""A fault on disk: the smallest model that shows it, with its inputs and outputs.

The folder can be sent to a vendor: `byoc verify FOLDER` compiles the model with the codegen once more,
and reports whether it is still wrong.
"""

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from byoc.bundle import FAULT_FILE, Consent, RegionCompiler
from byoc.codegen import UNLESS_TRUSTED, Codegens, Isolation, Region, drop_executing_options, read_region
from byoc.errors import InputError, escape_unprintable
from byoc.model import check_model, parse_layout
from byoc.samples import read_npz, restore_dtype, write_npz
from byoc.support import StrictModel, read_limited, require_inside, write_text
from byoc.verification._bisection import Fault
from byoc.verification._part_trials import run_trial, save_part
from byoc.verification._region_cutter import RegionPart
from byoc.verification._thresholds import DEFAULT_THRESHOLDS, Thresholds
from byoc.verification._verification_result import RegionError

FAULT_MODEL = "model.onnx"
FAULT_INPUTS = "inputs.npz"
_FILES = (FAULT_FILE, FAULT_MODEL, FAULT_INPUTS, "expected.npz", "actual.npz", "README.txt")
_MOST_BYTES = 1 << 24


class FaultFile(StrictModel):
    """The content of `fault.json`: the fault, and the way the model was compiled."""

    format: int = Field(ge=1, le=1)
    region: str
    target: str
    codegen: str
    codegen_options: dict[str, str]
    weights: str
    operation: str
    op: str
    operations: tuple[str, ...]
    told: str
    thresholds: dict[str, Any]


def write_fault(fault: Fault, folder: Path, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> None:
    """Write a fault to a folder, which is created; an earlier fault there is replaced.

    Raise InputError if the folder holds something else, or cannot be written.
    """
    if (
        folder.exists()
        and not (folder / FAULT_FILE).is_file()
        and (folder.is_file() or any(folder.iterdir()))
    ):
        raise InputError(f"{folder}: there is something else than a fault of byoc verify")
    if folder.is_symlink():  # the user named the folder around it, if any
        raise InputError(f"{folder}: cannot be written: it is a link")
    for name in _FILES:
        require_inside(folder, name)  # of an earlier fault, which may be a stranger's
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_part(fault.trial.part.model, folder / FAULT_MODEL)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    write_npz(folder / FAULT_INPUTS, fault.trial.part.inputs)
    write_npz(folder / "expected.npz", fault.trial.expected)
    write_npz(folder / "actual.npz", fault.trial.actual)
    content = FaultFile(
        format=1,
        region=fault.region,
        target=fault.target,
        codegen=fault.codegen,
        codegen_options=fault.options,
        weights=fault.weights,
        operation=fault.operation,
        op=fault.op,
        operations=fault.operations,
        told=str(fault),
        thresholds=asdict(thresholds) | {"asked": sorted(thresholds.asked)},
    )
    text = json.dumps(content.model_dump(mode="json"), indent=1, sort_keys=True)
    write_text(folder / FAULT_FILE, text + "\n")
    write_text(folder / "README.txt", _readme(fault, folder.name))


def rerun_fault(
    folder: Path,
    isolation: Isolation | None = UNLESS_TRUSTED,
    *,
    trust: bool = False,
    codegens: Iterable[str] | str | None = None,
) -> tuple[FaultFile, RegionError]:
    """Compile and run the model of a fault once more; return the fault and its error now.

    With `isolation` the codegen runs in a worker process, by default unless the user gives `trust`:
    nobody signs a fault. `codegens` names those that may compile it, by default all.

    Raise InputError if the folder holds no fault, or the codegen is not allowed, missing, refuses or
    fails.
    """
    path, model, inputs = (
        require_inside(folder, name) for name in (FAULT_FILE, FAULT_MODEL, FAULT_INPUTS)
    )
    try:
        with path.open("rb") as file:
            content = read_limited(file, _MOST_BYTES)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        fault = FaultFile.model_validate_json(content, strict=True)
        thresholds = Thresholds(**fault.thresholds)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValidationError, TypeError, ValueError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise InputError(f"{path}: not a fault of byoc verify: {first}") from None
    Consent.of(trust, codegens).require_allowed(fault.codegen, f"{path}: the fault is for")
    if isolation is not None and isolation.unless_trusted and trust:
        isolation = None
    weights = parse_layout(fault.weights) if fault.weights else None
    region = read_region(model, fault.region, fault.target, None, weights)
    try:
        check_model(region.model, folder)  # its weights are in no file outside of the folder
    except InputError as error:
        raise InputError(f"{model}: {error}") from None
    with closing(Codegens(isolation)) as found:
        codegen = found.find(fault.codegen)
        compiler = RegionCompiler(codegen, drop_executing_options(codegen, fault.codegen_options))
        trial = run_trial(
            RegionPart(region.model, _read_inputs(inputs, region)),
            region,
            compiler,
            thresholds,
        )
    return fault, RegionError(fault.region, trial.errors, layers=trial.layers)


def _read_inputs(path: Path, region: Region) -> dict[str, Any]:
    types = {contract.name: contract.type for contract in region.inputs}
    return {name: restore_dtype(array, types.get(name)) for name, array in read_npz(path).items()}


def _readme(fault: Fault, folder: str) -> str:
    options = "".join(f" --codegen-option {key}={value}" for key, value in fault.options.items())
    text = f"""{fault}.

{FAULT_MODEL}     the part of region {fault.region} that shows it: {", ".join(fault.operations)}
{FAULT_INPUTS}     what reaches them
expected.npz   what plain onnxruntime makes of that, its optimizations off
actual.npz     what codegen {fault.codegen} made of it{options and f" (with{options})"}

To compile it and run it again:

    byoc verify {folder}
"""
    return "".join(f"{escape_unprintable(line)}\n" for line in text.split("\n")[:-1])
