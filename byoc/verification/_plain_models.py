"""Models run plainly, to compare with: on onnxruntime; without a kernel there, on `onnx.reference`."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from byoc.codegen import Executor, Region, open_region_session
from byoc.errors import InputError, describe_error
from byoc.model import Model, copy_without, embed_external_data, walk_tensors
from byoc.onnxrt import open_session, run_session, without_optimizations

_NO_KERNEL = re.compile(r"NOT_IMPLEMENTED.*?Could not find an implementation for (\S+?)\(")


@dataclass(frozen=True)
class PlainModel:
    """A model ready to run, and the judge where it is not onnxruntime: a part of a sentence."""

    run: Executor
    judge: str = ""


def open_plain(
    model: ModelProto | Path, folder: Path | None, load: Callable[[], ModelProto]
) -> PlainModel:
    """Open a model on onnxruntime without optimizations, or on onnx.reference where that has no kernel.

    `folder` holds the external data of a model in memory; `load` returns the model with all its weights,
    and is called only for onnx.reference. Raises InputError where neither opens it.
    """
    try:
        with without_optimizations():
            session = open_session(model, folder)
    except InputError as error:
        missing = _NO_KERNEL.search(str(error))
        if missing is None:
            raise
        return _open_reference(load(), missing[1], error)
    return PlainModel(lambda inputs: run_session(session, inputs))


def _open_reference(model: ModelProto, operator: str, error: InputError) -> PlainModel:
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    try:
        evaluator = ReferenceEvaluator(model)
    except Exception:
        raise error from None

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with np.errstate(all="ignore"):
                made = evaluator.run(None, dict(inputs))
        except Exception as failure:  # as above
            raise InputError(f"onnx.reference cannot run the model: {describe_error(failure)}") from None
        return dict(zip(evaluator.output_names, made, strict=True))

    return PlainModel(run, f"onnx.reference, since onnxruntime has no kernel for {operator}")


def open_original(proto: ModelProto, model: Model) -> PlainModel:
    """Open a model, given or derived from it, to compare with. Raises InputError."""

    def load() -> ModelProto:
        whole = copy_without(proto)
        embed_external_data(walk_tensors(whole), model.folder)
        return whole

    return open_plain(proto, model.folder, load)


def open_region(region: Region) -> PlainModel:
    """Open a region's own ONNX, to compare with. Raises InputError."""
    try:
        with without_optimizations():
            session = open_region_session(region)
    except InputError:
        return open_plain(region.open_model, region.path.parent, lambda: region.load(inline=True))

    def run(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        with without_optimizations():  # it may open another session
            return session(inputs)

    return PlainModel(run)


def run_plain(proto: ModelProto, model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model, given or derived from it, plainly. Raises InputError."""
    return dict(open_original(proto, model).run(inputs))


def make_reference_executor(region: Region) -> Executor:
    """Return an executor of a region's own ONNX, run plainly. Raises InputError."""
    return open_region(region).run


@contextmanager
def convert_errors(kind: type[InputError], prefix: str) -> Iterator[None]:
    """Raise an InputError again as `kind`, with a prefix."""
    try:
        yield
    except InputError as error:
        raise kind(f"{prefix}: {error}") from error
